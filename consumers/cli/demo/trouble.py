"""The faults that the demo injects, and what the bus is expected to do with each.

Owns making them: a record altered in the log's file, an expired message, flaky and broken tools, bytes that are no
message. `consumers.cli.demo.story` observes the outcome.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import msgspec

from bus.clock import ManualClock, SystemClock
from bus.databases.sqlite_file import begin_writing
from bus.settings.schema import Settings
from bus.telemetry.metrics import Metrics
from bus.topics.names import message_topic
from bus.transports.base import Appended, NewRecord, Transport
from bus.transports.sqlite.errors import sqlite_code
from bus.vocabulary.task import TaskHandoff, TaskSpec
from producers.connection import make_publisher
from producers.publisher import Publisher
from producers.sealing.options import Draft
from producers.sealing.sealed_record import SealedRecord

__all__ = ["Trouble", "alter_in_file", "is_locked", "make_trouble"]

PLANNER = "planner@demo"
_HOUR_MS = 3_600_000
_LONG_WRITE_S = 1.0
_GARBAGE = b"\x00\xff{not a message"


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: the place of its record, and the expected result (`done` or a dead letter's reason)."""

    what: str
    expected: str
    topic: str
    partition: int
    offset: int
    message_id: str | None = None
    task_id: str | None = None


async def make_trouble(
    transport: Transport, settings: Settings, publisher: Publisher, run: str, *, altered: bool
) -> list[Trouble]:
    """Append the faulty records.

    With *altered* one record is altered before it is appended; otherwise `alter_in_file` alters it later.
    """
    past = make_publisher(
        transport, settings, PLANNER, clock=ManualClock(SystemClock().now_ms() - _HOUR_MS), metrics=Metrics()
    )
    sealed = {
        "a record altered in the log": (publisher.sealer.seal(_task(f"altered-{run}", "pay-invoice")), "hash_mismatch"),
        "a message that had expired": (past.sealer.seal(_task(f"expired-{run}", "use-tool", ttl_s=60)), "expired"),
        "a handler that fails twice": (publisher.sealer.seal(_task(f"flaky-{run}", "use-flaky-tool")), "done"),
        "a handler that always fails": (
            publisher.sealer.seal(_task(f"broken-{run}", "use-broken-tool")),
            "retries_exhausted",
        ),
    }
    if altered:
        each, expected = sealed.pop("a record altered in the log")
        sealed = {"a record altered on its way to the log": (_altered(each), expected)} | sealed
    made = [await _append(transport, each.record, what, expected, each) for what, (each, expected) in sealed.items()]
    topic = message_topic(settings.bus.namespace, "task.handoff")
    garbage = NewRecord(topic, b"garbage", _GARBAGE)
    return [*made, await _append(transport, garbage, "bytes that are no message", "malformed", None)]


def alter_in_file(path: str, trouble: Trouble) -> None:
    """Change one word of the record of *trouble* in the file, as a person with access to the disk could."""
    with closing(sqlite3.connect(path, timeout=10)) as connection, connection:
        connection.execute(
            """UPDATE records SET value = CAST(replace(CAST(value AS TEXT), 'pay-invoice', 'pay-attacker') AS BLOB)
               WHERE off = ? AND part = (
                   SELECT partitions.id FROM partitions JOIN topics ON topics.id = topic_id
                   WHERE name = ? AND partition = ?)""",
            (trouble.offset, trouble.topic, trouble.partition),
        )


def is_locked(path: str) -> bool:
    """Tell whether a process keeps the write lock of the log's file for longer than a write takes."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        begin_writing(connection, _LONG_WRITE_S)
    except sqlite3.OperationalError as error:
        if sqlite_code(error) != sqlite3.SQLITE_BUSY:
            raise
        return True
    finally:
        connection.close()
    return False


def _altered(sealed: SealedRecord) -> SealedRecord:
    """Return the same message with one word changed, as a person between publisher and log could."""
    value = (sealed.record.value or b"").replace(b"pay-invoice", b"pay-attacker")
    return msgspec.structs.replace(sealed, record=msgspec.structs.replace(sealed.record, value=value))


def _task(task_id: str, action: str, *, ttl_s: float | None = None) -> Draft:
    payload = TaskHandoff(
        task_id=task_id,
        from_agent=PLANNER,
        to_agent="writer@demo",
        task_spec=TaskSpec(action=action, input={"invoice": "4821"}),
    )
    return Draft(payload=payload, ttl_s=ttl_s)


async def _append(
    transport: Transport, record: NewRecord, what: str, expected: str, sealed: SealedRecord | None
) -> Trouble:
    (outcome,) = await transport.append([record], timeout_s=10)
    if not isinstance(outcome, Appended):
        raise outcome
    message_id = sealed.message_id if sealed else None
    return Trouble(
        what=what,
        expected=expected,
        topic=outcome.topic,
        partition=outcome.partition,
        offset=outcome.offset,
        message_id=message_id,
    )
