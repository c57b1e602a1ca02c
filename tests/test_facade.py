"""The facade in a checkout: it imports quietly and little, and names what hides one of its packages."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import sealbus
from bus import vocabulary as words
from sealbus import dialects
from sealbus.errors import DialectError

ROOT = Path(__file__).parent.parent
SUBJECTS = [
    *("sagas", "workflows", "patterns", "testing", "trust", "schemas", "outbox", "telemetry", "errors", "envelope"),
    "limits",
    *("vocabulary", "dialects", "adapters"),
]
MODULES = [path.stem for path in (ROOT / "sealbus").glob("*.py") if not path.stem.startswith("_")]
IMPORTED_WHERE_IT_IS_USED = [
    "aiokafka",
    "asyncpg",
    "attr",
    "click",
    "cryptography",
    "email",
    "http",
    "importlib.metadata",
    "jinja2",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "rich",
    "sqlite3",
    "structlog",
]


def python(folder: Path, code: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("hidden", ["bus.py", "producers/__init__.py", "consumers.py"])
def test_an_error_names_the_file_that_hides_a_package(tmp_path: Path, hidden: str) -> None:
    (tmp_path / hidden).parent.mkdir(exist_ok=True)
    (tmp_path / hidden).write_text("", "utf-8")
    done = python(tmp_path, "import sealbus", f"{tmp_path}:{ROOT}")
    assert done.returncode == 1
    assert str(tmp_path / hidden) in done.stderr.splitlines()[-1]


@pytest.mark.medium
def test_it_imports_quietly(tmp_path: Path) -> None:
    done = python(tmp_path, "import sealbus; print(len(sealbus.__all__) > 10)", str(ROOT))
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.medium
def test_the_facade_is_the_command_line_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sealbus", "type", "list", "--builtin"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "task.request" in done.stdout, done.stderr) == (0, True, "")


def test_the_facade_has_the_names_of_most_programs_and_no_more() -> None:
    assert sealbus.__all__ == [
        *("App", "Router", "Context", "BlockingContext", "payload", "Message", "Outgoing"),
        *("connect", "connect_sync", "Bus", "SyncBus", "Receipt"),
        *("Retry", "Reject", "RetryLater", "DependencyDown", "Approval"),
        *("BusError", "PublishError", "PublishRejected", "PublishUnknown"),
        *("RequestError", "RequestFailed", "RequestTimedOut"),
    ]
    assert len(sealbus.__all__) <= 25


def test_there_is_a_module_for_each_subject() -> None:
    assert sorted(MODULES) == sorted(SUBJECTS)


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_module_says_what_it_offers_and_which_page_explains_it(name: str) -> None:
    module = import_module(f"sealbus.{name}")
    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert {each for each in module.__all__ if hasattr(module, each)} == set(module.__all__)
    pages = re.findall(r"`(docs/[\w/-]+\.md)`", module.__doc__ or "")
    assert pages
    assert all(f"sealbus.{name}" in (ROOT / page).read_text("utf-8") for page in pages)


def test_a_name_has_one_place() -> None:
    places = Counter(
        [*sealbus.__all__, *(each for name in SUBJECTS for each in import_module(f"sealbus.{name}").__all__)]
    )
    assert {name for name, count in places.items() if count > 1} == set()


def test_the_vocabulary_lists_every_class_of_the_families() -> None:
    assert set(import_module("sealbus.vocabulary").__all__) == {
        name
        for name, found in ((name, getattr(words, name)) for name in dir(words))
        if isinstance(found, type) and found.__module__.startswith("bus.vocabulary.")
    }


TEXTS = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "tests/examples").rglob("*.py"),
    *(ROOT / "consumers/scaffold/templates").rglob("*.tmpl"),
    ROOT / "README.md",
]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_users_read_imports_the_facade_alone(path: Path) -> None:
    ours = r"^\s*(?:from|import)\s+(?:sealbus\.)?(?:bus|producers|consumers)\b[^\n]*"
    assert re.findall(ours, path.read_text("utf-8"), re.MULTILINE) == []


def test_what_the_dialects_raise_is_a_name_of_the_facade() -> None:
    with pytest.raises(DialectError):
        dialects.dialect("plain-ids").decode(b"{}")


@pytest.mark.parametrize("name", ["__init__", "vocabulary"])
def test_each_name_is_what_checkers_take_it_for(name: str) -> None:
    facade = sealbus if name == "__init__" else import_module(f"sealbus.{name}")
    tree = ast.parse((ROOT / f"sealbus/{name}.py").read_text("utf-8"))
    static = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    names = {}
    for node in static.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            module = import_module(str(node.module))
            names[alias.name] = getattr(module, alias.name)
    assert {name: getattr(facade, name) for name in names} == names
    assert names.keys() == set(facade.__all__)
    assert names.keys() <= set(dir(facade))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = facade.Nothing


@pytest.mark.parametrize(
    ("program", "limit", "used"),
    [
        ("import sealbus", 3, set()),
        ("from sealbus import App, Context, Retry, connect, payload", 170, set()),
        ("from sealbus import *", 200, set()),
        ("from sealbus.sagas import Saga, SagaContext, on_start", 165, set()),
        ("from sealbus.errors import ConfigurationError, TaskCancelled, UnexpectedReply", 70, set()),
        ("from sealbus.trust import PolicyFile, SigningKey, TrustedKeys, Untrusted", 60, set()),
        ("from sealbus.schemas import Rule, when", 60, set()),
        ("from sealbus.vocabulary import TaskRequest", 60, set()),
        ("from sealbus.outbox import Outbox", 120, {"sqlite3"}),  # an Outbox takes a connection
        ("from consumers.cli import main", 18, {"click"}),
        ("from consumers.cli.publish import publish", 165, {"click"}),
    ],
)
@pytest.mark.medium
def test_a_program_imports_what_it_uses(tmp_path: Path, program: str, limit: int, used: set[str]) -> None:
    """How long an import takes is told by names and by a count of our modules, whatever machine runs this."""
    done = python(tmp_path, f"{program}\nimport sys; print(*sys.modules)", str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    modules = done.stdout.split()
    assert set(IMPORTED_WHERE_IT_IS_USED) & set(modules) == used
    ours = [name for name in modules if name.partition(".")[0] in {"bus", "producers", "consumers", "sealbus"}]
    assert len(ours) <= limit
