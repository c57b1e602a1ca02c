"""The interface between the bus and a log: records of bytes, and the Protocols that an adapter implements.

Owns the values that adapters exchange with the bus, and the rules they share (legal names, colliding names). A
transport carries bytes and never parses envelopes. Two adapters exist, the embedded log (`bus.transports.sqlite`) and
Kafka (`bus.transports.kafka`); both pass `tests/contract`.

Every adapter guarantees: an `Appended` outcome is durable; records of one partition keep their order; only the current
owner of a partition can commit, and a commit never moves backwards; a member that dies loses its partitions within
`session_timeout_s`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from bus import native
from bus.errors import AppendUnknownError, ConfigurationError, NameRefusedError, RecordTooLargeError, TransportError

__all__ = [
    "HEADER_BYTES",
    "Admin",
    "Appended",
    "Assignment",
    "Change",
    "AppendFailure",
    "Features",
    "GroupInfo",
    "Headers",
    "Listener",
    "NewRecord",
    "AppendOutcome",
    "PartitionRange",
    "Record",
    "LogSubscription",
    "OnOutcomes",
    "TopicSpec",
    "Transport",
    "check_group_name",
    "check_topic_name",
    "colliding_topic",
    "size_of",
]

HEADER_BYTES: Final = 200
"""Estimated memory of one header besides its text, in bytes: a tuple, a str and a bytes object."""

Headers: TypeAlias = tuple[tuple[str, bytes], ...]


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to append. Without *partition*, murmur2 of the key chooses it; without a key, the adapter does."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as stored in the log; *timestamp_ms* is the log's own append time, in Unix milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def size_of(record: NewRecord | Record) -> int:
    """Estimate the memory that *record* takes, in bytes, with an allowance for each header."""
    return (
        len(record.key or b"")
        + len(record.value or b"")
        + native.header_bytes(record.headers)
        + HEADER_BYTES * len(record.headers)
    )


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The location and time at which a record was durably appended."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


AppendFailure: TypeAlias = TransportError | ConfigurationError | AppendUnknownError
"""Why a record was not acknowledged.

The record is certainly not in the log, or (AppendUnknownError) may be. A ConfigurationError means certainly not: the
connection itself is set up wrongly.
"""

AppendOutcome: TypeAlias = Appended | AppendFailure
"""The result of appending one record: durable, certainly not in the log, or unknown."""

OnOutcomes: TypeAlias = Callable[[Sequence[AppendOutcome | None]], object]
"""A callback for the outcomes of an append that is still running; None marks a record without an outcome yet."""


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A partition held by this member; *epoch* is new each time the partition changes hands."""

    topic: str
    partition: int
    epoch: int


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted state of a topic. None keeps the log's own default; retention None keeps records without limit."""

    name: str
    partitions: int = 4
    retention_ms: int | None = None
    retention_bytes: int | None = None
    compacted: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between a topic and its spec.

    *setting* is `partitions`, `replicas`, or Kafka's name of a topic setting. Values are written as Kafka writes them;
    *found* None means that the topic is missing.
    """

    topic: str
    setting: str
    found: str | None
    wanted: str
    note: str = ""
    """A warning for the operator before the change is made."""
    by_hand: bool = False
    """True if `create_topics` cannot make this change; *note* says how to make it."""


class PartitionRange(msgspec.Struct, frozen=True):
    """The offsets in a partition: *start* is the oldest stored, *end* the next to be assigned."""

    start: int
    end: int


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group: its live members (id -> owned partitions, as (topic, partition)) and its committed offsets."""

    name: str
    members: dict[str, tuple[tuple[str, int], ...]]
    committed: dict[tuple[str, int], int]
    uncommitted: tuple[tuple[str, int], ...] = ()
    """Partitions that members have owned without ever committing, as far as the log knows."""


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """The features of an adapter, so that tests and the worker check values instead of classes."""

    name: str
    durable: bool
    """Whether acknowledged records survive the death of this process."""
    between_processes: bool
    """Whether several processes can open the same log."""
    max_record_bytes: int
    """The largest key + value + headers that is accepted."""
    creates_topics_at_start: bool
    """Whether workers and publishers create their topics by default (`topics.create`)."""
    own_clock: bool = False
    """Whether append times come from the wall clock of the appending machine, which is this one."""
    appends_in_flight: int = 1
    """The number of concurrent `append` calls that is useful.

    One if each call is a commit of its own; more if partitions answer independently.
    """


