"""The rules of sagas and approvals hold over random schedules, and these find every planted mistake."""

from __future__ import annotations

import pytest
from process_model import MISTAKES, run

SCHEDULES = 400


@pytest.mark.medium
def test_the_invariants_hold_over_random_schedules() -> None:
    runs = effects = 0
    for seed in range(SCHEDULES):
        world = run(seed)
        runs, effects = runs + sum(world.runs.values()), effects + sum(world.effects.values())
    # Approvals were used, some after a run that died.
    assert runs > effects > SCHEDULES // 20


@pytest.mark.slow  # two milliseconds each; `python -m tests.model.process_model 100000` plays more
@pytest.mark.timeout(300)
def test_the_invariants_hold_over_many_schedules() -> None:
    for seed in range(SCHEDULES, 20_000):
        run(seed)


@pytest.mark.medium
@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_schedules_find_a_planted_mistake(mistake: str) -> None:
    for seed in range(3_000):
        try:
            run(seed, mistake)
        except AssertionError:
            return
    pytest.fail(f"nobody noticed: {MISTAKES[mistake]}")
