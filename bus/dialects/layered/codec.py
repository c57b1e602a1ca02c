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
from bus.dialects.forms import LAST_MS, MESSAGE_ID, NAME, OBJECT, TEXT, TIME
from bus.dialects.keeping import ANYTHING, ANYTHING_OR_NULL, Notes, Source, Target
from bus.dialects.layered import layers, payloads
from bus.dialects.member_table import Kept, MemberTable, Optional, Said
from bus.dialects.said import OpenedMessage, addressed_id, begin_reading, foreign_that_says, open_message, said_by
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
"""Members of a bare message that are no fields."""
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
    "task_id", NAME, absent=lambda said: said["absent_task"], omit=lambda said: said["own_task"]
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
_METADATA: Final = MemberTable(_TIME, *_SENDER.rows, _RECEIVER, layers.Conversation(), layers.Lifetime())


# --- reading ----------------------------------------------------------------------------------------------------------


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Return what the message of this dialect in *value* says; raise DialectError.

    The id and the time of a message may be missing, too: whoever seals it gives them.
    """
    tree = read_object(value)
    if (carried := carried_in_metadata(tree, partial(encode, types=types))) is not None:
        return carried
    source, said = begin_reading(tree, defaults, types, nulls=True)
    said |= {"base": "", "fields": {}, "fragment": NONE}
    if not source.has("message_type"):
        if not source.has("data"):
            raise source.fault("message_type", MISSING, "a message_type, or the layer data")
        return _read_layered(source, said)
    if source.has("data"):
        raise source.fault("message_type", source.peek("message_type"), "no such member beside data")
    return _read_union(source, said) if source.has("payload") else _read_bare(source, said)


def _read_layered(source: Source, said: Said) -> Foreign:
    """Read a message in layers: the specification of a task, or the result of one."""
    data, is_result = payloads.read_layer(source.inside("data"))
    name = _RESULT if is_result else _HANDOFF
    said |= {"message_type": name, "hashed": said["tree"]["data"]}
    part, defaults = _open_metadata(source, said), said["defaults"]
    _ID.read(part, said, said)
    _TIME.read(part, said, said)
    _use_default(said, "message_id")
    layers.ROUTING.read(source, said, said)
    layers.VerificationLayer().read(source, said, said)
    message_id = said.get("message_id")
    said |= {"absent_task": None, "own_task": (message_id,)}
    _OWN_TASK.read(part, said, said)
    task_id = said.get("task_id") if said["has_metadata"] else defaults.task_id
    _read_sender(part, said)
    _RECEIVER.read(part, said, said)
    _set_recipient(said)
    if task_id is None:
        if message_id is None:
            raise DialectError("/metadata/message_id", "nothing", "an id, of the message or of its task")
        if not is_result:
            said["notes"].derived.append("/task_id")
    if not is_result:
        if said["to"] is None or said["to"].id is None:
            raise DialectError("/metadata/receiver_agent_id", "nothing", NAME.expected)
        said["notes"].kept["form"] = "layered"
        agents = {"from_agent": said["sender"].id, "to_agent": said["to"].id}
        data = {**agents, "task_spec": data, "task_id": task_id or message_id}
    said |= {"own": (task_id, message_id), "task_id": task_id or message_id}
    kind = known_kind(said["types"], name)
    layers.Conversation().read(part, said, said)
    layers.Lifetime().read(part, said, said)
    return _finish(source, part, said, (kind, data, payloads.RESULT_PLACES if is_result else payloads.LAYERED_PLACES))


def _read_union(source: Source, said: Said) -> Foreign:
    """Read a message of one of five types, whose fields are its payload."""
    kind = _read_kind(source, said, payloads.TYPES)
    said["message_id"] = source.required("message_id", MESSAGE_ID, said["defaults"].message_id)
    _VERSION.read(source, said, said)
    said["base"] = "/payload"
    members = dict(source.required("payload", OBJECT))
    _read_own_names(members, said)
    _refuse_verification(source)
    return _read_named(source, said, kind, members)


def _read_bare(source: Source, said: Said) -> Foreign:
    """Read a message whose fields stand beside its type: one of five types, or of three of the pipeline."""
    kind = _read_kind(source, said, {**payloads.TYPES, **payloads.PIPELINE})
    is_model = kind.name not in payloads.TYPES.values()
    _VERSION.read(source, said, said)
    _refuse_verification(source)
    rest, beside = source.rest(), _BESIDE_MODEL if is_model else _BESIDE
    members = {name: value for name, value in rest.items() if name not in beside}
    source = Source({name: value for name, value in rest.items() if name in beside}, "", said["notes"], nulls=True)
    _ID.read(source, said, said)
    _use_default(said, "message_id")
    if is_model:
        return _read_model(source, said, kind, members)
    said["notes"].kept["form"] = "bare"
    return _read_named(source, said, kind, members)


def _read_named(source: Source, said: Said, kind: PayloadType, members: dict[str, Any]) -> Foreign:
    base, kept = said["base"], said["notes"].kept
    data = said["fields"] = payloads.read_fields(kind, members, base, kept)
    part = _open_metadata(source, said)
    _TIME.read(part, said, said)
    _TASK.read(part, said, said)
    task_id = said["task_id"] = said["task_id"] or said["fragment"].task_id
    _read_sender(part, said)
    _RECEIVER.read(part, said, said)
    _set_recipient(said)
    said["own"] = (task_id, said.get("message_id"))
    layers.Conversation().read(part, said, said)
    if kind.name == _HANDOFF:
        said["priority"] = payloads.priority_of(data, base, kept)
    layers.Lifetime().read(part, said, said)
    return _finish(source, part, said, (kind, data, {"": base}))


def _read_model(source: Source, said: Said, kind: PayloadType, members: dict[str, Any]) -> Foreign:
    """Read a message of the pipeline, whose metadata stand beside its fields."""
    defaults, notes = said["defaults"], said["notes"]
    said["hashed"] = payloads.hashed_fields(kind, said["tree"])
    layers.ContentHash().read(source, said, said)
    data = payloads.read_fields(kind, members, "", notes.kept)
    is_fragment, default = not source.has("sender_agent_id"), defaults.sender
    identity = source.required("sender_agent_id", NAME, default.id if default is not None else None)
    _SENDER_VERSION.read(source, said, said)
    said["sender_id"] = None if is_fragment and default is not None else identity
    _set_sender(said)
    _TIME.read(source, said, said)
    source.note_absent("trace_id")
    absent = defaults.conversation_id if is_fragment else said.get("message_id")
    said["conversation_id"] = source.optional("trace_id", NAME) or absent
    layers.ProofChain(noted=True).read(source, said, said)
    said |= {"to": defaults.recipient, "proofs": {}}
    if chain := said.pop("proof_chain", None):
        said["proofs"] = {"proof_chain": chain}
    return _finish(source, None, said, (kind, data, {"": ""}))


def _read_kind(source: Source, said: Said, kinds: Mapping[str, str]) -> PayloadType:
    stated = source.required("message_type", TEXT)
    if stated not in kinds:
        raise source.fault("message_type", stated, f"one of {', '.join(kinds)}", "unknown_type")
    name = said["message_type"] = kinds[stated]
    kind = kind_of(said["types"], name, payloads.VERSIONS[name]) if name in payloads.VERSIONS else None
    return kind or known_kind(said["types"], name)


def _read_own_names(members: dict[str, Any], said: Said) -> None:
    """Take what the payload repeats of its envelope: its type, and a version."""
    part, stated = Source(members, said["base"], said["notes"], nulls=True), said["tree"]["message_type"]
    if "schema_version" in members:
        layers.FormatVersion(required=False).read(part, said, said)
        del members["schema_version"]
    if "message_type" in members:
        repeated = members.pop("message_type")
        if repeated != stated:
            raise part.fault("message_type", repeated, f"{stated}, as in /message_type")
        said["notes"].kept[f"{said['base']}/message_type"] = repeated


def _refuse_verification(source: Source) -> None:
    if source.has("verification"):
        found = kind_shown(source.peek("verification"))
        raise source.fault("verification", found, "no such member without the layer data, which it is of")


def _open_metadata(source: Source, said: Said) -> Source:
    """Take the metadata. Where there are none, defaults stand for them, and nothing is noted of each."""
    part = None
    if source.has("metadata"):
        part = source.optional_inside("metadata")
    else:
        source.note_absent("metadata")
        said["fragment"] = said["defaults"]
    said["has_metadata"] = part is not None
    return Source({}, "/metadata", Notes(), nulls=True) if part is None else part


def _use_default(said: Said, name: str) -> None:
    if said.get(name) is None:
        said[name] = getattr(said["defaults"], name)


def _read_sender(part: Source, said: Said) -> None:
    _SENDER.read(part, said, said)
    _set_sender(said)


def _set_sender(said: Said) -> None:
    version, default = said.get("sender_version"), said["defaults"].sender
    if said["sender_id"] is not None:
        said["sender"] = Agent(id=said["sender_id"], version=version)
    elif default is None:
        raise DialectError("/metadata/sender_agent_id", "nothing", NAME.expected)
    else:
        said["sender"] = default if version is None else msgspec.structs.replace(default, version=version)


def _set_recipient(said: Said) -> None:
    identity = said["recipient_id"]
    said["to"] = said["fragment"].recipient if identity is None else Agent(id=identity)


def _finish(
    source: Source, part: Source | None, said: Said, found: tuple[PayloadType, dict[str, Any], Mapping[str, str]]
) -> Foreign:
    """Return the message of type, data and places; what is left in *source* and in its metadata, *part*, is kept."""
    kind, data, places = found
    if part is not None:
        part.keep_rest()
    source.keep_rest()
    _use_default(said, "sent_at_ms")
    payload = check_data(kind, said["notes"].marked(data, _NAME), places, said["tree"])
    sent_ms, lifetime_ms = said["sent_at_ms"], said.get("lifetime_ms")
    if sent_ms is None and lifetime_ms is not None:
        raise DialectError("/metadata/timestamp", "nothing", "the time that the lifetime counts from")
    if lifetime_ms is None and "timeout_seconds" in data:
        lifetime_ms = getattr(payload, "timeout_seconds", 0) * 1000
    lifetime_ms = lifetime_ms or said["defaults"].lifetime_ms
    if sent_ms is not None:
        said["expires_at_ms"] = sent_ms + (lifetime_ms or default_lifetime_ms(kind))
        if said["expires_at_ms"] > LAST_MS:
            raise DialectError("/metadata/timestamp", f"{lifetime_ms} ms", "a life that ends before the year 10000")
    return foreign_that_says(said, kind.name, kind.version, data)


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Say *message* in this dialect; raise DialectError for a type that it does not have."""
    opened = open_message(message, _NAME, types)
    write = _writer_of(opened)
    recipient = opened.metadata.recipient
    is_named = recipient is not None or opened.metadata.message_type == _HANDOFF or "*" in aliases
    said = said_by(opened, aliases) | {
        "message": message,
        "fields": {},
        "sender_version": opened.metadata.sender.version,
        "recipient_id": addressed_id(recipient, aliases) if is_named else None,
        "kind_there": payloads.KINDS.get(opened.metadata.message_type),
    }
    whole = write(said)
    if carry:
        place = whole.get("metadata")
        if place is not None and not isinstance(place, dict):
            # A member of that name that was kept, in the bare form, which has no metadata of its own.
            raise DialectError("/data/x_dialect/kept/~1metadata", "no object", "an object, to carry the message in")
        whole["metadata"] = {**(place or {}), CARRIED: carried_text(message)}
    return whole