class Listener(Protocol):
    """The callbacks by which a subscription reports that partitions come and go."""

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Take over *assignments*. They start unpaused, at the committed offset."""

    async def revoked(self, assignments: Sequence[Assignment]) -> None:
        """Drain and commit *assignments*: they move to other members when this returns. Bounded by the drain budget."""

    def lost(self, assignments: Sequence[Assignment]) -> None:
        """Drop *assignments*: other members hold them already, and a commit would be refused."""


class LogSubscription(Protocol):
    """One member of a group. Not thread-safe; only one `poll` may run at a time."""

    async def poll(self, *, timeout_s: float, max_records: int, max_bytes: int) -> Sequence[Record]:
        """Return the next records of the assigned, unpaused partitions, each partition in order.

        Waits up to *timeout_s* for the first record. *max_records* 0 fetches nothing but keeps the membership alive. A
        record larger than *max_bytes* is still returned, alone. Raises OffsetOutOfRangeError, UnreachableError,
        ClosedError.
        """

    async def commit(self, offsets: Mapping[Assignment, int]) -> Sequence[Assignment]:
        """Commit per assignment the offset of the next record to handle; return the refused assignments.

        An assignment is refused (fenced) if its epoch is not the current one. An offset below the committed one changes
        nothing.
        """

    def pause(self, assignments: Iterable[Assignment]) -> None:
        """Fetch nothing from *assignments* until `resume`. A new assignment always starts unpaused."""

    def resume(self, assignments: Iterable[Assignment]) -> None:
        """Undo `pause`."""

    def seek(self, assignment: Assignment, offset: int) -> None:
        """Make *offset* the next one to fetch."""

    def assignments(self) -> Sequence[Assignment]:
        """Return the current assignments of this member."""

    def in_doubt(self) -> bool:
        """Tell whether other members may already hold partitions that this member believes to hold.

        True after this process was suspended or blocked for too long. The listener is soon notified of the lost
        partitions. Until then, do not start work that needs the strict order of its key.
        """

    async def close(self) -> None:
        """Leave the group at once, which frees its partitions for other members. Does not commit."""


class Admin(Protocol):
    """Topics and groups as data."""

    async def create_topics(self, specs: Sequence[TopicSpec]) -> Sequence[str]:
        """Create the missing topics and align the others with their specs; return the names of changed topics.

        Never lowers a partition count and never touches a setting that no spec names. Several processes may call it at
        once. Raises NameRefusedError for an illegal or colliding name before it creates anything, and NotPermittedError
        with the missing right.
        """

    async def plan(self, specs: Sequence[TopicSpec]) -> Sequence[Change]:
        """Return the changes `create_topics` would make, and those it leaves to an operator.

        Changes nothing; raises the same errors.
        """

    async def topics(self) -> Mapping[str, TopicSpec]:
        """Return every topic of the log by name."""

    async def ranges(self, topic: str) -> Mapping[int, PartitionRange]:
        """Return the offsets of *topic* by partition. Raises TopicMissingError."""

    async def offsets_at(
        self, locations: Collection[tuple[str, int]], timestamp_ms: int
    ) -> Mapping[tuple[str, int], int]:
        """Return for each of *locations* the offset of its first record that was appended at *timestamp_ms* or later.

        Without such a record it is the end; for 0 it is the start. It is inexact where append times are out of order
        because a clock was set back. Raises TopicMissingError.
        """

    async def held_up(self, locations: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        """Return the number of records in *locations* behind an open transaction of another program.

        They cannot be read before the transaction ends, and `ranges` ends before them. Partitions without such a
        transaction are left out.
        """

    async def groups(self) -> Sequence[GroupInfo]:
        """Return every group that has members or committed offsets."""

    async def committed(self, group: str) -> Mapping[tuple[str, int], int]:
        """Return the committed offsets of *group* by (topic, partition); empty for an unknown group.

        Raises NotPermittedError.
        """

    async def move(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set the committed offsets of *group*, which must have no members, by (topic, partition).

        Raises GroupBusyError, NotPermittedError.
        """

    async def expel(self, group: str, members: Collection[str]) -> None:
        """Remove *members* from *group*, as far as it still has them.

        Members are named as in `subscribe`. Only for processes that have certainly ended: their partitions become free
        at once instead of after the session timeout.
        """

    async def brokers(self) -> Mapping[str, Mapping[str, str]]:
        """Return, by broker, the settings that no topic can override; empty if the log has no brokers.

        Raises NotPermittedError.
        """


class Transport(Protocol):
    """An open log."""

    features: Features
    admin: Admin

    async def append(
        self, records: Sequence[NewRecord], *, timeout_s: float, on_outcomes: OnOutcomes | None = None
    ) -> Sequence[AppendOutcome]:
        """Append durably; return one outcome per record, in order. Never raises for a fault of a single record.

        Records for one partition are appended in the given order. After *timeout_s*, a record that was certainly not
        written gets a DeadlineError, any other an AppendUnknownError. If some partitions answer long before others,
        *on_outcomes* is called with the outcomes so far.
        """

    async def refusals(self, records: Sequence[NewRecord]) -> Sequence[RecordTooLargeError | None]:
        """Return for each record the reason why its topic can never accept it. Appends nothing.

        None means that no such reason is known.
        """

    async def subscribe(self, group: str, topics: Sequence[str], listener: Listener, *, member: str) -> LogSubscription:
        """Join *group*; partitions arrive through *listener*. Raises TopicMissingError, NameRefusedError."""

    async def read(
        self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int, wait_s: float = 0.0
    ) -> Sequence[Record]:
        """Return records from *offset* on, without a group.

        Waits up to *wait_s* for the first record. Raises TopicMissingError.
        """

    async def close(self) -> None:
        """Finish the accepted appends, then release everything. Idempotent."""


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,255}\Z")


def check_topic_name(name: str) -> None:
    """Raise NameRefusedError unless *name* is a legal Kafka topic name, and so legal in every log."""
    if not _TOPIC.match(name) or name in (".", ".."):
        raise NameRefusedError(f"illegal topic name {name[:80]!r}: 1 to 249 of A-Z a-z 0-9 . _ -, not '.' or '..'")


def check_group_name(name: str) -> None:
    """Raise NameRefusedError unless *name* is a legal group name in every log."""
    if not _GROUP.match(name):
        raise NameRefusedError(f"illegal group name {name[:80]!r}: 1 to 255 of A-Z a-z 0-9 . _ -")


def colliding_topic(name: str, existing: Iterable[str]) -> str | None:
    """Return the existing topic that *name* collides with: in metric names Kafka treats `.` and `_` as the same."""
    folded = name.replace(".", "_")
    return next((other for other in existing if other != name and other.replace(".", "_") == folded), None)
