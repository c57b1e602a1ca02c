"""Field docs: the docstrings below the fields of a payload class.

Owns reading them from the source for pages, `types show` and JSON Schema. Without source code there are none.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from typing import Any

__all__ = ["field_docs"]


def field_docs(cls: Any) -> Mapping[str, str]:
    """Return field -> its text, of *cls* and of the classes it is made from."""
    return _docs_of(cls)


@functools.lru_cache(maxsize=512)
def _docs_of(cls: Any) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for base in reversed(getattr(cls, "__mro__", (cls,))):
        if getattr(base, "__annotations__", None) and base.__module__ not in ("builtins", "msgspec"):
            found |= _own(base)
    # What Field(description=...) of a Pydantic model says.
    fields: Mapping[str, Any] = getattr(cls, "__pydantic_fields__", None) or {}
    return found | {name: info.description for name, info in fields.items() if info.description}


def _own(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    found: dict[str, str] = {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = inspect.cleandoc(following.value.value).replace("\n", " ")
    return found
