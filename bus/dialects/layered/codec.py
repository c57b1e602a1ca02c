"""The messages of dialect `layered`, and the way through their tables. Pure.

Owns telling the three forms apart, and each of them. Layered: `data`, with `metadata`, `verification` and `routing`
beside it. Union: `message_type` and `payload`. Bare: `message_type` and the fields side by side. Unknown members are
kept, and an optional member may be null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from bus.dialects.carried_message import CARRIED, carried_in_metadata, carried_text
from bus.dialects.data_check import check_data, default_lifetime_ms, kind_of, known_kind
from bus.dialects.faults import MISSING, kind_shown, shown
from bus.dialects.foreign import NO_ALIASES, NONE, Defaults, Foreign
from bus.dialects.forms import LAST_WRITABLE_MS, MESSAGE_ID, NAME, OBJECT, TEXT, TIME
from bus.dialects.keeping import ANYTHING, ANYTHING_OR_NULL, Notes, Source, Target
from bus.dialects.layered import layers, payloads
from bus.dialects.member_table import Kept, MemberTable, MessageFacts, Optional
from bus.dialects.message_facts import (
    OpenedMessage,
    addressed_id,
    begin_reading,
    foreign_that_says,
    open_message,
    opened_facts,
)
from bus.dialects.strict_json import read_object
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.vocabulary import BUILT_IN

__all__ = ["decode", "encode"]

_NAME: Final = "000"
_HANDOFF, _RESULT = "task.handoff", "task.result"
_NAMING_TASKS: Final = (_HANDOFF, "status.update")
"""Types whose data name their task."""
_BESIDE: Final = ("message_type", "schema_version", "message_id", "metadata", "verification", "routing")
"""Members of a bare message that are not fields."""
_BESIDE_MODEL: Final = (
    *(*_BESIDE, "trace_id", "sender_agent_id", "sender_agent_version", "timestamp", "content_hash", "proof_chain"),
)
"""The same of a message of the pipeline."""
_TELLING: Final = ("data", "payload")
"""Members by which a message has another form."""


# --- tables -----------------------------------------------------------------------------------------------------------

_ID: Final = Optional("message_id", MESSAGE_ID, noted=True)
_TIME: Final = Optional("timestamp", TIME, "sent_at_ms", noted=True)
_VERSION: Final = layers.FormatVersion(required=True)
_SENDER_VERSION: Final = Optional("sender_agent_version", NAME, "sender_version")
_TASK: Final = layers.Agreed("task_id", "task_id", lambda name: "task_id" if name in _NAMING_TASKS else None, MISSING)
_OWN_TASK: Final = Optional(
    "task_id", NAME, absent=lambda facts: facts["absent_task"], omit=lambda facts: facts["own_task"]
)
"""The task of a message in layers."""
_SENDER: Final = MemberTable(
    layers.Agreed("sender_agent_id", "sender_id", payloads.FIELD_OF_SENDER.get, ANYTHING_OR_NULL),
    _SENDER_VERSION,
    Kept("sender_host", NAME),
)
_RECEIVER: Final = layers.Agreed(
    "receiver_agent_id", "recipient_id", lambda name: "to_agent" if name == _HANDOFF else None, MISSING
)
_METADATA: Final = MemberTable(_TIME, *_SENDER.rows, _RECEIVER, layers.Conversation(), layers.LifetimeRow())


# --- reading ----------------------------------------------------------------------------------------------------------


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Decode the message of this dialect in *value*; raise DialectError if it is invalid.

    The id and the time of a message may be missing, too: sealing adds them.
    """
    tree = read_object(value)
    if (carried := carried_in_metadata(tree, partial(encode, types=types))) is not None:
        return carried
    source, facts = begin_reading(tree, defaults, types, nulls=True)
    facts |= {"base": "", "fields": {}, "fragment": NONE}
    if not source.has("message_type"):
        if not source.has("data"):
            raise source.fault("message_type", MISSING, "a message_type, or the layer data")
        return _read_layered(source, facts)
    if source.has("data"):
        raise source.fault("message_type", source.peek("message_type"), "no such member beside data")
    return _read_union(source, facts) if source.has("payload") else _read_bare(source, facts)


