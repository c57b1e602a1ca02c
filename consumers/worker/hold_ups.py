"""HoldUps: what a worker's unsettled messages wait for, looked at once a second.

Owns finding the messages for which others wait, and the sentence of why. A partition whose commit moves is not looked
into: that costs nothing per message. `producers.directory.hold_ups` has the value and its form on the agent's card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from bus.clock import Clock
from bus.redaction import redacted
from bus.telemetry.metrics import Metrics
from bus.topics.names import read_topic
from bus.transports.base import Record
from consumers.delivery.crashes.crash_rules import Blame
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.state.delivery import Delivery
from consumers.delivery.state.partition import Partition
from consumers.worker.wiring import Parts
from producers.directory.hold_ups import HOLD_UP_REASONS, HoldUp, HoldUpReason

__all__ = ["HoldUpWatch", "WorkerFaults"]

AFTER_S: Final = 5.0
"""A message that holds others up for less is none of anybody's business."""
_MAX_LANES: Final = 20
_JUST_DIED_MS: Final = 60_000
"""So long after a death its message may be with no worker: its partition moves, or its worker starts again."""


class WorkerFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with the whole worker: every message waits for it."""

    inbox: str = ""
    key: str = ""
    missing: tuple[str, ...] = ()
    """Topics that do not exist, and for which an output waits."""
    append: str = ""


class HoldUpWatch:
    """Finds the hold-ups of one worker.

    *faults* tells what is wrong with all of it, *blames* which messages ran in workers that died.
    """

    def __init__(
        self,
        parts: Parts,
        group: str,
        clock: Clock,
        metrics: Metrics,
        *,
        faults: Callable[[], WorkerFaults],
        blames: Callable[[], Sequence[Blame]],
    ) -> None:
        self._parts = parts
        self._group = group
        self._clock = clock
        self._metrics = metrics
        self._faults = faults
        self._blames = blames
        self._met: set[str] = set()
        """The messages among those blamed that this worker has, or has had."""
        self._stands: dict[Partition, tuple[int, float]] = {}
        """By partition with unsettled records, the first of them, and since when it is the first."""
        self.found: tuple[HoldUp, ...] = ()
        """As of the last look, the longest first."""
        for reason in HOLD_UP_REASONS:
            metrics.hold_ups.labels(group, reason).set(0)

    def look(self) -> None:
        """Look once. Call it about once a second."""
        now_s = self._clock.monotonic_s()
        before, self._stands = self._stands, {}
        stands: dict[tuple[Partition, int], float] = {}
        for partition in self._parts.partitions.all():
            if not partition.frontier.open:
                continue
            first = partition.frontier.open[0]
            known = before.get(partition)
            since_s = known[1] if known is not None and known[0] == first else now_s
            self._stands[partition] = (first, since_s)
            if now_s - since_s >= AFTER_S:
                stands[partition, first] = since_s
        found = self._found(stands, now_s) if stands else []
        if (blames := self._blames()) or self._met:
            found = self._with_blamed(found, blames)
        found.sort(key=lambda each: each.since_ms)
        if found or self.found:
            counts = Counter(each.reason for each in found)
            for reason in HOLD_UP_REASONS:
                self._metrics.hold_ups.labels(self._group, reason).set(counts[reason])
        self.found = tuple(found)

    def _found(self, stands: dict[tuple[Partition, int], float], now_s: float) -> list[HoldUp]:
        faults, found, told = self._faults(), [], set[int]()
        for delivery in self._parts.in_flight.deliveries():
            since_s = stands.get((delivery.partition, delivery.record.offset))
            if since_s is None:
                continue
            head = self._parts.lanes.head_of(delivery.key) or delivery
            told.add(id(head))
            found.append(self._hold_up(head, delivery, since_s, now_s, faults))
        # Other keys of these partitions that wait here for their next attempt.
        held = [
            lane.head
            for lane in self._parts.timers.lanes()
            if id(lane.head) not in told and now_s - lane.head.taken_s >= AFTER_S
        ]
        held.sort(key=lambda head: head.taken_s)
        found += [self._hold_up(head, head, head.taken_s, now_s, faults) for head in held[:_MAX_LANES]]
        return found

    def _with_blamed(self, found: list[HoldUp], blames: Sequence[Blame]) -> list[HoldUp]:
        """Return *found* with the messages blamed that are not settled, as far as this worker knows."""
        deliveries = self._parts.in_flight.deliveries()
        here = {each.message.message_id: each.record for each in deliveries if each.message is not None}
        now_ms = self._clock.now_ms()
        for blame in blames:
            name = blame.mark.name
            known = next((each for each in found if each.message_id == name), None)
            is_open = name in here or (name not in self._met and now_ms - blame.at_ms < _JUST_DIED_MS)
            if is_open and (known is None or known.reason != "stuck_handler"):
                found = [*(each for each in found if each is not known), _blamed(blame, known, here.get(name))]
        self._met = {blame.mark.name for blame in blames} & (self._met | here.keys())
        return found

    def _hold_up(self, head: Delivery, first: Delivery, since_s: float, now_s: float, faults: WorkerFaults) -> HoldUp:
        reason, detail, until_s = self._reason(head, now_s, faults)
        now_ms = self._clock.now_ms()
        partition = first.partition
        record = head.record
        return HoldUp(
            reason=reason,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            message_type="" if head.message is None else head.message.message_type,
            message_id="" if head.message is None else head.message.message_id,
            key="" if record.key is None else record.key.decode("utf-8", "replace"),
            since_ms=now_ms - round((now_s - since_s) * 1000),
            until_ms=None if until_s is None else now_ms + round((until_s - now_s) * 1000),
            behind=max(partition.frontier.span - 1, partition.behind - 1, 0) - partition.frontier.settled_ahead,
            detail=detail,
        )

    def _reason(self, head: Delivery, now_s: float, faults: WorkerFaults) -> tuple[HoldUpReason, str, float | None]:
        partition = head.partition
        due_s = self._parts.timers.due_s(head)
        if due_s is not None:
            return (*self._why_put_off(head, faults), due_s)
        slot = next((slot for slot in self._parts.slots.running() if slot.delivery is head), None)
        if slot is not None and slot.in_handler:
            work = self._parts.slots.named(slot)
            handler = "" if work is None else work.handler
            if not slot.working:
                return "answer", f"{handler} waits for an answer", slot.deadline_s
            end_s = slot.deadline_s if slot.overdue_s is None else slot.overdue_s
            if now_s > end_s:
                return "stuck_handler", handler, end_s
            return "handler", handler, end_s
        if slot is not None and slot.queue:
            return (*_why_queued(slot), None)
        if partition.patient and faults.missing:
            return "append", f"waits for the topic {faults.missing[0]}, which does not exist", None
        # Between its run and its outcome a message needs both: the inbox for its claim, the log to seal its outputs.
        is_ended = slot is not None and (slot.settling or (slot.ran and not (slot.released or faults.inbox)))
        if partition.patient or is_ended:
            return "append", faults.append or "its outcome is not stored yet", None
        if faults.inbox or partition.awaiting_inbox or (slot is not None and self._parts.claims is not None):
            return "inbox", faults.inbox or "the inbox has not answered yet", None
        if not self._parts.slots.has_room:
            return "busy", "every place for a handler is taken: worker.concurrency", None
        return "busy", "waits for its turn", None

    def _why_put_off(self, head: Delivery, faults: WorkerFaults) -> tuple[HoldUpReason, str]:
        kind = "" if head.message is None else head.message.message_type
        if faults.key:
            return "key", faults.key
        if head.partition.resting:
            return "brake", f"{kind} pauses: too large a share of it died"
        if kind in self._parts.partitions.waiting:
            return "breaker", ", ".join(sorted(self._parts.dependencies.dependencies_of(kind)))
        if head.limits_waited_for:
            return "limit", head.limits_waited_for
        if head.control.attempt:
            error = f", the last with {redacted(head.control.error)}" if head.control.error else ""
            failed = "1 attempt has" if head.control.attempt == 1 else f"{head.control.attempt} attempts have"
            return "retry", f"{failed} failed{error}"
        return "claim", "another worker has claimed it, or its turn has not come"


def _why_queued(slot: HandlerSlot) -> tuple[HoldUpReason, str]:
    if slot.queue == "alone":
        return "crash", "workers ended while they ran it: it runs alone, once the others have ended"
    return "busy", "another message runs alone, because workers ended while they ran it"


def _blamed(blame: Blame, known: HoldUp | None, record: Record | None) -> HoldUp:
    """Return the hold-up of the message of *blame*; *record* is its copy that this worker has."""
    mark, detail = blame.mark, f"{blame.deaths} workers ended while they ran it"
    if known is not None:
        return msgspec.structs.replace(known, reason="crash", detail=detail, until_ms=None)
    at, topic = mark if record is None else record, read_topic(mark.topic)
    return HoldUp(
        reason="crash",
        topic=at.topic,
        partition=at.partition,
        offset=at.offset,
        message_type="" if topic is None else topic.message_type,
        # A record that was being judged has no id yet.
        message_id="" if mark.kind == "judged" else mark.name,
        since_ms=blame.at_ms,
        detail=detail,
    )
