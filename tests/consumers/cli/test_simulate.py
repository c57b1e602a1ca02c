"""`sealbus simulate` runs a day's load in less time, and reports what it took."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as Tree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.operations.survey.charts import line_chart
from consumers.operations.survey.simulation import SimulatedType, SimulationPlan, due

LOAD = """
hours = 24
minutes = 0.05
[[types]]
name = "order"
per_day = 400
peak_hour = 14
bytes = 300
fail_share = 0.1
flaky_share = 0.05
[[types]]
name = "mail"
per_day = 200
"""


@pytest.mark.medium
def test_everything_that_is_published_is_done_or_dead_and_the_report_has_its_plots(folder: Any) -> None:
    (folder.path / "load.toml").write_text(LOAD)
    result = folder.call("simulate", "load.toml", "--output", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["published"] == 600
    assert found["done"] + found["rejected"] == 600
    assert found["rejected"] > 10
    assert found["retried"] > 5
    report = (folder.path / "simulation" / "report.md").read_text()
    assert "600 messages published" in report
    for name in ("rates", "waiting", "latency"):
        Tree.fromstring((folder.path / "simulation" / f"{name}.svg").read_text())  # noqa: S314 - ours


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "types"),
        (LOAD + "bytez = 3\n", "bytez"),
        (LOAD.replace("400", "0"), "per_day"),
        (LOAD.replace("mail", "order"), "twice"),
        ("[[types]", "load.toml"),
    ],
)
def test_a_load_that_is_wrong_is_named(folder: Any, text: str, told: str) -> None:
    (folder.path / "load.toml").write_text(text)
    result = folder.call("simulate", "load.toml")
    assert result.exit_code == 78
    assert told in result.stderr


@given(peak=st.none() | st.floats(0, 23.9), per_day=st.integers(1, 10**6))
def test_a_whole_day_has_all_its_messages_and_none_is_taken_back(peak: float | None, per_day: int) -> None:
    kind = SimulatedType(name="x", per_day=per_day, peak_hour=peak)
    plan = SimulationPlan(types=(kind,))
    counts = [due(kind, plan, number / 48) for number in range(49)]
    assert counts == sorted(counts)
    assert abs(counts[-1] - per_day) < 1e-6 * per_day + 1e-6


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e9)), max_size=5), st.text(max_size=8))
def test_a_chart_is_a_picture_whatever_is_in_it(points: list[tuple[float, float]], name: str) -> None:
    named = "".join(char for char in name if char.isprintable() and not 0xD800 <= ord(char) <= 0xDFFF)
    Tree.fromstring(line_chart(named, {named: points}))  # noqa: S314 - ours
