"""Each rule finds what it names on the right line and nothing else; hostile source becomes a gap."""

import os
import textwrap
from pathlib import Path

import msgspec
import pytest

from bus.protocol import canonical
from consumers.cli.demo.scan import ScanFinding, ScanResult, scan


def write(folder: Path, name: str, source: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source if isinstance(source, bytes) else textwrap.dedent(source).encode())
    return path


def found(folder: Path, source: str) -> list[tuple[int, str]]:
    """Line and rule of each finding in *source*."""
    result = scan(write(folder, "module.py", source))
    assert result.gaps == ()
    return [(finding.line, finding.rule) for finding in result.findings]


# --- rules ------------------------------------------------------------------------------------------------------------

POSITIVE = {
    "bare-except": ("try:\n    work()\nexcept ValueError:\n    raise\nexcept:\n    raise\n", [5]),
    "mutable-default": (
        "def f(\n    a,\n    b=[],\n    *,\n    c={},\n):\n    pass\ng = lambda x={}: x\nasync def h(y={1}): ...\n",
        [3, 5, 8, 9],
    ),
    "long-function": (
        "@decorated\ndef f():\n" + "    work()\n" * 60 + "async def g():\n" + "    work()\n" * 60,
        [2, 63],
    ),
    "eval-or-exec": ("x = 1\nf(\n    eval(x),\n)\nexec('y = 1')\n", [3, 5]),
    "none-comparison": ("a = b\nif a == None: ...\nc = a != None\n", [2, 3]),
}
NEGATIVE = {
    "bare-except": "try:\n    work()\nexcept ValueError:\n    raise\n",
    "mutable-default": "def f(a=(), b=None, c=frozenset(), *, d): ...\ng = lambda: []\n",
    "long-function": "def f():\n" + "    work()\n" * 59 + "class A:\n" + "    x = 1\n" * 100,
    "eval-or-exec": "a.eval(1)\nliteral_eval('1')\nevaluate = eval\n",
    "none-comparison": "a is None\na is not None\na == 1\nNone is a\n",
}


@pytest.mark.parametrize("rule", POSITIVE)
def test_a_rule_finds_what_it_names_on_its_line(tmp_path: Path, rule: str) -> None:
    source, lines = POSITIVE[rule]
    assert found(tmp_path, source) == [(line, rule) for line in lines]


@pytest.mark.parametrize("rule", NEGATIVE)
def test_a_rule_leaves_the_rest_alone(tmp_path: Path, rule: str) -> None:
    assert found(tmp_path, NEGATIVE[rule]) == []


def test_every_rule_is_tested_both_ways() -> None:
    assert len(POSITIVE) == 5
    assert POSITIVE.keys() == NEGATIVE.keys()


@pytest.mark.parametrize(
    ("rule", "severity"),
    [
        ("bare-except", "high"),
        ("mutable-default", "high"),
        ("long-function", "medium"),
        ("eval-or-exec", "critical"),
        ("none-comparison", "low"),
    ],
)
def test_severities(tmp_path: Path, rule: str, severity: str) -> None:
    assert {finding.severity for finding in scan(write(tmp_path, "a.py", POSITIVE[rule][0])).findings} == {severity}


def test_a_finding_says_what_and_what_to_do(tmp_path: Path) -> None:
    (finding,) = scan(write(tmp_path, "a.py", "def f(a=[]): ...\n")).findings
    assert finding == ScanFinding(
        file="a.py",
        line=1,
        rule="mutable-default",
        issue="a mutable default is shared by all calls",
        severity="high",
        suggestion="default to None and make the object inside",
    )


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_are_found_in_order_and_named_from_the_root(tmp_path: Path) -> None:
    for name in ("b.py", "a/z.py", "a/b/c.py", "a.txt", "a.pyc"):
        write(tmp_path, name, "exec(x)\n")
    result = scan(tmp_path)
    assert [finding.file for finding in result.findings] == ["a/b/c.py", "a/z.py", "b.py"]
    assert (result.files_scanned, result.lines) == (3, 3)


def test_other_peoples_folders_are_skipped(tmp_path: Path) -> None:
    for folder in (".venv", ".git", "node_modules", "build", "dist", "__pycache__", "a/.hidden", "a/build"):
        write(tmp_path, f"{folder}/x.py", "exec(x)\n")
    assert scan(tmp_path) == ScanResult(findings=(), files_scanned=0, lines=0, gaps=())