def _read_layered(source: Source, facts: MessageFacts) -> Foreign:
    """Read a message in layers: the specification of a task, or the result of one."""
    data, is_result = payloads.read_layer(source.inside("data"))
    name = _RESULT if is_result else _HANDOFF
    facts |= {"message_type": name, "hashed": facts["tree"]["data"]}
    part, defaults = _open_metadata(source, facts), facts["defaults"]
    _ID.read(part, facts, facts)
    _TIME.read(part, facts, facts)
    _use_default(facts, "message_id")
    layers.ROUTING.read(source, facts, facts)
    layers.VerificationLayer().read(source, facts, facts)
    message_id = facts.get("message_id")
    facts |= {"absent_task": None, "own_task": (message_id,)}
    _OWN_TASK.read(part, facts, facts)
    task_id = facts.get("task_id") if facts["has_metadata"] else defaults.task_id
    _read_sender(part, facts)
    _RECEIVER.read(part, facts, facts)
    _set_recipient(facts)
    if task_id is None:
        if message_id is None:
            raise DialectError("/metadata/message_id", "nothing", "an id, of the message or of its task")
        if not is_result:
            facts["notes"].derived.append("/task_id")
    if not is_result:
        if facts["to"] is None or facts["to"].id is None:
            raise DialectError("/metadata/receiver_agent_id", "nothing", NAME.expected)
        facts["notes"].kept["form"] = "layered"
        agents = {"from_agent": facts["sender"].id, "to_agent": facts["to"].id}
        data = {**agents, "task_spec": data, "task_id": task_id or message_id}
    facts |= {"own": (task_id, message_id), "task_id": task_id or message_id}
    kind = known_kind(facts["types"], name)
    layers.Conversation().read(part, facts, facts)
    layers.LifetimeRow().read(part, facts, facts)
    return _finish(
        source, part, facts, (kind, data, payloads.RESULT_LOCATIONS if is_result else payloads.LAYERED_LOCATIONS)
    )


def _read_union(source: Source, facts: MessageFacts) -> Foreign:
    """Read a message of one of five types, whose fields are its payload."""
    kind = _read_kind(source, facts, payloads.TYPES)
    facts["message_id"] = source.required("message_id", MESSAGE_ID, facts["defaults"].message_id)
    _VERSION.read(source, facts, facts)
    facts["base"] = "/payload"
    members = dict(source.required("payload", OBJECT))
    _read_own_names(members, facts)
    _refuse_verification(source)
    return _read_named(source, facts, kind, members)


def _read_bare(source: Source, facts: MessageFacts) -> Foreign:
    """Read a message whose fields stand beside its type: one of five types, or of three of the pipeline."""
    kind = _read_kind(source, facts, {**payloads.TYPES, **payloads.PIPELINE})
    is_model = kind.name not in payloads.TYPES.values()
    _VERSION.read(source, facts, facts)
    _refuse_verification(source)
    rest, beside = source.rest(), _BESIDE_MODEL if is_model else _BESIDE
    members = {name: value for name, value in rest.items() if name not in beside}
    source = Source({name: value for name, value in rest.items() if name in beside}, "", facts["notes"], nulls=True)
    _ID.read(source, facts, facts)
    _use_default(facts, "message_id")
    if is_model:
        return _read_model(source, facts, kind, members)
    facts["notes"].kept["form"] = "bare"
    return _read_named(source, facts, kind, members)


def _read_named(source: Source, facts: MessageFacts, kind: PayloadType, members: dict[str, Any]) -> Foreign:
    base, kept = facts["base"], facts["notes"].kept
    data = facts["fields"] = payloads.read_fields(kind, members, base, kept)
    part = _open_metadata(source, facts)
    _TIME.read(part, facts, facts)
    _TASK.read(part, facts, facts)
    task_id = facts["task_id"] = facts["task_id"] or facts["fragment"].task_id
    _read_sender(part, facts)
    _RECEIVER.read(part, facts, facts)
    _set_recipient(facts)
    facts["own"] = (task_id, facts.get("message_id"))
    layers.Conversation().read(part, facts, facts)
    if kind.name == _HANDOFF:
        facts["priority"] = payloads.priority_of(data, base, kept)
    layers.LifetimeRow().read(part, facts, facts)
    return _finish(source, part, facts, (kind, data, {"": base}))


