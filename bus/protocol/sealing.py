"""Seal and unseal messages: the only place that combines canonical form, shape, statement and signature. Pure.

Owns `seal` (layers -> the record's value), `parse` (foreign bytes -> a well-formed `Message`, or ContractError) and
`check_integrity`. Trust (proof chain and signatures) belongs to `bus.gates`, payload types to
`bus.payloads.payload_types`; the rules of shape are in `envelope_rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from bus import native
from bus.errors import ContractError
from bus.protocol import canonical, canonical_numbers, envelope_rules, signatures
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.protocol.envelope import (
    DATA_DEPTH,
    DATA_ROOM,
    PROGRESS_TYPES,
    PROTOCOL,
    Addressee,
    Agent,
    Authority,
    Link,
    Metadata,
    Routing,
    Statement,
    Verification,
)
from bus.protocol.identifiers import is_protocol
from bus.protocol.proof_chain import encode_statement, extend_chain
from bus.protocol.validation_errors import translate

__all__ = [
    "DATA_AT",
    "LAYERS",
    "MAX_MESSAGE_BYTES",
    "Message",
    "Prove",
    "addressee_of",
    "check_integrity",
    "is_canonical_data",
    "parse",
    "seal",
]

MAX_MESSAGE_BYTES: Final = 1_048_576
LAYERS: Final = ("data", "metadata", "routing", "verification")
DATA_AT: Final = len(b'{"data":')
"""The byte offset of `data` in a record's value."""
_CONTAINERS: Final = {dict, list}
_PLAIN_KINDS: Final = {str, int, bool, dict, list}

Prove: TypeAlias = Callable[[str, bytes], object | None]
"""Takes a message type and data; returns the payload if the data are verified as canonical, otherwise None."""

_Layer = TypeVar("_Layer")


class Message(msgspec.Struct, frozen=True, gc=False):
    """A sealed message: *value* is the record's value and never changes; the other fields are read from it.

        message = context.message       # in a handler; after PublishUnknown it is `error.message`
        print(message.message_type, message.message_id, message.metadata.sender.id, message.routing.expires_at)

    Times are RFC 3339 texts in UTC with milliseconds. *data* is the payload as canonical JSON; a handler's first
    argument is the same, decoded.
    """

    value: bytes
    metadata: Metadata
    routing: Routing
    verification: Verification
    envelope_hash: str
    data_end: int
    payload: object | None = None
    """The payload, if encoding it again as its type proved the bytes canonical."""
    authority: dict[str, Any] | None = None
    """The sealed `metadata.authority`, if it has members unknown to the Struct."""

    @property
    def data(self) -> bytes:
        """The payload's canonical bytes."""
        return self.value[DATA_AT : self.data_end]

    @property
    def key(self) -> bytes:
        """The record key: `routing.key`, otherwise `conversation_id`, in UTF-8."""
        return (self.routing.key or self.metadata.conversation_id).encode()

    @property
    def message_id(self) -> str:
        return self.metadata.message_id

    @property
    def message_type(self) -> str:
        return self.metadata.message_type

    @property
    def seal(self) -> str:
        return self.verification.seal

    @property
    def statement(self) -> Statement:
        """The statement that the seal is the digest of (PROTOCOL.md section 2); built again at each access."""
        verification = self.verification
        links = len(verification.proof_chain) if verification.proof_chain else None
        return _state(
            self.metadata,
            verification.content_hash,
            self.envelope_hash,
            verification.parents,
            links,
            authority=self.authority,
        )

    @property
    def is_progress(self) -> bool:
        """Whether it is progress where it comes as a reply: it neither ends nor fails its request (section 8)."""
        return self.metadata.message_type in PROGRESS_TYPES or self.routing.progress is True

    @property
    def takes_progress(self) -> bool:
        """Whether its sender reads progress of it at its `reply_to`."""
        return self.routing.accepts_progress is True and self.routing.reply_to is not None

    def chain_for_children(self) -> tuple[Link, ...]:
        """Return the proof chain that a message caused by this one carries."""
        return extend_chain(self.statement, self.verification.signature, self.verification.proof_chain)


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    data: msgspec.Raw
    metadata: Metadata
    routing: Routing
    verification: Verification


