"""The layers of dialect 000 around its data: metadata, routing and verification. Pure.

Owns their tables. `bus.dialects.seed000` owns the three forms of messages, which have these layers in different places.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import ForeignRetry
from bus.dialects.forms import (
    LONG,
    NAME,
    SECONDS,
    TEXT,
    TIME,
    Form,
    UnfitValueError,
    choice,
    matching,
    one_of,
    whole,
)
from bus.dialects.keeping import ABSENT, ANYTHING_OR_NULL, Source, Target, is_kept_spelling
from bus.dialects.opened_message import OpenedMessage
from bus.dialects.seed000_hashes import FLOATS, canonical_hash, floats_in, is_python_hash, python_form
from bus.errors import DialectError
from bus.protocol.identifiers import is_schema_version
from bus.protocol.sealing import Message
from bus.retry import Retry

__all__ = [
    "PRIORITY",
    "RoutingLayer",
    "check_version",
    "check_hash",
    "hash_to_say",
    "keep_hash",
    "read_chain",
    "read_conversation",
    "read_lifetime_ms",
    "read_routing",
    "read_verification",
    "write_chain",
    "write_conversation",
    "write_lifetime",
    "write_routing",
    "write_sender",
    "write_verification",
    "write_version",
]

FIRST_VERSION: Final = "1.0.0"
_MAJORS: Final = ("1", "2")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")


def _write_priority(priority: int) -> str:
    if priority <= 3:  # noqa: PLR2004 - the bounds of the table
        return "low"
    if priority <= 6:  # noqa: PLR2004
        return "normal"
    return "high" if priority <= 8 else "critical"  # noqa: PLR2004


def _read_chain(value: Any) -> list[dict[str, Any]]:
    if value.__class__ is not list:
        raise UnfitValueError
    for entry in value:
        if entry.__class__ is not dict:
            raise UnfitValueError
        NAME.read(entry.get("agent_id"))
        TEXT.read(entry.get("content_hash"))
        TIME.read(entry.get("timestamp"))
    entries: list[dict[str, Any]] = value
    return entries


PRIORITY: Final = choice({"low": 2, "normal": 5, "high": 7, "critical": 9}, _write_priority)
_VERSION: Final = matching("a version such as 1.2.0", is_schema_version)
_RETRIES: Final = whole(0, 99)
_BACKOFF: Final = one_of(("constant", "linear", "exponential"))
_ALGORITHM: Final = one_of(("sha256",))
_SIGNATURE: Final = Form("a text of at least one character", TEXT.read, is_secret=True)
_CHAIN: Final = Form("a list of objects of agent_id, content_hash and timestamp", _read_chain)


# --- metadata ---------------------------------------------------------------------------------------------------------


def read_conversation(part: Source, own: tuple[str | None, ...]) -> str | None:
    """Return the conversation: a correlation, else a trace, else the first of *own* ids that is there."""
    fallback = next((name for name in own if name is not None), None)
    trace_id = part.keep("trace_id", NAME)
    if trace_id is not None and part.peek("correlation_id") in (MISSING, None):
        part.optional("correlation_id", NAME, absent=trace_id)
        return trace_id
    return part.optional("correlation_id", NAME, absent=fallback, omit=own)


def write_conversation(part: Target, opened: OpenedMessage, kept: Mapping[str, Any]) -> None:
    """Write the correlation, and a trace beside it that means nothing else."""
    metadata = opened.metadata
    conversation_id = metadata.conversation_id
    own = (metadata.task_id, metadata.message_id)
    was_trace = kept.get(part.place("trace_id")) == conversation_id
    no_correlation = kept.get(part.place("correlation_id"), MISSING)
    fallback = conversation_id if was_trace else next(name for name in own if name is not None)
    if was_trace and no_correlation == ABSENT:
        part.names.add("correlation_id")
    else:
        part.put("correlation_id", NAME, conversation_id, absent=fallback, omit=own)
    was_null = kept.get(part.place("trace_id"), MISSING) is None
    if was_trace or was_null or isinstance(part.members.get("correlation_id"), str):
        part.put_kept("trace_id", NAME)
    else:
        part.names.add("trace_id")


def write_sender(part: Target, opened: OpenedMessage, sender: str | None, absent: Any) -> None:
    """Write who sent a message. *absent* is whom another member names."""
    part.put("sender_agent_id", NAME, sender, absent=absent)
    part.put("sender_agent_version", NAME, opened.metadata.sender.version)


def read_lifetime_ms(part: Source | None, routing: RoutingLayer) -> int | None:
    """Return how long a message says it lives."""
    lifetime_ms = None
    if part is not None:
        if not part.has("ttl_seconds"):
            part.notes.absent(part.place("ttl_seconds"))
        lifetime_ms = part.optional("ttl_seconds", SECONDS)
    if lifetime_ms is not None and routing.lifetime_ms not in (None, lifetime_ms):
        seconds = (routing.lifetime_ms or 0) // 1000
        raise DialectError("/routing/ttl", str(seconds), f"{lifetime_ms // 1000}, as in /metadata/ttl_seconds")
    return lifetime_ms or routing.lifetime_ms


def write_lifetime(part: Target, opened: OpenedMessage) -> None:
    """Write the lifetime in whole seconds."""
    part.put("ttl_seconds", SECONDS, opened.lifetime_ms, absent=ANYTHING_OR_NULL)


# --- routing ----------------------------------------------------------------------------------------------------------


class RoutingLayer(msgspec.Struct, frozen=True):
    """What /routing says."""

    lifetime_ms: int | None = None
    priority: int | None = None
    retry: ForeignRetry | None = None
    idempotency_key: str | None = None


def read_routing(source: Source) -> RoutingLayer:
    """Read the routing layer. Where replies and dead letters go there has no effect here."""
    part = source.optional_inside("routing")
    if part is None:
        return RoutingLayer()
    retries, retry = part.optional("max_retries", _RETRIES), None
    if retries is None:
        part.keep("retry_backoff", _BACKOFF)
    else:
        backoff: Any = part.optional("retry_backoff", _BACKOFF, absent=Retry().policy().backoff)
        retry = ForeignRetry(max_attempts=retries + 1, backoff=backoff)
    read = RoutingLayer(
        lifetime_ms=part.keep("ttl", SECONDS),
        priority=part.optional("priority", PRIORITY),
        retry=retry,
        idempotency_key=part.optional("idempotency_key", NAME),
    )
    part.keep("reply_to", LONG)
    part.keep("dead_letter_queue", LONG)
    part.keep_rest()
    return read


def write_routing(target: Target, opened: OpenedMessage, kept: Mapping[str, Any]) -> None:
    """Write the routing layer."""
    routing = opened.routing
    part = target.inside("routing", is_open=True)
    part.put("priority", PRIORITY, routing.priority)
    if routing.retry is None:
        part.put("max_retries", _RETRIES, None)
        part.put_kept("retry_backoff", _BACKOFF)
    else:
        part.put("max_retries", _RETRIES, routing.retry.max_attempts - 1)
        part.put("retry_backoff", _BACKOFF, routing.retry.backoff, absent=Retry().policy().backoff)
    part.put("idempotency_key", NAME, routing.idempotency_key)
    lifetime_ms = opened.lifetime_ms if "/routing/ttl" in kept else None
    part.put("ttl", SECONDS, lifetime_ms, absent=ANYTHING_OR_NULL)
    part.put_kept("reply_to", LONG)
    part.put_kept("dead_letter_queue", LONG)


# --- verification -----------------------------------------------------------------------------------------------------


def check_version(source: Source, name: str, *, is_required: bool) -> None:
    """Read a schema version, which is kept: x.y.z of the major numbers that the format had."""
    if is_required and not source.has(name):
        raise source.fault(name, MISSING, _VERSION.expected)
    if not source.has(name):
        source.notes.absent(source.place(name))
    version = source.peek(name)
    if is_required and version is None:
        raise source.fault(name, version, _VERSION.expected)
    version = source.keep(name, _VERSION)
    if version is not None and version.partition(".")[0] not in _MAJORS:
        raise source.fault(name, version, "1.y.z or 2.y.z", "unsupported_version")


def write_version(target: Target, kept: Mapping[str, Any], *, is_required: bool) -> None:
    """Write the schema version that was kept."""
    if is_required and not isinstance(kept.get(target.place("schema_version")), str):
        target.put_plain("schema_version", FIRST_VERSION)
    else:
        target.put_kept("schema_version", _KNOWN_VERSION, FIRST_VERSION)


def _read_known_version(value: Any) -> str:
    version = _VERSION.read(value)
    if version.partition(".")[0] not in _MAJORS:
        raise UnfitValueError
    return version


_KNOWN_VERSION: Final = Form("1.y.z or 2.y.z", _read_known_version)


def check_hash(part: Source, data: Any) -> None:
    """Raise DialectError (`hash_mismatch`) unless the content hash in *part* is one of *data*. It is kept."""
    if not part.has("content_hash"):
        part.notes.absent(part.place("content_hash"))
    if (found := part.keep("content_hash", TEXT)) is None:
        return
    place = part.place("content_hash")
    if not _HASH.match(found):
        raise DialectError(place, shown(found), "sha256: and 64 hexadecimal digits", "hash_mismatch")
    if found == canonical_hash(data):
        del part.notes.kept[place]
    elif is_python_hash(found, data):
        if floats := floats_in(data):
            part.notes.kept[FLOATS] = floats
    else:
        raise DialectError(place, shown(found), f"{canonical_hash(data)}, the hash of the data", "hash_mismatch")


def keep_hash(part: Target, kept: Mapping[str, Any]) -> bool:
    """Make room for the content hash; return whether it is to be written when the data are."""
    part.names.add("content_hash")
    if (given := kept.get(part.place("content_hash"), MISSING)) == ABSENT:
        return False
    part.members["content_hash"] = None
    return given is not None


def hash_to_say(data: Any, kept: Mapping[str, Any], pointer: str) -> str:
    """Return the content hash of *data*: that of the canonical form, or the kept one, if it is another of *data*."""
    given = kept.get(pointer)
    if isinstance(given, str) and is_python_hash(given, data, kept.get(FLOATS)):
        return given
    return canonical_hash(data)


def read_chain(part: Source) -> list[dict[str, Any]] | None:
    """Read a foreign proof chain. It is kept and believed by nobody."""
    return part.keep("proof_chain", _CHAIN)


def write_chain(part: Target, message: Message, kept: Mapping[str, Any], otherwise: Any = MISSING) -> None:
    """Write the proof chain that was kept, then one entry for each link of the sealed one."""
    given, links = kept.get(part.place("proof_chain"), MISSING), _links_of(message)
    part.names.add("proof_chain")
    if links:
        entries = given if isinstance(given, list) and is_kept_spelling(_CHAIN, given, given) else []
        part.members["proof_chain"] = [*entries, *links]
    else:
        part.put_kept("proof_chain", _CHAIN, otherwise)


def _links_of(message: Message) -> list[dict[str, Any]]:
    """Return the sealed proof chain as entries of the foreign one."""
    return [
        {
            "agent_id": link.statement.sender,
            "content_hash": link.statement.content_hash,
            "timestamp": link.statement.timestamp,
        }
        for link in message.verification.proof_chain or ()
    ]


def read_verification(source: Source, data: Any) -> dict[str, Any]:
    """Read the verification layer; return the proofs, for an ingress to judge."""
    if not source.has("verification"):
        source.default_inside("verification")
        return {}
    part = source.optional_inside("verification")
    if part is None:
        return {}
    check_version(part, "schema_version", is_required=False)
    for name in ("content_hash_algorithm", "agent_signature"):
        if not part.has(name):
            part.notes.absent(part.place(name))
    part.keep("content_hash_algorithm", _ALGORITHM)
    check_hash(part, data)
    first, second = part.keep("agent_signature", _SIGNATURE), part.keep("signature", _SIGNATURE)
    if first is not None and second is not None and first != second:
        raise part.fault("signature", "another text", "the same as in agent_signature")
    chain = read_chain(part)
    part.keep_rest()
    proofs: dict[str, Any] = {}
    if (signature := first or second) is not None:
        # The format signs its data alone, as Python writes them.
        proofs |= {"signature": signature, "signed": python_form(data)}
    if chain:
        proofs["proof_chain"] = chain
    return proofs


def write_verification(target: Target, message: Message, kept: Mapping[str, Any]) -> bool:
    """Write the verification layer; return whether its content hash is to be written when the data are."""
    part = target.inside("verification", may_lack=True, is_open=True)
    if part.is_absent or kept.get("/verification", MISSING) is None:
        # A message whose causes are sealed has a proof, though the foreign one had none.
        part.is_absent = part.is_open = False
        write_chain(part, message, {})
        return False
    write_version(part, kept, is_required=False)
    part.put_kept("content_hash_algorithm", _ALGORITHM, "sha256")
    has_hash = keep_hash(part, kept)
    part.put_kept("agent_signature", _SIGNATURE, None)
    part.put_kept("signature", _SIGNATURE)
    write_chain(part, message, kept)
    return has_hash
