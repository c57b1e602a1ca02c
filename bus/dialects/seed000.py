"""Dialect 000: messages in layers, as a union of five types, or bare. Pure.

Owns telling the three forms apart, and each of them. Layered: `data`, with `metadata`, `verification` and `routing`
beside it. Union: `message_type` and `payload`. Bare: `message_type` and the fields side by side. Unknown members are
kept, and an optional member may be null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from bus.dialects.carried_message import CARRIED, carried_text, check_same, foreign_of, read_carried
from bus.dialects.data_check import check_data, default_lifetime_ms, kind_of, known_kind
from bus.dialects.faults import MISSING, kind_shown, shown
from bus.dialects.foreign import NO_ALIASES, NONE, Claims, Defaults, Foreign, ForeignOptions
from bus.dialects.forms import LAST_MS, MESSAGE_ID, NAME, OBJECT, TEXT, TIME
from bus.dialects.keeping import ANYTHING, ANYTHING_OR_NULL, Notes, Source, Target
from bus.dialects.opened_message import OpenedMessage, addressed_id, open_message
from bus.dialects.seed000_layers import (
    RoutingLayer,
    check_hash,
    check_version,
    hash_to_say,
    keep_hash,
    read_chain,
    read_conversation,
    read_lifetime_ms,
    read_routing,
    read_verification,
    write_chain,
    write_conversation,
    write_lifetime,
    write_routing,
    write_sender,
    write_verification,
    write_version,
)
from bus.dialects.seed000_payloads import (
    FIELD_OF_SENDER,
    KINDS,
    LAYERED_PLACES,
    PIPELINE,
    RESULT_PLACES,
    TYPES,
    VERSIONS,
    fits_layers,
    hashed_fields,
    priority_of,
    read_fields,
    read_layer,
    write_fields,
    write_layer,
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
"""Members of a bare message that are no fields."""
_BESIDE_MODEL: Final = (
    *(*_BESIDE, "trace_id", "sender_agent_id", "sender_agent_version", "timestamp", "content_hash", "proof_chain"),
)
"""The same of a message of the pipeline."""
_TELLING: Final = ("data", "payload")
"""Members by which a message has another form."""
_NOTHING_TELLS: Final = "a message_type, or the layer data"

_Form = Literal["layered", "union", "bare"]


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Return what the message of dialect 000 in *value* says; raise DialectError.

    The id and the time of a message may be missing, too: whoever seals it gives them.
    """
    tree = read_object(value)
    metadata = tree.get("metadata")
    if isinstance(metadata, dict) and CARRIED in metadata:
        return _decode_carried(tree, metadata, types)
    notes = Notes()
    source = Source(tree, "", notes, nulls=True)
    reading = _LayersReading(source, tree, defaults, types)
    if not source.has("message_type"):
        if not source.has("data"):
            raise source.fault("message_type", MISSING, _NOTHING_TELLS)
        return reading.layered()
    if source.has("data"):
        raise source.fault("message_type", source.peek("message_type"), "no such member beside data")
    return reading.union() if source.has("payload") else reading.bare()


def _decode_carried(tree: dict[str, Any], metadata: dict[str, Any], types: Registry) -> Foreign:
    pointer = f"/metadata/{CARRIED}"
    message = read_carried(metadata[CARRIED], pointer)
    rest = {**tree, "metadata": {name: value for name, value in metadata.items() if name != CARRIED}}
    said = encode(message, types=types)
    said["metadata"] = said.get("metadata") or {}
    check_same(said, rest, pointer)
    return foreign_of(message)


