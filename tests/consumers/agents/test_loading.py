"""The App that `MODULE:APP` names, and what is said where it names none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.agents.loading import AppNotFoundError, load_app

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with modules of its own; `sys.path` is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shop = tmp_path / "shopping"
    shop.mkdir()
    for file in (
        tmp_path / "near_agents.py",
        shop / "__init__.py",
        shop / "near_orders.py",
        tmp_path / "near-agent.txt",
    ):
        file.write_text("")
    yield tmp_path
    sys.modules.pop("shopping", None)


@pytest.mark.parametrize(
    ("target", "near"),
    [
        ("near_agent:app", "near_agents"),
        ("shoping:app", "shopping"),
        ("shopping.near_order:app", "shopping.near_orders"),
        ("shoping.near_orders:app", "shopping"),
    ],
)
def test_a_mistyped_module_names_the_nearest_one_of_the_directory(project: Path, target: str, near: str) -> None:
    with pytest.raises(AppNotFoundError, match=rf"no module .*; the nearest is {near}$"):
        load_app(target)


@pytest.mark.parametrize("target", ["something_else:app", "gone.near_agents:app"])
def test_an_unfamiliar_module_name_gets_no_suggestion(project: Path, target: str) -> None:
    with pytest.raises(AppNotFoundError, match=r"more places$"):
        load_app(target)


def test_a_module_beside_the_settings_is_found_from_a_folder_below(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "sealbus.toml").write_text("")
    (project / "beside_settings.py").write_text("from sealbus import App\n\napp = App('beside@svc')\n")
    below = project / "sub" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(project)])
    assert load_app("beside_settings:app").agent_id == "beside@svc"


@pytest.mark.parametrize("below", ["", "sub/deep"])
def test_a_module_in_src_beside_the_settings_is_found_before_an_installed_one(
    project: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    (project / "sealbus.toml").write_text("")
    for folder, agent in (("src", "own@svc"), ("site", "installed@svc")):
        (project / folder).mkdir()
        (project / folder / "in_src.py").write_text(f"from sealbus import App\n\napp = App({agent!r})\n")
    (project / below).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(project / below)
    monkeypatch.setattr(sys, "path", [*sys.path, str(project / "site")])
    monkeypatch.delitem(sys.modules, "in_src", raising=False)
    assert load_app("in_src:app").agent_id == "own@svc"
    with pytest.raises(AppNotFoundError, match=r"the nearest is in_src$"):
        load_app("in_srk:app")


def test_a_file_name_is_answered_with_the_module(project: Path) -> None:
    with pytest.raises(AppNotFoundError, match=r"near_agents is meant without \.py"):
        load_app("near_agents.py:app")


SHADOWED = """
import {name}
from sealbus import App