_encode = msgspec.json.Encoder().encode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def seal(
    data: bytes,
    metadata: Metadata,
    routing: Routing,
    *,
    parents: tuple[str, ...] = (),
    proof_chain: tuple[Link, ...] = (),
    signer: signatures.Signer | None = None,
) -> Message:
    """Seal canonical *data* (an object) under *metadata* and *routing*.

    *parents* are the seals this message rests on, the cause first; *proof_chain* is the cause's `chain_for_children()`.
    Raises ContractError for anything a receiver would refuse.
    """
    try:
        envelope_rules.check_metadata(metadata)
        envelope_rules.check_routing(routing, metadata)
        envelope = _encode(metadata), _encode(routing)
    except UnicodeEncodeError as error:
        raise ContractError("a lone surrogate is not Unicode text", "/metadata") from error
    content_hash, envelope_hash = canonical.digest(data), _hash_envelope(*envelope)
    statement = _state(metadata, content_hash, envelope_hash, parents or None, len(proof_chain) or None)
    stated = encode_statement(statement)
    verification = Verification(
        content_hash=content_hash,
        parents=parents or None,
        proof_chain=proof_chain or None,
        seal=canonical.digest(stated),
        signature=signatures.sign(stated, signer) if signer else None,
    )
    envelope_rules.check_verification(verification, metadata)
    value = _join(data, *envelope, _encode(verification))
    return Message(value, metadata, routing, verification, envelope_hash, DATA_AT + len(data))


def parse(value: bytes | None, prove: Prove | None = None) -> Message:
    """Parse *value* into a message: strict JSON, then protocol, canonical form and shape (PROTOCOL.md section 1).

    *prove* may return a typed payload that encodes to exactly these data; it changes the speed, never the verdict.
    Raises ContractError with reason `malformed` or `unsupported_protocol` and the pointer of the first fault. Does not
    check hashes.
    """
    if not value:
        raise ContractError("an empty value (tombstone) is not a message")
    return _parse_known(value, prove) or _parse_any(value)


def check_integrity(message: Message) -> Statement:
    """Return the sealed statement; raise ContractError (`hash_mismatch`, `seal_mismatch`) unless the hashes match."""
    if canonical.digest(message.data) != message.verification.content_hash:
        raise ContractError("the hash of data is another", "/verification/content_hash", "hash_mismatch")
    statement = message.statement
    if canonical.digest(encode_statement(statement)) != message.verification.seal:
        raise ContractError("the hash of the statement is another", "/verification/seal", "seal_mismatch")
    return statement


