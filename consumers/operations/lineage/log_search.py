"""Search a log for related messages: by id, by seal, by cause, by conversation.

Owns which topics have messages and which have copies of them, the passes over the log, and which records retention may
have deleted. A UUIDv7 contains its creation time, so only the records around that time are read (`log_reach`), and
every result includes the range that was searched. A damaged record is found by its readable members, else by its header
`sb-id`, which is only a hint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from bus.errors import ContractError, TopicMissingError
from bus.protocol import canonical, sealing
from bus.protocol.envelope import Statement
from bus.protocol.identifiers import uuid7_ms
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.topics.names import dead_letter_topic, message_topic, read_topic
from bus.transports.base import Record, Transport
from consumers.operations.lineage.log_reach import FAR_MS, MAX_RECORDS_READ, LogReach, Looked, PartitionKey

__all__ = [
    "ORIGINALS",
    "KeptTimes",
    "KnownPlaces",
    "Lineage",
    "Search",
    "StoredCopy",
    "find_conversation",
    "find_lineage",
    "find_message",
    "stored_copy",
]

ORIGINALS: Final = frozenset({"message", "reply", "mail"})
"""Kinds of topics that publishers append to. Every other kind holds the same bytes once more."""
_COPIES: Final = frozenset({"dlq", "retry", "redrive"})
_ONE: Final = {"max_records": 1, "max_bytes": 2 * 1_048_576}
_AROUND_CAUSE_MS: Final = (60_000, 120_000)
_CAUSED_MS: Final = 120_000
"""How long after a message its effects are searched, if the budget allows it."""
_MAX_PASSES: Final = 64
_MAX_BESIDES: Final = 20_000
"""Maximum stored messages of a conversation besides those that are searched for."""


class StoredCopy(msgspec.Struct, frozen=True):
    """One record of a message in the log.

    *fault* is why its bytes are not a valid message. Then *message* has the parts that can still be read, or is None.
    """

    record: Record
    kind: str
    """The purpose of its topic, as in `bus.topics.names`."""
    message_id: str
    seal: str
    causation_id: str
    conversation_id: str
    message: Message | None
    fault: ContractError | None

    @property
    def place(self) -> str:
        return f"{self.record.topic}/{self.record.partition}/{self.record.offset}"


class KeptTimes(msgspec.Struct, frozen=True):
    """By topic, the append time before which retention may have deleted records; topics without loss are absent."""

    namespace: str
    lost_before_ms: Mapping[str, int]

    def may_have_lost(self, statement: Statement | None) -> bool:
        """Return whether the message of *statement*, None where nothing is known of it, can have been in the log.

        A message of any type lies in a reply topic if it is an answer, which is addressed to one agent.
        """
        if statement is None:
            return bool(self.lost_before_ms)
        own = message_topic(self.namespace, statement.message_type)
        is_answer = statement.recipient is not None and statement.recipient.id is not None
        sealed_ms = parse_ms(statement.timestamp) or 0
        return any(
            sealed_ms <= before_ms
            for topic, before_ms in self.lost_before_ms.items()
            if topic == own or (is_answer and not _is_typed(topic))
        )


class Lineage(msgspec.Struct, frozen=True):
    """The records of a message's causes in a log, and the records of messages that they caused."""

    copies: Sequence[StoredCopy]
    retained: KeptTimes
    looked: Looked = Looked(records=0, since_ms=0, until_ms=FAR_MS)


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a look-up, and the range that was searched."""

    copies: Sequence[StoredCopy]
    looked: Looked
    letters_until_ms: int = FAR_MS
    """Up to when dead letters, retries and redrives of the message were read; 0: the newest of them were not."""


class KnownPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of an index: locations of the records of the message or conversation, and how far each partition is
    indexed."""

    records: Sequence[tuple[str, int, int]]
    indexed: Mapping[PartitionKey, int]
    """By partition, the first offset that is not in the index."""


class _GlancedMetadata(msgspec.Struct):
    message_id: str = ""
    causation_id: str = ""
    conversation_id: str = ""


