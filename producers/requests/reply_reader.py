"""Read an agent's reply topic, and decide which answers to believe.

Owns following the topic from given offsets through any failure of the log, and passing every record through the gates
for answers. Refused answers are counted and logged, never raised. `producers.requests.pending` owns waiting requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from bus import gates
from bus.backoff import Backoff
from bus.clock import Clock
from bus.errors import BusError, ClosedError, ContractError, TopicMissingError, text_of
from bus.gates import Admit
from bus.own_context import OwnContext
from bus.payloads.payload_types import PayloadType, RiskClass, payload_type
from bus.protocol.envelope import PROGRESS_TYPES
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.transports.base import PartitionRange, Record, Transport
from bus.transports.read_all import new_partition_starts
from bus.trust.policy.policy import AllowAll, Policy
from bus.vocabulary.error import ErrorReported
from producers.requests.pending import Answer, PendingRequest, PendingRequests
from producers.requests.progress import TaskEvent

__all__ = ["REPLY_GROUP", "ReplyReader", "ReplyFilter", "verify_reply", "open_reply"]

_PAGE_RECORDS = 500
_PAGE_BYTES = 8 * 1_048_576
_LOOK_S = 5.0
# No longer: a log may say nothing of a recreated topic, which is then noticed only after this wait.
_WAIT_S = _LOOK_S
_BACKOFF: Final = Backoff(0.2, 5.0)
_REPORT: Final = payload_type(ErrorReported)
REPLY_GROUP: Final = "reply"
"""The group a policy is asked about for an answer, which no group has handled."""
_UNCORRELATED: Final = "uncorrelated"

_log = get_logger("replies")


class ReplyFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The reading agent instance, and the answers that it accepts."""

    namespace: str
    agent_id: str
    session_id: str | None
    """None: the reader of messages that are addressed to the agent without an instance."""
    max_message_bytes: int
    verifier: Verifier | None
    policy: Policy = AllowAll()
    admit: Admit | None = None
    may_answer: Callable[[str, Message], bool] | None = None
    """Returns whether an agent may answer a request to a role or without recipient; None: every agent may."""
    max_ttl_ms: int = gates.MAX_TTL_MS
    max_hops: int = gates.HOPS_LIMIT


def open_reply(record: Record, view: ReplyFilter, kinds: Mapping[str, PayloadType]) -> Message | None:
    """Return the message in *record*; None if it is for another instance or agent. Raises ContractError.

    *kinds* make it faster and change no verdict.
    """

    def prove(name: str, data: bytes) -> object | None:
        kind = kinds.get(name)
        return kind.prove(data) if kind is not None else None

    checks = gates.Checks(
        max_message_bytes=view.max_message_bytes,
        prove=prove,
        is_addressed=lambda message: _is_for(message, view),
        namespace=view.namespace,
        verifier=view.verifier,
    )
    # A reply topic carries any type.
    verdict = gates.judge(gates.Case(record=record, key=record.key), checks, until="authenticity")
    _pass(verdict)
    return verdict.message if isinstance(verdict, gates.Passed) else None


def verify_reply(
    message: Message, pending_request: PendingRequest, record: Record, view: ReplyFilter, *, now_ms: int
) -> Answer:
    """Return the answer in *message*, which correlates with the request *pending_request*. Raises ContractError."""
    _check_relation(message, pending_request)
    kind = _kind_of(message, pending_request)
    # For an unknown type, only the arrival is believed; if keys are configured, it must be proven all the same.
    risk: RiskClass = kind.risk if kind is not None else "low" if view.verifier is None else "medium"
    checks = gates.Checks(
        max_message_bytes=view.max_message_bytes,
        risk_of=lambda _: risk,
        verifier=view.verifier,
        kind_of=lambda _: kind,
        max_hops=view.max_hops,
        max_ttl_ms=view.max_ttl_ms,
        admit=view.admit,
        policy=view.policy,
        group=REPLY_GROUP,
    )
    case = gates.Case(record=record, now_ms=now_ms, append_ms=record.timestamp_ms, message=message, how="reply")
    _pass(gates.judge(case, checks, first="authenticity", until="schema"))
    if pending_request.addressee not in (None, message.metadata.sender.id):
        raise ContractError(
            f"{pending_request.addressee} was asked, but another agent answers", "/metadata/sender/id", "unauthorized"
        )
    sender = message.metadata.sender.id or ""
    asks = view.may_answer if pending_request.addressee is None else None
    if asks is not None and pending_request.request is not None and not asks(sender, pending_request.request):
        text = f"{sender} answers what the policy does not let it handle"
        raise ContractError(text, "/metadata/sender/id", "unauthorized")
    _pass(gates.judge(case, checks, first="schema"))
    return Answer(message, case.payload)