def test_a_hidden_root_is_scanned(tmp_path: Path) -> None:
    write(tmp_path, ".hidden/build/x.py", "exec(x)\n")
    assert scan(tmp_path / ".hidden" / "build").files_scanned == 1


def test_links_and_special_files_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "real.py", "exec(x)\n")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again.py").symlink_to(tmp_path / "real.py")
    (tmp_path / "dangling.py").symlink_to(tmp_path / "none.py")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    assert [finding.file for finding in scan(tmp_path).findings] == ["real.py"]


def test_what_is_beyond_the_limit_is_a_gap(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path, f"{number}.py", "exec(x)\n")
    result = scan(tmp_path, max_files=2)
    assert [finding.file for finding in result.findings] == ["0.py", "1.py"]
    assert result.gaps == ("3 more files: over the limit of 2",)


def test_a_root_that_is_not_there_is_a_gap(tmp_path: Path) -> None:
    assert scan(tmp_path / "none").gaps == ("none: is no regular file or folder",)


HOSTILE = {
    "syntax": (b"def (:\n", "line 1"),
    "encoding": (b"x = '\xff'\n", "cannot be parsed"),
    "unknown coding": (b"# coding: klingon\nx = 1\n", "klingon"),
    "null bytes": (b"x = 1\0\n", "null bytes"),
    "indentation": (b"if x:\n  a\n b\n", "line 3"),
    "too large": (b"#" * 1_048_577, "larger than 1 MiB"),
    "digits": (b"x = " + b"9" * 10_000, "cannot be parsed"),
    "unfinished": (b"x = '''", "cannot be parsed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_parsed_is_a_gap_with_its_reason(tmp_path: Path, name: str) -> None:
    source, reason = HOSTILE[name]
    write(tmp_path, "bad.py", source)
    write(tmp_path, "good.py", "exec(x)\n")
    result = scan(tmp_path)
    assert [finding.file for finding in result.findings] == ["good.py"]
    assert result.files_scanned == 1
    (gap,) = result.gaps
    assert gap.startswith("bad.py: ")
    assert reason in gap


@pytest.mark.parametrize(
    "source", [b"[" * 5000 + b"]" * 5000, b"-" * 100_000 + b"1", b"+".join([b"1"] * 100_000), b"x" + b".x" * 100_000]
)
def test_nesting_too_deep_for_the_parser_is_a_gap_and_no_crash(tmp_path: Path, source: bytes) -> None:
    result = scan(write(tmp_path, "deep.py", source))
    assert result.findings == ()
    assert result.files_scanned + len(result.gaps) == 1


def test_deep_but_legal_source_is_scanned(tmp_path: Path) -> None:
    assert found(
        tmp_path, "def f(a=" + "[" * 90 + "]" * 90 + "): ...\nx = {0x" + "f" * 9000 + ": 1, 'a': 1, 'a': 2}\n"
    ) == [(1, "mutable-default")]


def test_warnings_about_foreign_code_stay_silent(tmp_path: Path) -> None:
    assert found(tmp_path, "x = '\\d'\nassert (x, 1)\ny = 1 is 1\nexec(x)\n") == [(4, "eval-or-exec")]


def test_a_declared_encoding_is_honoured(tmp_path: Path) -> None:
    path = write(tmp_path, "latin.py", "# coding: latin-1\nexec('\u00e9')\n".encode("latin-1"))
    assert [finding.line for finding in scan(path).findings] == [2]


def test_an_empty_file_counts(tmp_path: Path) -> None:
    assert scan(write(tmp_path, "empty.py", "")) == ScanResult(findings=(), files_scanned=1, lines=0, gaps=())


def test_names_that_are_not_utf8_and_surrogates_in_source_can_still_be_sent(tmp_path: Path) -> None:
    write(tmp_path, os.fsdecode(b"\xff.py"), "exec('\\ud800')\n")
    result = scan(tmp_path)
    assert len(result.findings) == 1
    assert canonical.encode(msgspec.to_builtins(result))


def test_the_same_tree_gives_the_same_result(tmp_path: Path) -> None:
    for number, (source, _) in enumerate(POSITIVE.values()):
        write(tmp_path, f"{number % 3}/{number}.py", source)
    first = scan(tmp_path)
    assert first == scan(tmp_path)
    assert list(first.findings) == sorted(
        first.findings, key=lambda finding: (finding.file, finding.line, finding.rule)
    )
