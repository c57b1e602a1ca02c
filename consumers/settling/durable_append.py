"""Settling: making an outcome durable before its offset counts (design section 5).

Owns appends that must succeed however long it takes: outputs, retries, dead letters and reports of them. An append that
fails for a reason that may pass pauses the partition and is repeated with an alarm; a dead letter that can never be
stored becomes a stub. Deciding the outcome is `consumers.resilience.retry`'s.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from bus.clock import Clock
from bus.errors import BusError, ContractError, NotPermittedError, RecordTooLargeError, SigningError, TopicMissingError
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.topics.names import dead_letter_topic, read_topic
from bus.transports.base import Appended, NewRecord
from consumers.deadletters.records import Failure, bury, stub
from consumers.resilience.retry_clock import RetryClock
from consumers.state.delivery import Delivery
from consumers.state.partition import Partition
from producers.outcomes import PublishRejected
from producers.publisher import Publisher
from producers.sealing.sealed_record import SealedRecord

__all__ = ["GaveUpError", "DurableAppender"]

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_FORGOTTEN_S = 5.0
"""So long a place for answers that was not there is not looked for again: its agent may make it."""
_MOST_GONE = 4_096

NO_REPLY = (TopicMissingError, NotPermittedError)
"""Why an answer may find no place: its topic is not there, or is not this worker's to write."""

_log = get_logger("settlement")


class GaveUpError(Exception):
    """The partition was given away while an append was being repeated: its next owner settles the message."""


