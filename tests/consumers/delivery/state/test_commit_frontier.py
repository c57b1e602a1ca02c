"""The committable offset never passes an unsettled delivered one, whatever the order and the gaps."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumers.delivery.state.commit_frontier import Frontier


class Model(RuleBasedStateMachine):
    """A frontier beside the plain truth: every delivered offset, and whether it is settled."""

    def __init__(self) -> None:
        super().__init__()
        self.frontier = Frontier()
        self.delivered: dict[int, bool] = {}
        self.next = 0
        self.position: int | None = None

    @rule(gap=st.integers(0, 3))
    def deliver(self, gap: int) -> None:
        self.next += gap
        assert self.frontier.deliver(self.next)
        self.delivered[self.next] = False
        self.next += 1
        self.position = self.next

    @precondition(lambda self: self.position)
    @rule(data=st.data())
    def deliver_a_repeat(self, data: st.DataObject) -> None:
        assert self.position
        assert not self.frontier.deliver(data.draw(st.integers(0, self.position - 1)))

    @precondition(lambda self: not all(self.delivered.values()))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([offset for offset, settled in self.delivered.items() if not settled]))
        self.frontier.settle(offset)
        self.delivered[offset] = True

    @invariant()
    def the_committable_offset_is_the_first_unsettled_one(self) -> None:
        unsettled = [offset for offset, settled in self.delivered.items() if not settled]
        assert self.frontier.committable == (min(unsettled) if unsettled else self.position)

    @invariant()
    def what_is_counted_is_true(self) -> None:
        unsettled = [offset for offset, settled in self.delivered.items() if not settled]
        assert self.frontier.span == (
            len([offset for offset in self.delivered if offset >= min(unsettled)]) if unsettled else 0
        )


TestModel = pytest.mark.medium(Model.TestCase)
TestModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_before_the_first_delivery_nothing_may_be_committed() -> None:
    assert Frontier().committable is None


def test_settling_out_of_order_waits_for_the_oldest() -> None:
    frontier = Frontier()
    for offset in (5, 6, 9):
        frontier.deliver(offset)
    frontier.settle(9)
    frontier.settle(6)
    assert frontier.committable == 5
    frontier.settle(5)
    assert frontier.committable == 10


def test_a_gap_is_passed_only_by_what_was_delivered_behind_it() -> None:
    frontier = Frontier()
    frontier.deliver(0)
    frontier.settle(0)
    assert frontier.committable == 1
    frontier.deliver(100)
    assert frontier.committable == 100