def _writer_of(opened: OpenedMessage) -> Callable[[Said], dict[str, Any]]:
    """Return what writes a message in the form it had, if that says all of it."""
    metadata = opened.metadata
    name, given = metadata.message_type, opened.kept.get("form")
    if name == _RESULT or (name == _HANDOFF and given == "layered"):
        if payloads.fits_layers(opened):
            return _write_layered
        if name == _RESULT:
            raise DialectError("/data", "a result", "a completed task's output and artifacts alone, to be said here")
    if name not in payloads.KINDS or opened.kind is None:
        expected = f"one of {', '.join([*payloads.KINDS, _RESULT])}, to be said here"
        raise DialectError("/metadata/message_type", name, expected)
    said, needed = metadata.schema_version, payloads.VERSIONS.get(name, metadata.schema_version)
    if said.partition(".")[0] != needed.partition(".")[0]:
        raise DialectError("/metadata/schema_version", said, f"{needed}, to be said here")
    if name in payloads.PIPELINE.values():
        return _write_model
    return _write_bare if given == "bare" else _write_union


def _write_layered(said: Said) -> dict[str, Any]:
    opened, kept = said["opened"], said["kept"]
    target = Target(opened.kept, is_open=lambda name, _value: name not in ("data", "message_type"), nulls=True)
    _check_agreement(opened)
    payloads.write_layer(opened, target.inside("data", is_open=True))
    part, message_id = _metadata_in(target, kept), said["message_id"]
    Optional("message_id", MESSAGE_ID, noted=True).write(part, said, said)
    is_own = said["message_type"] == _RESULT or opened.is_derived("/task_id", message_id)
    said |= {"absent_task": message_id, "own_task": (message_id,) if is_own else ()}
    _OWN_TASK.write(part, said, said)
    _METADATA.write(part, said, said)
    layers.ROUTING.write(target, said, said)
    layers.VerificationLayer().write(target, said, said)
    whole = target.finish()
    if said["has_hash"]:
        whole["verification"]["content_hash"] = layers.hash_to_say(whole["data"], kept, "/verification/content_hash")
    return whole


