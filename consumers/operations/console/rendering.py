"""Rendering: templates that escape everything, and show invisible characters as escapes (C1).

A value is a text node or the value of an attribute; templates cannot insert markup, which a test checks. Pictures come
as markup from `pictures`, which escapes its texts itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined
from markupsafe import Markup

from bus.telemetry.terminal import printable
from consumers.operations.console import pictures, words

__all__ = ["FOLDER", "render"]

FOLDER: Final = Path(__file__).parent
_MAX_TEXT: Final = 20_000
_LIST: Final = re.compile(r'<table class="list.*?</table>', re.DOTALL)
_ROLES: Final = (
    (re.compile(r"<table(?=[ >])"), '<table role="table"'),
    (re.compile(r"<(thead|tbody)(?=[ >])"), r'<\1 role="rowgroup"'),
    (re.compile(r"<tr(?=[ >{])"), '<tr role="row"'),
    (re.compile(r"<td(?=[ >{])"), '<td role="cell"'),
    (re.compile(r'<th scope="row"'), '<th role="rowheader" scope="row"'),
    (re.compile(r'<th scope="col"'), '<th role="columnheader" scope="col"'),
)


def render(template: str, /, **facts: Any) -> str:
    """Return the page *template* with *facts*."""
    return _environment().get_template(template).render(**facts)


class _Templates(FileSystemLoader):
    """Templates whose lists have their roles written out: as cards they are no tables for some readers."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        text, path, is_fresh = super().get_source(environment, template)
        return _LIST.sub(lambda found: _with_roles(found[0]), text), path, is_fresh


def _with_roles(table: str) -> str:
    for pattern, replacement in _ROLES:
        table = pattern.sub(replacement, table)
    return table


@cache
def _environment() -> Environment:
    made = Environment(
        loader=_Templates(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for module in (pictures, words):
        made.globals |= {name: getattr(module, name) for name in module.__all__}
    return made


def _shown(value: Any) -> Any:
    """Return *value* as text with invisible characters escaped; markup from macros and pictures stays unchanged."""
    if isinstance(value, Markup | Undefined):
        return value
    return "" if value is None else printable(str(value)[:_MAX_TEXT], keep="\n")
