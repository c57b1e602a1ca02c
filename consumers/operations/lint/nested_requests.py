"""Nested requests: an app that asks types which it handles itself, with limits under which that cannot hold.

Reads the source of handlers and runs none: what is asked by other means is not seen.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bus.payloads.payload_types import is_payload, payload_type
from bus.settings.schema import WorkerSettings
from consumers.delivery.declaration import Declaration, HandlerDeclaration

__all__ = ["NESTED_REQUEST_CURE", "asked_types", "limits_that_cannot_hold"]

NESTED_REQUEST_CURE: Final = (
    "raise worker.max_waiting to more than worker.concurrency, and give the asked type another order than key_strict"
)
_ASKING: Final = frozenset({"request", "submit"})


def limits_that_cannot_hold(declaration: Declaration, worker: WorkerSettings) -> Iterator[str]:
    """Yield a sentence for each handler that asks its own app, where a limit cannot hold what then waits."""
    handled = declaration.subscriptions
    for name, subscription in sorted(handled.items()):
        for requested in sorted(asked_types(subscription) & handled.keys()):
            text = f"the handler of {name} asks {requested}, which the same app handles"
            if worker.max_waiting < worker.concurrency:
                yield (
                    f"{text}: {worker.concurrency} runs may begin, and no more than {worker.max_waiting} may wait for "
                    "answers (worker.max_waiting)"
                )
            if handled[requested].order == "key_strict":
                yield (
                    f"{text} with order='key_strict': its first messages cannot leave the window "
                    f"(worker.max_in_flight, {worker.max_in_flight}) for the deeper ones"
                )


def asked_types(subscription: HandlerDeclaration) -> frozenset[str]:
    """Return the message types that the source of a handler asks for: `context.request(Type(...), ...)`."""
    function = inspect.unwrap(getattr(subscription.handler, "func", subscription.handler))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    names = _names_of(function)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ASKING:
            made = node.args[0] if node.args else None
            cls = names.get(made.func.id) if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) else None
            if isinstance(cls, type) and is_payload(cls):
                found.add(payload_type(cls).name)
    return frozenset(found)


def _names_of(function: Any) -> Mapping[str, Any]:
    names = dict(getattr(function, "__globals__", {}))
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue
    return names