def _write_union(said: Said) -> dict[str, Any]:
    kept = said["kept"]
    target = Target(said["opened"].kept, is_open=lambda name, _value: name not in ("data", "verification"), nulls=True)
    _write_head(target, said, ANYTHING)
    payload = _fields(said, "/payload", ("schema_version", "message_type"))
    version = kept.get("/payload/schema_version", MISSING)
    if version is None or layers.KNOWN_VERSION.accepts(version):
        payload["schema_version"] = version
    if kept.get("/payload/message_type", MISSING) == said["kind_there"]:
        payload["message_type"] = said["kind_there"]
    target.put_plain("payload", payload)
    _write_named(_metadata_in(target, kept), said, payload)
    return target.finish()


def _write_bare(said: Said) -> dict[str, Any]:
    fields = _fields(said, "", (*_BESIDE, *_TELLING))
    target = Target(said["opened"].kept, is_open=lambda name, _value: name == "routing", nulls=True)
    _write_head(target, said, ANYTHING_OR_NULL)
    _write_named(_metadata_in(target, said["kept"]), said, fields)
    return {**target.finish(), **fields}


def _write_model(said: Said) -> dict[str, Any]:
    fields = _fields(said, "", (*_BESIDE_MODEL, *_TELLING))
    target = Target(said["opened"].kept, is_open=_is_beside_model, nulls=True)
    _write_head(target, said, ANYTHING_OR_NULL)
    _TIME.write(target, said, said)
    target.put("sender_agent_id", NAME, said["sender_id"], absent=ANYTHING)
    _SENDER_VERSION.write(target, said, said)
    is_noticed = "sender_agent_id" not in target.members or "message_id" not in target.members
    absent = ANYTHING_OR_NULL if is_noticed else said["message_id"]
    target.put("trace_id", NAME, said["conversation_id"], absent=absent)
    layers.ContentHash().write(target, said, said)
    layers.ProofChain(otherwise=[]).write(target, said, said)
    whole = {**target.finish(), **fields}
    kind = said["opened"].kind
    if said["has_hash"] and kind is not None:
        whole["content_hash"] = layers.hash_to_say(payloads.hashed_fields(kind, whole), said["kept"], "/content_hash")
    return whole


