"""SubmittedTask: a request without a waiting caller, which another process can reopen a day later by its task id.

Owns following the messages about the task, and which of them are accepted: they must have the request as first parent,
be in its conversation, and come from the agent that was asked. Answers stay in the agent's
reply topic, addressed to the agent without an instance. Topics are read from the time at which the request was
appended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from bus.clock import Clock
from bus.errors import BusError, ContractError, TopicMissingError
from bus.gates import SKEW_TOLERANCE_MS
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import PayloadType, payload_type
from bus.protocol import sealing
from bus.protocol.envelope import PROGRESS_TYPES
from bus.protocol.identifiers import uuid7_ms
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.topics.names import message_topic
from bus.transports.base import Record, Transport
from bus.transports.read_all import scan_topic
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.task import TaskClarified
from producers.outcomes import RequestFailed, RequestTimedOut, UnexpectedReply
from producers.requests.in_turn import GRACE_S
from producers.requests.pending import PendingRequest
from producers.requests.progress import TaskEvent, check_answer_type
from producers.requests.reply_reader import ReplyFilter, open_reply, verify_reply
from producers.requests.unread_requests import UnreadRequests
from producers.sealing.run_labels import CURRENT_RUN

__all__ = ["CLOCKS_MS", "SubmittedTask", "TaskKey"]

_Reply = TypeVar("_Reply", bound=Payload)

_PAUSE_S: Final = 0.25
_BROKERS_MS: Final = 60_000
"""So far apart may the clocks of two brokers be, of which each appends to topics of its own."""
CLOCKS_MS: Final = SKEW_TOLERANCE_MS + _BROKERS_MS
"""So much earlier than by a sender's clock may a log have appended something."""
_MAX_SAID: Final = 300
_QUESTION: Final = "task.clarification"


class Cancel(Protocol):
    """Sends the `task.cancel` of a request."""

    def __call__(
        self, key: TaskKey, reason_code: str, /, *, grace_s: float, explanation: str | None = None
    ) -> Awaitable[Any]: ...


class ReplyToQuestion(Protocol):
    """Sends the answer to a `task.clarification`."""

    def __call__(self, question: Message, payload: TaskClarified, /) -> Awaitable[Any]: ...


class TaskKey(msgspec.Struct, frozen=True, kw_only=True):
    """A submitted request, and the agent that may answer."""

    message_type: str
    message_id: str
    task_id: str | None = None
    conversation_id: str
    seal: str
    addressee: str | None = None
    expires_ms: int
    appended_ms: int = 0
    """When the log appended the request; 0 if unknown."""

    @classmethod
    def of(cls, request: Message, appended_ms: int = 0) -> TaskKey:
        """Return the key of *request*, which the log appended at *appended_ms*."""
        recipient = request.metadata.recipient
        return cls(
            message_type=request.message_type,
            message_id=request.message_id,
            task_id=request.metadata.task_id,
            conversation_id=request.metadata.conversation_id,
            seal=request.seal,
            addressee=None if recipient is None else recipient.id,
            expires_ms=parse_ms(request.routing.expires_at) or 0,
            appended_ms=appended_ms,
        )

    @property
    def since_ms(self) -> int:
        """The earliest possible time of messages about the task; 0 if unknown."""
        if self.appended_ms:
            return max(0, self.appended_ms - _BROKERS_MS)
        made_ms = uuid7_ms(self.message_id)
        return 0 if made_ms is None else max(0, made_ms - CLOCKS_MS)