class _GlancedVerification(msgspec.Struct):
    seal: str = ""


class _GlancedEnvelope(msgspec.Struct):
    metadata: _GlancedMetadata = msgspec.field(default_factory=_GlancedMetadata)
    verification: _GlancedVerification = msgspec.field(default_factory=_GlancedVerification)


_glance: Final = msgspec.json.Decoder(_GlancedEnvelope).decode


class _Wanted:
    """The search keys of one pass."""

    def __init__(self, ids: Iterable[str] = (), conversations: Iterable[str] = ()) -> None:
        self.ids = set(ids)
        self.seals: set[str] = set()
        self.conversations = set(conversations)

    def size(self) -> int:
        return len(self.ids) + len(self.seals) + len(self.conversations)

    def names(self, copy: StoredCopy) -> bool:
        """Return whether *copy* is searched for, or was caused by such a message."""
        return copy.message_id in self.ids or copy.seal in self.seals or copy.causation_id in self.ids

    def learn(self, copy: StoredCopy) -> None:
        """Add the causes that *copy* names to the search, if it is one of the causes itself."""
        if copy.message_id not in self.ids and copy.seal not in self.seals:
            return
        self.ids |= {name for name in (copy.message_id, copy.causation_id) if name}
        if copy.message is not None:
            verification = copy.message.verification
            self.ids |= {link.statement.message_id for link in verification.proof_chain or ()}
            self.seals |= set((verification.parents or ())[:1])
            for link in verification.proof_chain or ():
                self.seals |= set((link.statement.parents or ())[:1])


async def find_lineage(
    transport: Transport,
    namespace: str,
    message_id: str,
    *,
    moment_ms: int | None,
    whole: bool = False,
    limit: int = MAX_RECORDS_READ,
    on_progress: Callable[[int], object] = int,
) -> Lineage:
    """Return the records of *message_id* and its causes; they are empty if there is no message of that id.

    *on_progress* is called with the number of records read so far. The search reads around *moment_ms* and the times in
    the ids of the causes. Without a moment, or with *whole*, it reads the whole log two to three times, and once more
    for every 16 causes in other conversations.
    """
    topics = await _topics(transport, namespace, ORIGINALS | _COPIES)
    reach, walk = await _reach(transport, topics, limit), _LineageWalk(message_id, topics)
    if whole or moment_ms is None or reach.is_small:
        await _drained(reach.whole(), on_progress, reach)
    else:
        async for ring in reach.rings(moment_ms):
            if await walk.is_in(ring):
                break
    for _ in range(_MAX_PASSES):
        before = walk.wanted.size()
        await walk.pass_over(reach, on_progress)
        has_read = False
        for cause_ms in [] if reach.looked.is_whole else walk.new_moments():
            has_read = await _drained(reach.around(cause_ms, *_AROUND_CAUSE_MS), on_progress, reach) or has_read
        if walk.wanted.size() == before and not has_read:
            break
    return Lineage(walk.found, await _kept_times(transport, namespace, topics), reach.looked)


