"""Send a request and return its answer, or raise the reason why there is none, all by one deadline.

Owns the reply topic and session of one agent instance, sending a request and awaiting it. Pending requests are in
`producers.requests.pending`, reading and judging answers in `producers.requests.reply_reader`.
"""

from __future__ import annotations

import asyncio
import math
import os
import shlex
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

import msgspec

from bus.errors import BusError, ClosedError, ContractError, DeadlineError, NotPermittedError, TopicMissingError
from bus.own_context import OwnContext
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import PayloadType, encode_payload, payload_type
from bus.protocol.fast_parse import UNREAD, KnownLayouts
from bus.protocol.identifiers import uuid7
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.protocol.timestamps import parse_ms
from bus.telemetry.logs import get_logger
from bus.topics.names import reply_topic
from bus.topics.specs import reply_topics
from bus.transports.base import AppendOutcome, Transport
from bus.trust.admission import Admission, Party
from bus.trust.policy.policy import NO_POLICY, Policy
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.task import TaskCancel, TaskClarified
from producers.middleware import PublishMiddleware, around
from producers.outcomes import PublishRejected, PublishUnknown, Receipt, RequestFailed, RequestTimedOut, UnexpectedReply
from producers.publisher import Publisher
from producers.requests.in_turn import addressees_of, ask_in_turn
from producers.requests.pending import Answer, PendingRequest, PendingRequests, Waiter
from producers.requests.progress import NO_WATCH, ProgressFeed, RequestWatch, check_answer_type
from producers.requests.reply_reader import REPLY_GROUP, ReplyFilter, ReplyReader
from producers.requests.submitted import SubmittedTask, TaskKey
from producers.requests.unread_requests import UnreadRequests
from producers.sealing.options import Outgoing, RequestOptions, asked_hops, hop_limit, outgoing_of
from producers.sealing.run_labels import CURRENT_RUN, RunLabels
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import SealedRecord

__all__ = ["Requester"]

_Reply = TypeVar("_Reply", bound=Payload)
_OWN_OPTIONS = ("ttl_s", "reply_to", "delay_s", "at")
_ENTROPY_BYTES = 10
_MAX_SAID = 300
_TASK_LIVES_S = 86_400.0
"""The lifetime of a submitted request that is given none."""
_CANCEL_S = 1.0
"""Seconds that a closing bus gives to the cancellations of its requests."""

_log = get_logger("requests")


