"""Requests that wait for their answers: by message id, with deadlines, and a memory of ended ones.

Owns a future per request, one timer for all deadlines, and telling a late answer from an unrequested one. Memory is
bounded by the number of concurrent requests and a fixed number of ended ones. `producers.requests.requester` sends,
`producers.requests.reply_reader` judges answers.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import OrderedDict, deque

import msgspec

from bus.clock import Clock, Timer
from bus.payloads.payload_types import PayloadType
from bus.protocol.sealing import Message
from bus.telemetry.metrics import Metrics
from producers.outcomes import PublishRejected, PublishUnknown
from producers.requests.progress import ProgressFeed, TaskEvent

__all__ = ["Answer", "PendingRequest", "Waiter", "PendingRequests"]

_LATE_KEPT = 32
_ENDED_KEPT = 10_000
_FEW = 64
_KNOWN_LABELS = frozenset({"error.reported"})


class PendingRequest(msgspec.Struct, frozen=True):
    """An open request: its identity and the expected answer.

    The answer must be of type *kind*, from *addressee* if the request was addressed to one agent.
    """

    kind: PayloadType
    addressee: str | None = None
    conversation_id: str = ""
    seal: str = ""
    request: Message | None = None
    progress_kinds: tuple[PayloadType, ...] = ()
    """Types of its progress besides the built-in ones."""


class Answer(msgspec.Struct, frozen=True):
    """An answer that passed every gate; *payload* is None if its type is not the requested one."""

    message: Message
    payload: object | None


class Waiter:
    """One waiting request. *done* is set by the answer, the deadline or closing; *answer* distinguishes them."""

    __slots__ = (
        "answer",
        "cause_id",
        "deadline_s",
        "done",
        "fault",
        "feed",
        "grace_s",
        "heard_s",
        "idle_s",
        "message",
        "pending_request",
        "refused",
        "sent",
        "silent",
    )

    def __init__(self, pending_request: PendingRequest, deadline_s: float, cause_id: str | None) -> None:
        self.pending_request = pending_request
        self.deadline_s = deadline_s
        self.cause_id = cause_id
        self.grace_s = 0.0
        """How much longer than the request lives its answer is awaited."""
        self.feed: ProgressFeed | None = None
        """Takes its progress; None: nobody wants it."""
        self.idle_s = math.inf
        """After so many seconds of silence it ends."""
        self.heard_s = math.inf
        """When it was sent, or something of it was heard last, on the monotonic clock; inf before that."""
        self.silent = False
        """Whether it has ended by silence, before its deadline."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answer: Answer | None = None
        self.message: Message | None = None
        self.sent = False
        """Whether only the answer is still awaited."""
        self.fault: PublishRejected | PublishUnknown | None = None
        """Why the request is not in the log, or may not be."""
        self.refused = ""
        """The fault of the last answer that was refused."""

    @property
    def due_s(self) -> float:
        """When it ends if nothing is heard until then."""
        return min(self.deadline_s, self.heard_s + self.idle_s)

    def result(self) -> Answer | None:
        """Return the answer, or None."""
        return self.answer

    def end(self) -> None:
        """Stop waiting."""
        if not self.done.done():
            self.done.set_result(None)


