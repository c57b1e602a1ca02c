"""Users learn from `help()`: what they import and write says how it is used."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sealbus
from producers.sealing.options import Options, Outgoing, RequestOptions

OPTIONS = Path(inspect.getfile(Outgoing))
SHORT = {"ClosedError", "ConfigurationError", "InboxError", "UnreachableError"}
"""What needs no example, or is shown elsewhere."""


@pytest.mark.parametrize("name", sorted(set(sealbus.__all__) - SHORT))
def test_every_public_name_has_a_docstring_with_an_example(name: str) -> None:
    lines = (inspect.getdoc(getattr(sealbus, name)) or "").splitlines()
    assert lines
    assert any(line.startswith("    ") for line in lines), "no example"
    assert lines[0].endswith(".")


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
