"""Error codes: what each means for retrying, for HTTP and for A2A (`VOCABULARY.md` section 3). Data.

Owns the table of codes, and the translation between dotted classes and codes. The reasons of the bus, which are codes
too, are those of `bus.protocol.reasons`.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

import msgspec

from bus.protocol.reasons import REASON_TABLE

__all__ = ["CLASSES", "ERROR_CODES", "UNKNOWN", "ErrorCode", "code_of_class", "is_error_class", "lookup"]

CLASSES: Final = ("error.transient", "error.timeout", "error.semantic", "error.authz", "error.internal")
"""The classes; further dotted words make them finer."""
_CLASS: Final = re.compile(rf"(?:{'|'.join(map(re.escape, CLASSES))})(?:\.[a-z][a-z0-9_]{{0,63}}){{0,8}}\Z")


class ErrorCode(msgspec.Struct, frozen=True):
    """What follows from one code."""

    error_class: str
    is_retryable: bool
    http_status: int
    a2a: int | str
    """A JSON-RPC error code where a call is refused; a task state where a task ends of it."""


_CODES: Final = {
    "INVALID_MESSAGE": ErrorCode("error.semantic", False, 400, -32600),
    "VALIDATION_FAILED SCHEMA_VALIDATION_FAILED INVALID_TASK_SPEC INVALID_CURRENCY": ErrorCode(
        "error.semantic", False, 422, -32602
    ),
    "UNKNOWN_TASK METHOD_NOT_ALLOWED": ErrorCode("error.semantic.unknown_task", False, 405, -32601),
    "NOT_FOUND": ErrorCode("error.semantic", False, 404, -32001),
    "PAYLOAD_TOO_LARGE": ErrorCode("error.semantic", False, 413, -32602),
    "INVALID_TRANSITION stale_sequence": ErrorCode("error.semantic.invalid_transition", False, 409, -32004),
    "VERSION_NOT_SUPPORTED": ErrorCode("error.semantic.unsupported_version", False, 400, -32009),
    "AUTHENTICATION_FAILED": ErrorCode("error.authz", False, 401, -32600),
    "FORBIDDEN OUT_OF_AUTHORITY": ErrorCode("error.authz", False, 403, "REJECTED"),
    "RATE_LIMIT RATE_LIMIT_EXCEEDED LLM_RATE_LIMITED": ErrorCode("error.transient.rate_limit", True, 429, "FAILED"),
    "TRANSIENT SERVICE_UNAVAILABLE UPSTREAM_UNREACHABLE": ErrorCode("error.transient", True, 503, "FAILED"),
    "TIMEOUT TOOL_TIMEOUT": ErrorCode("error.timeout", True, 504, "FAILED"),
    "INTERNAL_ERROR": ErrorCode("error.internal", False, 500, -32603),
    "CANCELLED": ErrorCode("error.semantic", False, 409, "CANCELED"),
    "EFFECT_IN_DOUBT": ErrorCode("error.internal", False, 500, "FAILED"),
    "PROCESS_EXIT": ErrorCode("error.internal", False, 500, "FAILED"),
}
ERROR_CODES: Final = MappingProxyType(
    {code: row for codes, row in _CODES.items() for code in codes.split()}
    | {
        reason.name: ErrorCode(reason.meaning.error_class, False, reason.meaning.http_status, reason.meaning.a2a)
        for reasons in REASON_TABLE.values()
        for reason in reasons
    }
)
"""Upper-case codes and lower-case reasons of the bus -> what follows from them."""
UNKNOWN: Final = ErrorCode("error.internal", False, 500, -32603)
"""What any other code counts as."""


def lookup(code: str) -> ErrorCode:
    """Return what follows from *code*, which is looked up where a report does not say its class or retryability.

    The class of `retries_exhausted` is that of its last cause, if that is known.
    """
    return ERROR_CODES.get(code, UNKNOWN)


def is_error_class(text: str) -> bool:
    """Tell whether *text* is one of `CLASSES`, or one of them with further dotted words."""
    return _CLASS.match(text) is not None


def code_of_class(error_class: str) -> str:
    """Return the code that a dotted class ends with: `error.transient.rate_limit` is RATE_LIMIT."""
    return error_class.rpartition(".")[2].upper()