class PendingRequests:
    """The open requests of one agent instance."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._waiters: dict[str, Waiter] = {}
        self._unsent: set[Waiter] = set()
        self._ended: OrderedDict[str, PendingRequest] = OrderedDict()
        self._due: list[tuple[float, int, Waiter]] = []
        self._max_due = _FEW
        self._order = itertools.count()
        self._timer: Timer | None = None
        self._timer_due_s = 0.0
        self.late: deque[Message] = deque(maxlen=_LATE_KEPT)
        """The last answers that came too late, oldest first."""

    def __len__(self) -> int:
        return len(self._waiters) + len(self._unsent)

    def open(self, pending_request: PendingRequest, deadline_s: float, cause_id: str | None) -> Waiter:
        """Return a waiter whose *done* is set at the deadline at the latest; always `close` it."""
        waiter = Waiter(pending_request, deadline_s, cause_id)
        self._unsent.add(waiter)
        if len(self._due) >= self._max_due:
            # Most requests were answered long before their deadlines: keep those that still wait.
            self._due = [item for item in self._due if not item[2].done.done()]
            heapq.heapify(self._due)
            self._max_due = max(_FEW, 2 * len(self._due))
        self._push(waiter)
        return waiter

    def _push(self, waiter: Waiter) -> None:
        due_s = waiter.due_s
        heapq.heappush(self._due, (due_s, next(self._order), waiter))
        if self._timer is None or due_s < self._timer_due_s:
            self._arm(due_s)

    def enlist(self, waiter: Waiter, message: Message) -> bool:
        """Accept answers to *message* for *waiter*, and no longer to one that it sent before.

        Return False if a request of that id waits already.
        """
        if message.message_id in self._waiters:
            return False
        self._delist(waiter)
        waiter.message = message
        recipient = message.metadata.recipient
        waiter.pending_request = msgspec.structs.replace(
            waiter.pending_request,
            request=message,
            addressee=recipient.id if recipient is not None else None,
            conversation_id=message.metadata.conversation_id,
            seal=message.seal,
        )
        self._unsent.discard(waiter)
        self._waiters[message.message_id] = waiter
        if waiter.idle_s < math.inf:
            waiter.heard_s = self._clock.monotonic_s()
            self._push(waiter)
        return True

    def close(self, waiter: Waiter) -> None:
        """Remove *waiter*: its caller is done or gone."""
        waiter.end()
        self._unsent.discard(waiter)
        self._delist(waiter)
        waiter.message = waiter.answer = waiter.fault = waiter.feed = None

    def _delist(self, waiter: Waiter) -> None:
        if waiter.message is None:
            return
        del self._waiters[waiter.message.message_id]
        self._ended[waiter.message.message_id] = waiter.pending_request
        if len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)

    def sent(self) -> list[Message]:
        """Return the requests that wait only for their answers."""
        return [waiter.message for waiter in self._waiters.values() if waiter.message is not None and waiter.sent]

    def end_all(self) -> None:
        """End every waiter."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in (*self._unsent, *self._waiters.values()):
            waiter.end()

    def pending_request(self, message_id: str) -> PendingRequest | None:
        """Return the request with this *message_id*, even if it has ended.

        Returns None for a request that this instance does not remember.
        """
        waiter = self._waiters.get(message_id)
        return waiter.pending_request if waiter is not None else self._ended.get(message_id)

    def refuse(self, message_id: str | None, text: str) -> None:
        """Note that an answer to *message_id* was refused."""
        if message_id is not None and (waiter := self._waiters.get(message_id)) is not None:
            waiter.refused = text

    def settle(self, message_id: str, answer: Answer) -> bool:
        """Deliver *answer*; return False if it is late or a second one."""
        waiter = self._waiters.get(message_id)
        if waiter is not None and not waiter.done.done():
            waiter.answer = answer
            waiter.end()
            return True
        pending_request = self.pending_request(message_id)
        name = answer.message.message_type
        known = name in _KNOWN_LABELS or (pending_request is not None and name == pending_request.kind.name)
        self._metrics.late_replies.labels(name if known else "other").inc()
        self.late.append(answer.message)
        return False

    def hear(self, message_id: str, event: TaskEvent) -> bool:
        """Deliver progress of the request *message_id*, which goes on; return False if it is late."""
        waiter = self._waiters.get(message_id)
        if waiter is None or waiter.done.done():
            self._metrics.progress.labels("late").inc()
            return False
        waiter.heard_s = self._clock.monotonic_s()
        if waiter.feed is None:
            self._metrics.progress.labels("passed").inc()
        else:
            waiter.feed.put(event)
        return True

    @property
    def moving(self) -> bool:
        """Whether a request is still being sent, or its caller has not yet continued with the answer."""
        return bool(self._unsent) or any(not waiter.sent or waiter.done.done() for waiter in self._waiters.values())

    def causes(self) -> set[str]:
        """Return the ids of messages whose handlers wait only for answers."""
        return {
            waiter.cause_id
            for waiter in self._waiters.values()
            if waiter.cause_id and waiter.sent and not waiter.done.done()
        }

    def _arm(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = self._clock.call_later(max(0.0, due_s - self._clock.monotonic_s()), self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic_s()
        while self._due and (self._due[0][0] <= now_s or self._due[0][2].done.done()):
            waiter = heapq.heappop(self._due)[2]
            if waiter.done.done():
                continue
            if waiter.due_s > now_s:
                # Something was heard meanwhile.
                heapq.heappush(self._due, (waiter.due_s, next(self._order), waiter))
                continue
            waiter.silent = waiter.due_s < waiter.deadline_s
            waiter.end()
        if self._due:
            self._arm(self._due[0][0])