app = App("shadowed@svc")
used = {name}.__file__
"""


def run_python(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, "-c", code] if code else [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["secrets", "types", "json", "queue", "random", "logging", "statistics", "wave"])
@pytest.mark.parametrize("is_package", [False, True])
def test_a_file_with_the_name_of_a_module_of_python_is_not_used_by_libraries(
    tmp_path: Path, name: str, is_package: bool
) -> None:
    own = tmp_path / name / "__init__.py" if is_package else tmp_path / f"{name}.py"
    own.parent.mkdir(exist_ok=True)
    own.write_text("KEY = 'mine'\n")
    (tmp_path / "agent.py").write_text(SHADOWED.format(name=name))
    code = (
        "import sys; sys.path[:] = [path for path in sys.path if path]\n"
        "from consumers.agents.loading import load_app\n"
        "load_app('agent:app')\n"
        "print(sys.modules['agent'].used)"
    )
    done = run_python(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.startswith(str(tmp_path))


def test_a_name_that_only_the_users_file_has_is_answered_with_that_file(tmp_path: Path) -> None:
    (tmp_path / "secrets.py").write_text("API_KEY = 'mine'\n")
    (tmp_path / "agent.py").write_text("from secrets import API_KEY\n")
    done = run_python(tmp_path, "from consumers.agents.loading import load_app; load_app('agent:app')", "-P")
    assert f"{tmp_path}/secrets.py has the name of a module of Python, which is used instead: rename it" in done.stderr


@pytest.mark.parametrize("name", ["msgspec", "click", "aiokafka", "cryptography", "pydantic"])
@pytest.mark.parametrize("is_package", [False, True])
def test_a_file_that_hides_a_package_sealbus_needs_is_named(tmp_path: Path, name: str, is_package: bool) -> None:
    own = tmp_path / name if is_package else tmp_path / f"{name}.py"
    (own / "__init__.py" if is_package else own).parent.mkdir(exist_ok=True)
    (own / "__init__.py" if is_package else own).write_text("")
    (tmp_path / "agent.py").write_text("from sealbus import App\napp = App('hiding@svc')\n")
    done = run_python(tmp_path, "from consumers.agents.loading import load_app; load_app('agent:app')", "-P")
    assert f"{own} hides the package {name}, which sealbus needs: rename it" in done.stderr


def test_a_module_of_the_users_comes_before_an_installed_package(tmp_path: Path) -> None:
    (tmp_path / "hypothesis.py").write_text("WORDS = 'mine'\n")
    (tmp_path / "agent.py").write_text("from hypothesis import WORDS\nfrom sealbus import App\napp = App('own@svc')\n")
    done = run_python(tmp_path, "from consumers.agents.loading import load_app; load_app('agent:app')", "-P")
    assert done.returncode == 0, done.stderr


def test_python_dash_m_does_not_use_files_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "secrets.py").write_text("raise RuntimeError('the file of the user')\n")
    (tmp_path / "agent.py").write_text("from sealbus import App\napp = App('own@svc')\n")
    done = run_python(tmp_path, "", "-m", "sealbus", "check", "--only", "lint", "agent:app")
    assert "the file of the user" not in done.stderr, done.stderr


DECLARATIONS = {
    "a key that is no text": (
        "@payload('t.b')\n@dataclass\nclass B:\n    v: dict[int, str]\n",
        "keys of a dict may be",
    ),
    "an untagged union": (
        "@payload('t.b')\n@dataclass\nclass B:\n    v: One | Two\n",
        "write each Struct of the union",
    ),
    "a built-in name": ("@payload('task.request')\n@dataclass\nclass B:\n    v: int\n", "the name of a built-in type"),
    "a broken annotation": ("@payload('t.b')\n@dataclass\nclass B:\n    v: 'int['\n", "v: its annotation"),
    "no text as version": ("@payload('t.b', version='1')\n@dataclass\nclass B:\n    v: int\n", "use x.y.z"),
    "no agent": ("app = App('')\n", "illegal agent id"),
    "wrong attempts": ("Retry(attempts=0)\n", "at least 1"),
}
HEAD = (
    "from dataclasses import dataclass\nimport msgspec\nfrom sealbus import App, Retry, payload\n"
    "class One(msgspec.Struct):\n    v: int\nclass Two(msgspec.Struct):\n    w: int\n"
)


@pytest.mark.parametrize(("code", "sentence"), DECLARATIONS.values(), ids=DECLARATIONS)
def test_a_wrong_declaration_is_answered_with_the_users_line_and_one_sentence(
    tmp_path: Path, code: str, sentence: str
) -> None:
    (tmp_path / "wrongly.py").write_text(HEAD + code)
    done = run_python(tmp_path, "", "-m", "sealbus", "check", "wrongly:app")
    assert done.returncode
    assert f'File "{tmp_path}/wrongly.py", line 8' in done.stderr, done.stderr
    assert done.stderr.count(sentence) == 1, done.stderr
    assert str(ROOT) not in done.stderr


def test_an_error_in_what_the_bus_calls_shows_every_frame(tmp_path: Path) -> None:
    (tmp_path / "wrongly.py").write_text(
        "from sealbus import App\nclass Odd:\n    def __iter__(self):\n        raise KeyError('odd')\n"
        "app = App('a@svc', types=Odd())\n"
    )
    done = run_python(tmp_path, "", "-m", "sealbus", "check", "wrongly:app")
    assert str(ROOT / "consumers" / "app" / "app.py") in done.stderr
    assert "Traceback" in done.stderr