def _read_model(source: Source, facts: MessageFacts, kind: PayloadType, members: dict[str, Any]) -> Foreign:
    """Read a message of the pipeline, whose metadata stand beside its fields."""
    defaults, notes = facts["defaults"], facts["notes"]
    facts["hashed"] = payloads.hashed_fields(kind, facts["tree"])
    layers.ContentHash().read(source, facts, facts)
    data = payloads.read_fields(kind, members, "", notes.kept)
    is_fragment, default = not source.has("sender_agent_id"), defaults.sender
    identity = source.required("sender_agent_id", NAME, default.id if default is not None else None)
    _SENDER_VERSION.read(source, facts, facts)
    facts["sender_id"] = None if is_fragment and default is not None else identity
    _set_sender(facts)
    _TIME.read(source, facts, facts)
    source.note_absent("trace_id")
    absent = defaults.conversation_id if is_fragment else facts.get("message_id")
    facts["conversation_id"] = source.optional("trace_id", NAME) or absent
    layers.ProofChain(noted=True).read(source, facts, facts)
    facts |= {"to": defaults.recipient, "proofs": {}}
    if chain := facts.pop("proof_chain", None):
        facts["proofs"] = {"proof_chain": chain}
    return _finish(source, None, facts, (kind, data, {"": ""}))


def _read_kind(source: Source, facts: MessageFacts, kinds: Mapping[str, str]) -> PayloadType:
    stated = source.required("message_type", TEXT)
    if stated not in kinds:
        raise source.fault("message_type", stated, f"one of {', '.join(kinds)}", "unknown_type")
    name = facts["message_type"] = kinds[stated]
    kind = kind_of(facts["types"], name, payloads.VERSIONS[name]) if name in payloads.VERSIONS else None
    return kind or known_kind(facts["types"], name)


def _read_own_names(members: dict[str, Any], facts: MessageFacts) -> None:
    """Take the members of the payload that repeat its envelope: its type, and a version."""
    part, stated = Source(members, facts["base"], facts["notes"], nulls=True), facts["tree"]["message_type"]
    if "schema_version" in members:
        layers.FormatVersion(required=False).read(part, facts, facts)
        del members["schema_version"]
    if "message_type" in members:
        repeated = members.pop("message_type")
        if repeated != stated:
            raise part.fault("message_type", repeated, f"{stated}, as in /message_type")
        facts["notes"].kept[f"{facts['base']}/message_type"] = repeated


def _refuse_verification(source: Source) -> None:
    if source.has("verification"):
        found = kind_shown(source.peek("verification"))
        raise source.fault("verification", found, "only in the layered form, beside data")


def _open_metadata(source: Source, facts: MessageFacts) -> Source:
    """Take the metadata. If they are missing, defaults replace them, and the single members are not noted as absent."""
    part = None
    if source.has("metadata"):
        part = source.optional_inside("metadata")
    else:
        source.note_absent("metadata")
        facts["fragment"] = facts["defaults"]
    facts["has_metadata"] = part is not None
    return Source({}, "/metadata", Notes(), nulls=True) if part is None else part


def _use_default(facts: MessageFacts, name: str) -> None:
    if facts.get(name) is None:
        facts[name] = getattr(facts["defaults"], name)


def _read_sender(part: Source, facts: MessageFacts) -> None:
    _SENDER.read(part, facts, facts)
    _set_sender(facts)


def _set_sender(facts: MessageFacts) -> None:
    version, default = facts.get("sender_version"), facts["defaults"].sender
    if facts["sender_id"] is not None:
        facts["sender"] = Agent(id=facts["sender_id"], version=version)
    elif default is None:
        raise DialectError("/metadata/sender_agent_id", "nothing", NAME.expected)
    else:
        facts["sender"] = default if version is None else msgspec.structs.replace(default, version=version)


def _set_recipient(facts: MessageFacts) -> None:
    identity = facts["recipient_id"]
    facts["to"] = facts["fragment"].recipient if identity is None else Agent(id=identity)


