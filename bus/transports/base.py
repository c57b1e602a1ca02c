"""The seam between the bus and a log: records of bytes, and the Protocols an adapter fulfils.

Owns the values that cross the seam and the rules every adapter applies alike (legal names, colliding names). Does not
own envelopes: a transport carries bytes and never looks into them. Two adapters exist, the embedded log
(`bus.transports.sqlite`) and Kafka (`bus.transports.kafka`); both pass `tests/contract`.

Guarantees every adapter gives: an `Appended` outcome is durable; records of one partition keep their order; a commit is
accepted only from the current owner of the partition and never moves backwards; a member that dies loses its partitions
within `session_timeout_s`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from bus.errors import AppendUnknownError, ConfigurationError, NameRefusedError, RecordTooLargeError, TransportError

__all__ = [
    "HEADER_BYTES",
    "Admin",
    "Appended",
    "Assignment",
    "Change",
    "Failure",
    "Features",
    "GroupInfo",
    "Headers",
    "Listener",
    "NewRecord",
    "Outcome",
    "PartitionRange",
    "Record",
    "LogSubscription",
    "Told",
    "TopicSpec",
    "Transport",
    "check_group_name",
    "check_topic_name",
    "colliding_topic",
    "header_bytes",
    "size_of",
]

HEADER_BYTES: Final = 200
"""Of a header besides its text: a tuple, a text and bytes."""

Headers: TypeAlias = tuple[tuple[str, bytes], ...]


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to append. Without *partition* the key chooses (murmur2); without a key, any partition."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as it lies in the log; *timestamp_ms* is the log's own append time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def size_of(record: NewRecord | Record) -> int:
    """What *record* takes in memory, headers included, with some room for each."""
    return (
        len(record.key or b"")
        + len(record.value or b"")
        + header_bytes(record.headers)
        + HEADER_BYTES * len(record.headers)
    )


def header_bytes(headers: Headers) -> int:
    """What *headers* take on the wire, names and values."""
    total = 0
    for name, content in headers:
        total += len(name) + len(content)
    return total


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where a record was durably appended."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


Failure: TypeAlias = TransportError | ConfigurationError | AppendUnknownError
"""Why a record was not acknowledged: it is certainly not in the log, or that is unknown.

It is certain also when the connection itself is set up wrongly.
"""

Outcome: TypeAlias = Appended | Failure
"""Of one appended record: durable, certainly not in the log, or unknown."""

Told: TypeAlias = Callable[[Sequence[Outcome | None]], object]
"""Hears the outcomes of an append that goes on; None for what is not known yet."""


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A partition held by this member; a new *epoch* each time it changes hands."""

    topic: str
    partition: int
    epoch: int


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic shall be. None leaves the log's own default; retention None means for ever."""

    name: str
    partitions: int = 4
    retention_ms: int | None = None
    retention_bytes: int | None = None
    compacted: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One respect in which a topic is not as it should be.

    `partitions`, `replicas`, or a topic setting by its name in Kafka.

    Values are written as Kafka writes them; *found* None means that the topic is missing.
    """

    topic: str
    setting: str
    found: str | None
    wanted: str
    note: str = ""
    """What to know before it is done."""
    by_hand: bool = False
    """`create_topics` cannot do it; the note says who can."""


class PartitionRange(msgspec.Struct, frozen=True):
    """Offsets that exist: *start* is the oldest kept, *end* the next to be given."""

    start: int
    end: int


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group: its live members (id -> partitions held, as (topic, partition)) and committed offsets."""

    name: str
    members: dict[str, tuple[tuple[str, int], ...]]
    committed: dict[tuple[str, int], int]
    uncommitted: tuple[tuple[str, int], ...] = ()
    """What members have held without ever committing, as far as the log remembers that."""


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter can do, so that suites and the worker ask values, not classes."""

    name: str
    durable: bool
    """Acknowledged records survive the death of this process."""
    between_processes: bool
    """Several processes can open the same log."""
    max_record_bytes: int
    """Largest key + value + headers that is accepted."""
    creates_topics_at_start: bool
    """Workers and publishers create their topics by default (`topics.create`)."""
    own_clock: bool = False
    """Append times are the wall clock of the machine that appends, which is this one."""
    appends_in_flight: int = 1
    """How many `append` calls are worth having at once.

    One where each commits by itself, more where partitions answer independently.
    """


class Listener(Protocol):
    """What a subscription tells its owner while partitions come and go."""

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """These are ours now. Nothing is paused; reading starts at the commit."""

    async def revoked(self, assignments: Sequence[Assignment]) -> None:
        """These will be given away when this returns: drain, then commit. Bounded by the drain budget."""

    def lost(self, assignments: Sequence[Assignment]) -> None:
        """These are another's already: a commit would be refused."""


