"""Our modules under the names they have in a wheel: what is rewritten, what is left, and what ends a build."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.wheel_sources import SourceError, rewrite, stage

ROOT = Path(__file__).parents[2]
MODULES = frozenset({"bus", "bus.errors", "producers", "consumers", "consumers.cli", "consumers.agents.demo.agents"})
TEXTS = "consumers/cli/__init__.py"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from bus.errors import BusError\n", "from sealbus.bus.errors import BusError\n"),
        ("from bus import errors\n", "from sealbus.bus import errors\n"),
        ("x = 'ä'; from bus import errors\n", "x = 'ä'; from sealbus.bus import errors\n"),
        ("def f():\n    from consumers import cli\n", "def f():\n    from sealbus.consumers import cli\n"),
        ("from bus.errors import (\n    A,\n    B,\n)\n", "from sealbus.bus.errors import (\n    A,\n    B,\n)\n"),
        ("import bus\n", "import sealbus.bus as bus\n"),
        ("import os, bus, producers as p\n", "import os, sealbus.bus as bus, sealbus.producers as p\n"),
        ("import bus.errors as e\r\n", "import sealbus.bus.errors as e\r\n"),
    ],
)
def test_imports_of_ours_are_rewritten(source: str, expected: str) -> None:
    assert rewrite(source, "bus/clock.py", MODULES) == expected


@pytest.mark.parametrize(
    "source",
    [
        "from business import plan\n",
        "from . import bus\n",
        "import bus_lines\n",
        '"""`bus.errors` is told of: from bus import errors."""\n',
        "# from bus import errors\n",
        "x = 'bus.url'\n",
        "x = bus.errors\n",
        "raise ValueError from bus\n",
        "x = 'bus'\n",
    ],
)
def test_nothing_else_is(source: str) -> None:
    assert rewrite(source, TEXTS, MODULES) == source


def test_texts_that_name_modules_are_rewritten_where_they_are_expected() -> None:
    source = 'VERBS = {"a": "consumers.cli", "b": "consumers.agents.demo.agents:writer", "c": "consumers.nothing"}\n'
    expected = source.replace('"consumers.cli', '"sealbus.consumers.cli').replace(
        '"consumers.agents.demo', '"sealbus.consumers.agents.demo'
    )
    assert rewrite(source, TEXTS, MODULES) == expected


@pytest.mark.parametrize(
    ("place", "source", "why"),
    [
        ("bus/clock.py", "import bus.errors\n", "as ..."),
        ("bus/clock.py", "from \\\n  bus import errors\n", "on one line"),
        ("bus/clock.py", "x = 'consumers.cli'\n", "__name__"),
        ("bus/clock.py", "x = 'from consumers.cli import main; main()'\n", "__name__"),
        (TEXTS, "x = f'consumers.agents.demo.agents:{role}'\n", "__name__"),
        (TEXTS, "x = 'consumers' '.cli'\n", "one plain text"),
    ],
)
def test_what_is_not_certain_ends_the_build(place: str, source: str, why: str) -> None:
    with pytest.raises(SourceError, match=rf"^{place}:1: .*{why}"):
        rewrite(source, place, MODULES)


@pytest.mark.medium
def test_this_checkout_can_be_staged(tmp_path: Path) -> None:
    staged = stage(ROOT, tmp_path)
    assert {"sealbus/__init__.py", "sealbus/__main__.py", "sealbus/py.typed"} <= set(staged.values())
    assert all(path.read_bytes() or place.endswith(("py.typed", "__init__.py")) for path, place in staged.items())
    assert "_check_packages" not in (tmp_path / "sealbus" / "__init__.py").read_text("utf-8")
