"""Bugs in settling: what is committed too early, dropped, or said untruthfully.

Owns these patches. Each replaces one seam of the worker in this process.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from harness.bugs import Bug

from consumers.delivery.receiving import verification
from consumers.delivery.resilience.circuit_breaker import CircuitBreakers
from consumers.delivery.resilience.retry_clock import RetryClock
from consumers.delivery.settling.dispositions import Dispositions
from consumers.delivery.settling.durable_append import DurableAppender
from consumers.delivery.state.commit_frontier import Frontier
from consumers.delivery.state.in_flight import InFlight
from consumers.worker.worker import Worker

__all__ = ["BUGS"]

_LATE_S = 1.5
_running: set[asyncio.Task[Any]] = set()


def _later(work: Any) -> None:
    async def late() -> None:
        await asyncio.sleep(_LATE_S)
        await work

    task = asyncio.get_running_loop().create_task(late())
    _running.add(task)
    task.add_done_callback(_running.discard)


def _send_later(concerned: Any) -> None:
    """Appends to topics that *concerned* says yes to are not waited for."""
    send = DurableAppender.send

    async def patched(self: DurableAppender, records: Sequence[Any], partition: Any, **options: Any) -> Sequence[Any]:
        if all(concerned(record.topic) for record in records):
            _later(send(self, records, partition, **options))
            return ()
        return await send(self, records, partition, **options)

    DurableAppender.send = patched


def commit_before_dead_letter() -> None:
    _send_later(lambda topic: topic.endswith(".dlq"))


def retry_not_awaited() -> None:
    _send_later(lambda topic: "._retry." in topic)


def outputs_not_awaited() -> None:
    _send_later(lambda topic: topic.endswith("fault.answer") or "._reply." in topic)


def auto_commit() -> None:
    Frontier.committable = property(lambda self: self._position)


def highest_seen() -> None:
    settle = Frontier.settle
    highest: dict[int, int] = {}

    def patched(self: Frontier, offset: int) -> None:
        highest[id(self)] = max(highest.get(id(self), -1), offset)
        settle(self, offset)

    Frontier.settle = patched
    Frontier.committable = property(lambda self: highest[id(self)] + 1 if id(self) in highest else None)


def offset_arithmetic() -> None:
    """Every offset is taken to exist."""
    done: dict[int, set[int]] = {}
    reached: dict[int, int] = {}
    deliver, settle = Frontier.deliver, Frontier.settle

    def delivered(self: Frontier, offset: int) -> bool:
        reached.setdefault(id(self), offset)
        return deliver(self, offset)

    def settled(self: Frontier, offset: int) -> None:
        settle(self, offset)
        settled_here = done.setdefault(id(self), set())
        settled_here.add(offset)
        while reached[id(self)] in settled_here:
            settled_here.remove(reached[id(self)])
            reached[id(self)] += 1

    Frontier.deliver, Frontier.settle = delivered, settled
    Frontier.committable = property(lambda self: reached.get(id(self)))


def mark_before_handle() -> None:
    take = InFlight.take

    def patched(self: InFlight, delivery: Any, now_ms: int, now_s: float) -> None:
        take(self, delivery, now_ms, now_s)
        delivery.partition.frontier.settle(delivery.record.offset)

    InFlight.take = patched
    settle = Frontier.settle

    def once(self: Frontier, offset: int) -> None:
        if offset in self.open:
            settle(self, offset)

    Frontier.settle = once


def settle_on_cancel() -> None:
    drop = InFlight.drop

    def patched(self: InFlight, delivery: Any) -> None:
        known = id(delivery) in self._deliveries
        drop(self, delivery)
        if known and not delivery.partition.closed:
            delivery.partition.frontier.settle(delivery.record.offset)

    InFlight.drop = patched
    settle = Frontier.settle

    def once(self: Frontier, offset: int) -> None:
        if offset in self.open:
            settle(self, offset)

    Frontier.settle = once


def dead_letter_dropped() -> None:
    attempt = DurableAppender._try

    async def patched(self: DurableAppender, records: list[Any]) -> tuple[list[Any], Any, Sequence[Any]]:
        failed, error, placeless = await attempt(self, records)
        if failed and all(record.topic.endswith(".dlq") for record in failed):
            return [], None, placeless
        return failed, error, placeless

    DurableAppender._try = patched


def requester_not_told() -> None:
    async def nothing(*_: Any) -> None:
        pass

    Dispositions._report_of = nothing


def early_retry() -> None:
    RetryClock.moment_ms = lambda *_: -math.inf
    schedule = verification.RecordVerifier._schedule

    def patched(self: Any, delivery: Any, *rest: Any) -> None:
        schedule(self, delivery, *rest)
        delivery.requeue = None

    verification.RecordVerifier._schedule = patched


def attempts_forgotten() -> None:
    read = verification.read_control  # type: ignore[attr-defined]

    def patched(record: Any) -> Any:
        return msgspec_replace(read(record), attempt=0)

    from msgspec.structs import replace as msgspec_replace

    verification.read_control = patched  # type: ignore[attr-defined]


def breaker_burns_attempts() -> None:
    CircuitBreakers.blame = lambda *_: None


def exit_code_lies() -> None:
    stop = Worker.stop

    async def patched(self: Worker, drain_timeout_s: float) -> int:
        await stop(self, drain_timeout_s)
        return 0

    Worker.stop = patched


BUGS = [
    Bug(
        "commit-before-dead-letter",
        "the dead letter is appended after its offset counts",
        commit_before_dead_letter,
        ("7-kill",),
        ("I5", "I1"),
    ),
    Bug("auto-commit", "what was fetched is committed", auto_commit, ("7-kill",), ("I5", "I1")),
    Bug("highest-seen", "the frontier is the highest settled offset", highest_seen, ("7-kill",), ("I5", "I1")),
    Bug(
        "offset-arithmetic",
        "the frontier counts offsets that do not exist",
        offset_arithmetic,
        ("17-gaps",),
        ("I8", "I5"),
    ),
    Bug("mark-before-handle", "an offset counts as soon as it is taken", mark_before_handle, ("7-kill",), ("I5", "I1")),
    Bug("settle-on-cancel", "a handler that was cut counts as done", settle_on_cancel, ("8-sigterm",), ("I5", "I1")),
    Bug(
        "dead-letter-dropped",
        "a dead letter whose append fails is given up",
        dead_letter_dropped,
        ("21-missing-topics",),
        ("I5", "I1"),
    ),
    Bug(
        "retry-not-awaited",
        "the retry record is appended after its offset counts",
        retry_not_awaited,
        ("7-kill",),
        ("I5", "I1"),
    ),
    Bug(
        "outputs-not-awaited",
        "answers are appended after their offset counts",
        outputs_not_awaited,
        ("7-kill",),
        ("I5", "ANSWERS"),
    ),
    Bug(
        "requester-not-told",
        "nobody tells the requester that its message died",
        requester_not_told,
        ("7-kill",),
        ("I5",),
    ),
    Bug("early-retry", "a retry tier is not waited for", early_retry, ("7-kill",), ("EARLY",)),
    Bug(
        "attempts-forgotten",
        "the attempts that a retry record carries are not read",
        attempts_forgotten,
        ("5-hopeless",),
        ("I8", "I1"),
    ),
    Bug(
        "breaker-burns",
        "a dependency that is down costs attempts",
        breaker_burns_attempts,
        ("27-dependency",),
        ("I1", "I4"),
    ),
    Bug("exit-code-lies", "the exit code says 0 although handlers were cut", exit_code_lies, ("8-sigterm",), ("EXIT",)),
]
