"""What the scale curves and profiles make of what was measured: windows, tables, drawings, places in RESULTS.md. No
measuring, no Kafka."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from curves import plot
from curves.catalog import CURVES, Point, chosen_xs
from curves.document import Measured, document
from curves.stacks import costs
from curves.steady import Course, Steady
from curves.task import Sample, Told, window
from speed.filling import filled

RESULTS = Path(__file__).with_name("RESULTS.md")


def steadily(from_s: float, to_s: float, rate: float, cpu_share: float = 0.5) -> Told:
    """Forty samples a second of something that goes on evenly, after a second in which nothing came."""
    steps = round((to_s - from_s) * 40)
    idle = [Sample(from_s - 1 + step / 40, 0, 0.0) for step in range(40)]
    return Told(
        samples=[
            *idle,
            *(Sample(from_s + step / 40, round(step / 40 * rate), step / 40 * cpu_share) for step in range(steps + 1)),
        ]
    )


def point(curve: str, line: str, x: int, rate: float) -> Point:
    return Point(curve=curve, line=line, x=x, rate=rate, cpu_us=20.0, seconds=5.0, messages=1_000)


def test_the_rate_is_that_of_all_together_while_all_are_at_work() -> None:
    seen = window([steadily(100.0, 110.0, 1_000), steadily(101.0, 111.0, 2_000)])
    assert seen.rate == pytest.approx(3_000, rel=0.02)
    assert seen.cpu_us == pytest.approx(1e6 / 3_000, rel=0.02)
    assert seen.from_s >= 101.0
    assert (seen.messages, seen.at_work) == (30_000, 2)


def test_idle_processes_are_left_out_of_the_measurement() -> None:
    nothing = Told(samples=[Sample(100.0, 0, 0.1), Sample(110.0, 0, 0.2)])
    assert window([steadily(100.0, 110.0, 1_000), nothing]).at_work == 1
    with pytest.raises(ValueError, match="no message came through"):
        window([nothing])


def test_processes_that_never_run_together_give_no_measurement() -> None:
    with pytest.raises(ValueError, match="give it more time"):
        window([steadily(100.0, 101.0, 1_000), steadily(105.0, 105.1, 100)])


def test_a_second_measurement_takes_the_place_of_the_first() -> None:
    measured = Measured()
    for rate in (100.0, 300.0):
        measured.put(point("keys", "worker, Kafka", 100, rate))
    assert [each.rate for each in measured.points] == [300.0]
    text = document(measured)
    assert "| worker, Kafka | 100 | 300 | 20.0 | - | - |  |" in text
    assert "## Topics" not in text


def test_quick_takes_two_values_of_each_curve() -> None:
    assert {len(chosen_xs(curve, quick=True)) for curve in CURVES} == {2}
    assert len({curve.name for curve in CURVES}) == len(CURVES)


def test_a_drawing_has_equal_steps_for_equal_factors() -> None:
    drawing = plot.drawn("Keys", "keys", "messages/s", {"a": [(1, 10.0), (10, 20.0), (100, 15.0)], "b": [(1, 1.0)]})
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawing)]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)
    assert drawing.count("<polyline") == 2
    assert plot.drawn("", "", "", {}).endswith("/>\n")


def test_drift_is_the_end_less_what_came_after_the_warm_up() -> None:
    course = Course(
        rss_mb=[(minute, 50.0 + minute) for minute in range(101)], files=[(minute, 7.0) for minute in range(101)]
    )
    steady = Steady(log="Kafka", minutes=100, per_second=500, courses={"worker": course})
    assert steady.drifts(lambda each: each.rss_mb) == {"worker": pytest.approx(85.0)}
    assert steady.drifts(lambda each: each.files) == {"worker": 0.0}


def test_costs_are_self_times_of_the_loop_and_of_threads_at_work() -> None:
    raw = "\n".join(
        [
            "<module> (child.py:1);BaseEventLoop._run_once (events.py:1);seal (a.py:1) 60",
            "Thread.run (threading.py:1);Log.flush (log.py:1) 30",
            "<module> (child.py:1);BaseEventLoop._run_once (events.py:1);EpollSelector.select (selectors.py:1) 500",
            "<module> (child.py:1);_find_and_load (x:1) 500",
            "<module> (child.py:1);BaseEventLoop._run_once (events.py:1);prepared (child.py:1);reports (p.py:1) 500",
            "<module> (child.py:1);BaseEventLoop._run_once (events.py:1);seal (a.py:1);hashed (b.py:1) 10",
            "not a stack",
        ]
    )
    assert [(cost.name, cost.share) for cost in costs(raw, 2)] == [
        ("seal (a.py:1)", 0.6),
        ("Log.flush (log.py:1)", 0.3),
    ]


def test_generated_results_keep_handwritten_text() -> None:
    of_tables = [*(f"scale-{curve.name}" for curve in CURVES), "families", "startup", "steady", "profiles", "budget"]
    of_tables += ["native"]
    for page, places in ((RESULTS, ["machine", "goals"]), (RESULTS.parent / "results" / "tables.md", of_tables)):
        text = page.read_text("utf-8")
        once = filled(text, {name: rf"| {name} | \1 |" for name in places})
        assert filled(once, {name: rf"| {name} | \1 |" for name in places}) == once
        assert once.count(r"\1") == len(places) == text.count("<!-- /")
    with pytest.raises(ValueError, match="no place for nonsense"):
        filled(text, {"nonsense": ""})


def test_results_fit_on_few_screens() -> None:
    assert len(RESULTS.read_text("utf-8").splitlines()) <= 120
