"""SubmittedTask: a request without a waiting caller, with a handle that another process can reopen a day later.

Owns the handle's form, following the messages about the task, and which of them are accepted: they must have the
request as first parent, be in its conversation, and come from the agent that was asked. Answers stay in the agent's
reply topic, addressed to the agent without an instance. Topics are read from the time at which the request was
appended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from bus.clock import Clock
from bus.errors import BusError, ContractError, TopicMissingError
from bus.gates import SKEW_TOLERANCE_MS
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import PayloadType, payload_type
from bus.protocol import sealing
from bus.protocol.base64url import from_base64url, to_base64url
from bus.protocol.identifiers import uuid7_ms
from bus.protocol.sealing import Message
from bus.topics.names import message_topic
from bus.transports.base import Record, Transport
from bus.transports.read_all import scan_topic
from bus.vocabulary.error import ErrorReported
from producers.outcomes import RequestFailed, RequestTimedOut, UnexpectedReply
from producers.requests.in_turn import GRACE_S
from producers.requests.pending import PendingRequest
from producers.requests.reply_reader import ReplyFilter, open_reply, verify_reply
from producers.requests.unread_requests import UnreadRequests
from producers.sealing.run_labels import CURRENT_RUN

__all__ = ["SubmittedTask", "TaskEvent", "TaskKey"]

_Reply = TypeVar("_Reply", bound=Payload)

PROGRESS: Final = ("task.accepted", "status.update", "task.clarification")
"""The types of messages about a task before its answer."""
_PAUSE_S: Final = 0.25
_BROKERS_MS: Final = 60_000
"""So far apart may the clocks of two brokers be, of which each appends to topics of its own."""
_MAX_SAID: Final = 300


class Cancel(Protocol):
    """Sends the `task.cancel` of a request."""

    def __call__(
        self, key: TaskKey, reason_code: str, /, *, grace_s: float, explanation: str | None = None
    ) -> Awaitable[Any]: ...


class TaskKey(msgspec.Struct, frozen=True, kw_only=True, rename={"message_type": "t", "message_id": "i"}):
    """The content of a handle: the request, and the agent that may answer."""

    message_type: str
    message_id: str
    conversation_id: str = msgspec.field(name="c")
    seal: str = msgspec.field(name="s")
    addressee: str | None = msgspec.field(name="a", default=None)
    expires_ms: int = msgspec.field(name="e")
    appended_ms: int = msgspec.field(name="b", default=0)
    """When the log appended the request; 0 in handles of older programs."""

    @property
    def since_ms(self) -> int:
        """The earliest possible time of messages about the task; 0 if unknown."""
        if self.appended_ms:
            return max(0, self.appended_ms - _BROKERS_MS)
        made_ms = uuid7_ms(self.message_id)
        return 0 if made_ms is None else max(0, made_ms - SKEW_TOLERANCE_MS - _BROKERS_MS)

    @property
    def text(self) -> str:
        """The handle as one word."""
        return to_base64url(msgspec.json.encode(self))

    @classmethod
    def read(cls, text: str) -> TaskKey:
        """Read a handle. Raises ContractError for an invalid one."""
        try:
            return msgspec.json.decode(from_base64url(text) or b"", type=cls)
        except (ValueError, TypeError, msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ContractError("is not the handle of a task: pass the value of `task.id`", "task") from error


class TaskEvent(msgspec.Struct, frozen=True):
    """A message about a task: progress, or with *is_last* its end. *payload* is None for unknown types."""

    message: Message
    payload: Any
    is_last: bool


class SubmittedTask(Generic[_Reply]):
    """A request that was submitted; made by `Bus.submit` and `Bus.task`.

    task = await bus.submit(TaskRequest(goal="..."), to="researcher@svc", task_id="t-1", ttl_s=86_400)
    async for event in task.events(): ...           # accepted, progress, held, and the answer
    answer = await task.result(TaskResult)          # bus.task(task.id) reopens it elsewhere
    """

    def __init__(
        self, key: TaskKey, *, transport: Transport, view: ReplyFilter, topic: str, clock: Clock, cancel: Cancel
    ) -> None:
        self.key = key
        self._cancel = cancel
        self._transport = transport
        self._view = view
        self._topic = topic
        self._clock = clock
        self._offsets: dict[str, dict[int, int]] = {}
        self._seen: set[str] = set()

    @property
    def id(self) -> str:
        """The handle, as one word: `bus.task(id)` reopens the task in any process of this agent."""
        return self.key.text

    @property
    def message_id(self) -> str:
        """The id of the request."""
        return self.key.message_id

    async def events(self, *kinds: type[Payload]) -> AsyncIterator[TaskEvent]:
        """Yield the messages about the task, from its beginning up to its answer.

        *kinds* are payload classes besides the built-in ones. Ends without an answer when the task has expired. In a
        handler, the yielded messages count as read by its run.
        """
        error_text = [message_topic(self._view.namespace, name) for name in PROGRESS]
        async for event in self._follow(kinds, [self._topic, *error_text]):
            _take_in(event.message)
            yield event

    async def _follow(self, kinds: Sequence[type[Payload]], topics: Sequence[str]) -> AsyncIterator[TaskEvent]:
        known = {kind.name: kind for kind in map(payload_type, kinds)}
        self._offsets, self._seen = {}, set()
        while True:
            found = await self._news(known, topics)
            for event in found:
                yield event
                if event.is_last:
                    return
            if not found:
                if self._clock.now_ms() > self.key.expires_ms + GRACE_S * 1000:
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
        async for event in self._follow((kind,), [self._topic]):
            if not event.is_last:
                continue
            _take_in(event.message)
            if isinstance(event.payload, reply):
                return event.payload
            if isinstance(event.payload, ErrorReported):
                report, reporter = event.payload, event.message.metadata.sender.id or ""
                error_text = f"{report.error_code}: {report.error_message}"[:_MAX_SAID]
                text = f"{self.key.message_type} {self.key.message_id}: {reporter} reports {error_text}"
                raise RequestFailed(
                    text, await self._request(), event.message, reason=report.error_code, reporter=reporter
                )
            raise UnexpectedReply(await self._request(), event.message, payload_type(reply).name)
        text = f"{self.key.message_type} {self.key.message_id} was not answered in its time"
        unread = UnreadRequests(self._transport, self._view.namespace, self._clock)
        if why := await unread.text_of(self.key.message_type):
            text += f"; {why}"
        raise RequestTimedOut(text, await self._request())

    async def cancel(
        self, reason_code: str = "NOT_NEEDED", *, explanation: str | None = None, grace_s: float = 30
    ) -> None:
        """Cancel the task at the agents that work on it.

        A waiting message is dead-lettered as `rejected`. A running handler sees `context.cancelled`, and is cancelled
        *grace_s* seconds after its worker has received the cancellation. Completed effects stay. Raises
        PublishRejected, PublishUnknown.
        """
        await self._cancel(self.key, reason_code, grace_s=grace_s, explanation=explanation)

    async def _news(self, known: dict[str, PayloadType], topics: Sequence[str]) -> Sequence[TaskEvent]:
        found = []
        for topic in topics:
            async for record in self._new_records(topic):
                event = self._read(record, known, is_reply=topic == self._topic)
                if event is not None and event.message.message_id not in self._seen:
                    self._seen.add(event.message.message_id)
                    found.append(event)
        # Progress lies in other topics than the answer, which ends the task.
        return sorted(found, key=lambda event: (event.is_last, event.message.metadata.timestamp))

    async def _new_records(self, topic: str) -> AsyncIterator[Record]:
        try:
            if (offsets := self._offsets.get(topic)) is None:
                offsets = self._offsets[topic] = await self._starts(topic)
            async for record in scan_topic(self._transport, topic, offsets):
                offsets[record.partition] = record.offset + 1
                yield record
        except TopicMissingError:
            return

    async def _starts(self, topic: str) -> dict[int, int]:
        """Return by partition the first offset that can be about the task. Raises TopicMissingError."""
        admin = self._transport.admin
        locations = [(topic, partition) for partition in await admin.ranges(topic)]
        found = await admin.offsets_at(locations, self.key.since_ms)
        return {partition: offset for (_, partition), offset in found.items()}

    def _read(self, record: Record, known: dict[str, PayloadType], *, is_reply: bool) -> TaskEvent | None:
        """Return the event in *record*; None if it is not about the task, or not accepted."""
        from bus.vocabulary import BUILT_IN

        key = self.key
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
        is_last = is_reply and message.message_type not in PROGRESS
        return TaskEvent(message, answer.payload, is_last)

    async def _request(self) -> Message:
        """Return the request itself, which is in the log. Raises RequestTimedOut's cause where it is not any more."""
        topic = message_topic(self._view.namespace, self.key.message_type)
        async for record in scan_topic(self._transport, topic, await self._starts(topic)):
            try:
                message = sealing.parse(record.value)
            except ContractError:
                continue
            if message.seal == self.key.seal:
                return message
        raise BusError(f"{self.key.message_type} {self.key.message_id} is not in the log any more")


def _take_in(message: Message) -> None:
    """Count *message* among the messages that the current run has read, if there is a run: its level applies to all it
    sends."""
    run = CURRENT_RUN.get()
    if run is not None and not run.over:
        run.take_in(message)
