"""Pictures: SVG that tells its content, and lets nothing in."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from consumers.operations.console.pictures import Arrow, LaneWork, TimeBar, lanes, meter, plot, spans, spark, stacked

TEXTS = st.text(max_size=40)
VALUES = st.lists(st.one_of(st.floats(0, 1e9), st.just(math.nan)), max_size=300)


def checked(markup: str) -> ET.Element:
    """Parse it as XML: an attribute that was broken out of would not parse, or be another one."""
    root = ET.fromstring(f"<root>{markup}</root>")  # noqa: S314 - our own
    for element in root.iter():
        assert element.tag in {"root", "svg", "path", "g", "line", "rect", "circle", "figure", "div", "span"}
        assert not any(name.startswith("on") or name == "style" for name in element.attrib)
        for name in ("d", "x", "y", "width", "height", "x1", "x2"):
            assert "nan" not in element.get(name, "")
    return root


@given(VALUES, TEXTS)
def test_a_line_is_drawn_of_any_values_and_any_label(values: list[float], label: str) -> None:
    checked(spark(values, label))
    checked(plot([("a", values)], label, ["9", label], [label, "now"], top=10.0, events=[50.0]))


@given(st.floats(-1e6, 1e6), TEXTS)
def test_a_meter_stays_within_its_bed(share: float, label: str) -> None:
    width = re.search(r'class="full [^"]*" width="([\d.]+)%"', meter(share, label))
    checked(meter(share, label))
    assert width is not None
    assert 0 <= float(width[1]) <= 100


@given(st.lists(st.lists(st.floats(0, 1e6), max_size=5), max_size=20), TEXTS)
def test_bars_are_drawn_of_any_columns(columns: list[list[float]], label: str) -> None:
    checked(stacked(columns, max((sum(each) for each in columns), default=0.0), label))


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=9), TEXTS)
def test_time_lines_are_drawn_of_any_parts(parts: list[tuple[float, float]], label: str) -> None:
    checked(spans([TimeBar("do", x, width) for x, width in parts], label))


@given(st.integers(1, 9), st.integers(0, 8), st.lists(st.integers(0, 8), max_size=4))
def test_a_row_of_lanes_has_a_tip_for_each_target(count: int, source: int, targets: list[int]) -> None:
    arrow = Arrow(source % count, tuple(each % count for each in targets), "dead")
    root = checked(lanes(count, 3, [LaneWork(0, 1, 5, "work")], arrow))
    assert sum(element.get("class") == "tip" for element in root.iter()) == len(targets)


def test_a_peak_stays_in_sight_among_many_values() -> None:
    values = [0.0] * 1_199 + [9.0]
    assert " 2.0" in spark(values, "x")
