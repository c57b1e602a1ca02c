"""Dead letters as workers write them, without workers: many, large, of three causes with ids of many forms."""

from __future__ import annotations

import hashlib
import random
import string
import uuid
from collections.abc import Iterator, Sequence

from bus.errors import Reject
from bus.protocol import canonical, sealing
from bus.protocol.envelope import PROTOCOL, Agent, Metadata, Routing
from bus.settings.loading import load
from bus.topics.specs import namespace_topics
from bus.transports.base import Appended, NewRecord, Record, TopicSpec, Transport
from consumers.deadletters.letter_state import LetterState, Step
from consumers.deadletters.letters import read_letter_facts
from consumers.deadletters.records import Control, Failure, dead_letter_record

TOPIC = "agents.bench.order"
GROUP = "bench-svc-1c2d3e4f"
SENTENCES = ("customer {} is unknown", "no rate for {} in this book", "order {}: the stock of {} is empty")
_PIECE = 2_000
_PIECE_BYTES = 8_000_000
_FAILED_MS = 1_767_225_600_000
_ALPHABET = string.ascii_letters + string.digits


def an_id(number: int) -> str:
    """An id in one of many forms."""
    digest = hashlib.sha256(b"%d" % number).hexdigest()
    return (
        str(uuid.UUID(digest[:32])),
        digest,
        digest[:8],
        "ord_" + "".join(random.Random(number).choices(_ALPHABET, k=5)),
        f"'customer of {digest[:4]}'",
        f"/data/{digest[:3]}/{number}.json",
        f"user.{digest[:5]}@example.com",
        str(number),
    )[number % 8]


def _values(size: int, count: int) -> list[tuple[bytes | None, bytes]]:
    """Key and value of sealed messages with payloads of *size* bytes."""
    found = list[tuple[bytes | None, bytes]]()
    for number in range(count):
        metadata = Metadata(
            protocol=PROTOCOL,
            namespace="agents",
            message_id=str(uuid.UUID(int=number)),
            message_type="bench.order",
            schema_version="1.0.0",
            timestamp="2026-01-01T00:00:00.000Z",
            sender=Agent(id=f"shop-{number % 7}@svc"),
            conversation_id=f"c-{number}",
            hops=0,
            performative="inform",
        )
        data = canonical.encode({"note": "x" * size, "number": number})
        message = sealing.seal(data, metadata, Routing(expires_at="2026-01-01T01:00:00.000Z"))
        found.append((message.key, message.value))
    return found


def letters(count: int, size: int) -> Iterator[NewRecord]:
    """Dead letters of three causes, as a worker writes them."""
    values = _values(size, min(count, 100))
    for number in range(count):
        key, value = values[number % len(values)]
        record = Record(TOPIC, 0, number, _FAILED_MS + number, key, value, (("sb-type", b"bench.order"),))
        text = SENTENCES[number % 3].format(an_id(number), an_id(number + 1))
        failure = Failure(reason="rejected", error="Reject", text=text, exception=Reject(text))
        yield dead_letter_record(
            record,
            Control(TOPIC, 0, number),
            failure,
            group=GROUP,
            now_ms=_FAILED_MS + number,
            honoured=False,
            details=False,
        )


async def write_letters(transport: Transport, count: int, size: int, *, redriven: int = 0) -> None:
    """Append *count* dead letters with payloads of *size* bytes; the states of the first *redriven* say so."""
    settings = load(flags={"bus.url": "memory://"}, env={}, file=None).settings
    await transport.admin.create_topics([TopicSpec(name=f"{TOPIC}.dlq", partitions=1), *namespace_topics(settings)])
    piece, held = list[NewRecord](), 0
    states = list[NewRecord]()
    step = Step(at="2026-01-02T00:00:00.000Z", action="redriven", by="me@here", run=str(uuid.UUID(int=1)), why="mended")
    for offset, letter in enumerate(letters(count, size)):
        piece.append(letter)
        held += len(letter.value or b"")
        if len(piece) >= _PIECE or held >= _PIECE_BYTES:
            await _append(transport, piece)
            piece, held = [], 0
        if offset < redriven:
            facts = read_letter_facts(
                Record(letter.topic, 0, offset, _FAILED_MS, letter.key, letter.value, letter.headers)
            )
            state = LetterState(
                state="redriven", origin=facts.origin, group=GROUP, count=0, content=facts.content, steps=(step,)
            )
            states.append(state.record("agents", facts.place))
            if len(states) >= _PIECE:
                await _append(transport, states)
                states = []
    await _append(transport, piece)
    await _append(transport, states)


async def _append(transport: Transport, records: Sequence[NewRecord]) -> None:
    for outcome in await transport.append(records, timeout_s=60) if records else ():
        assert isinstance(outcome, Appended), outcome