class _LineageWalk:
    """The walk from a message to its causes, over the records that a reach has read."""

    def __init__(self, message_id: str, topics: Mapping[str, str]) -> None:
        self._message_id = message_id
        self._topics = topics
        self._searched = {message_id}
        self.wanted = _Wanted([message_id])
        self.found: list[StoredCopy] = []

    async def is_in(self, records: AsyncIterator[Record]) -> bool:
        """Return whether the message, or an effect of it, is among *records*; all of them are read."""
        is_there = False
        async for record in records:
            copy = _copy_of(record, self._topics[record.topic])
            is_there = is_there or self._message_id in (copy.message_id, copy.causation_id)
        return is_there

    async def pass_over(self, reach: LogReach, on_progress: Callable[[int], object]) -> None:
        """Search the records read for the wanted keys, and add the keys that they reveal."""
        wanted, found, besides = self.wanted, list[StoredCopy](), 0
        async for record in reach.again():
            copy = _copy_of(record, self._topics[record.topic])
            if reach.records % 1000 == 0:
                on_progress(reach.records)
            if wanted.names(copy):
                found.append(_parsed(copy))
            elif copy.conversation_id in wanted.conversations and besides < _MAX_BESIDES:
                besides += 1
                found.append(_parsed(copy))
        if not any(copy.message_id == self._message_id for copy in found):
            # Its record is gone: what it caused still tells of it.
            wanted.ids |= {copy.message_id for copy in found}
        ids = set(wanted.ids)
        wanted.conversations |= {copy.conversation_id for copy in found if copy.message_id in ids}
        _learn_all(wanted, found)
        self.found = found

    def new_moments(self) -> list[int]:
        """Return the times of the ids that were learned and not found, each once."""
        missing = self.wanted.ids - self._searched - {copy.message_id for copy in self.found}
        self._searched |= self.wanted.ids
        return [moment_ms for name in sorted(missing) if (moment_ms := uuid7_ms(name)) is not None]


async def find_message(
    transport: Transport,
    namespace: str,
    message_id: str,
    *,
    known: KnownPlaces | None = None,
    whole: bool = False,
    with_caused: bool = True,
    limit: int = MAX_RECORDS_READ,
    on_progress: Callable[[int], object] = int,
) -> Search:
    """Return the records of the message, of its dead letters, retries and redrives, and of its effects.

    *known* is the answer of an index. Without an index, and with an id that is not a UUIDv7, the whole log is read, as
    with *whole*. Effects are searched in the minutes after the message; without *with_caused* they may be missing.
    """
    topics = await _topics(transport, namespace, ORIGINALS | _COPIES)
    reach, taken = await _reach(transport, topics, limit), _Taken(message_id, topics)
    moment_ms = uuid7_ms(message_id)
    if known is not None and not whole and (known.records or moment_ms is None):
        news = await _indexed(transport, topics, known, taken, limit)
        if taken.has_own:
            looked = Looked(records=news.records, since_ms=0, until_ms=FAR_MS)
            return Search(copies=taken.copies, looked=looked, letters_until_ms=0 if news.is_cut else FAR_MS)
        if moment_ms is None and not known.records and not news.is_cut:
            return Search(copies=(), looked=_of_index(news))
    if whole or moment_ms is None or reach.is_small:
        await taken.take(reach.whole(), on_progress, reach)
        return Search(copies=taken.copies, looked=reach.looked)
    async for ring in reach.rings(moment_ms):
        await taken.take(ring, on_progress, reach)
        if taken.has_own:
            break
    if not taken.has_own:
        return Search(copies=taken.copies, looked=reach.looked)
    first = min(taken.own, key=lambda copy: (copy.kind not in ORIGINALS, copy.record.timestamp_ms)).record
    if with_caused:
        # It comes soon after, in topics of any type.
        await taken.take(reach.around(first.timestamp_ms, 0, _CAUSED_MS), on_progress, reach)
    copies = [location for location in await _locations(transport, topics) if _may_copy(location[0], topics, first)]
    later = LogReach(transport, copies, limit=limit)
    await later.open()
    async for ring in later.rings(first.timestamp_ms, forwards=True):
        await taken.take(ring, on_progress, later)
    looked = msgspec.structs.replace(reach.looked, records=reach.records + later.records)
    return Search(copies=taken.copies, looked=looked, letters_until_ms=later.looked.until_ms)