class DurableAppender:
    """Makes outcomes durable for one group."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        group: str,
        clock: Clock,
        log_clock: RetryClock,
        metrics: Metrics,
        details: bool,
        hold: Callable[[Partition, bool], None],
    ) -> None:
        self._publisher = publisher
        self._group = group
        self._clock = clock
        self._details = details
        self._hold = hold
        self._log_clock = log_clock
        self._metrics = metrics
        self._gone: OrderedDict[str, float] = OrderedDict()
        """By topic of answers that was not there, or not to be written: until when nobody looks again."""

    async def check(self, records: Sequence[NewRecord]) -> None:
        """Raise ContractError for the first of *records* that its topic would never take.

        Found out after a commit, it would be too late.
        """
        for fault in await self._publisher.transport.refusals(records):
            if fault is not None:
                raise ContractError(f"its output is too large for the log: {fault}", "/data", "oversized")

    async def send(
        self, records: Sequence[NewRecord], partition: Partition, *, otherwise: str | None = None, at_last: bool = False
    ) -> Sequence[NewRecord]:
        """Append *records*; returns when all are durable.

        A missing topic is replaced by *otherwise*, where that is given.

        An answer for which there is no place is dropped and counted: anybody can name one in a message, and it must
        hold up nobody. A broker may not know yet of a topic that was made a moment ago: such answers come back, to be
        sent once more, *at_last*, a moment later. Raises GaveUpError, RecordTooLargeError.
        """
        waiting, undecided = [record for record in records if not self._has_no_place(record)], []
        with _Patience(partition, self._clock, self._hold) as patience:
            while True:
                waiting, error, placeless = await self._try(waiting) if waiting else ([], None, ())
                undecided += self._without_a_place(placeless, at_last=at_last)
                if not waiting:
                    return undecided
                # Not the outcome itself: raised, it would have this frame in its traceback, and they would hold each
                # other and the records.
                if isinstance(error, RecordTooLargeError):
                    raise RecordTooLargeError(str(error))
                if isinstance(error, TopicMissingError) and otherwise is not None:
                    waiting, otherwise = [msgspec.structs.replace(record, topic=otherwise) for record in waiting], None
                    continue
                pause_s = patience.pause_s
                _log.error(
                    "settlement.append_failed",
                    topic=waiting[0].topic,
                    error=str(error),
                    records=len(waiting),
                    again_in_s=pause_s,
                )
                await patience.wait()

    async def seal(self, make: Callable[[], SealedRecord], partition: Partition, *, within_s: float) -> SealedRecord:
        """What *make* seals; while its signer fails it is asked again, for *within_s* seconds.

        Raises GaveUpError, PublishRejected.
        """
        ends_s = self._clock.monotonic_s() + within_s
        with _Patience(partition, self._clock, self._hold) as patience:
            while True:
                try:
                    return make()
                except PublishRejected as error:
                    if (
                        not isinstance(error.__cause__, SigningError)
                        or self._clock.monotonic_s() + patience.pause_s > ends_s
                    ):
                        raise
                    _log.error("settlement.not_signed", error=str(error), again_in_s=patience.pause_s)
                await patience.wait()

    async def bury(self, delivery: Delivery, failure: Failure) -> None:
        """Append the dead letter of *delivery*, or its stub. Raises GaveUpError."""
        partition = delivery.partition
        control = delivery.control
        letter = bury(
            delivery.record,
            control,
            failure,
            group=self._group,
            now_ms=self._clock.now_ms(),
            honoured=partition.own,
            details=self._details,
        )
        _log.warning(
            "message.dead",
            reason=failure.reason,
            pointer=failure.pointer or None,
            error=failure.error,
            detail=failure.text[:200] or None,
            topic=control.origin_topic,
            partition=control.origin_partition,
            offset=control.origin_offset,
            message_id=delivery.message.message_id if delivery.message else None,
        )
        # The origin that a record of our own topics names may be forged: its dead letters then lie beside the topic it
        # came from.
        otherwise = dead_letter_topic(delivery.record.topic) if partition.own else None
        try:
            await self.send([letter], partition, otherwise=otherwise)
        except RecordTooLargeError:
            await self.send([stub(delivery.record, letter, failure)], partition, otherwise=otherwise)

    def _has_no_place(self, record: NewRecord) -> bool:
        """Whether *record* is an answer whose topic was not there a moment ago; then it is dropped."""
        until_s = self._gone.get(record.topic)
        if until_s is None or self._clock.monotonic_s() >= until_s:
            return False
        self._drop(record)
        return True

    def _without_a_place(self, placeless: Sequence[tuple[NewRecord, BusError]], *, at_last: bool) -> list[NewRecord]:
        """Those of the answers that may still find one; the others are dropped."""
        # Where append times are this machine's own there are no brokers, which might know less than others.
        if not at_last and not self._publisher.transport.features.own_clock:
            return [record for record, _ in placeless]
        for record, error in placeless:
            self._gone[record.topic] = self._clock.monotonic_s() + _FORGOTTEN_S
            self._gone.move_to_end(record.topic)
            if len(self._gone) > _MOST_GONE:
                self._gone.popitem(last=False)
            _log.warning(
                "settlement.answer_dropped",
                topic=record.topic,
                error=str(error),
                detail="its agent makes the topic before it asks",
            )
            self._drop(record)
        return []

    def _drop(self, record: NewRecord) -> None:
        kind = next((value.decode("ascii", "replace") for name, value in record.headers if name == "sb-type"), "")
        self._metrics.dropped_answers.labels(self._group, "report" if kind == "error.reported" else "answer").inc()

    async def _try(
        self, records: list[NewRecord]
    ) -> tuple[list[NewRecord], BusError | None, Sequence[tuple[NewRecord, BusError]]]:
        """What is not durable yet, and why; and the answers for which there is no place.

        A record whose fate is unknown is sent again: it has the same bytes and id.
        """
        try:
            await self._publisher.prepare_topics(
                {record.topic for record in records if not _is_for_answers(record.topic)}
            )
        except BusError as error:
            return records, error, ()
        outcomes = await self._publisher.batcher.append(records, timeout_s=self._publisher.settings.publish.timeout_s)
        failed, placeless = [], []
        first: BusError | None = None
        for record, outcome in zip(records, outcomes, strict=True):
            if isinstance(outcome, Appended):
                self._log_clock.learn(outcome.timestamp_ms)
            elif isinstance(outcome, NO_REPLY) and _is_for_answers(record.topic):
                placeless.append((record, outcome))
            else:
                failed.append(record)
                first = first or outcome
        return failed, first, placeless


class _Patience:
    """The pauses between tries, ever longer; from the first of them to the end *partition* is held."""

    def __init__(self, partition: Partition, clock: Clock, hold: Callable[[Partition, bool], None]) -> None:
        self._partition = partition
        self._clock = clock
        self._hold = hold
        self._held = False
        self.pause_s = _FIRST_PAUSE_S

    def __enter__(self) -> _Patience:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._held:
            self._hold(self._partition, False)

    async def wait(self) -> None:
        """Raises GaveUpError."""
        if not self._held:
            self._held = True
            self._hold(self._partition, True)
        self._partition.patient += 1
        try:
            await self._clock.sleep(self.pause_s)
        finally:
            self._partition.patient -= 1
        self.pause_s = min(_LONGEST_PAUSE_S, self.pause_s * 2)
        if self._partition.closed:
            raise GaveUpError


def _is_for_answers(topic: str) -> bool:
    name = read_topic(topic)
    return name is not None and name.kind in ("reply", "mail")
