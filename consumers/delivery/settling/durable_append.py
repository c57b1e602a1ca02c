"""DurableAppender: appends that are repeated until they are durable, before an offset is settled.

Owns appending outputs, retries, dead letters and reports. A failure that may pass pauses the partition and is retried
with an alarm. A dead letter that can never be stored becomes a stub. Outcomes are decided in
`consumers.delivery.settling.dispositions`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from bus.backoff import Backoff
from bus.clock import Clock
from bus.errors import BusError, ContractError, NotPermittedError, RecordTooLargeError, SigningError, TopicMissingError
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.topics.names import dead_letter_topic, read_topic
from bus.transports.base import Appended, NewRecord
from consumers.deadletters.records import Failure, dead_letter_record, stub
from consumers.delivery.handler_errors import GaveUpError
from consumers.delivery.resilience.retry_clock import RetryClock
from consumers.delivery.state.delivery import Delivery
from consumers.delivery.state.partition import Partition
from producers.outcomes import PublishRejected
from producers.publisher import Publisher
from producers.sealing.sealed_record import SealedRecord

__all__ = ["GaveUpError", "DurableAppender"]

_BACKOFF = Backoff(0.5, 30.0)
_FORGOTTEN_S = 5.0
"""Seconds for which a missing reply topic is not tried again; its agent may create it afterwards."""
_MAX_GONE = 4_096

NO_REPLY = (TopicMissingError, NotPermittedError)
"""The errors that mean a reply topic does not exist, or that this worker may not write to it."""

_log = get_logger("settlement")


class DurableAppender:
    """Makes outcomes durable for one group."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        group: str,
        clock: Clock,
        retry_clock: RetryClock,
        metrics: Metrics,
        details: bool,
        pause: Callable[[Partition, bool], None],
    ) -> None:
        self._publisher = publisher
        self._group = group
        self._clock = clock
        self._details = details
        self._hold = pause
        self._retry_clock = retry_clock
        self._metrics = metrics
        self.missing: set[str] = set()
        """Topics that do not exist, and for which an output waits."""
        self.error = ""
        """Why the last append has failed, while one is tried again."""
        self._gone: OrderedDict[str, float] = OrderedDict()
        """Reply topics that were missing or forbidden, with the monotonic time until which they are not tried."""

    async def check(self, records: Sequence[NewRecord]) -> None:
        """Raise ContractError for the first of *records* that its topic would never accept.

        After a commit of the inbox that would be too late.
        """
        for fault in await self._publisher.transport.refusals(records):
            if fault is not None:
                raise ContractError(f"its output is too large for the log: {fault}", "/data", "oversized")

    async def send(
        self, records: Sequence[NewRecord], partition: Partition, *, otherwise: str | None = None, at_last: bool = False
    ) -> Sequence[NewRecord]:
        """Append *records* until all are durable; return the answers to send again in a moment.

        *otherwise* replaces a missing topic once.

        A message can name any reply topic, so an answer without a usable topic must not block the partition: it is
        dropped and counted. A broker may not know a topic that was created a moment ago: such answers are returned, to
        be sent again, the last time with *at_last*. Raises GaveUpError, RecordTooLargeError.
        """
        waiting = [record for record in records if not self._has_no_topic(record)] if self._gone else list(records)
        tried = await self._try(waiting) if waiting else ([], None, ())
        if not (tried[0] or tried[2]):
            return ()
        return await self._send_patiently(tried, partition, otherwise=otherwise, at_last=at_last)

    async def _send_patiently(
        self, tried: _Tried, partition: Partition, *, otherwise: str | None, at_last: bool
    ) -> Sequence[NewRecord]:
        """Go on after the first try, which has not made all records durable, until they are."""
        undecided: list[NewRecord] = []
        with _Patience(partition, self._clock, self._hold, self._show_missing) as patience:
            while True:
                waiting, error, placeless = tried
                self.error = ""
                undecided += self._without_topic(placeless, at_last=at_last)
                if not waiting:
                    return undecided
                # A copy: the traceback of the outcome itself would hold this frame, and the frame the outcome and the
                # records.
                if isinstance(error, RecordTooLargeError):
                    raise RecordTooLargeError(str(error))
                if isinstance(error, TopicMissingError) and otherwise is not None:
                    waiting, otherwise = [msgspec.structs.replace(record, topic=otherwise) for record in waiting], None
                else:
                    self.error = str(error)
                    patience.waits_for(waiting[0].topic if isinstance(error, TopicMissingError) else "")
                    _log.error(
                        "settlement.append_failed",
                        topic=waiting[0].topic,
                        error=str(error),
                        records=len(waiting),
                        again_in_s=patience.pause_s,
                    )
                    await patience.wait()
                tried = await self._try(waiting)

    async def seal(self, make: Callable[[], SealedRecord], partition: Partition, *, within_s: float) -> SealedRecord:
        """Call *make* until it seals; a failing signer is retried for *within_s* seconds.

        Raises GaveUpError, PublishRejected.
        """
        ends_s = self._clock.monotonic_s() + within_s
        with _Patience(partition, self._clock, self._hold, self._show_missing) as patience:
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

    def letter_of(self, delivery: Delivery, failure: Failure) -> NewRecord:
        """Return the dead letter of *delivery*."""
        return dead_letter_record(
            delivery.record,
            delivery.control,
            failure,
            group=self._group,
            now_ms=self._clock.now_ms(),
            honoured=delivery.partition.own,
            details=self._details,
            seal=None if delivery.message is None else delivery.message.seal,
        )

    async def storable(self, delivery: Delivery, failure: Failure, letter: NewRecord) -> NewRecord:
        """Return *letter*, or its stub if its topic would never accept it."""
        (fault,) = await self._publisher.transport.refusals([letter])
        return letter if fault is None else stub(delivery.record, letter, failure)

    async def write_dead_letter(self, delivery: Delivery, failure: Failure, letter: NewRecord) -> None:
        """Append *letter*, the dead letter of *delivery*, or its stub. Raises GaveUpError."""
        partition = delivery.partition
        control = delivery.control
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
            sender=delivery.message.metadata.sender.id if delivery.message else None,
            type=delivery.label,
            group=self._group,
        )
        # The origin in a retry or redrive record may be forged: without its topic, the dead letter goes beside the
        # topic read.
        otherwise = dead_letter_topic(delivery.record.topic) if partition.own else None
        try:
            await self.send([letter], partition, otherwise=otherwise)
        except RecordTooLargeError:
            await self.send([stub(delivery.record, letter, failure)], partition, otherwise=otherwise)

    def _show_missing(self, topic: str, is_missing: bool) -> None:
        (self.missing.add if is_missing else self.missing.discard)(topic)
        self._metrics.missing_topics.labels(self._group, topic).set(int(is_missing))

    def _has_no_topic(self, record: NewRecord) -> bool:
        """Return whether the reply topic of *record* was missing a moment ago; the record is dropped then."""
        until_s = self._gone.get(record.topic)
        if until_s is None or self._clock.monotonic_s() >= until_s:
            return False
        self._drop(record)
        return True

    def _without_topic(self, placeless: Sequence[tuple[NewRecord, BusError]], *, at_last: bool) -> list[NewRecord]:
        """Return the answers that may still find their topic; drop and count the others."""
        # The embedded log has no brokers that may know less than others: its answer is final.
        if not at_last and not self._publisher.transport.features.own_clock:
            return [record for record, _ in placeless]
        for record, error in placeless:
            self._gone[record.topic] = self._clock.monotonic_s() + _FORGOTTEN_S
            self._gone.move_to_end(record.topic)
            if len(self._gone) > _MAX_GONE:
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

    async def _try(self, records: list[NewRecord]) -> _Tried:
        """Append *records* once; return those that are not durable, the first error, and answers without a topic.

        A record of unknown fate is sent again with the same bytes and id.
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
                self._retry_clock.learn(outcome.timestamp_ms)
            elif isinstance(outcome, NO_REPLY) and _is_for_answers(record.topic):
                placeless.append((record, outcome))
            else:
                failed.append(record)
                first = first or outcome
        return failed, first, placeless


_Tried: TypeAlias = tuple[list[NewRecord], BusError | None, Sequence[tuple[NewRecord, BusError]]]
"""The records that are not durable, the first error, and answers without a topic."""


class _Patience:
    """Growing pauses between tries; holds *partition* from the first pause until the end.

    *show* is called with the missing topic it waits for, and again when the wait is over.
    """

    def __init__(
        self,
        partition: Partition,
        clock: Clock,
        pause: Callable[[Partition, bool], None],
        show: Callable[[str, bool], None],
    ) -> None:
        self._show = show
        self._missing = ""
        self._partition = partition
        self._clock = clock
        self._hold = pause
        self._is_paused = False
        self._pauses_s = _BACKOFF.delays_s()
        self.pause_s = next(self._pauses_s)

    def __enter__(self) -> _Patience:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._is_paused:
            self._hold(self._partition, False)
            self.waits_for("")

    def waits_for(self, topic: str) -> None:
        """Show that it waits for *topic*, which is missing; "": for something else, or nothing."""
        if self._missing and self._missing != topic:
            self._show(self._missing, False)
        if topic:
            self._show(topic, True)
        self._missing = topic

    async def wait(self) -> None:
        """Pause once. Raises GaveUpError when the partition has gone."""
        if not self._is_paused:
            self._is_paused = True
            self._hold(self._partition, True)
        self._partition.patient += 1
        try:
            await self._clock.sleep(self.pause_s)
        finally:
            self._partition.patient -= 1
        self.pause_s = next(self._pauses_s)
        if self._partition.closed:
            raise GaveUpError


def _is_for_answers(topic: str) -> bool:
    name = read_topic(topic)
    return name is not None and name.kind in ("reply", "mail")
