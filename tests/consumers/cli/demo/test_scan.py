"""Each rule finds what it names on the right line and nothing else; hostile source becomes a gap."""

import os
import textwrap
from pathlib import Path

import msgspec
import pytest

from bus.protocol import canonical
from consumers.agents.demo.scan import Scanned, scan


def write(folder: Path, name: str, source: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source if isinstance(source, bytes) else textwrap.dedent(source).encode())
    return path


def found(folder: Path, source: str) -> list[tuple[str | None, str]]:
    """Line and severity of each finding in *source*."""
    write(folder, "module.py", source)
    result = scan(folder, folder)
    assert result.gaps == []
    return [(finding.line_range, finding.severity) for finding in result.findings]


RULES = {
    "bare-except": ("try:\n    work()\nexcept ValueError:\n    raise\nexcept:\n    raise\n", "high", [5]),
    "mutable-default": (
        "def f(\n    a,\n    b=[],\n    *,\n    c={},\n):\n    pass\ng = lambda x={}: x\nasync def h(y={1}): ...\n",
        "high",
        [3, 5, 8, 9],
    ),
    "long-function": (
        "@decorated\ndef f():\n" + "    work()\n" * 60 + "async def g():\n" + "    work()\n" * 60,
        "medium",
        [2, 63],
    ),
    "eval-or-exec": ("x = 1\nf(\n    eval(x),\n)\nexec('y = 1')\n", "critical", [3, 5]),
    "none-comparison": ("a = b\nif a == None: ...\nc = a != None\n", "low", [2, 3]),
}
INNOCENT = """
try:
    work()
except ValueError:
    raise
def f(a=(), b=None, *, c=frozenset()): ...
class A:
    x = 1
a.eval(1)
evaluate = eval
a is None or None is not a
"""


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_finds_what_it_names_on_its_line(tmp_path: Path, rule: str) -> None:
    source, severity, lines = RULES[rule]
    assert found(tmp_path, source) == [(str(line), severity) for line in lines]


def test_the_rest_is_left_alone(tmp_path: Path) -> None:
    assert found(tmp_path, INNOCENT) == []


def test_files_are_found_in_order_and_other_peoples_folders_and_links_are_not(tmp_path: Path) -> None:
    for name in ("b.py", "a/z.py", "a/b/c.py", "a.txt", ".venv/x.py", "node_modules/x.py", "a/.hidden/x.py"):
        write(tmp_path, name, "exec(x)\n")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again.py").symlink_to(tmp_path / "b.py")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    result = scan(tmp_path, tmp_path)
    assert [finding.file for finding in result.findings] == ["a/b/c.py", "a/z.py", "b.py"]
    assert (result.files, result.lines) == (3, 3)
    assert scan(tmp_path, tmp_path, max_files=2).gaps == ["1 more files: over the limit of 2"]


def test_one_file_may_be_named(tmp_path: Path) -> None:
    (finding,) = scan(write(tmp_path, "a.py", "exec(x)\n"), tmp_path).findings
    assert finding.file == "a.py"


def test_a_missing_root_folder_gives_no_files(tmp_path: Path) -> None:
    assert scan(tmp_path / "none", tmp_path) == Scanned()


HOSTILE = {
    "syntax": (b"def (:\n", "line 1"),
    "encoding": (b"x = '\xff'\n", ""),
    "unknown coding": (b"# coding: klingon\nx = 1\n", "klingon"),
    "null bytes": (b"x = 1\0\n", "null bytes"),
    "too large": (b"#" * 1_048_577, "larger than 1 MiB"),
    "digits": (b"x = " + b"9" * 10_000, ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_parsed_is_a_gap_with_its_reason(tmp_path: Path, name: str) -> None:
    source, reason = HOSTILE[name]
    write(tmp_path, "bad.py", source)
    write(tmp_path, "good.py", "exec(x)\n")
    result = scan(tmp_path, tmp_path)
    assert [finding.file for finding in result.findings] == ["good.py"]
    (gap,) = result.gaps
    assert gap.startswith("bad.py: cannot be parsed")
    assert reason in gap


@pytest.mark.parametrize("source", [b"[" * 5000 + b"]" * 5000, b"-" * 100_000 + b"1", b"+".join([b"1"] * 100_000)])
def test_nesting_too_deep_for_the_parser_is_no_crash(tmp_path: Path, source: bytes) -> None:
    result = scan(write(tmp_path, "deep.py", source), tmp_path)
    assert (result.findings, result.files + len(result.gaps)) == ([], 1)


def test_non_utf8_names_and_foreign_code_warnings_are_harmless(tmp_path: Path) -> None:
    write(tmp_path, os.fsdecode(b"\xff.py"), "exec('\\ud800')\nassert (x, '\\d')\n")
    result = scan(tmp_path, tmp_path)
    assert len(result.findings) == 1
    assert canonical.encode(msgspec.to_builtins(result))
