"""Conversations of any length, and everything that somebody can do to one of their messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from bus.clock import ManualClock
from bus.payloads.payload_types import payload
from bus.protocol import canonical, sealing
from bus.protocol.sealing import Message
from bus.protocol.signatures import Signer
from bus.settings.loading import load
from bus.topics.names import message_topic
from bus.transports.base import Record
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealer import make_sealer

Change = Callable[[bytes, Message], bytes | None]
"""The bytes of a message, and another message of the log, to what lies there instead; None: nothing."""


AGENTS: Final = ("agent-a@svc", "agent-b@svc", "agent-c@svc")


@payload("relay.step")
class Step(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("relay.note", risk="low")
class Note(msgspec.Struct, frozen=True, kw_only=True):
    number: int


def conversation(
    hops: int,
    kind: type[Any] = Step,
    signer: Signer | Callable[[str], Signer] | None = None,
    beside: Sequence[Message] = (),
    namespace: str = "agents",
) -> list[Message]:
    """Messages 0 to *hops*, each caused by the one before; agents take turns. The first ones are those *beside*.

    *signer* signs for all, or returns who signs for an agent.
    """
    clock, settings = ManualClock(), load(env={"SEALBUS_BUS__NAMESPACE": namespace}, file=None).settings
    sealers = [
        make_sealer(settings, name, clock=clock, signer=signer(name) if callable(signer) else signer) for name in AGENTS
    ]
    made = list(beside)
    clock.advance(len(made))
    for number in range(len(made), hops + 1):
        cause = made[-1] if made else None
        made.append(sealers[number % 3].seal(Outgoing(kind(number=number)), SealRequest(cause=cause)).message)
        clock.advance(1)
    return made


def record_of(message: Message, offset: int, value: bytes | None = None) -> Record:
    value = message.value if value is None else value
    key = message.key
    topic = message_topic(message.metadata.namespace, message.message_type)
    headers = (("sb-id", message.message_id.encode()),)
    return Record(topic, 0, offset, 1_000_000 + offset, key, value, headers)


def edited(change: Callable[[Any], None], *, content: bool = False, seal: bool = False) -> Change:
    """Change the tree of a message; then mend the hash of its data, and all that its seal covers."""

    def apply(value: bytes, other: Message) -> bytes:
        tree = msgspec.json.decode(value)
        change(tree)
        if content or seal:
            tree["verification"]["content_hash"] = canonical.digest(canonical.encode(tree["data"]))
        value = canonical.encode(tree)
        return resealed(value) if seal else value

    return apply


def resealed(value: bytes) -> bytes:
    message = sealing.parse(value)
    verification = message.verification
    return sealing.seal(
        message.data, message.metadata, message.routing,
        parents=verification.parents or (), proof_chain=verification.proof_chain or (),
    ).value  # fmt: skip


def at(*path: str, value: Any) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for name in path[:-1]:
            tree = tree[name]
        tree[path[-1]] = value

    return change


def links(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], None]:
    def edit(tree: Any) -> None:
        verification = tree["verification"]
        verification["proof_chain"] = change(verification["proof_chain"])

    return edit


def swapped(place: int, *, seal: bool) -> Change:
    """Put a link of another conversation in the place of one."""

    def apply(value: bytes, other: Message) -> bytes:
        foreign = msgspec.json.decode(other.value)["verification"]["proof_chain"][-1]

        def change(chain: list[Any]) -> list[Any]:
            chain[place] = foreign
            return chain

        return edited(links(change), seal=seal)(value, other)  # type: ignore[return-value]

    return apply


def replaced(value: bytes, other: Message) -> bytes:
    """Another message under the same id, whole in itself, that rests on nothing."""
    message = sealing.parse(value)
    metadata = msgspec.structs.replace(message.metadata, hops=0, causation_id=None, correlation_id=None)
    return sealing.seal(b'{"number":99}', metadata, message.routing).value


def adopted(value: bytes, other: Message) -> bytes:
    """The message under the same id, resting on another cause, whole in itself."""
    message = sealing.parse(value)
    metadata = msgspec.structs.replace(message.metadata, causation_id=other.message_id, hops=other.metadata.hops + 1)
    chain = other.chain_for_children() if message.verification.proof_chain else ()
    return sealing.seal(message.data, metadata, message.routing, parents=(other.seal,), proof_chain=chain).value


LATER = "2026-01-01T00:00:59.000Z"
OPEN: Final[dict[str, Change]] = {
    "a field of data": edited(at("data", "number", value=77)),
    "a field of data, its hash mended": edited(at("data", "number", value=77), content=True),
    "a member of metadata": edited(at("metadata", "intent", value="another")),
    "the sender": edited(at("metadata", "sender", "id", value="mallory@svc")),
    "the time": edited(at("metadata", "timestamp", value=LATER)),
    "the lifetime": edited(at("routing", "expires_at", value="2026-02-01T00:00:00.000Z")),
    "the hash of data": edited(at("verification", "content_hash", value="sha256:" + "0" * 64)),
    "the seal": edited(at("verification", "seal", value="sha256:" + "0" * 64)),
    "the conversation": edited(at("metadata", "conversation_id", value="another")),
    "the id": edited(at("metadata", "message_id", value="another")),
    "the namespace": edited(at("metadata", "namespace", value="others")),
    "the bytes": lambda value, _: value[: len(value) // 2],
    "white space": lambda value, _: value.replace(b'"data":', b'"data": '),
    "nothing but rubbish": lambda *_: b"\x1b[31m",
    "deleted": lambda *_: None,
}
"""Changes that show by themselves."""
OF_CAUSED: Final[dict[str, Change]] = {
    "the cause": edited(at("metadata", "causation_id", value="another")),
    "the hops": edited(at("metadata", "hops", value=63)),
    "the first parent": edited(at("verification", "parents", value=["sha256:" + "5" * 64])),
    "the first parent, resealed": edited(at("verification", "parents", value=["sha256:" + "5" * 64]), seal=True),
}
"""Such of a message that has a cause."""
OF_CHAINS: Final[dict[str, Change]] = {
    "the oldest link removed": edited(links(lambda chain: chain[1:])),
    "the newest link removed": edited(links(lambda chain: chain[:-1])),
    "the oldest link removed, resealed": edited(links(lambda chain: chain[1:]), seal=True),
    "the newest link removed, resealed": edited(links(lambda chain: chain[:-1]), seal=True),
    "links reordered": edited(links(lambda chain: chain[::-1])),
    "links reordered, resealed": edited(links(lambda chain: chain[::-1]), seal=True),
    "a link swapped": swapped(-1, seal=False),
    "a link swapped, resealed": swapped(0, seal=True),
    "a link's statement": edited(links(lambda chain: [*chain[:-1], _renamed(chain[-1])])),
    "a link's statement, resealed": edited(links(lambda chain: [_renamed(chain[0]), *chain[1:]]), seal=True),
}
"""Changes of two links and more."""
HIDDEN: Final[dict[str, Change]] = {
    "a field of data, resealed": edited(at("data", "number", value=77), seal=True),
    "a member of metadata, resealed": edited(at("metadata", "intent", value="another"), seal=True),
    "the sender, resealed": edited(at("metadata", "sender", "id", value="mallory@svc"), seal=True),
    "the time, resealed": edited(at("metadata", "timestamp", value=LATER), seal=True),
    "another message under its id": replaced,
    "another cause under its id": adopted,
}
"""Changes that leave a message whole in itself: only what rests on it tells."""


def _renamed(link: Any) -> Any:
    return {**link, "statement": {**link["statement"], "sender": "mallory@svc"}}


def changes_of(hop: int, hops: int, kind: type[Any]) -> dict[str, Change]:
    """The changes of message *hop* of 0 to *hops* that can be found without keys."""
    found = dict(OPEN)
    if hop:
        found |= OF_CAUSED
    if hop > 1 and kind is Step:
        found |= OF_CHAINS
    if hop < hops:
        found |= HIDDEN
    return found
