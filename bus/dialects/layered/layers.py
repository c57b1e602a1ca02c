"""The rows of dialect `layered` around its data: metadata, routing and verification. Pure.

Owns their tables. `bus.dialects.layered.codec` owns the three forms of messages, which nest these layers differently.
*facts* holds the `kept` values when a message is written, and the `hashed` JSON when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from bus.dialects import forms
from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import ForeignRetry
from bus.dialects.forms import LONG, NAME, SECONDS, TEXT, Form, one_of
from bus.dialects.keeping import ABSENT, ANYTHING_OR_NULL, Source, Target, is_kept_spelling
from bus.dialects.layered.hashes import FLOATS, canonical_hash, floats_in, is_python_hash, python_form
from bus.dialects.member_table import KEPT, Inside, Kept, MemberRow, MemberTable, MessageFacts, Optional
from bus.errors import DialectError
from bus.protocol.identifiers import is_schema_version
from bus.protocol.sealing import Message
from bus.retry import Retry

FIRST_VERSION: Final = "1.0.0"
_MAJORS: Final = ("1", "2")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")


def _read_chain(value: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = forms.LIST.read(value)
    for entry in entries:
        NAME.read(forms.OBJECT.read(entry).get("agent_id"))
        TEXT.read(entry.get("content_hash"))
        forms.TIME.read(entry.get("timestamp"))
    return entries


PRIORITY: Final = forms.priority_words("normal")
_VERSION: Final = forms.matching("a version such as 1.2.0", is_schema_version)
KNOWN_VERSION: Final = forms.matching(
    "1.y.z or 2.y.z", lambda text: is_schema_version(text) and text.partition(".")[0] in _MAJORS
)
_BACKOFF: Final = one_of(("constant", "linear", "exponential"))
_CHAIN: Final = Form("a list of objects of agent_id, content_hash and timestamp", _read_chain)


# --- metadata ---------------------------------------------------------------------------------------------------------


class Agreed(MemberRow):
    """A member of the metadata that repeats a field of the data, if *twice* names one for the type."""

    def __init__(self, name: str, field: str, twice: Callable[[str], str | None], otherwise: Any) -> None:
        self.name, self.field, self.twice, self.otherwise = name, field, twice, otherwise

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        field = self.twice(facts["message_type"])
        location, stated = f"{facts['base']}/{field}", facts["fields"].get(field)
        if stated is not None:
            NAME.demand(stated, location)
        source.note_absent(self.name)
        provided = source.optional(self.name, NAME)
        if stated is not None and provided is not None and stated != provided:
            raise DialectError(location, shown(stated), f"{provided}, as in /metadata/{self.name}")
        data[self.field] = stated if provided is None else provided

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        field = self.twice(facts["message_type"])
        absent = facts["fields"].get(field, self.otherwise) if field is not None else self.otherwise
        target.put(self.name, NAME, data[self.field], absent=absent)


class Conversation(MemberRow):
    """A correlation, and a trace beside it that means nothing else; else a trace, else the first of the own ids."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        own = facts["own"]
        fallback = facts["fragment"].conversation_id or next((name for name in own if name is not None), None)
        trace_id = source.keep("trace_id", NAME)
        if trace_id is not None and source.peek("correlation_id") in (MISSING, None):
            source.optional("correlation_id", NAME, absent=trace_id)
            data["conversation_id"] = trace_id
        else:
            data["conversation_id"] = source.optional("correlation_id", NAME, absent=fallback, omit=own)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        conversation_id, kept = data["conversation_id"], facts["kept"]
        own = (data["task_id"], data["message_id"])
        trace = kept.get(target.location("trace_id"), MISSING)
        was_trace = trace == conversation_id
        fallback = conversation_id if was_trace else next(name for name in own if name is not None)
        if was_trace and kept.get(target.location("correlation_id"), MISSING) == ABSENT:
            target.names.add("correlation_id")
        else:
            target.put("correlation_id", NAME, conversation_id, absent=fallback, omit=own)
        if was_trace or trace is None or isinstance(target.members.get("correlation_id"), str):
            target.put_kept("trace_id", NAME)
        else:
            target.names.add("trace_id")


