"""The arithmetic of the benchmarks: ratios within rounds, verdicts, tables, the drawing. No measuring, no Kafka."""

from __future__ import annotations

import argparse
import operator
import re
from pathlib import Path

import pytest
from speed import chart, tables
from speed.catalog import FAMILIES, VARIANTS, chosen
from speed.folders import add_out
from speed.goals import GOALS, Verdict, judge
from speed.measurement import Answer
from speed.order import rotated, warm_up_of
from speed.ratios import Spread, per_round, quantile, spread
from speed.results import Failure, Measured


def measured(variant: str, number: int, rate: float, **more: object) -> Measured:
    answer = Answer(messages=1_000, seconds=1_000 / rate, cpu_us=2.0, rss_peak_mb=50.0, rss_growth_mb=1.0, **more)
    return Measured(variant=variant, round=number, answer=answer)


def verdict(found: list[Measured], text: str) -> Verdict:
    (one,) = [each for each in judge(found) if each.goal.text == text]
    return one


def test_a_folder_for_results_is_the_same_for_processes_that_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = argparse.ArgumentParser()
    add_out(parser)
    monkeypatch.chdir(tmp_path)
    assert parser.parse_args(["--out", "mine"]).out == tmp_path / "mine"
    assert parser.parse_args([]).out.is_absolute()


def test_ratios_are_of_the_same_round_and_of_no_other() -> None:
    assert per_round({0: 10.0, 1: 30.0, 3: 7.0}, {1: 10.0, 0: 5.0, 2: 1.0}, operator.truediv) == [2.0, 3.0]


def test_a_spread_is_median_least_and_most() -> None:
    assert spread([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0, 3)
    assert spread([]) is None


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.99, 4.0), (1.0, 4.0)])
def test_quantiles_are_values_that_were_seen(share: float, expected: float) -> None:
    assert quantile([4.0, 2.0, 1.0, 3.0], share) == expected


def test_a_goal_goes_by_the_median_of_ratios_not_by_the_ratio_of_medians() -> None:
    ours, theirs = (100.0, 400.0, 900.0), (100.0, 100.0, 600.0)
    found = [measured("publish/sealbus-many", number, rate) for number, rate in enumerate(ours)]
    found += [measured("publish/aiokafka-send", number, rate) for number, rate in enumerate(theirs)]
    judged = verdict(found, "sealed publish_many / raw keyed aiokafka send()")
    assert judged.found is not None
    assert judged.found.median == pytest.approx(1.5)
    assert judged.must is False


def test_the_best_rival_of_each_round_counts() -> None:
    found = [measured("embedded-publish/sealbus-many", number, 600.0) for number in range(2)]
    for name, rates in (("persist-queue", (10.0, 200.0)), ("litequeue", (100.0, 20.0)), ("huey", (5.0, 5.0))):
        found += [measured(f"embedded-publish/{name}", number, rate) for number, rate in enumerate(rates)]
    judged = verdict(found, "embedded log, full sync, publish_many / best local queue library")
    assert judged.found is not None
    assert (judged.found.least, judged.found.most) == (pytest.approx(3.0), pytest.approx(6.0))
    assert (judged.must, judged.stretch) == (True, False)


def test_less_is_better_for_latency_and_noise_is_the_raw_clients_own() -> None:
    found = []
    for number, (raw, own) in enumerate([(1.0, 1.1), (1.3, 1.4), (1.1, 1.2)]):
        found.append(measured("latency/aiokafka-latency", number, 200.0, p50_ms=raw, p99_ms=raw * 3))
        found.append(measured("latency/sealbus-latency", number, 200.0, p50_ms=own, p99_ms=own * 3))
    judged = verdict(found, "single awaited publish over raw, p50")
    assert judged.found is not None
    assert judged.found.median == pytest.approx(0.1)
    assert (judged.must, judged.stretch) == (True, True)
    assert verdict(found[:2], "single awaited publish over raw, p50").stretch is None


def test_a_target_without_measurement_has_no_verdict() -> None:
    assert all(each.found is None and each.must is None and each.stretch is None for each in judge([]))


def test_goals_and_command_line_name_variants_that_exist() -> None:
    known = {variant.id for variant in VARIANTS}
    assert {name for goal in GOALS for name in (goal.ours, *goal.theirs)} <= known
    assert len(known) == len(VARIANTS)
    assert {variant.family for variant in VARIANTS} == {family.name for family in FAMILIES}
    assert [variant.id for variant in chosen(["consume/sealbus-worker"], quick=True)] == ["consume/sealbus-worker"]
    assert {variant.family for variant in chosen(["publish-plain"], quick=True)} == {"publish-plain"}
    with pytest.raises(ValueError, match="there is no nonsense"):
        chosen(["nonsense"], quick=False)


def test_every_variant_goes_first_in_turn_and_last_too() -> None:
    some = list(VARIANTS[:3])
    orders = [rotated(some, number) for number in range(3)]
    assert [order[0] for order in orders] == some
    assert all(sorted(order, key=some.index) == some for order in orders)
    assert rotated([], 4) == []


def test_there_is_always_a_warm_up() -> None:
    assert all(warm_up_of(variant, size) >= 1 for variant in VARIANTS for size in (1, variant.quick, variant.messages))


@pytest.mark.parametrize(
    ("value", "text"), [(41_234.0, "41,200"), (312.4, "312"), (31.42, "31.4"), (3.14159, "3.14"), (0.021, "0.02")]
)
def test_numbers_are_written_for_people(value: float, text: str) -> None:
    assert tables.number(value) == text


def test_the_document_lists_targets_met_missed_and_failed() -> None:
    found = [measured("publish/sealbus-many", 0, 300.0, wire_bytes=400.0), measured("publish/aiokafka-send", 0, 100.0)]
    found.append(measured("publish/confluent-produce", 0, 1_000.0))
    failures = [Failure(variant="publish/faststream-one", round=0, text="boom\n  bang")]
    text = tables.document({"Python": "3"}, ["On a machine."], found, failures, judge(found))
    lines = text.splitlines()
    assert "| sealed publish_many / raw keyed aiokafka send() | 3.00 | >= 2x | met | >= 3x | met | 1 |" in lines
    assert (
        "| sealed publish_many / confluent-kafka produce() | 0.30 | >= 1x | **NOT met** | >= 1.5x | NOT met | 1 |"
        in lines
    )
    assert any(
        line.startswith("| **sealbus publish_many** | 300 | 2.00 | 400 | 50.0 | 1.00 | sealed") for line in lines
    )
    assert "- publish/faststream-one, round 1: `boom bang`" in lines
    assert "not measured" in text
    assert "## Messages with idempotency keys" not in text


def test_the_drawing_has_a_bar_for_each_variant_that_was_measured() -> None:
    found = [measured("publish/sealbus-many", number, rate) for number, rate in enumerate((100.0, 300.0))]
    drawing = chart.drawn([*found, measured("publish/aiokafka-send", 0, 50.0)])
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)" height="16"', drawing)]
    assert widths == pytest.approx([570 * 50 / 300, 570 * 200 / 300], abs=0.1)
    assert chart.drawn([]).endswith("</svg>\n")
