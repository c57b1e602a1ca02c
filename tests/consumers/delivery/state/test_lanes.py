"""One delivery of a key at a time, in its order; ready lanes by priority, then by how long they have waited."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumers.delivery.state.lanes import Lane, Lanes

KEYS = st.sampled_from("abcd")
PRIORITIES = st.integers(0, 9)


class Model(RuleBasedStateMachine):
    """Lanes beside plain lists: what waits per key, which keys are ready in which order, which are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[int] = Lanes()
        self.waiting: dict[str, list[int]] = {}
        self.ready: list[tuple[int, int, str]] = []
        self.taken: dict[str, Lane[int]] = {}
        self.awaiting_claim: dict[str, Lane[int]] = {}
        self.answered_lanes: list[str] = []
        self.done: dict[str, list[int]] = {}
        self.count = 0

    def make_ready(self, key: str, priority: int) -> None:
        self.count += 1
        self.ready.append((-priority, self.count, key))
        self.ready.sort()

    @rule(key=KEYS, priority=PRIORITIES)
    def add(self, key: str, priority: int) -> None:
        self.count += 1
        self.lanes.add(key, self.count, priority)
        queue = self.waiting.setdefault(key, [])
        queue.append(self.count)
        if len(queue) == 1:
            self.make_ready(key, priority)

    @rule()
    def take(self) -> None:
        lane = self.lanes.take()
        if not self.ready:
            assert lane is None
            return
        _, _, key = self.ready.pop(0)
        assert lane is not None
        assert lane.key == key
        assert lane.head == self.waiting[key][0]
        assert key not in self.taken
        self.taken[key] = lane

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), priority=PRIORITIES)
    def finish(self, data: st.DataObject, priority: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken)))
        lane = self.taken[key]
        self.done.setdefault(key, []).append(self.waiting[key].pop(0))
        following = self.lanes.finish(lane)
        assert following == (self.waiting[key][0] if self.waiting[key] else None)
        if following is None:
            del self.taken[key], self.waiting[key]
        elif data.draw(st.booleans()):
            del self.taken[key]
            self.lanes.release(lane, priority)
            self.make_ready(key, priority)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), priority=PRIORITIES)
    def release_for_a_retry(self, data: st.DataObject, priority: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken)))
        self.lanes.release(self.taken.pop(key), priority)
        self.make_ready(key, priority)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken)))
        self.awaiting_claim[key] = self.taken.pop(key)
        self.lanes.ask()

    @precondition(lambda self: self.awaiting_claim)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.awaiting_claim)))
        self.lanes.answered([self.awaiting_claim.pop(key)])
        self.answered_lanes.append(key)

    @precondition(lambda self: self.answered_lanes)
    @rule()
    def take_back(self) -> None:
        key = self.answered_lanes.pop(0)
        lane = self.lanes.take_back()
        assert (lane.key, lane.head) == (key, self.waiting[key][0])
        self.taken[key] = lane

    @invariant()
    def a_lane_exists_only_while_it_has_deliveries(self) -> None:
        assert len(self.lanes) == len(self.waiting)
        assert (self.lanes.ready, self.lanes.awaiting_claim, len(self.lanes.answered_lanes)) == (
            len(self.ready),
            len(self.awaiting_claim),
            len(self.answered_lanes),
        )

    @invariant()
    def each_key_is_done_in_its_order(self) -> None:
        assert all(done == sorted(done) for done in self.done.values())


TestModel = pytest.mark.medium(Model.TestCase)
TestModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_highest_priority_goes_first_and_equals_in_turn() -> None:
    lanes: Lanes[str] = Lanes()
    for key, priority in (("low", 2), ("first", 5), ("second", 5), ("critical", 9)):
        lanes.add(key, key, priority)
    order = [lane.key for lane in iter(lanes.take, None)]
    assert order == ["critical", "first", "second", "low"]


def test_a_taken_lane_is_not_ready_whatever_is_added_behind_it() -> None:
    lanes: Lanes[int] = Lanes()
    lanes.add("k", 1, 5)
    lane = lanes.take()
    assert lane is not None
    lanes.add("k", 2, 9)
    assert lanes.take() is None
    assert lanes.finish(lane) == 2


def test_a_flood_of_one_type_holds_up_no_other() -> None:
    lanes: Lanes[str] = Lanes()
    for number in range(1_000):
        lanes.add(number, "flood", 9, "flood")
    for _ in range(100):
        assert lanes.take() is not None
    lanes.add("honest", "honest", 5, "honest")
    heads = [lane.head for lane in (lanes.take() for _ in range(10)) if lane is not None]
    assert "honest" in heads


def test_a_flow_that_was_idle_has_saved_up_nothing() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.add("early", "b", 5, "b")
    assert lanes.take() is not None
    for number in range(100):
        lanes.add(("a", number), "a", 5, "a")
    for _ in range(50):
        assert lanes.take() is not None
    for number in range(50):
        lanes.add(("b", number), "b", 5, "b")
    heads = [lane.head for lane in (lanes.take() for _ in range(20)) if lane is not None]
    assert heads.count("a") == 10


def test_within_a_type_a_flood_of_a_higher_priority_does_not_starve_a_lower_one() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.add("low", "low", 0)
    for taken in range(1_000):
        lanes.add(("high", taken), "high", 9)
        lane = lanes.take()
        assert lane is not None
        if lane.head == "low":
            break
    assert 32 * 8 < taken <= 32 * 10
