"""The exporter's series: each names its namespace, and what was not looked at has none."""

from __future__ import annotations

from typing import Any

from consumers.operations.survey.examination import Examination
from consumers.operations.survey.exporter import SurveyCollector
from consumers.operations.survey.group_state import GroupState
from consumers.operations.survey.letter_watch import OpenLetters
from consumers.operations.survey.log_probe import LogHealth
from consumers.operations.survey.results import fault, ok
from consumers.operations.survey.survey import Survey, WorkState
from producers.directory.hold_ups import HoldUp


def survey(**members: Any) -> Survey:
    known: dict[str, Any] = {
        "taken_ms": 1,
        "groups": (),
        "letters": OpenLetters(count=0, oldest_ms=None, causes=(), by_type=()),
        "work": WorkState(),
        "agents": (),
    }
    return Survey(**(known | members))


def samples(collector: SurveyCollector) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def seen(*results: Any, **members: Any) -> SurveyCollector:
    collector = SurveyCollector("orders")
    collector.note(Examination(taken_ms=1, results=results, survey=survey(**members)))
    return collector


def test_every_series_names_its_namespace() -> None:
    hold_up = HoldUp(reason="retry", topic="orders.a.b", partition=0, offset=1, since_ms=1)
    group = GroupState(
        name="g", members=1, lag=3, worst="orders.a.b", stands=0, oldest_s=9.0, still_s=9.0, hold_ups=(hold_up,)
    )
    collector = seen(ok("inbox", ""), groups=(group,), log=LogHealth(append_s=0.1, appends=1))
    found = [sample for family in collector.collect() for sample in family.samples]
    assert {sample.labels["namespace"] for sample in found} == {"orders"}
    told = samples(collector)
    place = "[('group', 'g'), ('namespace', 'orders'), ('reason', 'retry')]"
    assert told[f"sealbus_group_hold_ups{place}"] == 1
    assert told[f"sealbus_group_still_seconds{place}"] == 9.0


def test_a_group_whose_workers_fell_silent_is_still_for_that_reason() -> None:
    group = GroupState(name="g", members=2, lag=3, worst="orders.a.b", stands=0, still_s=30.0, lost=2)
    place = "[('group', 'g'), ('namespace', 'orders'), ('reason', 'silent')]"
    assert samples(seen(groups=(group,)))[f"sealbus_group_still_seconds{place}"] == 30.0


def test_what_was_not_looked_at_has_no_sample() -> None:
    told = samples(seen(work=WorkState(unseen="there is none")))
    for name in ("store_up", "log_append_seconds", "overdue_waits", "open_approvals"):
        assert not [key for key in told if key.startswith(f"sealbus_{name}[")]


def test_before_the_first_look_only_that_there_was_none_is_told() -> None:
    told = samples(SurveyCollector("orders"))
    assert {key.partition("[")[0] for key in told} == {"sealbus_survey_up", "sealbus_build_info"}


def test_a_fault_of_an_area_is_counted_and_falls_to_zero_when_it_is_gone() -> None:
    place = "sealbus_findings[('area', 'topics'), ('namespace', 'orders'), ('state', 'fault')]"
    collector = seen(fault("topics", "a", "b"), fault("topics", "c", "d"))
    assert samples(collector)[place] == 2
    collector.note(Examination(taken_ms=2, results=(ok("topics", ""),), survey=survey()))
    assert samples(collector)[place] == 0


def test_a_log_that_cannot_be_read_is_told_with_the_fault_and_the_last_values_stay() -> None:
    collector = seen(groups=(GroupState(name="g", members=1, lag=3, worst="", stands=0),))
    collector.note(Examination(taken_ms=2, results=(fault("log", "gone", "start it"),), survey=None))
    told = samples(collector)
    assert told["sealbus_survey_up[('namespace', 'orders')]"] == 0
    assert told["sealbus_group_lag_messages[('group', 'g'), ('namespace', 'orders')]"] == 3
    assert told["sealbus_findings[('area', 'log'), ('namespace', 'orders'), ('state', 'fault')]"] == 1


def test_dead_letters_that_are_still_being_read_are_not_counted_as_zero() -> None:
    letters = OpenLetters(count=0, oldest_ms=None, causes=(), by_type=(), is_whole=False)
    assert not [key for key in samples(seen(letters=letters)) if key.startswith("sealbus_dead_letter")]
