"""Users learn from `help()`: what they import and write says how it is used."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from producers.sealing.options import Options, Outgoing, RequestOptions

OPTIONS = Path(inspect.getfile(Outgoing))
SHOWN = ["sealbus", *(f"sealbus.{name}" for name in ("sagas", "patterns", "trust", "outbox"))]
"""Each of their names has an example; those of the other modules are shown together, on the page of their module."""
DESCRIBED = ["workflows", "testing", "schemas", "telemetry", "errors", "envelope", "vocabulary"]


@pytest.mark.parametrize("name", [f"{module}.{each}" for module in SHOWN for each in import_module(module).__all__])
def test_every_public_name_has_a_docstring_with_an_example(name: str) -> None:
    module, _, name = name.rpartition(".")
    lines = (inspect.getdoc(getattr(import_module(module), name)) or "").splitlines()
    assert lines
    assert any(line.startswith("    ") for line in lines), "no example"
    assert lines[0].endswith(".")


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_name_of_the_other_modules_has_a_docstring(name: str) -> None:
    module = import_module(f"sealbus.{name}")
    assert [each for each in module.__all__ if not inspect.getdoc(getattr(module, each))] == []


def documented(name: str) -> set[str]:
    """The fields of a class of the options that have a docstring."""
    (cls,) = [node for node in ast.parse(OPTIONS.read_text("utf-8")).body if getattr(node, "name", "") == name]
    body: Any = cls.body  # type: ignore[attr-defined]
    return {
        field.target.id
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def test_every_option_of_publish_is_documented_once() -> None:
    assert documented("RequestOptions") == set(RequestOptions.__annotations__)
    assert documented("RequestOptions") | documented("Options") == set(Options.__annotations__)
    assert set(Outgoing.__struct_fields__) == {"payload", *Options.__annotations__}