async def find_conversation(
    transport: Transport,
    namespace: str,
    conversation_id: str,
    *,
    known: KnownPlaces | None = None,
    whole: bool = False,
    limit: int = MAX_RECORDS_READ,
    on_progress: Callable[[int], object] = int,
) -> Search:
    """Return the records of the conversation, its dead letters, retries and redrives, too.

    It begins at the time of its id, which is a UUIDv7 unless the sender chose another one. *known* and *whole* as in
    `find_message`.
    """
    topics = await _topics(transport, namespace, ORIGINALS | _COPIES)
    reach, taken = await _reach(transport, topics, limit), _Taken(conversation_id, topics, is_conversation=True)
    moment_ms = uuid7_ms(conversation_id)
    if known is not None and not whole and (known.records or moment_ms is None):
        news = await _indexed(transport, topics, known, taken, limit)
        if taken.copies and not news.is_cut:
            looked = Looked(records=news.records, since_ms=0, until_ms=FAR_MS)
            return Search(copies=taken.in_order, looked=looked)
        if moment_ms is None and not known.records and not news.is_cut:
            return Search(copies=(), looked=_of_index(news))
    if whole or moment_ms is None or reach.is_small:
        await taken.take(reach.whole(), on_progress, reach)
        return Search(copies=taken.in_order, looked=reach.looked)
    async for ring in reach.rings(moment_ms):
        await taken.take(ring, on_progress, reach)
    return Search(copies=taken.in_order, looked=reach.looked)


class _Taken:
    """Collects the records that belong to the searched message or conversation."""

    def __init__(self, identity: str, topics: Mapping[str, str], *, is_conversation: bool = False) -> None:
        self._identity = identity
        self._topics = topics
        self._is_conversation = is_conversation
        self._needle = msgspec.json.encode(identity)[1:-1]
        self._seen: set[tuple[str, int, int]] = set()
        self.copies: list[StoredCopy] = []

    @property
    def own(self) -> list[StoredCopy]:
        return [copy for copy in self.copies if copy.message_id == self._identity]

    @property
    def has_own(self) -> bool:
        return bool(self.own)

    @property
    def in_order(self) -> list[StoredCopy]:
        """The copies as a pass over the whole log would find them."""
        return sorted(self.copies, key=lambda copy: (copy.record.topic, copy.record.partition, copy.record.offset))

    def look(self, record: Record) -> None:
        """Keep *record* if it is one of them."""
        value = record.value or b""
        # Most records do not even hold the text; one that writes it with escapes is no canonical message.
        is_named = not self._is_conversation and ("sb-id", self._identity.encode()) in record.headers
        if self._needle not in value and b"\\u" not in value and not is_named:
            return
        copy = _copy_of(record, self._topics[record.topic])
        names = (copy.conversation_id,) if self._is_conversation else (copy.message_id, copy.causation_id)
        location = (record.topic, record.partition, record.offset)
        if self._identity in names and location not in self._seen:
            self._seen.add(location)
            self.copies.append(_parsed(copy))

    async def take(self, records: AsyncIterator[Record], on_progress: Callable[[int], object], reach: LogReach) -> None:
        """Look at *records*, telling how many *reach* has read."""
        async for record in records:
            self.look(record)
            if reach.records % 1000 == 0:
                on_progress(reach.records)


def _learn_all(wanted: _Wanted, found: Sequence[StoredCopy]) -> None:
    """Follow the causes through *found* as far as they lead: the next pass need not find each of them."""
    while True:
        before = wanted.size()
        for copy in found:
            wanted.learn(copy)
        if wanted.size() == before:
            return


async def _topics(transport: Transport, namespace: str, kinds: frozenset[str]) -> dict[str, str]:
    """Return topics of *kinds* in *namespace*, with their kinds."""
    found: dict[str, str] = {}
    for topic in sorted(await transport.admin.topics()):
        name = read_topic(topic)
        if name is not None and name.namespace == namespace and name.kind in kinds:
            found[topic] = name.kind
    return found


async def _indexed(
    transport: Transport,
    topics: Mapping[str, str],
    known: KnownPlaces,
    taken: _Taken,
    limit: int,
) -> LogReach:
    """Read the locations in the index, and the records after it; return what was read."""
    async for record in _at(transport, known.records, topics):
        taken.look(record)
    news = await _reach(transport, topics, limit)
    await taken.take(news.after(known.indexed), int, news)
    return news


def _of_index(news: LogReach) -> Looked:
    return Looked(records=news.records, since_ms=-1, until_ms=FAR_MS, is_index_asked=True)