class SubmittedTask(Generic[_Reply]):
    """A request that was submitted; made by `Bus.submit` and `Bus.task`.

    task = await bus.submit(TaskRequest(goal="..."), to="researcher@svc", ttl_s=86_400)
    async for event in task.events(): ...           # accepted, progress, held, and the answer
    answer = await task.result(TaskResult)          # bus.task(task.id) reopens it elsewhere

    *key* is what is known of the request, or a function that finds it in the log.
    """

    def __init__(
        self,
        task_id: str,
        key: TaskKey | Callable[[], Awaitable[TaskKey]],
        *,
        transport: Transport,
        view: ReplyFilter,
        topic: str,
        clock: Clock,
        cancel: Cancel,
        reply: ReplyToQuestion,
    ) -> None:
        self.id = task_id
        """The task id: `bus.task(id)` reopens the task in any process of this agent."""
        self._key = key
        self._cancel = cancel
        self._reply = reply
        self._transport = transport
        self._view = view
        self._topic = topic
        self._clock = clock
        self._offsets: dict[str, dict[int, int]] = {}
        self._seen: set[str] = set()

    async def request(self) -> TaskKey:
        """Return what is known of the request: its type, its message id, and who was asked.

        Raises BusError where the log has it not, or not any more.
        """
        if not isinstance(self._key, TaskKey):
            self._key = await self._key()
        return self._key

    async def events(self, *kinds: type[Payload]) -> AsyncIterator[TaskEvent]:
        """Yield the messages about the task, from its beginning up to its answer.

        *kinds* are payload classes besides the built-in ones; progress of other types is yielded without a payload.
        Ends without an answer when the task has expired. In a handler, the yielded messages count as read by its run.
        Raises BusError for a reopened task whose request is not in the log.
        """
        error_text = [message_topic(self._view.namespace, name) for name in sorted(PROGRESS_TYPES)]
        async for event in self._follow(kinds, [self._topic, *error_text]):
            _take_in(event)
            yield event

    async def _follow(self, kinds: Sequence[type[Payload]], topics: Sequence[str]) -> AsyncIterator[TaskEvent]:
        known, key = {kind.name: kind for kind in map(payload_type, kinds)}, await self.request()
        self._offsets, self._seen = {}, set()
        while True:
            found = await self._news(key, known, topics)
            for event in found:
                yield event
                if event.is_last:
                    return
            if not found:
                if self._clock.now_ms() > key.expires_ms + GRACE_S * 1000:
                    return
                run = CURRENT_RUN.get()
                if run is None:
                    await self._clock.sleep(_PAUSE_S)
                    continue
                # A handler that waits for a task is not at work.
                async with run.waiting():
                    await self._clock.sleep(_PAUSE_S)

    async def result(self, reply: type[_Reply]) -> _Reply:
        """Wait for the answer, a *reply*.

        Raises RequestFailed where the request died, UnexpectedReply for an answer of another type, RequestTimedOut
        when its time is over.
        """
        kind: Any = reply
        check_answer_type(payload_type(reply))
        key = await self.request()
        async for event in self._follow((kind,), [self._topic]):
            if not event.is_last:
                continue
            _take_in(event)
            if isinstance(event.payload, reply):
                return event.payload
            if isinstance(event.payload, ErrorReported):
                report, reporter = event.payload, event.message.metadata.sender.id or ""
                error_text = f"{report.error_code}: {report.error_message}"[:_MAX_SAID]
                text = f"{key.message_type} {key.message_id}: {reporter} reports {error_text}"
                raise RequestFailed(
                    text, await self._sealed_request(key), event.message, reason=report.error_code, reporter=reporter
                )
            raise UnexpectedReply(await self._sealed_request(key), event.message, payload_type(reply).name)
        text = f"{key.message_type} {key.message_id} was not answered in its time"
        unread = UnreadRequests(self._transport, self._view.namespace, self._clock)
        if why := await unread.text_of(key.message_type):
            text += f"; {why}"
        raise RequestTimedOut(text, await self._sealed_request(key))

    async def cancel(
        self, reason_code: str = "NOT_NEEDED", *, explanation: str | None = None, grace_s: float = 30
    ) -> None:
        """Cancel the task at the agents that work on it.

        A waiting message is skipped, also one that waits for a person, and its answer is a failure with the code
        CANCELLED. A running handler sees `context.cancelled`, and is cancelled
        *grace_s* seconds after its worker has received the cancellation. Completed effects stay. Raises
        PublishRejected, PublishUnknown.
        """
        await self._cancel(await self.request(), reason_code, grace_s=grace_s, explanation=explanation)

    async def question(self) -> TaskEvent | None:
        """Return the last question that the agent has asked by `context.clarify`, while it may be answered, else None.

        Also one that was answered already: the log of this agent does not have its own answers.
        """
        key, found = await self.request(), None
        offsets = await self._starts(self._topic, key.since_ms)
        async for record in scan_topic(self._transport, self._topic, offsets):
            event = self._read(record, key, {}, is_reply=True)
            if event is not None and _can_be_answered(event.message):
                found = event
        return found

    async def answer(
        self,
        answers: Sequence[str],
        *,
        inputs: Mapping[str, Any] = MappingProxyType({}),
        question: TaskEvent | None = None,
    ) -> None:
        """Answer what the agent asks by `context.clarify`, in the order of its questions.

            async for event in task.events():
                if isinstance(event.payload, TaskClarification):
                    await task.answer(["dev"], question=event)

        *question*: the event of `events()`, by default the last question. *inputs*: more for the agent, by name. The
        agent goes on with the first answer; a later one changes nothing. Raises ContractError where nothing is asked,
        or for another number of answers, PublishRejected, PublishUnknown.
        """
        asked = question or await self.question()
        if asked is None or not _can_be_answered(asked.message):
            raise ContractError("the agent has asked nothing, or the time for the answer is over", "question")
        if isinstance(answers, str) or len(answers) != len(asked.payload.questions):
            raise ContractError(f"give a list of {len(asked.payload.questions)}: one for each question", "answers")
        _take_in(asked)
        await self._reply(asked.message, TaskClarified(answers=tuple(answers), inputs=dict(inputs)))

    async def _news(self, key: TaskKey, known: dict[str, PayloadType], topics: Sequence[str]) -> Sequence[TaskEvent]:
        found = []
        for topic in topics:
            latest = ""
            async for record in self._new_records(topic, key.since_ms):
                event = self._read(record, key, known, is_reply=topic == self._topic)
                if event is not None and event.message.message_id not in self._seen:
                    self._seen.add(event.message.message_id)
                    # What lies in one topic keeps its order, whatever times it was sealed at.
                    latest = max(latest, event.message.metadata.timestamp)
                    found.append((event.is_last, latest, event))
        # Progress may lie in other topics than the answer, which ends the task.
        return [event for *_, event in sorted(found, key=lambda each: each[:2])]

    async def _new_records(self, topic: str, since_ms: int) -> AsyncIterator[Record]:
        try:
            if (offsets := self._offsets.get(topic)) is None:
                offsets = self._offsets[topic] = await self._starts(topic, since_ms)
            async for record in scan_topic(self._transport, topic, offsets):
                offsets[record.partition] = record.offset + 1
                yield record
        except TopicMissingError:
            return

    async def _starts(self, topic: str, since_ms: int) -> dict[int, int]:
        """Return by partition the first offset that can be about the task. Raises TopicMissingError."""
        admin = self._transport.admin
        locations = [(topic, partition) for partition in await admin.ranges(topic)]
        found = await admin.offsets_at(locations, since_ms)
        return {partition: offset for (_, partition), offset in found.items()}

    def _read(self, record: Record, key: TaskKey, known: dict[str, PayloadType], *, is_reply: bool) -> TaskEvent | None:
        """Return the event in *record*; None if it is not about the task, or not accepted."""
        from bus.vocabulary import BUILT_IN

        try:
            message = open_reply(record, self._view, known)
            if message is None or message.metadata.conversation_id != key.conversation_id:
                return None
            kind = known.get(message.message_type) or BUILT_IN.get(message.message_type)
            pending_request = PendingRequest(
                kind if kind is not None else payload_type(ErrorReported), key.addressee, key.conversation_id, key.seal
            )
            answer = verify_reply(message, pending_request, record, self._view, now_ms=self._clock.now_ms())
        except (ContractError, BusError):
            return None
        is_last = is_reply and not message.is_progress
        return TaskEvent(message, answer.payload, is_last)

    async def _sealed_request(self, key: TaskKey) -> Message:
        """Return the request itself, which is in the log. Raises RequestTimedOut's cause where it is not any more."""
        topic = message_topic(self._view.namespace, key.message_type)
        async for record in scan_topic(self._transport, topic, await self._starts(topic, key.since_ms)):
            try:
                message = sealing.parse(record.value)
            except ContractError:
                continue
            if message.seal == key.seal:
                return message
        raise BusError(f"{key.message_type} {key.message_id} is not in the log any more")


def _can_be_answered(message: Message) -> bool:
    """Return whether *message* is a question whose sender waits for the answer."""
    return message.message_type == _QUESTION and message.routing.reply_to is not None


def _take_in(event: TaskEvent) -> None:
    """Count *event* as read by the current run, if there is one: its level applies to all that the run sends."""
    run = CURRENT_RUN.get()
    if run is None or run.over:
        return
    if event.is_last:
        run.take_in(event.message)
    else:
        run.hear(event.message)
