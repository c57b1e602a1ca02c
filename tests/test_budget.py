"""What a message costs in processor time stays within `tests/benchmarks/budget.toml`, and would be noticed if it did
not."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

sys.path.append(str(Path(__file__).parent / "benchmarks"))

from budget import BUDGET, checked
from speed import budgets
from speed.figures import FIGURES
from speed.gauging import Gauged, gauge

from bus.native import core
from bus.transports.base import NewRecord
from producers.sealing.sealed_record import SealedRecord
from producers.sealing.sealer import Sealer


def in_a_budget(**figures: float) -> budgets.Budget:
    native = {name: Gauged(calibrations=calibrations, us=calibrations * 10) for name, calibrations in figures.items()}
    return budgets.Budget(tolerance=1.35, reference="a machine", native=native)


@pytest.mark.slow
@pytest.mark.alone  # measures processor time
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", ["native", "pure"])
def test_a_message_takes_no_more_processor_time_than_its_budget(path: budgets.Path) -> None:
    if path == "native" and core is None:
        pytest.skip("the compiled hot path is not built here")
    found, above = checked(budgets.read(BUDGET.read_text("utf-8")), path)
    assert found.keys() == {figure.name for figure in FIGURES}
    assert not above, "\n".join(above.values())


@pytest.mark.slow
@pytest.mark.alone  # measures processor time
def test_work_that_is_added_to_sealing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = budgets.Budget(tolerance=1.35, reference="this one", native=gauge(["seal"], rounds=6))
    one, run = Sealer.seal_plain, Sealer.seal_run

    def waste(messages: int) -> None:
        for _ in range(6 * messages):
            hashlib.sha256(bytes(4_096)).hexdigest()

    def wasteful_one(self: Sealer, payload: msgspec.Struct) -> SealedRecord:
        waste(1)
        return one(self, payload)

    def wasteful_run(
        self: Sealer, items: Sequence[object], start: int, *, max_count: int, room: int
    ) -> tuple[list[SealedRecord], list[NewRecord], int]:
        sealed = run(self, items, start, max_count=max_count, room=room)
        waste(len(sealed[0]))
        return sealed

    monkeypatch.setattr(Sealer, "seal_plain", wasteful_one)
    monkeypatch.setattr(Sealer, "seal_run", wasteful_run)
    above = budgets.over(ours, "native", gauge(["seal"], rounds=6))
    assert list(above) == ["seal"]


def test_a_value_above_the_budget_is_reported_with_the_excess_and_a_fix() -> None:
    budget = in_a_budget(seal=1.0, judge=2.0)
    found = {"seal": Gauged(calibrations=1.5, us=33.0), "judge": Gauged(calibrations=2.6, us=55.0)}
    (sentence,) = budgets.over(budget, "native", found).values()
    assert sentence.startswith(
        "seal (publish_many of 1 KB payloads, no log), with the compiled hot path: 1.50 calibrations a message, 1.50x "
        "its"
    )
    assert "about 15.0 us on the reference machine, was 10.0" in sentence
    assert "budget.py --write" in sentence


def test_a_figure_without_a_budget_fails() -> None:
    assert "has no budget" in budgets.over(in_a_budget(), "native", {"seal": Gauged(calibrations=1.0, us=1.0)})["seal"]


def test_the_budget_file_round_trips_with_both_paths() -> None:
    budget = in_a_budget(seal=1.25)
    assert budgets.read(budgets.written(budget)) == budget
    read = budgets.read(BUDGET.read_text("utf-8"))
    assert read.native.keys() == read.pure.keys() == {figure.name for figure in FIGURES}
    assert budgets.written(read) == BUDGET.read_text("utf-8")


def test_of_several_measurements_the_best_of_each_figure_counts() -> None:
    first = {"seal": Gauged(calibrations=1.5, us=9.0), "judge": Gauged(calibrations=2.0, us=20.0)}
    assert budgets.least([first, {"seal": Gauged(calibrations=1.2, us=12.0)}]) == first | {
        "seal": Gauged(calibrations=1.2, us=12.0)
    }