class LogSubscription(Protocol):
    """One member's view of a group. Not thread-safe; one `poll` at a time."""

    async def poll(self, *, timeout_s: float, max_records: int, max_bytes: int) -> Sequence[Record]:
        """Next records of the assigned, unpaused partitions, each partition in order.

        Waits up to *timeout_s* for the first one. *max_records* 0 fetches nothing but keeps the membership alive. At
        least one record is returned however large it is. Raises OffsetOutOfRangeError, UnreachableError, ClosedError.
        """

    async def commit(self, offsets: Mapping[Assignment, int]) -> Sequence[Assignment]:
        """Commit for each assignment the offset of the next record to handle; answers with those refused.

        Refused (fenced) means: that epoch is not the current one any more. A smaller offset than the committed one
        changes nothing.
        """

    def pause(self, assignments: Iterable[Assignment]) -> None:
        """Fetch nothing from these until `resume`. A new assignment always starts unpaused."""

    def resume(self, assignments: Iterable[Assignment]) -> None:
        """Undo `pause`."""

    def seek(self, assignment: Assignment, offset: int) -> None:
        """Make *offset* the next one to be fetched."""

    def assignments(self) -> Sequence[Assignment]:
        """What this member holds now."""

    def in_doubt(self) -> bool:
        """Whether others may hold what this member believes to hold.

        That is so when it was silent for too long: it was suspended, or blocked.

        The listener hears soon what is lost. What holds its key in strict order is not to be begun before that.
        """

    async def close(self) -> None:
        """Leave the group at once; partitions are free for others. Does not commit."""


class Admin(Protocol):
    """Topics and groups as data."""

    async def create_topics(self, specs: Sequence[TopicSpec]) -> Sequence[str]:
        """Create those that are missing and align what differs in the others; answers with the names it changed.

        Never lowers a partition count, never touches a setting that no spec speaks of; several processes may do it at
        once. Raises NameRefusedError for an illegal or colliding name before anything is created, NotPermittedError
        with the right that is missing.
        """

    async def plan(self, specs: Sequence[TopicSpec]) -> Sequence[Change]:
        """What `create_topics` would do, and what it would leave to an operator. Changes nothing; raises as it does."""

    async def topics(self) -> Mapping[str, TopicSpec]:
        """Every topic of the log by name."""

    async def ranges(self, topic: str) -> Mapping[int, PartitionRange]:
        """Offsets by partition. Raises TopicMissingError."""

    async def groups(self) -> Sequence[GroupInfo]:
        """Every group that has members or commits."""

    async def committed(self, group: str) -> Mapping[tuple[str, int], int]:
        """What *group* has committed, by (topic, partition); nothing for a group that never was.

        Raises NotPermittedError.
        """

    async def move(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Let *group*, which has no members now, go on at these offsets, by (topic, partition).

        Raises GroupBusyError, NotPermittedError.
        """

    async def expel(self, group: str, members: Collection[str]) -> None:
        """End the membership of those of *members* that *group* still has.

        They are named as in `subscribe`. Only for processes that have certainly ended: what they held goes to others at
        once, instead of when their sessions have timed out.
        """

    async def brokers(self) -> Mapping[str, Mapping[str, str]]:
        """By broker, the settings that no topic can override; empty where there are no brokers.

        Raises NotPermittedError.
        """


class Transport(Protocol):
    """A log."""

    features: Features
    admin: Admin

    async def append(
        self, records: Sequence[NewRecord], *, timeout_s: float, told: Told | None = None
    ) -> Sequence[Outcome]:
        """Append durably; one outcome per record, in order. Never raises for what is wrong with one record.

        Records for one partition are appended in the order given. When *timeout_s* passes, what has certainly not been
        written is a DeadlineError, the rest an AppendUnknownError. Where some partitions answer long before others,
        *told* hears what is known by then.
        """

    async def refusals(self, records: Sequence[NewRecord]) -> Sequence[RecordTooLargeError | None]:
        """For each record why its topic would never take it. Appends nothing.

        None where nothing speaks against it, or nothing is known.
        """

    async def subscribe(self, group: str, topics: Sequence[str], listener: Listener, *, member: str) -> LogSubscription:
        """Join *group*; partitions arrive through *listener*. Raises TopicMissingError, NameRefusedError."""

    async def read(
        self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int, wait_s: float = 0.0
    ) -> Sequence[Record]:
        """Records from *offset* on, without a group; waits up to *wait_s* for the first. Raises TopicMissingError."""

    async def close(self) -> None:
        """Finish what was accepted, then release everything. Idempotent."""


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,255}\Z")


def check_topic_name(name: str) -> None:
    """Raise NameRefusedError unless *name* is legal in Kafka, hence everywhere."""
    if not _TOPIC.match(name) or name in (".", ".."):
        raise NameRefusedError(f"illegal topic name {name[:80]!r}: 1 to 249 of A-Z a-z 0-9 . _ -, not '.' or '..'")


def check_group_name(name: str) -> None:
    """Raise NameRefusedError unless *name* can name a group everywhere."""
    if not _GROUP.match(name):
        raise NameRefusedError(f"illegal group name {name[:80]!r}: 1 to 255 of A-Z a-z 0-9 . _ -")


def colliding_topic(name: str, existing: Iterable[str]) -> str | None:
    """The existing topic that *name* would collide with: Kafka takes `.` and `_` for the same in metric names."""
    folded = name.replace(".", "_")
    return next((other for other in existing if other != name and other.replace(".", "_") == folded), None)