def _parse_known(value: bytes, prove: Prove | None) -> Message | None:
    """Parse an envelope that has only known fields, the fast way; return None to ask for the exact way.

    The envelope is proven canonical by encoding it again.
    """
    try:
        envelope = _decode_envelope(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    data = bytes(envelope.data)
    layers = _encode(envelope.metadata), _encode(envelope.routing), _encode(envelope.verification)
    if _join(data, *layers) != value:
        return None
    payload = prove(envelope.metadata.message_type, data) if prove else None
    if (payload is None and not is_canonical_data(data)) or not is_protocol(envelope.metadata.protocol):
        return None
    envelope_hash = _hash_envelope(*layers[:2])
    try:
        return _build(
            value,
            len(data),
            envelope.metadata,
            envelope.routing,
            envelope.verification,
            envelope_hash=envelope_hash,
            payload=payload,
        )
    except ContractError:
        if any(map(canonical_numbers.may_need_respelling, layers)):
            # With an integer beyond 2^53, the exact way must find the first fault in the contract's order.
            return None
        raise


def is_canonical_data(data: bytes) -> bool:
    """Tell whether *data* is the canonical form of an object that may be `data`."""
    if native.is_canonical_object(data, DATA_ROOM):
        return True
    try:
        content = canonical.parse_canonical(data, depth=DATA_DEPTH)
    except ContractError:
        return False
    return content.__class__ is dict and canonical.is_canonical(data, content)


def _parse_any(value: bytes) -> Message:
    """Parse the exact way: every rule in its order, each failure with its pointer."""
    tree = canonical.parse_canonical(value)
    if not isinstance(tree, dict):
        raise ContractError("the envelope must be a JSON object")
    _check_protocol(tree)
    if not canonical.is_canonical(value, tree):
        raise ContractError("the bytes are not the canonical form (RFC 8785) of the envelope")
    _check_layers(tree)
    metadata = _convert(tree, "metadata", Metadata)
    routing = _convert(tree, "routing", Routing)
    verification = _convert(tree, "verification", Verification)
    data, head, tail, _ = (canonical.encode_parsed(tree[name]) for name in LAYERS)
    authority = _sealed_authority(tree["metadata"], metadata)
    return _build(
        value, len(data), metadata, routing, verification, envelope_hash=_hash_envelope(head, tail), authority=authority
    )


def _build(
    value: bytes,
    data_length: int,
    metadata: Metadata,
    routing: Routing,
    verification: Verification,
    *,
    envelope_hash: str,
    payload: object | None = None,
    authority: dict[str, Any] | None = None,
) -> Message:
    envelope_rules.check_metadata(metadata)
    envelope_rules.check_routing(routing, metadata)
    envelope_rules.check_verification(verification, metadata)
    if authority is not None:
        envelope_rules.check_authority(authority, "/metadata/authority")
    return Message(value, metadata, routing, verification, envelope_hash, DATA_AT + data_length, payload, authority)


def _sealed_authority(layer: Any, metadata: Metadata) -> dict[str, Any] | None:
    """Return the authority as parsed in the metadata *layer*, if its Struct has fewer members."""
    if metadata.authority is None:
        return None
    sealed: dict[str, Any] = layer["authority"]
    return sealed if sealed != _listed(metadata.authority) else None


def _listed(authority: Authority) -> dict[str, Any]:
    """Return *authority* as parsed from its JSON."""
    read: dict[str, Any] = msgspec.json.decode(_encode(authority))
    return read


def addressee_of(recipient: Agent | None) -> Addressee | None:
    """Return the addressee that the statement names for *recipient*."""
    if recipient is None:
        return None
    return Addressee(id=recipient.id) if recipient.id is not None else Addressee(role=recipient.role)


def _state(
    metadata: Metadata,
    content_hash: str,
    envelope_hash: str,
    parents: tuple[str, ...] | None,
    links: int | None,
    *,
    authority: dict[str, Any] | None = None,
) -> Statement:
    if authority is None and metadata.authority is not None:
        authority = _listed(metadata.authority)
    return Statement(
        authority=authority,
        content_hash=content_hash,
        data_classification=metadata.security.data_classification if metadata.security else None,
        envelope_hash=envelope_hash,
        hops=metadata.hops,
        links=links,
        message_id=metadata.message_id,
        message_type=metadata.message_type,
        namespace=metadata.namespace,
        parents=parents,
        protocol=metadata.protocol,
        recipient=addressee_of(metadata.recipient),
        sender=metadata.sender.id or "",
        timestamp=metadata.timestamp,
        trust_level=metadata.security.trust_level if metadata.security else None,
    )


def _hash_envelope(metadata: bytes, routing: bytes) -> str:
    return canonical.digest(b'{"metadata":' + metadata + b',"routing":' + routing + b"}")


def _join(data: bytes, metadata: bytes, routing: bytes, verification: bytes) -> bytes:
    return b"".join(
        (b'{"data":', data, b',"metadata":', metadata, b',"routing":', routing, b',"verification":', verification, b"}")
    )


def _check_protocol(tree: dict[str, object]) -> None:
    metadata = tree.get("metadata")
    protocol = metadata.get("protocol") if isinstance(metadata, dict) else None
    if not isinstance(protocol, str):
        raise ContractError("has no protocol", "/metadata/protocol")
    if not is_protocol(protocol):
        raise ContractError(f"{protocol[:80]!r} is not {PROTOCOL}", "/metadata/protocol", "unsupported_protocol")


def _check_layers(tree: dict[str, object]) -> None:
    for name in LAYERS:
        if not isinstance(tree.get(name), dict):
            raise ContractError("is missing or no object", f"/{name}")
    for name in tree:
        if name not in LAYERS:
            raise ContractError("is none of the four layers", "/" + canonical.escape_pointer_token(name))
    for name in LAYERS[1:]:
        if not _is_plain(tree[name]):
            envelope_rules.check_plain(tree[name], f"/{name}")


def _is_plain(value: object) -> bool:
    """Tell whether `envelope_rules.check_plain` finds no fault; checks level by level instead of value by value."""
    level: list[Any] = [value]
    while level:
        kinds = set(map(type, level))
        if not kinds <= _PLAIN_KINDS:
            return False
        if int in kinds and not all(-SAFE_INTEGER <= v <= SAFE_INTEGER for v in level if v.__class__ is int):
            return False
        objects = (v.values() for v in level if v.__class__ is dict)
        lists = (v for v in level if v.__class__ is list)
        level = list(chain(chain.from_iterable(objects), chain.from_iterable(lists))) if kinds & _CONTAINERS else []
    return True


def _convert(tree: dict[str, object], name: str, layer: type[_Layer]) -> _Layer:
    try:
        return msgspec.convert(tree[name], layer)
    except msgspec.ValidationError as error:
        raise translate(error, base=f"/{name}") from error