def _kind_of(message: Message, pending_request: PendingRequest) -> PayloadType | None:
    """Return the type of *message* where it may come as a reply to *pending_request*, else None."""
    name = message.message_type
    for kind in (pending_request.kind, _REPORT, *pending_request.progress_kinds):
        if kind.name == name:
            return kind
    if name not in PROGRESS_TYPES:
        return None
    from bus.vocabulary import BUILT_IN

    return BUILT_IN.get(name)


def _pass(verdict: gates.GateVerdict) -> None:
    if isinstance(verdict, gates.Failed):
        raise verdict.error


def _is_for(message: Message, view: ReplyFilter) -> bool:
    recipient = message.metadata.recipient
    return recipient is not None and (recipient.id, recipient.session_id) == (view.agent_id, view.session_id)


def _check_relation(message: Message, pending_request: PendingRequest) -> None:
    """Raise ContractError unless *message* names the request as its first parent, in the same conversation.

    That includes reports, which anyone could forge otherwise.
    """
    if message.metadata.conversation_id != pending_request.conversation_id:
        raise ContractError("is not the request's", "/metadata/conversation_id", _UNCORRELATED)
    parents = message.verification.parents
    if parents is None or parents[0] != pending_request.seal:
        raise ContractError("the request is not its first parent", "/verification/parents", _UNCORRELATED)


