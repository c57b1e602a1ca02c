"""The App that `MODULE:APP` names, and what is said where it names none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from consumers.cli.app_loading import load_app


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
    with pytest.raises(click.UsageError, match=rf"there is no module .*; the nearest is {near}$"):
        load_app(target)


@pytest.mark.parametrize("target", ["something_else:app", "gone.near_agents:app"])
def test_an_unfamiliar_module_name_gets_no_suggestion(project: Path, target: str) -> None:
    with pytest.raises(click.UsageError, match=r"more places$"):
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


def test_a_file_name_is_answered_with_the_module(project: Path) -> None:
    with pytest.raises(click.UsageError, match=r"near_agents is meant without \.py"):
        load_app("near_agents.py:app")