class Requester:
    """Sends requests in the name of one publisher's agent. Opens its reply topic at the first request."""

    def __init__(
        self,
        publisher: Publisher,
        transport: Transport,
        *,
        verifier: Verifier | None = None,
        policy: Policy | None = None,
        middleware: Sequence[PublishMiddleware] = (),
    ) -> None:
        origin = publisher.sealer.origin
        self._middleware = middleware
        self._publisher = publisher
        self._transport = transport
        self._clock = publisher.clock
        # One session per instance: answers are addressed to it, although all instances read the topic.
        session_id = uuid7(self._clock.now_ms(), os.urandom(_ENTROPY_BYTES))
        self._origin = msgspec.structs.replace(
            origin, sender=msgspec.structs.replace(origin.sender, session_id=session_id)
        )
        self.topic = reply_topic(origin.namespace, origin.sender.id or "")
        self.waiting = PendingRequests(self._clock, publisher.metrics)
        self.admission = Admission(
            Party(agent_id=origin.sender.id or "", namespace=origin.namespace, group=REPLY_GROUP),
            verifier=verifier,
            policy=policy or NO_POLICY,
            now_ms=self._clock.now_ms,
        )
        self._view = view = ReplyFilter(
            namespace=origin.namespace,
            agent_id=origin.sender.id or "",
            session_id=session_id,
            max_message_bytes=publisher.settings.publish.max_message_bytes,
            verifier=verifier,
            policy=policy or NO_POLICY,
            admit=self._admit,
            may_answer=self._may_answer,
            max_ttl_ms=round(origin.max_ttl_s * 1000),
            max_hops=origin.max_hops,
        )
        self._replies = ReplyReader(
            transport,
            self.topic,
            view,
            self.waiting,
            restore=self._create,
            clock=self._clock,
            metrics=publisher.metrics,
        )
        self._layouts: KnownLayouts[None] = KnownLayouts()
        """What its requests have in common, so that each is read without being parsed."""
        self._unread = UnreadRequests(transport, origin.namespace, self._clock)
        self._own = OwnContext()
        self._cancelling: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Future[Receipt]] = set()
        """Publishes inside middleware."""
        self._closed = False

    async def ask(
        self,
        payload: Payload,
        reply: type[_Reply],
        *,
        timeout_s: float,
        run: RunLabels | None = None,
        reader: RunLabels | None = None,
        grace_s: float = 0.0,
        watch: RequestWatch = NO_WATCH,
        **options: Unpack[RequestOptions],
    ) -> _Reply:
        """Return the answer to *payload*, a *reply*, within *timeout_s* seconds, which is also the request's lifetime.

        *run* is the run of the requesting handler: its message is the cause. *reader* is the run that reads the answer,
        by default the same. *grace_s*: how much longer than the request's lifetime to wait for the answer. Several
        addressees are asked in turn (`producers.requests.in_turn`). If the caller is cancelled, its request is
        cancelled, too; so is one that *watch* ends because nothing was heard of it. Raises PublishRejected,
        PublishUnknown (if no answer came either), RequestTimedOut, RequestFailed, UnexpectedReply, ClosedError.
        """
        if (several := addressees_of(options)) is not None:

            async def ask(to: str, share_s: float, grace_s: float, key: str) -> _Reply:
                one: RequestOptions = {**options, "to": to, "idempotency_key": key}
                named: dict[str, Any] = {"run": run, "reader": reader, "grace_s": grace_s, "watch": watch, **one}
                return await self.ask(payload, reply, timeout_s=share_s, **named)

            return await ask_in_turn(ask, several, timeout_s=timeout_s, key=options.get("idempotency_key"))
        self._check(timeout_s, options)
        pending_request = PendingRequest(payload_type(reply), progress_kinds=watch.kinds)
        check_answer_type(pending_request.kind)
        deadline_s = self._clock.monotonic_s() + timeout_s + grace_s
        waiter = self.waiting.open(pending_request, deadline_s, run.message.message_id if run is not None else None)
        waiter.grace_s, waiter.idle_s = grace_s, watch.idle_s
        draft, reader = outgoing_of(payload, options), reader or run
        if watch.accepts:
            waiter.feed = ProgressFeed(
                watch, self._clock, self._publisher.metrics, _nothing if reader is None else reader.hear
            )
        try:
            if reader is None:
                answer, request = await self._exchange(draft, waiter, run, timeout_s)
            else:
                async with reader.waiting():
                    answer, request = await self._exchange(draft, waiter, run, timeout_s)
                reader.take_in(answer.message)
            return _opened(answer, request, reply, pending_request)
        except asyncio.CancelledError:
            if waiter.message is not None and waiter.answer is None:
                self.cancel_soon(waiter.message)
            raise
        finally:
            self.waiting.close(waiter)

    async def _exchange(
        self, draft: Outgoing, waiter: Waiter, run: RunLabels | None, timeout_s: float
    ) -> tuple[Answer, Message]:
        """Send *draft* and wait for its answer; return it with the request as it was sealed."""
        feed = waiter.feed
        try:
            await self._open(waiter)
            if self._middleware:
                found = await self._answer_through(draft, waiter, run, timeout_s)
            else:
                sealed = self._seal(draft, waiter, run)
                found = await self._answer(sealed, waiter, timeout_s), sealed.message
            if feed is not None:
                # All that came before the answer is shown before it.
                await feed.drain(self._left_s(waiter))
            return found
        finally:
            if feed is not None:
                feed.close()

    def cancel_soon(self, request: Message, reason_code: str = "NOT_NEEDED") -> None:
        """Cancel *request* at its receivers because its caller has stopped waiting; do not wait for the
        cancellation."""
        key = TaskKey.of(request)
        task = self._own.begin(self._cancel_quietly(key, reason_code))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _cancel_quietly(self, key: TaskKey, reason_code: str) -> None:
        try:
            await self.cancel(key, reason_code, grace_s=self._publisher.settings.publish.cancel_grace_s)
        except BusError as error:
            _log.debug("request.not_cancelled", message_id=key.message_id, error=str(error))

    async def cancel(
        self, key: TaskKey, reason_code: str, *, grace_s: float, explanation: str | None = None
    ) -> Receipt:
        """Send the `task.cancel` of the request that *key* names. Raises PublishRejected, PublishUnknown."""
        payload = TaskCancel(reason_code=reason_code, explanation=explanation, grace_s=math.ceil(grace_s))
        draft = Outgoing(
            payload=payload,
            # Whoever has the message learns of it, whichever agent that is.
            task_id=key.message_id,
            # Processes are found by the task that the request is a part of.
            parent_task_id=key.task_id,
            conversation_id=key.conversation_id,
        )
        sealed = self._publisher.sealer.seal(draft, SealRequest(both_versions=False))
        return await self._publisher.send(sealed, timeout_s=_CANCEL_S)

    async def answer(self, question: Message, payload: TaskClarified) -> Receipt:
        """Send *payload* as the answer to *question*, a `task.clarification` of the agent that works on a request.

        It rests on the question, and lives as long. Raises PublishRejected, PublishUnknown.
        """
        left_ms = (parse_ms(question.routing.expires_at) or 0) - self._clock.now_ms()
        draft = Outgoing(payload, to=question.metadata.sender.id, ttl_s=max(1, left_ms) / 1000)
        run = CURRENT_RUN.get()
        request = SealRequest(
            cause=question,
            answers=True,
            topic=question.routing.reply_to,
            both_versions=False,
            run=None if run is None or run.over else run,
        )
        return await self._publisher.send(self._publisher.sealer.seal(draft, request))

    async def submit(self, draft: Outgoing) -> SubmittedTask[Any]:
        """Send *draft* and return its task, which another process of this agent can reopen.

        In a run it is caused by the handled message, with the labels of the run, and is a part of its task. Raises
        PublishRejected, PublishUnknown.
        """
        await self._make_topic()
        draft = msgspec.structs.replace(draft, reply_to=self.topic)
        if draft.task_id is None:
            task_id = _stated_task(draft.payload) or uuid7(self._clock.now_ms(), os.urandom(_ENTROPY_BYTES))
            draft = msgspec.structs.replace(draft, task_id=task_id, parent_task_id=draft.parent_task_id or _own_task())
        if draft.ttl_s is None:
            draft = msgspec.structs.replace(draft, ttl_s=min(_TASK_LIVES_S, self._origin.max_ttl_s))
        request = SealRequest(both_versions=False, accepts_progress=True)
        sealed = self._publisher.sealer.seal_here(draft, request=request)
        message = sealed.message
        receipt = await self._publisher.send(sealed)
        return self._task(message.metadata.task_id or "", TaskKey.of(message, receipt.timestamp_ms))

    def reopen(self, task_id: str, kinds: Sequence[PayloadType]) -> SubmittedTask[Any]:
        """Return the task *task_id*, whose request is of the first of *kinds* of which there is one in the log."""
        return self._task(task_id, partial(self._found, task_id, tuple(kinds)))

    async def _found(self, task_id: str, kinds: Sequence[PayloadType]) -> TaskKey:
        from producers.requests.task_lookup import TaskLookup

        lookup = TaskLookup(self._transport, self._view, self.topic, self._clock)
        for kind in kinds:
            if (found := await lookup.find(task_id, kind)) is not None:
                return found
        raise BusError(
            f"no {' or '.join(kind.name for kind in kinds)} of {self._view.agent_id} has the task id "
            f"{task_id[:80]!r} in the log: was it another agent's, of another type, or deleted by retention?"
        )

    def _task(self, task_id: str, key: TaskKey | Callable[[], Awaitable[TaskKey]]) -> SubmittedTask[Any]:
        view = msgspec.structs.replace(self._view, session_id=None)
        return SubmittedTask(
            task_id,
            key,
            transport=self._transport,
            view=view,
            topic=self.topic,
            clock=self._clock,
            cancel=self.cancel,
            reply=self.answer,
        )

    async def _make_topic(self) -> None:
        try:
            await self._transport.admin.ranges(self.topic)
        except TopicMissingError as missing:
            await self._create(missing)
            self._replies.read_anew()

    def _admit(self, message: Message, kind: PayloadType | None, payload: object, how: str) -> None:
        self.admission.admit(message, kind, payload, how=how)

    def _may_answer(self, sender: str, request: Message) -> bool:
        return self.admission.may_answer(sender, request, None)

    async def caught_up(self) -> bool:
        """Tell whether every answer now in the log has been read."""
        opening = self._opening
        return opening is None or (opening.done() and await self._replies.caught_up())

    async def close(self) -> None:
        """Stop reading answers; waiting callers get a ClosedError."""
        self._closed = True
        for request in self.waiting.sent():
            self.cancel_soon(request)
        self.waiting.end_all()
        if self._cancelling:
            await asyncio.wait(self._cancelling, timeout=_CANCEL_S)
        for sending in tuple(self._sending):
            sending.cancel()
        try:
            if self._opening is not None:
                self._opening.cancel()
                await asyncio.wait([self._opening])
        finally:
            # Also if the caller is cancelled: the reader would otherwise run as long as the loop.
            await self._replies.close()

    def _check(self, timeout_s: float, options: RequestOptions) -> None:
        if self._closed:
            raise ClosedError("the bus is closed")
        max_s = self._origin.max_ttl_s
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= max_s:
            error = ContractError(f"{timeout_s!r} is not more than 0 and at most {max_s:.0f} seconds", "timeout_s")
            raise PublishRejected(f"refused before sending: {error}", error)
        for name in _OWN_OPTIONS:
            if name in options:
                error = ContractError(
                    "is not an option of a request, which is sent at once and lives for timeout_s", name
                )
                raise PublishRejected(f"refused before sending: {error}", error)

    async def _open(self, waiter: Waiter) -> None:
        """Start reading the reply topic from its present end, before any request leaves: no answer can be missed."""
        if self._opening is None:
            self._opening = self._own.begin(self._start())
            self._opening.add_done_callback(self._ended)
        opening = self._opening
        if not opening.done():
            await asyncio.wait((opening, waiter.done), return_when=asyncio.FIRST_COMPLETED)
        if self._closed:
            raise ClosedError("the bus was closed before the request was sent")
        if not opening.done():
            late = DeadlineError(f"the deadline passed before the reply topic {self.topic} could be read")
            raise PublishRejected(f"not sent: {late}", late)
        error = opening.exception()
        if error is None:
            return
        if isinstance(error, BusError):
            raise PublishRejected(f"not sent: {error}", error) from error
        raise error

    def _ended(self, opening: asyncio.Task[None]) -> None:
        if not opening.cancelled() and opening.exception() is not None:
            # The next request tries again, even if all callers that waited for this attempt have gone.
            self._opening = None

    async def _start(self) -> None:
        admin = self._transport.admin
        try:
            ranges = await admin.ranges(self.topic)
        except TopicMissingError as missing:
            await self._create(missing)
            ranges = await admin.ranges(self.topic)
        self._replies.start({partition: span.end for partition, span in ranges.items()})

    async def _create(self, missing: TopicMissingError) -> None:
        """Create the agent's own reply topic, unless the settings forbid it.

        A mistyped name cannot create another topic here.
        """
        settings = self._publisher.settings
        agent = self._publisher.sealer.origin.sender.id or ""
        how = (
            f"run `sealbus topic apply --agent {shlex.quote(agent)}` as a user who may, or create {self.topic} "
            "(1 partition) with Kafka's own tools"
        )
        if settings.topics.create is False:
            raise TopicMissingError(
                f"answers need the topic {self.topic}, which is missing, and topics.create is false: {how}"
            ) from missing
        try:
            await self._transport.admin.create_topics(reply_topics(settings, [self.topic]))
        except NotPermittedError as error:
            raise NotPermittedError(
                f"answers need the topic {self.topic}, which is missing and may not be created here: {how} ({error})"
            ) from error

    def _seal(self, draft: Outgoing, waiter: Waiter, run: RunLabels | None) -> SealedRecord:
        left_s = self._left_s(waiter)
        if left_s <= waiter.grace_s:
            late = DeadlineError("the deadline passed before it was sent")
            raise PublishRejected(f"not sent: {late}", late)
        draft = msgspec.structs.replace(draft, ttl_s=left_s - waiter.grace_s, reply_to=self.topic)
        _check_immediate(draft)
        # An answer names one of two versions: a request is sent in its own version alone.
        cause = None if run is None else run.message
        request = SealRequest(
            cause=cause, origin=self._origin, both_versions=False, run=run, accepts_progress=waiter.feed is not None
        )
        sealed = self._publisher.sealer.seal(draft, request)
        if sealed.made is None:
            # A template's message is read from its bytes, at each access.
            sealed = msgspec.structs.replace(sealed, made=self._read(sealed))
        self._check_answerable(sealed.message)
        for kind in (waiter.pending_request.kind, *waiter.pending_request.progress_kinds):
            self._replies.accept_type(kind)
        if not self.waiting.enlist(waiter, sealed.message):
            error = ContractError("a request of this id is waiting already", "message_id")
            raise PublishRejected(f"refused before sending: {error}", error)
        return sealed

    def _read(self, sealed: SealedRecord) -> Message:
        value = sealed.record.value
        if value is not None and (cast := self._layouts.cast(value)) is not None:
            return cast.message
        message = sealed.message
        self._layouts.learn(message, UNREAD, None)
        return message

    def _check_answerable(self, request: Message) -> None:
        hops, own_limit = request.metadata.hops + 1, self._origin.max_hops
        if hops > (limit := hop_limit(asked_hops(request.routing.max_hops, hops, own_limit), own_limit)):
            error = ContractError(
                f"its answer would have {hops} hops, at most {limit} are allowed", "/metadata/hops", "too_many_hops"
            )
            raise PublishRejected(f"refused before sending: {error}", error)

    async def _answer(self, sealed: SealedRecord, waiter: Waiter, timeout_s: float) -> Answer:
        started_s = self._clock.monotonic_s()
        outcomes = await self._publisher.submit(sealed, timeout_s=max(0.001, self._left_s(waiter)))
        # The acknowledgement wakes nobody: nearly always the answer is still to come.
        outcomes.add_done_callback(partial(self._acknowledged, waiter, sealed, started_s))
        # Cancelled with its caller, who has no other use for it.
        await waiter.done
        if (answer := waiter.result()) is not None:
            return answer
        if not outcomes.done():
            # A cancelled caller does not cancel the publish.
            await asyncio.wait((outcomes,))
        unknown = waiter.fault
        try:
            if isinstance(unknown, PublishRejected):
                raise unknown
            return await self._answer_of_sent(waiter, sealed.message, timeout_s, unknown)
        finally:
            # A frame that refers to the error it raised, and so to the request, keeps both until the garbage collector
            # runs.
            del unknown

    def _acknowledged(
        self, waiter: Waiter, sealed: SealedRecord, started_s: float, outcomes: asyncio.Future[Sequence[AppendOutcome]]
    ) -> None:
        """Note what the log said of the request of *waiter*, whose answer may have come first."""
        if outcomes.cancelled():
            return
        (result,) = self._publisher.results_of((sealed,), outcomes.result())
        self._publisher.metrics.publish_seconds.of(sealed.message_type).observe(self._clock.monotonic_s() - started_s)
        waiter.sent = not isinstance(result, PublishRejected)
        if isinstance(result, Receipt) or waiter.message is None:
            return
        waiter.fault = result
        if not waiter.sent:
            waiter.end()

    async def _answer_of_sent(
        self, waiter: Waiter, request: Message, timeout_s: float, unknown: PublishUnknown | None
    ) -> Answer:
        """Wait for the answer to *request*, which is in the log, or with *unknown* may be there."""
        waiter.sent = True
        try:
            if not waiter.done.done():
                await asyncio.wait((waiter.done,))
            if (answer := waiter.result()) is not None:
                return answer
            if unknown is not None:
                raise unknown
        finally:
            del unknown
        if self._closed:
            raise ClosedError(f"the bus was closed before {request.message_type} {request.message_id} was answered")
        refused = f"; an answer was rejected: {waiter.refused}" if waiter.refused else ""
        recipient = request.metadata.recipient
        to = None if recipient is None else recipient.id
        if waiter.silent:
            # It lives on, and nobody waits for it any more.
            self.cancel_soon(request, "TOO_LATE")
            silence = f"{to or 'who handles it'} was silent for {waiter.idle_s:g} s{refused}"
            raise RequestTimedOut(f"{request.message_type} {request.message_id} was accepted, and {silence}", request)
        if not refused and (unread := await self._unread.text_of(request.message_type, to)):
            refused = f"; {unread}"
        pending_request = f"{request.message_type} {request.message_id}"
        raise RequestTimedOut(
            f"{pending_request} was accepted and not answered within {timeout_s:g} s{refused}", request
        )

    async def _answer_through(
        self, draft: Outgoing, waiter: Waiter, run: RunLabels | None, timeout_s: float
    ) -> tuple[Answer, Message]:
        """Publish *draft* through the middleware; return the answer, and the request as it was sealed."""

        async def publish(changed: Outgoing) -> Receipt:
            if waiter.done.done():
                late = DeadlineError("its requester has stopped waiting")
                raise PublishRejected(f"not sent: {late}", late)
            sealed = self._seal(changed, waiter, run)
            return await self._publisher.send(sealed, timeout_s=max(0.001, self._left_s(waiter)))

        sending = asyncio.ensure_future(around(publish, self._middleware)(draft))
        self._sending.add(sending)
        sending.add_done_callback(self._sent)
        try:
            await asyncio.wait((sending, waiter.done), return_when=asyncio.FIRST_COMPLETED)
            request, unknown = self._fate(sending, waiter)
            return waiter.result() or await self._answer_of_sent(waiter, request, timeout_s, unknown), request
        except BaseException:
            sending.cancel()
            raise
        finally:
            # The task holds its error, whose traceback holds this frame.
            del sending

    def _fate(self, sending: asyncio.Future[Receipt], waiter: Waiter) -> tuple[Message, PublishUnknown | None]:
        """Return the request, and PublishUnknown where it only may be in the log; else raise why it is not."""
        request = waiter.message
        if request is not None and waiter.answer is not None:
            return request, None
        if not sending.done():
            if self._closed:
                raise ClosedError("the bus was closed before the request was sent")
            late = DeadlineError("the deadline passed before the middleware had published it")
            if request is None:
                raise PublishRejected(f"not sent: {late}", late)
            return request, PublishUnknown(f"may or may not be in the log: {late}", request, late)
        error = sending.exception()
        try:
            if request is not None and (error is None or isinstance(error, PublishUnknown)):
                return request, error
            if error is None:
                fault = ContractError("the middleware has not published it")
                raise PublishRejected(f"not sent: {fault}", fault)
            raise error
        finally:
            del error

    def _sent(self, sending: asyncio.Future[Receipt]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()

    def _left_s(self, waiter: Waiter) -> float:
        return waiter.deadline_s - self._clock.monotonic_s()


def _own_task() -> str | None:
    """Return the task that the current run works on, if there is one."""
    run = CURRENT_RUN.get()
    return None if run is None or run.over else run.message.metadata.task_id


def _stated_task(payload: Payload) -> str | None:
    """Return the task id that *payload* states, which its envelope must repeat; None if its type states none."""
    stated = payload_type(payload).terms.must_match.items()
    pointer = next((pointer for pointer, location in stated if location == "/metadata/task_id"), None)
    if pointer is None:
        return None
    value = msgspec.json.decode(encode_payload(payload)).get(pointer[1:])
    return value if isinstance(value, str) else None


def _nothing(message: Message) -> None:
    """Do nothing: no run has read *message*."""


def _check_immediate(draft: Outgoing) -> None:
    """Raise PublishRejected for a delay, which middleware may have added."""
    for name in ("delay_s", "at"):
        if getattr(draft, name) is not None:
            error = ContractError("is not an option of a request, which is sent at once", name)
            raise PublishRejected(f"refused before sending: {error}", error)


def _opened(answer: Answer, request: Message, reply: type[_Reply], pending_request: PendingRequest) -> _Reply:
    if isinstance(answer.payload, reply):
        return answer.payload
    message = answer.message
    if isinstance(answer.payload, ErrorReported):
        reporter = message.metadata.sender.id or ""
        error_text = f"{answer.payload.error_code}: {answer.payload.error_message}"[:_MAX_SAID]
        text = f"{request.message_type} {request.message_id}: {reporter} reports {error_text}"
        raise RequestFailed(text, request, message, reason=answer.payload.error_code, reporter=reporter)
    raise UnexpectedReply(request, message, pending_request.kind.name)
