"""Make sure that the topics of messages exist before anything is sent to them.

Owns the known topics, asking the log for the others, creating missing ones, and the time limit for that. Choosing a
message's topic and sending belong to `producers.publisher` and `producers.sealing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

from bus.clock import Clock
from bus.errors import ClosedError, DeadlineError, TopicMissingError
from bus.own_context import OwnContext
from bus.settings.schema import Settings
from bus.topics.names import dead_letter_topic, read_topic
from bus.topics.specs import creates_topics, message_topics
from bus.transports.base import Transport

__all__ = ["TopicCreation"]


class TopicCreation:
    """The topics of one publisher; used from one event loop.

    The log is asked one question at a time, each by its own task. All callers that wait for the same topics share the
    task and its failure; it continues when the first caller times out.
    """

    def __init__(self, transport: Transport, settings: Settings, clock: Clock) -> None:
        self.known: set[str] = set()
        self._transport = transport
        self._settings = settings
        self._clock = clock
        self._creates = creates_topics(settings, transport.features)
        self._questions: dict[frozenset[str], asyncio.Task[None]] = {}
        self._asking = asyncio.Lock()
        self._closed = False
        self._own = OwnContext()

    async def prepare(self, topics: Iterable[str], *, timeout_s: float | None = None) -> None:
        """Create those of *topics* that are missing, if the settings want that (`topics.create`).

        A mistyped topic is never created: it has no registered type. Raises the log's errors, and DeadlineError if the
        log has not answered within *timeout_s*; None waits without limit.
        """
        unknown = frozenset(topics) - self.known
        if not unknown:
            return
        if not self._creates:
            self.known.update(unknown)
            return
        if self._closed:
            raise ClosedError("the bus is closed")
        question = self._questions.get(unknown) or self._begin(unknown)
        await self._wait(question, timeout_s)
        if not question.done():
            raise DeadlineError(
                f"the deadline passed before the log had said whether it has {', '.join(sorted(unknown))}"
            )
        if question.cancelled():
            raise ClosedError("the bus was closed before the message was sent")
        question.result()

    async def close(self) -> None:
        """Ask nothing more; waiting callers get a ClosedError."""
        self._closed = True
        questions = tuple(self._questions.values())
        for question in questions:
            question.cancel()
        if questions:
            await asyncio.wait(questions)

    def _begin(self, topics: frozenset[str]) -> asyncio.Task[None]:
        question = self._questions[topics] = self._own.begin(self._ask(topics))
        question.add_done_callback(lambda _: self._questions.pop(topics))
        # All callers that waited for it may be gone when it fails.
        question.add_done_callback(lambda task: task.cancelled() or task.exception())
        return question

    async def _wait(self, question: asyncio.Task[None], timeout_s: float | None) -> None:
        if timeout_s is None:
            await asyncio.wait((question,))
            return
        late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(timeout_s, partial(late.set_result, None))
        try:
            await asyncio.wait((question, late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    async def _ask(self, topics: frozenset[str]) -> None:
        async with self._asking:
            missing = topics - self.known
            if missing:
                existing = await self._transport.admin.topics()
                await self._create(sorted(missing - existing.keys()))
                self.known.update(missing)

    async def _create(self, topics: Sequence[str]) -> None:
        names = [read_topic(topic) for topic in topics]
        for topic, name in zip(topics, names, strict=True):
            # Only its own agent creates a reply topic: anyone can name one in a message.
            if name is None or name.kind != "message" or name.namespace != self._settings.bus.namespace:
                raise TopicMissingError(f"no topic {topic}")
        if topics:
            types = [name.message_type for name in names if name]
            await self._transport.admin.create_topics(message_topics(self._settings, types))
            self.known.update(dead_letter_topic(topic) for topic in topics)
