"""A handler's requirements on its messages besides their type: required fields and semantic checks.

Owns both checks, and refusing invalid declarations of them. They belong to gate `schema` and run after it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bus.errors import ConfigurationError, ContractError
from bus.nearest import nearest
from bus.payloads.known_fields import knows_field
from bus.payloads.payload_types import PayloadType
from bus.payloads.rules import value_at
from bus.protocol.sealing import Message
from bus.redaction import cut, redacted
from consumers.delivery.declaration import HandlerDeclaration, SemanticCheck

__all__ = ["check_message", "checks_of", "requirements_of"]

_MAX_SAID = 240


def check_message(subscription: HandlerDeclaration, payload: Any, message: Message) -> None:
    """Raise ContractError where *payload* lacks what the handler requires, or does not pass one of its checks.

    Reasons: `schema_violation`, `semantic_violation`.
    """
    for pointer in subscription.requires:
        if value_at(payload, pointer) is None:
            raise ContractError("its handler here requires it", f"/data{pointer}", "schema_violation")
    for check in subscription.checks:
        try:
            stated = check(payload, message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            text = f"the check {_name(check)} failed: {type(error).__name__}"
            raise ContractError(text, "/data", "semantic_violation") from error
        if stated is not None:
            text = stated if isinstance(stated, str) else f"the check {_name(check)} returned no text"
            raise ContractError(cut(redacted(text), _MAX_SAID), "/data", "semantic_violation")


def checks_of(provided: object) -> tuple[SemanticCheck, ...]:
    """Return *provided* as a tuple; raise ConfigurationError if it is not a list of functions."""
    if not isinstance(provided, list | tuple) or not all(map(callable, provided)):
        raise ConfigurationError("checks is a list of functions (payload, message) -> str | None: write checks=[check]")
    return tuple(provided)


def requirements_of(kind: PayloadType, provided: Sequence[str]) -> tuple[str, ...]:
    """Return *provided* as pointers into data; raise ConfigurationError for a field that *kind* does not have."""
    if isinstance(provided, str):
        raise ConfigurationError(f"requires is a list of fields: write requires=[{provided!r}]")
    found = []
    for name in provided:
        pointer = name if str(name).startswith("/") else f"/{name}"
        if not knows_field(kind.described, f"/data{pointer}"):
            fields = [field.encode_name for field in kind.fields]
            raise ConfigurationError(f"requires names {name!r}, which {kind.name} does not have{nearest(name, fields)}")
        found.append(pointer)
    return tuple(found)


def _name(check: SemanticCheck) -> str:
    return getattr(check, "__name__", type(check).__name__)
