"""The forms of names and ids in an envelope (PROTOCOL.md sections 1 and 6), each as one predicate.

Owns the forms of segments, message types, text ids, message ids, versions, hashes and reply addresses, and making new
ids. `bus.topics.names` builds topic names from them.
"""

from __future__ import annotations

import os
import re
import weakref
from functools import lru_cache

__all__ = [
    "Entropy",
    "has_control",
    "is_hash",
    "is_message_id",
    "is_message_type",
    "is_namespace",
    "is_pointer",
    "is_protocol",
    "is_reply_to",
    "is_schema_version",
    "is_text_id",
    "is_traceparent",
    "uuid7",
    "uuid7_ms",
]

MAX_NAMESPACE = 63
MAX_MESSAGE_TYPE = 120
MAX_TEXT_ID = 256
_MAX_REPLY = 144
_DIGITS = "(?:0|[1-9][0-9]{0,63})"
"""A number in a version. Longer ones occur in no real version and would only fill memory."""
_POOL_BYTES = 4096
# Longer texts are not cached: a cache must not keep a megabyte of every hostile record.
_REMEMBERED = 64

_SEGMENT = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
_NAMESPACE = re.compile(rf"{_SEGMENT}\Z")
_MESSAGE_TYPE = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*\Z")
_MESSAGE_ID = re.compile(r"[\x21-\x7e]{1,128}\Z")
_VERSION = re.compile(rf"{_DIGITS}\.{_DIGITS}\.{_DIGITS}\Z")
_PROTOCOL = re.compile(rf"sealbus/1(?:\.{_DIGITS})?\Z")
_HASH = re.compile(r"sha256:[0-9a-f]{64}\Z")
_REPLY = re.compile(rf"({_SEGMENT})\.(?:_reply\.[a-z0-9-]{{1,64}}-[0-9a-f]{{8}}|_mail\.({_SEGMENT}))\Z")
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z", re.IGNORECASE | re.ASCII)
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)*\Z")
# Categories Cc, Cf, Zl and Zp of Unicode 16, written out: the verdict must not depend on the interpreter's Unicode
# version.
_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"
    "\ud800-\udfff]"  # lone surrogates are no text
)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def is_namespace(text: str) -> bool:
    """Match one segment `[a-z][a-z0-9]*(-[a-z0-9]+)*` of at most 63 characters; groups have the same form."""
    return len(text) <= MAX_NAMESPACE and _is_namespace(text)


@lru_cache(maxsize=1024)
def _is_namespace(text: str) -> bool:
    return _NAMESPACE.match(text) is not None


def is_message_type(text: str) -> bool:
    """Match segments joined by dots, at most 120 characters, the last segment not `dlq`."""
    return len(text) <= MAX_MESSAGE_TYPE and _is_message_type(text)


@lru_cache(maxsize=1024)
def _is_message_type(text: str) -> bool:
    return _MESSAGE_TYPE.match(text) is not None and text.rpartition(".")[2] != "dlq"


def is_text_id(text: str) -> bool:
    """Match 1 to 256 code points, none of category Cc, Cf, Zl or Zp."""
    return 0 < len(text) <= MAX_TEXT_ID and _is_text_id(text)


@lru_cache(maxsize=4096)
def _is_text_id(text: str) -> bool:
    return _FORBIDDEN.search(text) is None


def is_message_id(text: str) -> bool:
    """Match 1 to 128 characters U+0021 to U+007E; ids made here are UUIDv7."""
    return _MESSAGE_ID.match(text) is not None


def is_schema_version(text: str) -> bool:
    """Match three integers `x.y.z` without leading zeros, each of at most 64 digits."""
    return _is_schema_version(text) if len(text) <= _REMEMBERED else _VERSION.match(text) is not None


@lru_cache(maxsize=1024)
def _is_schema_version(text: str) -> bool:
    return _VERSION.match(text) is not None


def is_protocol(text: str) -> bool:
    """Match `sealbus/1` or a minor version of it."""
    return _is_protocol(text) if len(text) <= _REMEMBERED else _PROTOCOL.match(text) is not None


@lru_cache(maxsize=64)
def _is_protocol(text: str) -> bool:
    return _PROTOCOL.match(text) is not None


def is_hash(text: str) -> bool:
    """Match `sha256:` and 64 lower-case hexadecimal digits."""
    return _HASH.match(text) is not None


def is_reply_to(text: str, namespace: str) -> bool:
    """Match `<namespace>._reply.<slug>-<8 hex>` or `<namespace>._mail.<group>`, of exactly this namespace."""
    return len(text) <= _MAX_REPLY and _is_reply_to(text, namespace)


@lru_cache(maxsize=1024)
def _is_reply_to(text: str, namespace: str) -> bool:
    found = _REPLY.match(text)
    return found is not None and found[1] == namespace and len(found[2] or "") <= MAX_NAMESPACE


def is_pointer(text: str) -> bool:
    """Match a JSON pointer (RFC 6901)."""
    return _POINTER.match(text) is not None


def is_traceparent(text: str) -> bool:
    """Match a `traceparent` of W3C Trace Context; another form is ignored, not refused."""
    return _TRACEPARENT.match(text) is not None


def has_control(text: str) -> bool:
    """Tell whether *text* has a control character (category Cc)."""
    return _CONTROL.search(text) is not None


class Entropy:
    """Random bytes in small pieces, read from the system in large ones.

    A system call per message id would cost more than the id. A forked child starts with an empty pool; otherwise two
    processes would make the same ids.
    """

    __slots__ = ("__weakref__", "_at", "_pool")

    def __init__(self) -> None:
        self._pool, self._at = b"", 0
        forget = weakref.WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def __call__(self, count: int) -> bytes:
        """Return *count* random bytes, at most 4096."""
        end = self._at + count
        if end > len(self._pool):
            self._pool, end = os.urandom(_POOL_BYTES), count
        self._at = end
        return self._pool[end - count : end]

    def _forget(self) -> None:
        self._pool, self._at = b"", 0


def uuid7(now_ms: int, entropy: bytes) -> str:
    """Return a UUIDv7 (RFC 9562) as text, from the wall time and 10 random bytes."""
    tail = entropy.hex()
    return f"{_uuid7_head(now_ms)}{tail[:3]}-{'89ab'[entropy[1] & 3]}{tail[5:8]}-{tail[8:20]}"


def uuid7_ms(text: str) -> int | None:
    """Return the wall time in a UUIDv7, in Unix milliseconds; None for any other id."""
    return int(text[:8] + text[9:13], 16) if _UUID7.match(text) is not None else None


@lru_cache(maxsize=16)
def _uuid7_head(now_ms: int) -> str:
    head = f"{now_ms & 0xFFFFFFFFFFFF:012x}"
    return f"{head[:8]}-{head[8:]}-7"