def _write_head(target: Target, said: Said, absent_id: Any) -> None:
    target.put_plain("message_type", said["kind_there"])
    _VERSION.write(target, said, said)
    target.put("message_id", MESSAGE_ID, said["message_id"], absent=absent_id)


def _fields(said: Said, base: str, reserved: tuple[str, ...]) -> dict[str, Any]:
    _check_agreement(said["opened"])
    name = said["message_type"]
    agents = {payloads.FIELD_OF_SENDER[name]: said["sender_id"]} if name in payloads.FIELD_OF_SENDER else {}
    if name == _HANDOFF:
        agents["to_agent"] = said["recipient_id"]
    return payloads.write_fields(said["opened"], base, reserved, agents)


def _check_agreement(opened: OpenedMessage) -> None:
    """Raise DialectError where data say another sender, recipient or task than the envelope does."""
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


def _write_named(part: Target, said: Said, fields: Mapping[str, Any]) -> None:
    said["fields"] = fields
    _TASK.write(part, said, said)
    _METADATA.write(part, said, said)


def _is_beside_model(name: str, value: Any) -> bool:
    """Tell whether an unknown member can be written: one that would tell another form, or be refused, cannot."""
    return name == "routing" or (name == "metadata" and not (isinstance(value, dict) and CARRIED in value))
