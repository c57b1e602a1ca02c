"""The state machines are data that agree with themselves and with the registered types."""

from __future__ import annotations

import pytest

from bus.vocabulary import BUILT_IN
from bus.vocabulary.machines import MACHINES, Machine, machines_of


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
class TestMachine:
    def test_only_registered_types_move_it(self, machine: Machine) -> None:
        assert machine.types <= BUILT_IN.names()

    def test_no_move_leaves_a_terminal_state(self, machine: Machine) -> None:
        assert {state for move in machine.moves for state in move.sources} & machine.terminal == set()

    def test_every_terminal_state_is_reached(self, machine: Machine) -> None:
        assert machine.terminal <= {move.target for move in machine.moves}

    def test_every_transition_has_a_type_or_a_cause(self, machine: Machine) -> None:
        assert all(move.types or move.on for move in machine.moves)


def test_the_machines_of_a_type_are_those_it_moves() -> None:
    assert machines_of("task.cancel") == ("task", "handoff")
    assert machines_of("notification.sent") == ()