async def _reach(transport: Transport, topics: Mapping[str, str], limit: int) -> LogReach:
    reach = LogReach(transport, await _locations(transport, topics), limit=limit)
    await reach.open()
    return reach


async def _locations(transport: Transport, topics: Mapping[str, str]) -> list[PartitionKey]:
    known = await transport.admin.topics()
    return [(topic, number) for topic in topics if topic in known for number in range(known[topic].partitions)]


async def _drained(records: AsyncIterator[Record], on_progress: Callable[[int], object], reach: LogReach) -> bool:
    """Read *records*, which *reach* remembers; return whether there were any."""
    count = 0
    async for _ in records:
        count += 1
        if reach.records % 1000 == 0:
            on_progress(reach.records)
    return count > 0


async def _at(
    transport: Transport, locations: Sequence[tuple[str, int, int]], topics: Mapping[str, str]
) -> AsyncIterator[Record]:
    """Yield the records at *locations* that the log still has."""
    for topic, partition, offset in locations:
        if topic not in topics:
            continue
        try:
            found = await transport.read(topic, partition, offset, **_ONE)
        except TopicMissingError:
            continue
        for record in found[:1]:
            if record.offset == offset:
                yield record


def _may_copy(topic: str, topics: Mapping[str, str], first: Record) -> bool:
    """Return whether copies of the message in *first* may lie in *topic*."""
    if topics[topic] not in _COPIES:
        return False
    origin = read_topic(first.topic)
    # Dead letters of a type lie in one topic; those of answers beside the topic in which they lay.
    is_typed = topics[topic] == "dlq" and origin is not None and origin.kind == "message"
    return not is_typed or topic == dead_letter_topic(first.topic)


def _copy_of(record: Record, kind: str) -> StoredCopy:
    seen = _glance_at(record)
    return StoredCopy(
        record=record,
        kind=kind,
        message_id=seen.metadata.message_id,
        seal=seen.verification.seal,
        causation_id=seen.metadata.causation_id,
        conversation_id=seen.metadata.conversation_id,
        message=None,
        fault=None,
    )


def stored_copy(record: Record, kind: str) -> StoredCopy:
    """Return the message in *record* of a topic of *kind*, valid or not."""
    return _parsed(_copy_of(record, kind))


def _glance_at(record: Record) -> _GlancedEnvelope:
    try:
        seen = _glance(record.value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        seen = _GlancedEnvelope()
    if not seen.metadata.message_id:
        seen.metadata.message_id = dict(record.headers).get("sb-id", b"").decode("utf-8", "replace")
    return seen


def _parsed(copy: StoredCopy) -> StoredCopy:
    """Return *copy* with its message and the fault of its bytes."""
    value = copy.record.value
    try:
        return msgspec.structs.replace(copy, message=sealing.parse(value))
    except ContractError as error:
        fault = error.with_traceback(None)
    try:
        stated = sealing.parse(canonical.encode(msgspec.json.decode(value or b"")))
    except (ContractError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        stated = None
    return msgspec.structs.replace(copy, message=stated, fault=fault)


async def _kept_times(transport: Transport, namespace: str, topics: Mapping[str, str]) -> KeptTimes:
    lost: dict[str, int] = {}
    for topic, kind in topics.items():
        if kind not in ORIGINALS:
            continue
        try:
            ranges = await transport.admin.ranges(topic)
        except TopicMissingError:
            continue
        for partition, retained in ranges.items():
            if retained.start == 0:
                continue
            oldest = (
                await transport.read(topic, partition, retained.start, **_ONE) if retained.end > retained.start else ()
            )
            # Of an empty partition everything may be gone.
            before_ms = oldest[0].timestamp_ms if oldest else 1 << 62
            lost[topic] = max(lost.get(topic, 0), before_ms)
    return KeptTimes(namespace, lost)


def _is_typed(topic: str) -> bool:
    """Return whether *topic* has messages of one type only; a reply topic has any."""
    name = read_topic(topic)
    return name is not None and name.kind == "message"
