"""Anti-patterns in an app: in what its handlers are, and in the source they are written in.

Reads sources and runs none.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bus.payloads.directives import DIRECTIVE
from bus.payloads.payload_types import PayloadType, is_payload, payload_type
from bus.settings.schema import WorkerSettings
from consumers.app.handler_signature import returned_types
from consumers.delivery.declaration import Declaration, HandlerDeclaration
from consumers.operations.lint.findings import LintFinding, finding
from consumers.operations.lint.nested_requests import limits_that_cannot_hold
from consumers.operations.lint.thresholds import unguarded_types
from consumers.operations.lint.type_checks import lint_type

__all__ = ["lint_app"]

_EFFECTS: Final = ("httpx.", "requests.", "subprocess.", "smtplib.", "os.system", "shutil.", "urllib.request.")
"""How the calls begin that a program mostly makes for their effect."""
_SENDERS: Final = frozenset({"publish", "send", "send_now", "request", "Outgoing", "publish_many"})
_WORK: Final = DIRECTIVE - {"accept"}
"""Performatives that ask for something that can be refused."""
_REFUSES: Final = ("Reject", "raise ", "Rejected", "Refusal")


def lint_app(
    declaration: Declaration,
    *,
    own: Callable[[PayloadType], bool],
    high_risk: Collection[str] = (),
    worker: WorkerSettings | None = None,
) -> Iterator[LintFinding]:
    """Yield what is wrong with an app and with those of its types that are its *own*.

    *high_risk* are the types whose risk the settings raise, *worker* the limits of its workers, None where these are
    not known.
    """
    kinds = {kind.name: kind for kind in declaration.registry}
    for kind in kinds.values():
        if own(kind):
            yield from lint_type(kind)
    grave = [name for name, each in declaration.subscriptions.items() if each.kind.risk == "high"]
    for name in grave if declaration.verifier is None else ():
        yield finding("verification-off", name, f"{name} is of high risk")
    for kind in unguarded_types(declaration, high_risk=high_risk):
        yield finding(
            "no-threshold", kind.name, f"{kind.name} is handled, but does not declare whether it asks or informs"
        )
    if worker is not None:
        for text in limits_that_cannot_hold(declaration, worker):
            yield finding("asks-itself", declaration.agent_id, text)
    yield from _taken_twice(declaration, {name: kind for name, kind in kinds.items() if own(kind)})
    files: set[str] = set()
    for name, subscription in declaration.subscriptions.items():
        yield from _rejection(name, subscription)
        yield from _written_in_file(subscription.handler, files)
        yield from _steps(name, subscription)


def _taken_twice(declaration: Declaration, kinds: Mapping[str, PayloadType]) -> Iterator[LintFinding]:
    """Yield each class, in a module of a handler, that has name and version of another class among *kinds*."""
    seen: set[type[Any]] = set()
    for subscription in declaration.subscriptions.values():
        inner = inspect.unwrap(getattr(subscription.handler, "func", subscription.handler))
        for cls in list(getattr(inner, "__globals__", {}).values()):
            if not isinstance(cls, type) or cls in seen or not is_payload(cls):
                continue
            seen.add(cls)
            other, known = payload_type(cls), kinds.get(payload_type(cls).name)
            if known is not None and known.cls is not cls and known.version == other.version:
                what = f"{known.name} {known.version} is {_located(known.cls)} and {_located(cls)}"
                yield finding("name-taken-twice", known.name, what)


def _located(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _rejection(name: str, subscription: HandlerDeclaration) -> Iterator[LintFinding]:
    kind = subscription.kind
    words = kind.terms.words
    if _WORK.isdisjoint(words) and (words or not name.endswith("request")):
        return
    returned = returned_types(subscription.handler)
    says_no = any("reject" in str(cls.__name__).lower() or "refus" in str(cls.__name__).lower() for cls in returned)
    source = _source(subscription.handler)
    if says_no or source is None or any(word in source[0] for word in _REFUSES):
        return
    location = f"{source[1]}:{source[2]}"
    yield finding("no-rejection-path", location, f"the handler of {name} never rejects", file=source[1], line=source[2])


def _steps(name: str, subscription: HandlerDeclaration) -> Iterator[LintFinding]:
    """Yield approvals that a handler may not ask for, and effects that one which may ask has outside steps."""
    source = _source(subscription.handler)
    if source is None:
        return
    try:
        tree = ast.parse(textwrap.dedent(source[0]))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        line = source[2] + node.lineno - 1
        location, called = f"{source[1]}:{line}", ast.unparse(node.func)
        asks = called.endswith(".step") and any(keyword.arg == "approve" for keyword in node.keywords)
        if (asks or called.endswith(("context.approve", "context.clarify"))) and not subscription.asks:
            what = f"the handler of {name} asks by {called:.60}"
            yield finding("asks-undeclared", location, what, file=source[1], line=line)
        elif subscription.asks and called.startswith(_EFFECTS):
            what = f"the handler of {name} calls {called:.60} outside a step"
            yield finding("effect-outside-step", location, what, file=source[1], line=line)


def _source(handler: Any) -> tuple[str, str, int] | None:
    inner = inspect.unwrap(getattr(handler, "func", handler))
    try:
        lines, line = inspect.getsourcelines(inner)
        return "".join(lines), _short(inspect.getsourcefile(inner) or "?"), line
    except (OSError, TypeError):
        return None


def _written_in_file(handler: Any, seen: set[str]) -> Iterator[LintFinding]:
    """Yield the findings in the file of *handler*, each file once."""
    path = inspect.getsourcefile(inspect.unwrap(getattr(handler, "func", handler)))
    if path is None or path in seen:
        return
    seen.add(path)
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _recipients(node, _short(path))
        elif isinstance(node, ast.Attribute) and node.attr == "raw" and isinstance(node.ctx, ast.Load):
            location = f"{_short(path)}:{node.lineno}"
            what = f"{ast.unparse(node):.80}"
            yield finding("raw-untrusted-text", location, what, file=_short(path), line=node.lineno)


def _recipients(node: ast.Call, path: str) -> Iterator[LintFinding]:
    """Yield each text that is written as the recipient of a message."""
    if _called(node) not in _SENDERS:
        return
    for keyword in node.keywords:
        if keyword.arg == "to" and (text := _written(keyword.value)) is not None:
            location = f"{path}:{node.lineno}"
            yield finding("hard-coded-recipient", location, f"to={text!r:.80}", file=path, line=node.lineno)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _written(value: ast.expr) -> str | None:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.Call) and _called(value) == "Agent":
        return next((_written(keyword.value) for keyword in value.keywords if keyword.arg == "id"), None)
    return None


def _short(path: str) -> str:
    """Return *path* as seen from the working directory, where it lies below it."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return path
