"""A fetch is taken in piece by piece, and what happens between two pieces counts for the rest of it."""

from __future__ import annotations

import pytest

from bus.clock import ManualClock
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.transports.base import Assignment, Record
from consumers.app.app import App
from consumers.delivery.group_plan import make_plan
from consumers.delivery.receiving.receiver import Receiver
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.resilience.retry_clock import RetryClock
from consumers.delivery.state.assignments import Partitions
from consumers.delivery.state.delivery import Delivery
from consumers.delivery.state.in_flight import InFlight
from consumers.delivery.state.lanes import Lanes

TOPIC = "agents.job.asked"
# More than fit in two pieces; what is malformed is a delivery too.
FETCHED = [Record(TOPIC, 0, offset, 0, b"k", b"{}") for offset in range(150)]


class Worker:
    """Everything that a receiver is given."""

    def __init__(self) -> None:
        clock, metrics = ManualClock(), Metrics()
        plan = make_plan(App("admission@tests").declaration, load(flags={}, env={}, file=None).settings)
        self.metrics = metrics
        self.partitions = Partitions(plan.tiers, clock)
        self.lanes: Lanes[Delivery] = Lanes()
        self.in_flight = InFlight(plan.group, clock, metrics, max_count=1_000, max_bytes=1 << 30)
        retry_clock = RetryClock(clock, own=True)
        verification = RecordVerifier(plan.view, clock, retry_clock, plan.tiers)
        self.receiver = Receiver(
            self.partitions,
            verification,
            self.in_flight,
            self.lanes,
            metrics=metrics,
            group=plan.group,
            clock=clock,
            retry_clock=retry_clock,
        )
        self.group = plan.group

    def received(self) -> float | None:
        return self.metrics.registry.get_sample_value("sealbus_received_total", {"type": "other", "group": self.group})


def test_everything_fetched_is_taken_in_order() -> None:
    worker = Worker()
    worker.partitions.add([Assignment(TOPIC, 0, 1)])
    pieces = sum(1 for _ in worker.receiver.admit(FETCHED))
    assert pieces > 2
    lanes = list(iter(worker.lanes.take, None))
    assert [lane.head.record.offset for lane in lanes] == list(range(150))
    assert len(worker.in_flight) == worker.received() == 150


def test_records_of_an_old_assignment_are_ignored() -> None:
    worker = Worker()
    before, after = Assignment(TOPIC, 0, 1), Assignment(TOPIC, 0, 2)
    worker.partitions.add([before])
    pieces = worker.receiver.admit(FETCHED)
    next(pieces)
    taken = len(worker.in_flight)
    worker.partitions.forget([before])
    worker.partitions.add([after])
    assert list(pieces)
    assert len(worker.in_flight) == taken < 150
    (partition,) = worker.partitions.held_among([after])
    assert partition.frontier.committable is None


@pytest.mark.parametrize("draining", [True, False])
def test_a_revoked_partition_accepts_no_more_records(draining: bool) -> None:
    worker = Worker()
    assignment = Assignment(TOPIC, 0, 1)
    worker.partitions.add([assignment])
    (partition,) = worker.partitions.held_among([assignment])
    pieces = worker.receiver.admit(FETCHED)
    next(pieces)
    partition.draining, partition.closed = draining, not draining
    taken = len(worker.in_flight)
    assert list(pieces)
    assert len(worker.in_flight) == taken
    assert partition.frontier.committable == 0


def test_places_that_are_not_held_are_passed_over() -> None:
    worker = Worker()
    worker.partitions.add([Assignment(TOPIC, 1, 1)])
    assert list(worker.receiver.admit(FETCHED))
    assert list(worker.receiver.admit([])) == []
    assert len(worker.in_flight) == 0
