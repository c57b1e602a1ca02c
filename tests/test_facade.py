"""The facade in a checkout: it imports quietly and little, and names what hides one of its packages."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import sealbus

ROOT = Path(__file__).parent.parent
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
        [sys.executable, "-m", "sealbus", "type", "list"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "task.request" in done.stdout, done.stderr) == (0, True, "")


def test_what_the_dialects_raise_is_a_name_of_the_facade() -> None:
    with pytest.raises(sealbus.DialectError):
        sealbus.dialects.dialect("plain-ids").decode(b"{}")


def test_each_name_is_what_checkers_take_it_for() -> None:
    tree = ast.parse((ROOT / "sealbus.py").read_text("utf-8"))
    static = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    names = {}
    for node in static.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            module = import_module(str(node.module))
            names[alias.name] = getattr(module, alias.name, None) or import_module(f"{node.module}.{alias.name}")
    assert {name: getattr(sealbus, name) for name in names} == names
    assert names.keys() - set(sealbus.__all__) == {"RetryPolicy"}  # of earlier programs, and not listed
    assert names.keys() <= set(dir(sealbus))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = sealbus.Nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("program", "limit", "used"),
    [
        ("import sealbus", 1, set()),
        ("from sealbus import App, Context, Retry, connect, payload", 165, set()),
        ("from sealbus import *", 200, {"sqlite3"}),  # an Outbox takes a connection
        ("from consumers.cli import main", 15, {"click"}),
        ("from consumers.cli.publish import command", 150, {"click"}),
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