class _LayersReading:
    """One message being read."""

    def __init__(self, source: Source, tree: dict[str, Any], defaults: Defaults, types: Registry) -> None:
        self.source = source
        self.notes = source.notes
        self.tree = tree
        self.defaults = defaults
        self.types = types
        self.base = ""
        """The pointer of the fields."""
        self.metadata: Source | None = None
        self.is_fragment = False
        """Whether the metadata are missing, for which defaults stand."""
        self.sent_ms: int | None = None

    # --- the three forms ----------------------------------------------------------------------------------------------

    def layered(self) -> Foreign:
        """Read a message in layers: the specification of a task, or the result of one."""
        source = self.source
        found, is_result = read_layer(source.inside("data"))
        self._open_metadata()
        part = self.metadata
        message_id = self._read_id(part, "message_id")
        self.sent_ms = self._read_time(part)
        routing = read_routing(source)
        proofs = read_verification(source, self.tree["data"])
        task_id = part.optional("task_id", NAME, omit=(message_id,)) if part is not None else self.defaults.task_id
        sender = self._read_sender(None)
        recipient = self._read_recipient(None)
        name = _RESULT if is_result else _HANDOFF
        if task_id is None:
            if message_id is None:
                raise DialectError("/metadata/message_id", "nothing", "an id, of the message or of its task")
            if not is_result:
                self.notes.derived.append("/task_id")
        if is_result:
            data, places = found, RESULT_PLACES
        else:
            if recipient is None or recipient.id is None:
                raise DialectError("/metadata/receiver_agent_id", "nothing", NAME.expected)
            self.notes.kept["form"] = "layered"
            data = {"from_agent": sender.id, "to_agent": recipient.id, "task_spec": found}
            data["task_id"] = task_id or message_id
            places = LAYERED_PLACES
        own = (task_id, message_id)
        kind = known_kind(self.types, name)
        conversation_id = self._read_conversation(own)
        lifetime_ms = read_lifetime_ms(part, routing)
        return self._foreign(
            kind=kind,
            data=data,
            places=places,
            routing=routing,
            message_id=message_id,
            task_id=task_id or message_id,
            sender=sender,
            recipient=recipient,
            conversation_id=conversation_id,
            lifetime_ms=lifetime_ms,
            proofs=proofs,
        )

    def union(self) -> Foreign:
        """Read a message of one of five types, whose fields are its payload."""
        source = self.source
        kind = self._read_kind(TYPES)
        message_id = source.required("message_id", MESSAGE_ID, self.defaults.message_id)
        check_version(source, "schema_version", is_required=True)
        self.base = "/payload"
        members = dict(source.required("payload", OBJECT))
        self._read_own_names(members)
        self._refuse_verification()
        return self._named(kind, members, message_id)

    def bare(self) -> Foreign:
        """Read a message whose fields stand beside its type: one of five types, or of three of the pipeline."""
        source = self.source
        kind = self._read_kind({**TYPES, **PIPELINE})
        is_model = kind.name not in TYPES.values()
        check_version(source, "schema_version", is_required=True)
        self._refuse_verification()
        rest = source.rest()
        beside = _BESIDE_MODEL if is_model else _BESIDE
        members = {name: value for name, value in rest.items() if name not in beside}
        self.source = Source(
            {name: value for name, value in rest.items() if name in beside}, "", self.notes, nulls=True
        )
        message_id = self._read_id(self.source, "message_id")
        if is_model:
            return self._model(kind, members, message_id)
        self.notes.kept["form"] = "bare"
        return self._named(kind, members, message_id)

    def _named(self, kind: PayloadType, members: dict[str, Any], message_id: str | None) -> Foreign:
        data = read_fields(kind, members, self.base, self.notes.kept)
        self._open_metadata()
        part = self.metadata
        self.sent_ms = self._read_time(part)
        task_id = self._agreed("task_id", data.get("task_id") if kind.name in _NAMING_TASKS else None, "task_id")
        if task_id is None and self.is_fragment:
            task_id = self.defaults.task_id
        field = FIELD_OF_SENDER.get(kind.name)
        sender = self._read_sender(field, data.get(field) if field is not None else None)
        recipient = self._read_recipient(data.get("to_agent") if kind.name == _HANDOFF else None)
        conversation_id = self._read_conversation((task_id, message_id))
        priority = priority_of(data, self.base, self.notes.kept) if kind.name == _HANDOFF else None
        lifetime_ms = read_lifetime_ms(part, RoutingLayer())
        routing = RoutingLayer(priority=priority)
        return self._foreign(
            kind=kind,
            data=data,
            places={"": self.base},
            routing=routing,
            message_id=message_id,
            task_id=task_id,
            sender=sender,
            recipient=recipient,
            conversation_id=conversation_id,
            lifetime_ms=lifetime_ms,
            proofs={},
        )

    def _model(self, kind: PayloadType, members: dict[str, Any], message_id: str | None) -> Foreign:
        """Read a message of the pipeline, whose metadata stand beside its fields."""
        source, defaults = self.source, self.defaults
        check_hash(source, hashed_fields(kind, self.tree))
        data = read_fields(kind, members, "", self.notes.kept)
        self.is_fragment = not source.has("sender_agent_id")
        sender = self._read_flat_sender()
        self.sent_ms = self._read_time(source)
        if not source.has("trace_id"):
            self.notes.absent("/trace_id")
        absent = defaults.conversation_id if self.is_fragment else message_id
        conversation_id = source.optional("trace_id", NAME) or absent
        if not source.has("proof_chain"):
            self.notes.absent("/proof_chain")
        chain = read_chain(source)
        return self._foreign(
            kind=kind,
            data=data,
            places={"": ""},
            routing=RoutingLayer(),
            message_id=message_id,
            task_id=None,
            sender=sender,
            recipient=defaults.recipient,
            conversation_id=conversation_id,
            lifetime_ms=None,
            proofs={"proof_chain": chain} if chain else {},
        )

    # --- the members around the fields --------------------------------------------------------------------------------

    def _read_kind(self, kinds: Mapping[str, str]) -> PayloadType:
        source = self.source
        said = source.required("message_type", TEXT)
        if said not in kinds:
            raise source.fault("message_type", said, f"one of {', '.join(kinds)}", "unknown_type")
        name = kinds[said]
        kind = kind_of(self.types, name, VERSIONS[name]) if name in VERSIONS else None
        return kind or known_kind(self.types, name)

    def _read_own_names(self, members: dict[str, Any]) -> None:
        """Take what the payload repeats of its envelope: its type, and a version."""
        part = Source(members, self.base, self.notes, nulls=True)
        if "schema_version" in members:
            check_version(part, "schema_version", is_required=False)
            del members["schema_version"]
        if "message_type" in members:
            said = members.pop("message_type")
            if said != self.tree["message_type"]:
                raise part.fault("message_type", said, f"{self.tree['message_type']}, as in /message_type")
            self.notes.kept[f"{self.base}/message_type"] = said

    def _refuse_verification(self) -> None:
        if self.source.has("verification"):
            found = kind_shown(self.source.peek("verification"))
            raise self.source.fault("verification", found, "no such member without the layer data, which it is of")

    def _open_metadata(self) -> None:
        source = self.source
        if not source.has("metadata"):
            source.default_inside("metadata")
            self.is_fragment = True
        else:
            self.metadata = source.optional_inside("metadata")

    def _read_id(self, part: Source | None, name: str) -> str | None:
        default = self.defaults.message_id
        if part is None:
            return default
        if not part.has(name):
            self.notes.absent(part.place(name))
        return part.optional(name, MESSAGE_ID) or default

    def _read_time(self, part: Source | None) -> int | None:
        if part is not None and not part.has("timestamp"):
            self.notes.absent(part.place("timestamp"))
        found = part.optional("timestamp", TIME) if part is not None else None
        return self.defaults.sent_at_ms if found is None else found

    def _agreed(self, name: str, said: Any, field: str) -> str | None:
        """Return the member *name* of the metadata, which says what the *field* of the data says."""
        if said is not None:
            if said.__class__ is not str:
                raise DialectError(f"{self.base}/{field}", shown(said), NAME.expected)
            self._check_name(said, f"{self.base}/{field}")
        part = self.metadata
        given = None
        if part is not None:
            if not part.has(name):
                self.notes.absent(part.place(name))
            given = part.optional(name, NAME)
        if said is not None and given is not None and said != given:
            raise DialectError(f"{self.base}/{field}", shown(said), f"{given}, as in /metadata/{name}")
        return said if given is None else given

    def _check_name(self, said: str, pointer: str) -> None:
        Source({"name": said}, pointer.rpartition("/")[0], Notes()).required("name", NAME)

    def _read_sender(self, field: str | None, said: Any = None) -> Agent:
        identity = self._agreed("sender_agent_id", said, field or "")
        part = self.metadata
        version = part.optional("sender_agent_version", NAME) if part is not None else None
        if part is not None:
            part.keep("sender_host", NAME)
        if identity is not None:
            return Agent(id=identity, version=version)
        if self.defaults.sender is None:
            raise DialectError("/metadata/sender_agent_id", "nothing", NAME.expected)
        return (
            self.defaults.sender if version is None else msgspec.structs.replace(self.defaults.sender, version=version)
        )

    def _read_flat_sender(self) -> Agent:
        source = self.source
        default = self.defaults.sender
        identity = source.required("sender_agent_id", NAME, default.id if default is not None else None)
        version = source.optional("sender_agent_version", NAME)
        if self.is_fragment and default is not None:
            return default if version is None else msgspec.structs.replace(default, version=version)
        return Agent(id=identity, version=version)

    def _read_recipient(self, said: Any) -> Agent | None:
        identity = self._agreed("receiver_agent_id", said, "to_agent")
        if identity is not None:
            return Agent(id=identity)
        return self.defaults.recipient if self.is_fragment else None

    def _read_conversation(self, own: tuple[str | None, ...]) -> str | None:
        if self.metadata is not None:
            return read_conversation(self.metadata, own)
        fallback = next((name for name in own if name is not None), None)
        return (self.defaults.conversation_id if self.is_fragment else None) or fallback

    # --- the message --------------------------------------------------------------------------------------------------

    def _foreign(
        self,
        *,
        kind: PayloadType,
        data: dict[str, Any],
        places: Mapping[str, str],
        routing: RoutingLayer,
        message_id: str | None,
        task_id: str | None,
        sender: Agent,
        recipient: Agent | None,
        conversation_id: str | None,
        lifetime_ms: int | None,
        proofs: Mapping[str, Any],
    ) -> Foreign:
        if self.metadata is not None:
            self.metadata.keep_rest()
        self.source.keep_rest()
        data = self.notes.marked(data, _NAME)
        payload = check_data(kind, data, places, self.tree)
        if self.sent_ms is None and lifetime_ms is not None:
            raise DialectError("/metadata/timestamp", "nothing", "the time that the lifetime counts from")
        if lifetime_ms is None and "timeout_seconds" in data:
            lifetime_ms = getattr(payload, "timeout_seconds", 0) * 1000
        return Foreign(
            type=kind.name,
            version=kind.version,
            data=data,
            options=ForeignOptions(
                message_id=message_id,
                to=recipient,
                expires_at_ms=self._expires_at_ms(kind, lifetime_ms or self.defaults.lifetime_ms),
                idempotency_key=routing.idempotency_key,
                priority=routing.priority,
                retry=routing.retry,
                conversation_id=conversation_id,
                task_id=task_id,
            ),
            claims=Claims(sender=sender, sent_at_ms=self.sent_ms, proofs=proofs),
        )

    def _expires_at_ms(self, kind: PayloadType, lifetime_ms: int | None) -> int | None:
        if self.sent_ms is None:
            return None
        expires_at_ms = self.sent_ms + (lifetime_ms or default_lifetime_ms(kind))
        if expires_at_ms > LAST_MS:
            raise DialectError("/metadata/timestamp", f"{lifetime_ms} ms", "a life that ends before the year 10000")
        return expires_at_ms


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Say *message* in dialect 000; raise DialectError for a type that it does not have.

    *aliases*: agent ids of ours -> ids there; `role:<role>` and `*` name a role and everybody. *carry*: the sealed
    message goes along whole, as `x_sealbus` in the metadata.
    """
    opened = open_message(message, _NAME, types)
    form = _form_of(opened)
    writing = _LayersWriting(message, opened, aliases)
    said = {"layered": writing.layered, "union": writing.union, "bare": writing.bare}[form]()
    if carry:
        place = said.get("metadata")
        if place is not None and not isinstance(place, dict):
            # A member of that name that was kept, in the bare form, which has no metadata of its own.
            raise DialectError("/data/x_dialect/kept/~1metadata", "no object", "an object, to carry the message in")
        said["metadata"] = {**(place or {}), CARRIED: carried_text(message)}
    return said


def _form_of(opened: OpenedMessage) -> _Form:
    """Return the form to say a message in: the one it had, if that says all of it."""
    metadata = opened.metadata
    name, given = metadata.message_type, opened.kept.get("form")
    if name == _RESULT or (name == _HANDOFF and given == "layered"):
        if fits_layers(opened):
            return "layered"
        if name == _RESULT:
            raise DialectError("/data", "a result", "a completed task's output and artifacts alone, to be said here")
    if name not in KINDS or opened.kind is None:
        raise DialectError("/metadata/message_type", name, f"one of {', '.join([*KINDS, _RESULT])}, to be said here")
    if name in VERSIONS and metadata.schema_version.partition(".")[0] != VERSIONS[name].partition(".")[0]:
        raise DialectError("/metadata/schema_version", metadata.schema_version, f"{VERSIONS[name]}, to be said here")
    return "bare" if given == "bare" or name in PIPELINE.values() else "union"


class _LayersWriting:
    """One message being written."""

    def __init__(self, message: Message, opened: OpenedMessage, aliases: Mapping[str, str]) -> None:
        self.message = message
        self.opened = opened
        self.aliases = aliases
        self.kept = dict(opened.kept)
        metadata = opened.metadata
        self.sender = aliases.get(metadata.sender.id or "", metadata.sender.id)
        is_named = metadata.recipient is not None or metadata.message_type == _HANDOFF or "*" in aliases
        self.recipient = addressed_id(metadata.recipient, aliases) if is_named else None

    def layered(self) -> dict[str, Any]:
        """Write a message in layers."""
        opened = self.opened
        target = Target(opened.kept, is_open=_is_beside_layers, nulls=True)
        self._check_agreement()
        write_layer(opened, target.inside("data", is_open=True))
        part = self._metadata(target)
        part.put("message_id", MESSAGE_ID, opened.metadata.message_id, absent=ANYTHING_OR_NULL)
        message_id, task_id = opened.metadata.message_id, opened.metadata.task_id
        is_own = opened.metadata.message_type == _RESULT or opened.is_derived("/task_id", message_id)
        part.put("task_id", NAME, task_id, absent=message_id, omit=(message_id,) if is_own else ())
        self._write_metadata(part, {})
        write_routing(target, opened, self.kept)
        has_hash = write_verification(target, self.message, self.kept)
        said = target.finish()
        if has_hash:
            said["verification"]["content_hash"] = hash_to_say(said["data"], self.kept, "/verification/content_hash")
        return said

    def union(self) -> dict[str, Any]:
        """Write a message whose fields are its payload."""
        target = Target(self.opened.kept, is_open=_is_beside_payload, nulls=True)
        self._write_head(target, ANYTHING)
        payload = self._fields("/payload", ("schema_version", "message_type"))
        for name in ("schema_version", "message_type"):
            given = self.kept.get(f"/payload/{name}", MISSING)
            is_same = given == self._kind_there if name == "message_type" else _is_version(given)
            if is_same:
                payload[name] = given
        target.put_plain("payload", payload)
        part = self._metadata(target)
        self._write_named(part, payload)
        return target.finish()

    def bare(self) -> dict[str, Any]:
        """Write a message whose fields stand beside its type."""
        name = self.opened.metadata.message_type
        is_model = name in PIPELINE.values()
        beside = _BESIDE_MODEL if is_model else _BESIDE
        fields = self._fields("", (*beside, *_TELLING))
        target = Target(self.opened.kept, is_open=_is_beside_model if is_model else _is_beside, nulls=True)
        self._write_head(target, ANYTHING_OR_NULL)
        if is_model:
            return self._model(target, fields)
        self._write_named(self._metadata(target), fields)
        return {**target.finish(), **fields}

    def _model(self, target: Target, fields: dict[str, Any]) -> dict[str, Any]:
        metadata = self.opened.metadata
        target.put("timestamp", TIME, self.opened.sent_ms, absent=ANYTHING_OR_NULL)
        write_sender(target, self.opened, self.sender, ANYTHING)
        is_noticed = "sender_agent_id" not in target.members or "message_id" not in target.members
        absent = ANYTHING_OR_NULL if is_noticed else metadata.message_id
        target.put("trace_id", NAME, metadata.conversation_id, absent=absent)
        has_hash = keep_hash(target, self.kept)
        write_chain(target, self.message, self.kept, [])
        said = {**target.finish(), **fields}
        if has_hash and self.opened.kind is not None:
            said["content_hash"] = hash_to_say(hashed_fields(self.opened.kind, said), self.kept, "/content_hash")
        return said

    @property
    def _kind_there(self) -> str:
        return KINDS[self.opened.metadata.message_type]

    def _write_head(self, target: Target, absent_id: Any) -> None:
        target.put_plain("message_type", self._kind_there)
        write_version(target, self.kept, is_required=True)
        target.put("message_id", MESSAGE_ID, self.opened.metadata.message_id, absent=absent_id)

    def _fields(self, base: str, reserved: tuple[str, ...]) -> dict[str, Any]:
        self._check_agreement()
        name = self.opened.metadata.message_type
        said_as: dict[str, str | None] = {}
        if name in FIELD_OF_SENDER:
            said_as[FIELD_OF_SENDER[name]] = self.sender
        if name == _HANDOFF:
            said_as["to_agent"] = self.recipient
        return write_fields(self.opened, base, reserved, said_as)

    def _check_agreement(self) -> None:
        """Raise DialectError where data say another sender, recipient or task than the envelope does."""
        data, metadata = self.opened.data, self.opened.metadata
        name = metadata.message_type
        recipient = metadata.recipient
        twice = {FIELD_OF_SENDER.get(name): metadata.sender.id}
        if name == _HANDOFF and recipient is not None and recipient.id is not None:
            twice["to_agent"] = recipient.id
        if name in _NAMING_TASKS and metadata.task_id is not None:
            twice["task_id"] = metadata.task_id
        for field, value in twice.items():
            if field is not None and data.get(field) != value:
                raise DialectError(f"/data/{field}", shown(data.get(field)), f"{value}, as in the envelope")

    def _metadata(self, target: Target) -> Target:
        part = target.inside("metadata", may_lack=True, is_open=True)
        part.names.add(CARRIED)
        if self.kept.get("/metadata", MISSING) is None:
            part.is_absent = True
        return part

    def _write_named(self, part: Target, fields: Mapping[str, Any]) -> None:
        name = self.opened.metadata.message_type
        said = fields.get("task_id") if name in _NAMING_TASKS else MISSING
        part.put("task_id", NAME, self.opened.metadata.task_id, absent=said)
        self._write_metadata(part, fields)

    def _write_metadata(self, part: Target, fields: Mapping[str, Any]) -> None:
        name = self.opened.metadata.message_type
        part.put("timestamp", TIME, self.opened.sent_ms, absent=ANYTHING_OR_NULL)
        field = FIELD_OF_SENDER.get(name)
        write_sender(part, self.opened, self.sender, fields.get(field, ANYTHING_OR_NULL) if field else ANYTHING_OR_NULL)
        part.put_kept("sender_host", NAME)
        receiver = fields.get("to_agent", MISSING) if name == _HANDOFF else MISSING
        part.put("receiver_agent_id", NAME, self.recipient, absent=receiver)
        write_conversation(part, self.opened, self.kept)
        write_lifetime(part, self.opened)


# Whether an unknown member can be written: one that would tell another form, or be refused, cannot.


def _is_beside_layers(name: str, _value: Any) -> bool:
    return name not in ("data", "message_type")


def _is_beside_payload(name: str, _value: Any) -> bool:
    return name not in ("data", "verification")


def _is_beside(name: str, _value: Any) -> bool:
    return name == "routing"


def _is_beside_model(name: str, value: Any) -> bool:
    return name == "routing" or (name == "metadata" and not (isinstance(value, dict) and CARRIED in value))


def _is_version(value: Any) -> bool:
    part = Source({"schema_version": value}, "", Notes(), nulls=True)
    if value is MISSING:
        return False
    try:
        check_version(part, "schema_version", is_required=False)
    except DialectError:
        return False
    return True
