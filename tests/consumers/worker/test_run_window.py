"""The handler runs of the last minute, from the metrics of the process."""

from __future__ import annotations

from bus.telemetry.metrics import Metrics
from bus.vocabulary.agent import RecentRuns, RunCount
from consumers.worker.run_window import RunWindow


def ran(metrics: Metrics, *seconds: float, message_type: str = "a.b", group: str = "g") -> None:
    for each in seconds:
        metrics.meters(group)[message_type].handler_seconds.observe(each)


def test_the_first_look_has_nothing_to_compare_with() -> None:
    assert RunWindow(Metrics(), "g").look(0) is None


def test_runs_of_all_types_of_the_group_count_since_the_look_a_minute_ago() -> None:
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
    counted = (RunCount(up_to_s=0.25, runs=3), RunCount(up_to_s=10, runs=1), RunCount(runs=1))
    assert window.look(10) == RecentRuns(within_s=10, retried=2, took=counted)
    assert window.look(60) == RecentRuns(within_s=60, retried=2, took=counted)
    ran(metrics, 0.2)
    assert window.look(75) == RecentRuns(within_s=65, took=(RunCount(up_to_s=0.25, runs=1),))


def test_many_looks_keep_a_minute_of_them() -> None:
    metrics = Metrics()
    window = RunWindow(metrics, "g")
    for second in range(600):
        ran(metrics, 0.2)
        found = window.look(second)
    assert found is not None
    assert 59 <= found.within_s <= 66
    assert found.took == (RunCount(up_to_s=0.25, runs=round(found.within_s)),)
