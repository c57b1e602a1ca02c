"""What waits for answers: ended by its answer or its deadline, remembered for a while, bounded whatever comes."""

from __future__ import annotations

import pytest

from bus.clock import ManualClock
from bus.payloads.payload_types import payload_type
from bus.protocol import sealing
from bus.protocol.envelope import PROTOCOL, Agent, Metadata, Routing
from bus.telemetry.metrics import Metrics
from producers.requests.pending import Answer, PendingRequest, PendingRequests, Waiter
from tests.kit import Answered

ASKED = PendingRequest(payload_type(Answered), None)


def message(message_id: str, message_type: str = "question.answered") -> sealing.Message:
    metadata = Metadata(
        conversation_id="c",
        hops=0,
        message_id=message_id,
        message_type=message_type,
        namespace="agents",
        protocol=PROTOCOL,
        schema_version="1.0.0",
        sender=Agent(id="a"),
        timestamp="2026-01-01T00:00:00.000Z",
    )
    return sealing.seal(b"{}", metadata, Routing(expires_at="2026-01-01T01:00:00.000Z"))


class Case:
    def __init__(self) -> None:
        self.clock, self.metrics = ManualClock(), Metrics()
        self.waiting = PendingRequests(self.clock, self.metrics)

    def open(self, message_id: str, within_s: float = 10.0) -> Waiter:
        waiter = self.waiting.open(ASKED, self.clock.monotonic_s() + within_s, None)
        assert self.waiting.enlist(waiter, message(message_id))
        return waiter

    def late(self, label: str) -> float:
        return self.metrics.registry.get_sample_value("sealbus_late_replies_total", {"type": label}) or 0.0


@pytest.fixture
async def case() -> Case:
    return Case()


async def test_an_answer_ends_the_wait_and_a_second_one_is_late(case: Case) -> None:
    waiter = case.open("one")
    assert case.waiting.settle("one", Answer(message("a"), Answered()))
    assert waiter.result() is not None
    assert not case.waiting.settle("one", Answer(message("b"), Answered()))
    case.waiting.close(waiter)
    assert not case.waiting.settle("one", Answer(message("c"), Answered()))
    assert [late.message_id for late in case.waiting.late] == ["b", "c"]
    assert case.late("question.answered") == 2


async def test_each_deadline_ends_its_own_request_with_one_timer_for_all(case: Case) -> None:
    waiters = {seconds: case.open(str(seconds), seconds) for seconds in (5, 1, 3, 2, 4)}
    for moment in range(6):
        assert {seconds for seconds, waiter in waiters.items() if waiter.done.done()} == set(range(1, moment + 1))
        assert len([timer for *_, timer in case.clock._timers if not timer.cancelled]) <= 1
        case.clock.advance(1)
    assert case.clock.next_due_s() is None


async def test_late_answers_of_unrequested_types_share_a_metric_label(case: Case) -> None:
    case.waiting.close(case.open("one"))
    for name in ("foreign.type", "error.reported", "question.answered"):
        case.waiting.settle("one", Answer(message("a", name), None))
    labels = ("other", "error.reported", "question.answered", "foreign.type")
    assert [case.late(label) for label in labels] == [1, 1, 1, 0]


@pytest.mark.medium
async def test_memory_is_bounded_by_what_waits_at_the_same_time(case: Case) -> None:
    for number in range(30_000):
        waiter = case.open(str(number), 3600)
        case.waiting.settle(str(number), Answer(message("a") if number % 1000 == 0 else ANSWER, Answered()))
        case.waiting.settle(str(number), Answer(ANSWER, Answered()))
        case.waiting.close(waiter)
    assert len(case.waiting) == 0
    assert len(case.waiting._due) <= 128
    assert len(case.waiting._ended) <= 10_000
    assert len(case.waiting.late) <= 64
    assert case.waiting.pending_request("29999") is waiter.pending_request
    assert case.waiting.pending_request("0") is None


ANSWER = message("answer")


async def test_an_id_that_waits_is_not_given_to_another_request(case: Case) -> None:
    first = case.open("one")
    second = case.waiting.open(ASKED, 5, None)
    assert not case.waiting.enlist(second, message("one"))
    case.waiting.close(second)
    assert case.waiting.pending_request("one") is first.pending_request
    case.waiting.close(first)
    assert len(case.waiting) == 0
