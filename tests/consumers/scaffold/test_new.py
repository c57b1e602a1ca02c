"""`sealbus new`: the files of each choice, what is refused, and projects whose tests and checks pass.

`tests/deploy/test_new_projects.py` installs projects with the wheel.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from consumers.cli import main
from consumers.cli.shell import Shell
from consumers.scaffold.names import project_name
from consumers.scaffold.project import EXTRAS, FRAMEWORKS, TEMPLATES, Choice, project_files

ROOT = Path(__file__).parents[3]
EVERY_CHOICE = [
    (template, extras)
    for template in TEMPLATES
    for count in range(len(EXTRAS) + 1)
    for extras in itertools.combinations(EXTRAS, count)
    if len({*extras} & {*FRAMEWORKS}) < 2
]
BASE = {
    ".gitignore",
    ".python-version",
    "README.md",
    "pyproject.toml",
    "sealbus.toml",
    "src/desk/__init__.py",
}
TYPES = {"src/desk/messages.py"}
ALONE = {"src/desk/agent.py", "tests/test_agent.py"}
AGENT = ALONE | TYPES
MODEL = {
    ".env.example",
    "src/desk/assistant.py",
    "src/desk/scripted.py",
    "src/desk/tools.py",
}
TEAM = {"src/desk/planner.py", "src/desk/researcher.py", "tests/test_team.py"} | TYPES
POLICY = {"policy.toml", "policy.cases.toml"}


def new(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["new", *(str(each) for each in arguments)])


def made(folder: Path, *arguments: str) -> Path:
    done = new(folder, *arguments)
    assert done.exit_code == 0, done.output
    return folder


def run(project: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", *command],
        cwd=project,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(Path.home()),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("template", "extras", "files"),
    [
        ("agent", [], BASE | AGENT),
        ("agent", ["keys"], BASE | AGENT | POLICY),
        ("agent", ["kafka"], BASE | AGENT | {"compose.yaml"}),
        ("agent", ["postgres"], BASE | AGENT | {"compose.yaml", "schema.sql", "src/desk/effects.py"}),
        ("agent", ["openai"], BASE | ALONE | MODEL | POLICY),
        ("agent", ["openai", "postgres"], BASE | ALONE | MODEL | POLICY | {"compose.yaml"}),
        ("llm", [], BASE | ALONE | MODEL | POLICY),
        ("team", ["openai"], BASE | TEAM | MODEL | POLICY),
        ("web", [], BASE | AGENT | {"src/desk/web.py", "tests/test_web.py"}),
        ("team", [], BASE | TEAM),
    ],
)
def test_the_files_of_a_choice(template: str, extras: list[str], files: set[str]) -> None:
    assert set(project_files(Choice(project_name("desk"), template, frozenset(extras)))) == files


def _files_of_every_choice() -> Iterator[tuple[str, str]]:
    seen: set[tuple[str, str]] = set()
    for template, extras in EVERY_CHOICE:
        for each in project_files(Choice(project_name("my-desk"), template, frozenset(extras))).items():
            if each not in seen:
                seen.add(each)
                yield each


def test_every_choice_is_filled_in() -> None:
    assert len(EVERY_CHOICE) == 128
    for path, text in _files_of_every_choice():
        assert "%%" not in text, path
        assert "{{" not in text, path
        assert text.endswith("\n"), path
        assert not re.search(r"\bapp\.py$|Makefile", path)
        if path.endswith(".py"):
            compile(text, path, "exec")
        if path.endswith(".toml"):
            tomllib.loads(text)


def test_assistant_and_tools_know_nothing_of_the_bus() -> None:
    for path, text in _files_of_every_choice():
        if Path(path).name in {"assistant.py", "scripted.py", "tools.py"}:
            assert "import sealbus" not in text.replace("It imports nothing of sealbus", "")
            assert "from sealbus" not in text


@pytest.mark.parametrize(
    ("framework", "adapter"),
    [("openai", "openai_agents"), ("langgraph", "langgraph"), ("pydantic-ai", "pydantic_ai")],
)
def test_an_agent_of_a_framework_is_served_by_one_line(framework: str, adapter: str) -> None:
    files = project_files(Choice(project_name("desk"), extras=frozenset({framework})))
    served = [line.strip() for line in files["src/desk/agent.py"].splitlines() if ".serve(" in line]
    assert served == [f'app.include({adapter}.serve(make_assistant(model), memory="conversation"))']
    needed = tomllib.loads(files["pyproject.toml"])["project"]["dependencies"]
    assert needed[-1] == f"sealbus[{','.join(sorted([framework, 'trust']))}]"


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "llm"])
def test_the_code_of_an_assistant_is_read_in_two_minutes(framework: str) -> None:
    choice = Choice(project_name("desk"), "llm", frozenset({framework} & {*FRAMEWORKS}))
    lines = [
        line for path, text in project_files(choice).items() if path.startswith("src/") for line in text.splitlines()
    ]
    assert len([line for line in lines if line.strip()]) < 160


def test_every_type_states_whether_it_asks_or_informs() -> None:
    for path, text in _files_of_every_choice():
        for call in ast.walk(ast.parse(text)) if path.endswith(".py") else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "payload":
                assert {"version", "performative"} <= {keyword.arg for keyword in call.keywords}


def test_every_command_of_every_readme_exists() -> None:
    for path, text in _files_of_every_choice():
        if path == "README.md":
            commands = set(
                re.findall(r"\bsealbus ([a-z]+(?: [a-z]+)?)", "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)))
            )
            assert {"dev", "check"} <= {each.split()[0] for each in commands}
            for command in commands:
                _check_command(command.split())


def _check_command(words: list[str]) -> None:
    assert isinstance(main, Shell)
    found = CliRunner().invoke(main, [words[0], "--help"])
    assert found.exit_code == 0, words
    if len(words) > 1 and "COMMAND" in found.output.partition("\n")[0]:
        assert CliRunner().invoke(main, [*words, "--help"]).exit_code == 0, words


def test_it_ends_with_four_lines_to_copy(tmp_path: Path) -> None:
    output = new("work/my-desk").output
    *_, title, cd, install, test, dev = output.rstrip("\n").splitlines()
    assert (title, cd, test) == ("Next:", "  cd work/my-desk", "  pytest")
    assert install.startswith("  pip install -U pip && pip install -e . --group dev ")
    assert dev.startswith("  sealbus dev ")
    assert (tmp_path / "work/my-desk/src/my_desk/agent.py").is_file()


def test_the_published_schemas_are_those_of_the_types(tmp_path: Path) -> None:
    project = made(tmp_path / "desk", "--template", "team", "--with", "openai")
    before = {path: path.read_bytes() for path in (project / "schemas").rglob("*.json")}
    assert {path.parent.name for path in before} == {
        f"desk.{name}" for name in ("question", "answer", "lookup", "facts")
    }
    assert not list(project.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("arguments", "owners"),
    [
        (("--with", "keys"), ["desk@svc"]),
        (("--template", "llm"), ["desk@svc"]),
        (("--template", "team", "--with", "keys"), ["desk-planner@svc", "desk-researcher@svc"]),
    ],
)
def test_agents_and_people_have_keys(tmp_path: Path, arguments: tuple[str, ...], owners: list[str]) -> None:
    keys = made(tmp_path / "desk", *arguments) / ".sealbus/keys"
    listed = CliRunner().invoke(main, ["key", "list", "--dir", str(keys), "-o", "json"]).output
    assert sorted(re.findall(r'"principals":\["(.*?)"\]', listed)) == sorted(
        [*owners, "audit@sealbus", "cli@sealbus", "you@local"]
    )
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys.glob("*.pem")} == {0o600}


def test_without_the_package_for_signatures_the_keys_are_made_after_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    done = new(tmp_path / "desk", "--with", "keys")
    assert "  sealbus key new desk@svc cli@sealbus audit@sealbus you@local\n  pytest\n" in done.output
    assert not (tmp_path / "desk/.sealbus").exists()


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "notes.txt").touch()
    done = new(folder)
    assert (done.exit_code, [path.name for path in folder.iterdir()]) == (2, ["notes.txt"])
    assert "has notes.txt: name a folder that is new or empty" in done.output
    done = new(folder / "notes.txt")
    assert done.exit_code == 2
    (folder / "notes.txt").unlink()
    (folder / ".gitignore").write_text("mine\n")
    assert "has .gitignore" in new(folder).output
    assert (folder / ".gitignore").read_text() == "mine\n"


def test_a_folder_of_version_control_or_an_environment_can_become_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "desk"
    (folder / ".git").mkdir(parents=True)
    (folder / ".venv").mkdir()
    monkeypatch.chdir(folder)
    done = new(".")
    assert done.exit_code == 0
    assert "cd " not in done.output
    assert "has src/desk/__init__.py: name a folder" in new(".").output


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("logging",), "'logging' cannot be the name of a project: it would hide the module logging"),
        (("My Desk",), "such as my-desk"),
        (("desk", "--with", "openai", "--with", "langgraph"), "an assistant has one framework"),
        (("desk", "--with", "opnai"), "openai"),
        (("desk", "--template", "plain"), "agent"),
    ],
)
def test_a_choice_that_is_refused(tmp_path: Path, arguments: tuple[str, ...], error: str) -> None:
    done = new(*arguments)
    assert done.exit_code == 2
    assert error in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--with", "keys", "--with", "kafka"),
        ("--template", "team", "--with", "postgres", "--with", "keys"),
        ("--template", "llm"),
        ("--template", "web", "--with", "postgres"),
    ],
    ids="-".join,
)
@pytest.mark.medium
def test_the_tests_and_checks_of_a_new_project_pass(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    # The settings of a folder above do not count.
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--no-such"\n')
    project = made(tmp_path / "my-desk", *arguments)
    plugins = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "consumers.app.pytest_plugin")
    assert " passed" in run(project, "pytest", "-q", *plugins)
    assert "warning" not in run(project, "sealbus", "check")
    assert "0 written" in run(project, "sealbus", "type", "export", "schemas")
    if (project / "policy.toml").exists():
        run(project, "sealbus", "policy", "test")
    run(project, "ruff", "check", "--no-cache")


@pytest.mark.medium
def test_commands_in_a_new_project_find_its_log_and_its_types(tmp_path: Path) -> None:
    project = made(tmp_path / "desk")
    (project / "question.json").write_text('{"text": "why?"}\n')
    output = run(project, "sealbus", "publish", "desk.question", "question.json")
    assert "bus: sqlite:///.sealbus/desk.db" in output
    assert {path.name for path in project.rglob("*.db")} == {"desk.db"}
    assert {path.parent.name for path in project.rglob("*.db")} == {".sealbus"}