class LifetimeRow(MemberRow):
    """The lifetime of a message in whole seconds; the routing may repeat it."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        source.note_absent("ttl_seconds")
        lifetime_ms, routed_ms = source.optional("ttl_seconds", SECONDS), data.get("routed_ms")
        if lifetime_ms is not None and routed_ms not in (None, lifetime_ms):
            expected = f"{lifetime_ms // 1000}, as in /metadata/ttl_seconds"
            raise DialectError("/routing/ttl", str((routed_ms or 0) // 1000), expected)
        data["lifetime_ms"] = lifetime_ms or routed_ms

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:  # noqa: ARG002
        target.put("ttl_seconds", SECONDS, data["lifetime_ms"], absent=ANYTHING_OR_NULL)


# --- routing ----------------------------------------------------------------------------------------------------------


class _Retry(MemberRow):
    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        retries = source.optional("max_retries", forms.RETRIES)
        if retries is None:
            source.keep("retry_backoff", _BACKOFF)
        else:
            backoff: Any = source.optional("retry_backoff", _BACKOFF, absent=Retry().policy().backoff)
            data["retry"] = ForeignRetry(max_attempts=retries + 1, backoff=backoff)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:  # noqa: ARG002
        if data["retry"] is None:
            target.put("max_retries", forms.RETRIES, None)
            target.put_kept("retry_backoff", _BACKOFF)
        else:
            target.put("max_retries", forms.RETRIES, data["retry"].max_attempts - 1)
            target.put("retry_backoff", _BACKOFF, data["retry"].backoff, absent=Retry().policy().backoff)


class _RoutedLifetime(Kept):
    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        lifetime_ms = data["lifetime_ms"] if target.location(self.name) in facts["kept"] else None
        target.put(self.name, SECONDS, lifetime_ms, absent=ANYTHING_OR_NULL)


# Where replies and dead letters go there has no effect here.
ROUTING: Final = Inside(
    "routing",
    MemberTable(
        _Retry(),
        _RoutedLifetime("ttl", SECONDS, "routed_ms"),
        Optional("priority", PRIORITY),
        Optional("idempotency_key", NAME),
        Kept("reply_to", LONG),
        Kept("dead_letter_queue", LONG),
        KEPT,
    ),
    optional=True,
)


# --- verification -----------------------------------------------------------------------------------------------------


class FormatVersion(MemberRow):
    """A schema version. It is kept: x.y.z with the major numbers of the format."""

    name = "schema_version"

    def __init__(self, *, required: bool) -> None:
        self.required = required

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        version = source.peek(self.name)
        if self.required and version in (MISSING, None):
            raise source.fault(self.name, version, _VERSION.expected)
        source.note_absent(self.name)
        version = source.keep(self.name, _VERSION)
        if version is not None and version.partition(".")[0] not in _MAJORS:
            raise source.fault(self.name, version, KNOWN_VERSION.expected, "unsupported_version")

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:  # noqa: ARG002
        if self.required and not isinstance(facts["kept"].get(target.location(self.name)), str):
            target.put_plain(self.name, FIRST_VERSION)
        else:
            target.put_kept(self.name, KNOWN_VERSION, FIRST_VERSION)


class ContentHash(MemberRow):
    """The content hash: of the canonical form, or the kept one. It is written together with the data
    (`hash_to_say`)."""

    name = "content_hash"

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        hashed, location = facts["hashed"], source.location(self.name)
        source.note_absent(self.name)
        if (found := source.keep(self.name, TEXT)) is None:
            return
        if not _HASH.match(found):
            raise DialectError(location, shown(found), "sha256: and 64 hexadecimal digits", "hash_mismatch")
        if found == canonical_hash(hashed):
            del source.notes.kept[location]
        elif not is_python_hash(found, hashed):
            raise DialectError(
                location, shown(found), f"{canonical_hash(hashed)}, the hash of the data", "hash_mismatch"
            )
        elif floats := floats_in(hashed):
            source.notes.kept[FLOATS] = floats

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:  # noqa: ARG002
        target.names.add(self.name)
        provided = facts["kept"].get(target.location(self.name), MISSING)
        facts["has_hash"] = provided is not None and provided != ABSENT
        if provided != ABSENT:
            target.members[self.name] = None


def hash_to_say(data: Any, kept: Mapping[str, Any], pointer: str) -> str:
    """Return the content hash of *data*: of the canonical form, or the kept one if it is another valid hash of
    *data*."""
    provided = kept.get(pointer)
    if isinstance(provided, str) and is_python_hash(provided, data, kept.get(FLOATS)):
        return provided
    return canonical_hash(data)


class ProofChain(Kept):
    """A foreign proof chain, kept but never trusted, followed by one entry for each link of the sealed chain."""

    def __init__(self, *, otherwise: Any = MISSING, noted: bool = False) -> None:
        super().__init__("proof_chain", _CHAIN, "proof_chain", otherwise=otherwise, noted=noted)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        links = _links_of(facts["message"])
        if not links:
            super().write(target, data, facts)
            return
        provided = facts["kept"].get(target.location(self.name), MISSING)
        entries = provided if isinstance(provided, list) and is_kept_spelling(_CHAIN, provided, provided) else []
        target.put_plain(self.name, [*entries, *links])


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


class _Signatures(MemberRow):
    """The signature, under one of two names. It is kept."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        source.note_absent("agent_signature")
        first, second = source.keep("agent_signature", forms.SECRET), source.keep("signature", forms.SECRET)
        if first is not None and second is not None and first != second:
            raise source.fault("signature", "another text", "the same as in agent_signature")
        data["signature"] = first or second

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:  # noqa: ARG002
        target.put_kept("agent_signature", forms.SECRET, None)
        target.put_kept("signature", forms.SECRET)


_VERIFICATION: Final = MemberTable(
    FormatVersion(required=False),
    Kept("content_hash_algorithm", one_of(("sha256",)), otherwise="sha256", noted=True),
    ContentHash(),
    _Signatures(),
    ProofChain(),
    KEPT,
)


class VerificationLayer(MemberRow):
    """The verification layer, whose signatures and chain are proofs, for an ingress to judge."""

    name = "verification"

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        source.note_absent(self.name)
        part = source.optional_inside(self.name)
        if part is None:
            return
        found = _VERIFICATION.read(part, {}, facts)
        proofs: MessageFacts = {}
        if found["signature"] is not None:
            # The format signs its data alone, as Python writes them.
            proofs |= {"signature": found["signature"], "signed": python_form(facts["hashed"])}
        if found.get("proof_chain"):
            proofs["proof_chain"] = found["proof_chain"]
        data["proofs"] = proofs

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        part = target.inside(self.name, may_lack=True, is_open=True)
        if part.is_absent or facts["kept"].get("/verification", MISSING) is None:
            # A message whose causes are sealed has a proof, though the foreign one had none.
            part.is_absent = part.is_open = facts["has_hash"] = False
            ProofChain().write(part, data, {**facts, "kept": {}})
        else:
            _VERIFICATION.write(part, data, facts)
