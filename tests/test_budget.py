"""What a message costs: its calls, exact everywhere, stay within `tests/benchmarks/budget.toml`, and processor time
above it would be noticed. `make budget` measures that beside the base."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

sys.path.append(str(Path(__file__).parent / "benchmarks"))

from budget import BUDGET, ROOT, unmeasured
from speed import budgets
from speed.base import MissingBaseError, base_tree
from speed.figures import FIGURES
from speed.gauging import Gauged, gauge

from bus.native import core
from bus.transports.base import NewRecord
from producers.sealing.sealed_record import SealedRecord
from producers.sealing.sealer import Sealer

counts = pytest.mark.skipif(
    core is None or sys.version_info[:2] != (3, 11),
    reason="these are the calls of the compiled hot path on Python 3.11",
)


def the_budget() -> budgets.Budget:
    return budgets.read(BUDGET.read_text("utf-8"))


def gauged(**us: float) -> dict[str, Gauged]:
    return {name.replace("_", "-"): Gauged(calibrations=value / 10, us=value) for name, value in us.items()}


def counted(*names: str, **environment: str) -> dict[str, float]:
    """Calls per message, counted in a process of its own: nothing of the tests is in it."""
    script = str(ROOT / "tests" / "benchmarks" / "budget.py")
    done = subprocess.run(
        [sys.executable, script, "--calls", *(("--only", *names) if names else ())],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=dict[str, float])


def run_git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no git clone")
    return done.stdout


def beside(budget: budgets.Budget, found: dict[str, float]) -> dict[str, tuple[float, float | None]]:
    """Return what was *found* and what *budget* allows, of those that differ."""
    allowed = {name: None if (entry := budget.calls_of(name)) is None else entry.calls for name in found}
    return {
        name: (calls, limit)
        for name, calls in found.items()
        if (limit := allowed[name]) is None or abs(calls - limit) > budgets.WITHIN_CALLS
    }


@counts
@pytest.mark.medium
def test_a_message_makes_as_many_calls_as_the_budget_says() -> None:
    budget, found = the_budget(), counted()
    assert found.keys() == {each.figure for each in budget.calls}
    wrong = beside(budget, found)
    for _ in range(5):
        if not wrong:
            break
        # On a busy machine a message takes longer, and what happens every so often is counted in: the least is its own.
        found = {name: min(calls, found[name]) for name, calls in counted(*wrong).items()}
        wrong = beside(budget, found)
    assert wrong == {}, (
        "found and allowed: append an entry to [[calls]] in tests/benchmarks/budget.toml; more calls need a reason, "
        "fewer are welcome"
    )


@counts
@pytest.mark.medium
def test_a_call_that_is_added_to_the_plain_path_is_noticed() -> None:
    # An armed failpoint is asked at three places.
    (added,) = counted("judge", SEALBUS_FAILPOINT="none:1").values()
    allowed = the_budget().calls_of("judge")
    assert allowed is not None
    assert added - allowed.calls > budgets.WITHIN_CALLS


def test_calls_are_raised_by_an_entry_of_their_own() -> None:
    before, raised, edited = (
        budgets.Budget(
            calls=tuple(budgets.RaisedCalls(figure="judge", calls=each, reason="r", who="w") for each in calls)
        )
        for calls in ((40.0, 30.0), (40.0, 30.0, 31.0), (40.0, 31.0))
    )
    assert raised.raised_in_place(before) == []
    assert edited.raised_in_place(before) == ["judge"]


def test_no_commit_has_raised_calls_in_place() -> None:
    """As far back as this clone goes, and the file has this form."""
    path = str(BUDGET.relative_to(ROOT))
    known = run_git("log", "--format=%H", "--", path).split()
    versions = [the_budget()]
    for commit in known:
        try:
            versions.append(budgets.read(run_git("show", f"{commit}:{path}")))
        except msgspec.ValidationError:
            break
    for now, before in itertools.pairwise(versions):
        assert now.raised_in_place(before) == []


@pytest.mark.slow
@pytest.mark.alone  # measures processor time
def test_work_that_is_added_to_sealing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gauge(["seal"], rounds=6)
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
    above = budgets.over(budgets.Budget(), "native", [budgets.Turn(before, gauge(["seal"], rounds=6))])
    assert list(above) == ["seal"]


def test_a_value_above_its_limit_is_reported_with_both_figures_and_a_fix() -> None:
    turn = budgets.Turn(gauged(seal=10.0, judge=20.0), gauged(seal=10.4, judge=23.0))
    (sentence,) = budgets.over(budgets.Budget(), "native", [turn]).values()
    assert sentence.startswith(
        "judge (worker: judging and dispatching a record, no log), with the compiled hot path: 1.15x the base, where "
        "1.10x is allowed; 23.0 us a message here, 20.0 us at the base."
    )
    assert "budget.toml" in sentence


def test_a_figure_that_was_not_measured_is_not_within_budget() -> None:
    head, base = ({name: Gauged(calibrations=1, us=1) for name in names} for names in (
        [figure.name for figure in FIGURES], budgets.LIMITS
    ))  # fmt: skip
    assert unmeasured(budgets.Turn(base, head)) == []
    gone = next(iter(base))
    (sentence,) = unmeasured(budgets.Turn({name: base[name] for name in base if name != gone}, head))
    assert sentence == f"the base has other figures than it must: {gone}"


def test_the_least_of_each_trees_turns_counts() -> None:
    disturbed_here = budgets.Turn(gauged(judge=20.0), gauged(judge=40.0))
    disturbed_there = budgets.Turn(gauged(judge=40.0), gauged(judge=21.0))
    assert budgets.over(budgets.Budget(), "native", [disturbed_here, disturbed_there]) == {}
    assert budgets.over(budgets.Budget(), "native", [disturbed_here]) != {}


def test_a_byte_of_a_large_payload_takes_no_more_than_one_of_a_small_one() -> None:
    sizes = {"judge-3k": 3_000, "judge-16k": 16_000, "judge-100k": 100_000}
    found = gauged(judge_3k=30.0, judge_16k=150.0, judge_100k=1_100.0)
    (sentence,) = budgets.over_per_byte(found, sizes)
    assert sentence == "judge-100k: 11.0 ns for each byte of its payload, and 10.0 ns for one of judge-3k"


def test_nothing_is_raised_without_reason_author_and_both_figures() -> None:
    assert budgets.faults(the_budget()) == []
    raised = budgets.Raised(
        figure="judge", path="native", limit=1.2, base_us=10.0, head_us=11.9, reason="isolation", who="maintainers"
    )
    assert budgets.faults(budgets.Budget(raised=(raised,))) == []
    for change in ({"reason": " "}, {"who": ""}, {"base_us": 0.0}, {"head_us": 13.0}, {"figure": "judge-3k"}):
        assert budgets.faults(budgets.Budget(raised=(msgspec.structs.replace(raised, **change),)))
    entries = [
        budgets.RaisedCalls(figure="judge", calls=calls, reason=reason, who=who)
        for calls, reason, who in ((40.0, "", ""), (30.0, "", ""), (31.0, "isolation", "maintainers"))
    ]
    assert budgets.faults(budgets.Budget(calls=tuple(entries))) == []
    assert budgets.faults(budgets.Budget(calls=(entries[1], entries[0])))


def test_the_last_entry_counts_and_a_figure_without_one_has_the_usual_limit() -> None:
    raised = [
        budgets.Raised(figure="judge", path="native", limit=limit, base_us=1, head_us=1, reason="r", who="w")
        for limit in (1.3, 1.2)
    ]
    budget = budgets.Budget(raised=tuple(raised))
    assert budget.limit_of("judge", "native") == 1.2
    assert budget.limit_of("judge", "pure") == 1.1


def test_a_clone_without_the_base_is_told_so_in_one_sentence(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(MissingBaseError, match=r"^Commit 3258f88 is not in this clone: .*unshallow` brings it\.$"):
        base_tree(tmp_path, compiled=False)
