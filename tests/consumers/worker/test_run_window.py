"""The handler runs of the last minute, from the metrics of the process."""

from __future__ import annotations

from bus.telemetry.metrics import Metrics
from bus.vocabulary.agent import RecentRuns, RunCount
from consumers.worker.run_window import RunWindow


def counted(*runs: tuple[float | None, int]) -> tuple[RunCount, ...]:
    return tuple(RunCount(up_to_s=up_to_s, runs=number) for up_to_s, number in runs)


def ran(metrics: Metrics, *seconds: float, message_type: str = "a.b", group: str = "g") -> None:
    for each in seconds:
        metrics.meters(group)[message_type].handler_seconds.observe(each)


def test_the_first_look_has_nothing_to_compare_with() -> None:
    assert RunWindow(Metrics(), "g").look(0) is None


def test_runs_of_all_types_of_the_group_count_between_their_bounds_since_the_look_a_minute_ago() -> None:
    metrics = Metrics()
    window = RunWindow(metrics, "g")
    window.look(0)
    ran(metrics, 0.2, 0.2, 7)
    ran(metrics, 0.2, message_type="c.d")
    ran(metrics, 500, message_type="c.d")
    ran(metrics, 1, group="another")
    metrics.retry("a.b", "g", "lane")
    metrics.retry("c.d", "g", "30s")
    metrics.retry("a.b", "another", "lane")
    took = counted((0.1, 0), (0.25, 3), (5, 0), (10, 1), (300, 0), (None, 1))
    assert window.look(10) == RecentRuns(within_s=10, retried=2, took=took)
    assert window.look(60) == RecentRuns(within_s=60, retried=2, took=took)
    ran(metrics, 0.2)
    assert window.look(75) == RecentRuns(within_s=65, took=counted((0.1, 0), (0.25, 1)))


def test_many_looks_keep_a_minute_of_them() -> None:
    metrics = Metrics()
    window = RunWindow(metrics, "g")
    for second in range(600):
        ran(metrics, 0.2)
        found = window.look(second)
    assert found is not None
    assert 59 <= found.within_s <= 66
    assert found.took == counted((0.1, 0), (0.25, round(found.within_s)))
