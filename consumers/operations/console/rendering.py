"""Rendering: templates that escape everything, and show invisible characters as escapes (C1).

A value is a text node or the value of an attribute; templates cannot insert markup, which a test checks.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined
from markupsafe import Markup

from bus.telemetry.terminal import printable

__all__ = ["FOLDER", "render"]

FOLDER: Final = Path(__file__).parent
_MAX_TEXT: Final = 20_000


def render(name: str, **facts: Any) -> str:
    """Return the page *name* with *facts*."""
    return _environment().get_template(name).render(**facts)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """Return *value* as text with invisible characters escaped; markup from macros stays unchanged."""
    if isinstance(value, Markup | Undefined):
        return value
    return "" if value is None else printable(str(value)[:_MAX_TEXT], keep="\n")