def _finish(
    source: Source,
    part: Source | None,
    facts: MessageFacts,
    found: tuple[PayloadType, dict[str, Any], Mapping[str, str]],
) -> Foreign:
    """Build the message from type, data and pointers; the remaining members of *source* and of its metadata, *part*,
    are kept."""
    kind, data, locations = found
    if part is not None:
        part.keep_rest()
    source.keep_rest()
    _use_default(facts, "sent_at_ms")
    payload = check_data(kind, facts["notes"].marked(data, _NAME), locations, facts["tree"])
    sent_ms, lifetime_ms = facts["sent_at_ms"], facts.get("lifetime_ms")
    if sent_ms is None and lifetime_ms is not None:
        raise DialectError("/metadata/timestamp", "nothing", "the time that the lifetime counts from")
    if lifetime_ms is None and "timeout_seconds" in data:
        lifetime_ms = getattr(payload, "timeout_seconds", 0) * 1000
    lifetime_ms = lifetime_ms or facts["defaults"].lifetime_ms
    if sent_ms is not None:
        facts["expires_at_ms"] = sent_ms + (lifetime_ms or default_lifetime_ms(kind))
        if facts["expires_at_ms"] > LAST_WRITABLE_MS:
            raise DialectError("/metadata/timestamp", f"{lifetime_ms} ms", "a life that ends before the year 10000")
    return foreign_that_says(facts, kind.name, kind.version, data)


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Write *message* in this dialect; raise DialectError for a type outside the format."""
    opened = open_message(message, _NAME, types)
    write = _writer_of(opened)
    recipient = opened.metadata.recipient
    is_named = recipient is not None or opened.metadata.message_type == _HANDOFF or "*" in aliases
    facts = opened_facts(opened, aliases) | {
        "message": message,
        "fields": {},
        "sender_version": opened.metadata.sender.version,
        "recipient_id": addressed_id(recipient, aliases) if is_named else None,
        "kind_there": payloads.KINDS.get(opened.metadata.message_type),
    }
    whole = write(facts)
    if carry:
        location = whole.get("metadata")
        if location is not None and not isinstance(location, dict):
            # A member of that name that was kept, in the bare form, which has no metadata of its own.
            raise DialectError("/data/x_dialect/kept/~1metadata", "no object", "an object, to carry the message in")
        whole["metadata"] = {**(location or {}), CARRIED: carried_text(message)}
    return whole


def _writer_of(opened: OpenedMessage) -> Callable[[MessageFacts], dict[str, Any]]:
    """Return the writer for a message in its original form, if that form can express all data."""
    metadata = opened.metadata
    name, provided = metadata.message_type, opened.kept.get("form")
    if name == _RESULT or (name == _HANDOFF and provided == "layered"):
        if payloads.fits_layers(opened):
            return _write_layered
        if name == _RESULT:
            raise DialectError("/data", "a result", "a completed task's output and artifacts alone, to be said here")
    if name not in payloads.KINDS or opened.kind is None:
        expected = f"one of {', '.join([*payloads.KINDS, _RESULT])}, to be said here"
        raise DialectError("/metadata/message_type", name, expected)
    facts, needed = metadata.schema_version, payloads.VERSIONS.get(name, metadata.schema_version)
    if facts.partition(".")[0] != needed.partition(".")[0]:
        raise DialectError("/metadata/schema_version", facts, f"{needed}, to be said here")
    if name in payloads.PIPELINE.values():
        return _write_model
    return _write_bare if provided == "bare" else _write_union


def _write_layered(facts: MessageFacts) -> dict[str, Any]:
    opened, kept = facts["opened"], facts["kept"]
    target = Target(opened.kept, is_open=lambda name, _value: name not in ("data", "message_type"), nulls=True)
    _check_agreement(opened)
    payloads.write_layer(opened, target.inside("data", is_open=True))
    part, message_id = _metadata_in(target, kept), facts["message_id"]
    Optional("message_id", MESSAGE_ID, noted=True).write(part, facts, facts)
    is_own = facts["message_type"] == _RESULT or opened.is_derived("/task_id", message_id)
    facts |= {"absent_task": message_id, "own_task": (message_id,) if is_own else ()}
    _OWN_TASK.write(part, facts, facts)
    _METADATA.write(part, facts, facts)
    layers.ROUTING.write(target, facts, facts)
    layers.VerificationLayer().write(target, facts, facts)
    whole = target.finish()
    if facts["has_hash"]:
        whole["verification"]["content_hash"] = layers.hash_to_say(whole["data"], kept, "/verification/content_hash")
    return whole


def _write_union(facts: MessageFacts) -> dict[str, Any]:
    kept = facts["kept"]
    target = Target(facts["opened"].kept, is_open=lambda name, _value: name not in ("data", "verification"), nulls=True)
    _write_head(target, facts, ANYTHING)
    payload = _fields(facts, "/payload", ("schema_version", "message_type"))
    version = kept.get("/payload/schema_version", MISSING)
    if version is None or layers.KNOWN_VERSION.accepts(version):
        payload["schema_version"] = version
    if kept.get("/payload/message_type", MISSING) == facts["kind_there"]:
        payload["message_type"] = facts["kind_there"]
    target.put_plain("payload", payload)
    _write_named(_metadata_in(target, kept), facts, payload)
    return target.finish()


def _write_bare(facts: MessageFacts) -> dict[str, Any]:
    fields = _fields(facts, "", (*_BESIDE, *_TELLING))
    target = Target(facts["opened"].kept, is_open=lambda name, _value: name == "routing", nulls=True)
    _write_head(target, facts, ANYTHING_OR_NULL)
    _write_named(_metadata_in(target, facts["kept"]), facts, fields)
    return {**target.finish(), **fields}


def _write_model(facts: MessageFacts) -> dict[str, Any]:
    fields = _fields(facts, "", (*_BESIDE_MODEL, *_TELLING))
    target = Target(facts["opened"].kept, is_open=_is_beside_model, nulls=True)
    _write_head(target, facts, ANYTHING_OR_NULL)
    _TIME.write(target, facts, facts)
    target.put("sender_agent_id", NAME, facts["sender_id"], absent=ANYTHING)
    _SENDER_VERSION.write(target, facts, facts)
    is_noticed = "sender_agent_id" not in target.members or "message_id" not in target.members
    absent = ANYTHING_OR_NULL if is_noticed else facts["message_id"]
    target.put("trace_id", NAME, facts["conversation_id"], absent=absent)
    layers.ContentHash().write(target, facts, facts)
    layers.ProofChain(otherwise=[]).write(target, facts, facts)
    whole = {**target.finish(), **fields}
    kind = facts["opened"].kind
    if facts["has_hash"] and kind is not None:
        whole["content_hash"] = layers.hash_to_say(payloads.hashed_fields(kind, whole), facts["kept"], "/content_hash")
    return whole


def _write_head(target: Target, facts: MessageFacts, absent_id: Any) -> None:
    target.put_plain("message_type", facts["kind_there"])
    _VERSION.write(target, facts, facts)
    target.put("message_id", MESSAGE_ID, facts["message_id"], absent=absent_id)


def _fields(facts: MessageFacts, base: str, reserved: tuple[str, ...]) -> dict[str, Any]:
    _check_agreement(facts["opened"])
    name = facts["message_type"]
    agents = {payloads.FIELD_OF_SENDER[name]: facts["sender_id"]} if name in payloads.FIELD_OF_SENDER else {}
    if name == _HANDOFF:
        agents["to_agent"] = facts["recipient_id"]
    return payloads.write_fields(facts["opened"], base, reserved, agents)


def _check_agreement(opened: OpenedMessage) -> None:
    """Raise DialectError if data and envelope name different senders, recipients or tasks."""
    data, metadata = opened.data, opened.metadata
    name, recipient = metadata.message_type, metadata.recipient
    twice = {payloads.FIELD_OF_SENDER.get(name): metadata.sender.id}
    if name == _HANDOFF and recipient is not None and recipient.id is not None:
        twice["to_agent"] = recipient.id
    if name in _NAMING_TASKS and metadata.task_id is not None:
        twice["task_id"] = metadata.task_id
    for field, value in twice.items():
        if field is not None and data.get(field) != value:
            raise DialectError(f"/data/{field}", shown(data.get(field)), f"{value}, as in the envelope")


def _metadata_in(target: Target, kept: Mapping[str, Any]) -> Target:
    part = target.inside("metadata", may_lack=True, is_open=True)
    part.names.add(CARRIED)
    part.is_absent = part.is_absent or kept.get("/metadata", MISSING) is None
    return part


def _write_named(part: Target, facts: MessageFacts, fields: Mapping[str, Any]) -> None:
    facts["fields"] = fields
    _TASK.write(part, facts, facts)
    _METADATA.write(part, facts, facts)


def _is_beside_model(name: str, value: Any) -> bool:
    """Tell whether an unknown member can be written: one that would tell another form, or be refused, cannot."""
    return name == "routing" or (name == "metadata" and not (isinstance(value, dict) and CARRIED in value))
