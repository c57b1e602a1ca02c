"""Error codes: what each means for retrying, for HTTP and for A2A (`VOCABULARY.md` section 17). Data.

Owns the table of codes and of the reasons of the bus, and the translation between dotted classes and codes.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

import msgspec

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


_TABLE: Final = {
    "INVALID_MESSAGE malformed unsupported_protocol": ErrorCode("error.semantic", False, 400, -32600),
    (
        "VALIDATION_FAILED SCHEMA_VALIDATION_FAILED INVALID_TASK_SPEC INVALID_CURRENCY schema_violation "
        "semantic_violation"
    ): ErrorCode("error.semantic", False, 422, -32602),
    "UNKNOWN_TASK METHOD_NOT_ALLOWED unknown_type": ErrorCode("error.semantic.unknown_task", False, 405, -32601),
    "NOT_FOUND": ErrorCode("error.semantic", False, 404, -32001),
    "PAYLOAD_TOO_LARGE oversized": ErrorCode("error.semantic", False, 413, -32602),
    "INVALID_TRANSITION invalid_transition conversation_closed stale_sequence": ErrorCode(
        "error.semantic.invalid_transition", False, 409, -32004
    ),
    "VERSION_NOT_SUPPORTED unsupported_version critical_field": ErrorCode(
        "error.semantic.unsupported_version", False, 400, -32009
    ),
    "wrong_audience type_mismatch key_mismatch idempotency_conflict too_many_hops clock_skew rejected": ErrorCode(
        "error.semantic", False, 409, "FAILED"
    ),
    (
        "AUTHENTICATION_FAILED signature_missing signature_invalid key_unknown key_revoked key_expired "
        "sender_mismatch proof_invalid hash_mismatch seal_mismatch"
    ): ErrorCode("error.authz", False, 401, -32600),
    "FORBIDDEN OUT_OF_AUTHORITY unauthorized untrusted_instruction": ErrorCode("error.authz", False, 403, "REJECTED"),
    "approval_invalid approval_rejected": ErrorCode("error.authz", False, 403, "REJECTED"),
    "approval_timeout": ErrorCode("error.timeout", False, 403, "REJECTED"),
    "RATE_LIMIT RATE_LIMIT_EXCEEDED LLM_RATE_LIMITED": ErrorCode("error.transient.rate_limit", True, 429, "FAILED"),
    "TRANSIENT SERVICE_UNAVAILABLE UPSTREAM_UNREACHABLE": ErrorCode("error.transient", True, 503, "FAILED"),
    "TIMEOUT TOOL_TIMEOUT": ErrorCode("error.timeout", True, 504, "FAILED"),
    "expired": ErrorCode("error.timeout", False, 504, "FAILED"),
    "retries_exhausted": ErrorCode("error.transient", False, 503, "FAILED"),
    "INTERNAL_ERROR": ErrorCode("error.internal", False, 500, -32603),
    "PROCESS_EXIT crash_loop": ErrorCode("error.internal", False, 500, "FAILED"),
}
ERROR_CODES: Final = MappingProxyType({code: row for codes, row in _TABLE.items() for code in codes.split()})
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