class ReplyReader:
    """Reads one reply topic and settles waiting requests.

    *restore* creates the topic if it is missing, or raises the reason why not.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        view: ReplyFilter,
        waiting: PendingRequests,
        *,
        restore: Callable[[TopicMissingError], Awaitable[object]],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._transport = transport
        self._topic = topic
        self._restore = restore
        self._view = view
        self._waiting = waiting
        self._clock = clock
        self._metrics = metrics
        self._kinds = {_REPORT.name: _REPORT}
        self._offsets: dict[int, int] = {}
        self._is_made_anew = False
        self._looking = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._own = OwnContext()

    def accept_type(self, kind: PayloadType) -> None:
        """Expect answers of *kind*."""
        self._kinds[kind.name] = kind

    def start(self, offsets: Mapping[int, int]) -> None:
        """Follow every partition from its offset; partitions added later are read from their start."""
        for partition, offset in offsets.items():
            self._begin(partition, offset)
        self._tasks.append(self._own.begin(self._watch()))

    def read_anew(self) -> None:
        """Read every partition from its start after the next look: the topic was missing, and is made again.

        The offsets alone do not show it: the new topic may have as many records by then as the old one had.
        """
        self._is_made_anew = True

    async def close(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def caught_up(self) -> bool:
        """Tell whether everything now in the topic has been read."""
        if not self._tasks:
            return True
        ranges = await self._transport.admin.ranges(self._topic)
        return all(
            self._offsets[partition] >= ranges[partition].end for partition in self._offsets if partition in ranges
        )

    def _begin(self, partition: int, offset: int) -> None:
        self._offsets[partition] = offset
        self._tasks.append(self._own.begin(self._follow(partition)))

    async def _follow(self, partition: int) -> None:
        pauses_s = _BACKOFF.delays_s()
        while True:
            try:
                await self._advance(partition)
                pauses_s = _BACKOFF.delays_s()
            except ClosedError:
                return
            except Exception as error:  # noqa: BLE001 - after any fault of the log, requests go on when it recovers
                known, pause_s = isinstance(error, BusError), next(pauses_s)
                if isinstance(error, TopicMissingError):
                    self.read_anew()
                _log.warning(
                    "replies.unreadable",
                    topic=self._topic,
                    error=text_of(error),
                    again_in_s=pause_s,
                    exc_info=None if known else error,
                )
                await self._clock.sleep(pause_s)
                await self._look()

    async def _advance(self, partition: int) -> None:
        offset = self._offsets[partition]
        records = await self._transport.read(
            self._topic,
            partition,
            offset,
            max_records=_PAGE_RECORDS,
            max_bytes=_PAGE_BYTES,
            wait_s=_WAIT_S,
        )
        if self._offsets[partition] != offset:
            # The place was left meanwhile: these come again, after those before them.
            return
        for record in records:
            # A type's own code and a policy run here, one answer's apart from the next one's.
            self._own.call(self._take, record)
            self._offsets[partition] = record.offset + 1
        if records:
            # A flood of answers must not starve the other tasks.
            await asyncio.sleep(0)

    async def _watch(self) -> None:
        # Some logs return nothing for an offset that no longer exists, and none reports new partitions.
        while True:
            await self._clock.sleep(_LOOK_S)
            await self._look()

    async def _look(self) -> None:
        """Restart at the beginning of a recreated topic, and start reading added partitions."""
        # One at a time: an answer of before the deletion must not stand for the new topic.
        async with self._looking:
            try:
                ranges = await self._ranges()
            except BusError:
                return
            known = {} if self._is_made_anew else self._offsets
            self._is_made_anew = False
            for partition, start in new_partition_starts(known, ranges).items():
                if partition not in self._offsets:
                    self._begin(partition, start)
                else:
                    _log.warning("replies.topic_replaced", topic=self._topic, offset=start)
                    self._offsets[partition] = start

    async def _ranges(self) -> Mapping[int, PartitionRange]:
        try:
            return await self._transport.admin.ranges(self._topic)
        except TopicMissingError as missing:
            # The topic was deleted. Without it, every later answer would be a dead letter, and every request a timeout.
            await self._restore(missing)
            self.read_anew()
            _log.warning("replies.topic_restored", topic=self._topic)
            return await self._transport.admin.ranges(self._topic)

    def _take(self, record: Record) -> None:
        correlation_id: str | None = None
        try:
            message = open_reply(record, self._view, self._kinds)
            if message is None:
                return
            correlation_id = message.metadata.correlation_id or ""
            pending_request = self._waiting.pending_request(correlation_id)
            if pending_request is None:
                raise ContractError("answers no request of this instance", "/metadata/correlation_id", _UNCORRELATED)
            answer = verify_reply(message, pending_request, record, self._view, now_ms=self._clock.now_ms())
        except ContractError as error:
            self._refuse(record, correlation_id, error.reason, str(error))
        # One bad record, or a verifier that fails on it, must not stop the reading of all others.
        except Exception as error:  # noqa: BLE001
            self._refuse(record, correlation_id, "fault", f"{type(error).__name__}: {text_of(error)}")
        else:
            is_late = (
                not self._waiting.hear(correlation_id, TaskEvent(message, answer.payload, is_last=False))
                if message.is_progress
                else not self._waiting.settle(correlation_id, answer)
            )
            if is_late:
                _log.info(
                    "replies.late",
                    topic=self._topic,
                    offset=record.offset,
                    request=correlation_id,
                    type=message.message_type,
                )

    def _refuse(self, record: Record, correlation_id: str | None, reason: str, text: str) -> None:
        self._waiting.refuse(correlation_id, text)
        self._metrics.refused_replies.labels(reason).inc()
        _log.warning(
            "replies.refused",
            topic=self._topic,
            partition=record.partition,
            offset=record.offset,
            reason=reason,
            detail=text[:200],
        )
