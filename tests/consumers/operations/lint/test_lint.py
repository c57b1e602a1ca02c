"""`sealbus check` finds the anti-patterns of seed 000 and 001, in apps and in recorded traffic."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from bus.vocabulary import BUILT_IN
from bus.vocabulary.task import TaskResult
from consumers.cli import main
from consumers.operations.lint.findings import CHECKS
from consumers.operations.lint.type_checks import lint_type
from sealbus import connect, payload
from tests.consumers.operations.lint.thresholds_app import OPEN

SLOPPY = "tests.consumers.operations.lint.sloppy:app"
THRESHOLDS = "tests.consumers.operations.lint.thresholds_app:app"


def lint(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(main, ["check", "--only", "lint", *arguments, "-o", "json"], catch_exceptions=False)
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def sloppy() -> list[dict[str, Any]]:
    code, found = lint(SLOPPY)
    assert code == 1
    return found


@pytest.mark.parametrize(
    ("check", "place"),
    [
        ("approval-without-reason", "review.approval.request"),
        ("free-form-status", "job.report/status"),
        ("raw-output", "job.report/output"),
        ("error-without-code", "job.report/error"),
        ("hash-never-checked", "job.report/content_hash"),
        ("generic-type", "agent.message"),
        ("prose-as-protocol", "chat.turn"),
        ("context-dumping", "memory.passed/history"),
        ("effect-without-key", "payment.create"),
        ("verification-off", "payment.create"),
        ("decision-without-rules", "ballot.cast/approved"),
        ("too-many-fields", "wide.row"),
    ],
)
def test_each_anti_pattern_is_found_at_its_place(sloppy: list[dict[str, Any]], check: str, place: str) -> None:
    assert (check, place) in {(found["check"], found["location"]) for found in sloppy}


@pytest.mark.parametrize(
    "check",
    ["hard-coded-recipient", "no-rejection-path", "raw-untrusted-text", "asks-undeclared", "effect-outside-step"],
)
def test_what_a_handler_does_is_found_with_file_and_line(sloppy: list[dict[str, Any]], check: str) -> None:
    found = next(found for found in sloppy if found["check"] == check)
    assert found["file"] == "tests/consumers/operations/lint/sloppy.py"
    line = Path(found["file"]).read_text().splitlines()[found["line"] - 1]
    written = {
        "hard-coded-recipient": "writer@svc-7",
        "no-rejection-path": "@app.on(Work)",
        "raw-untrusted-text": 'Untrusted("from a page").raw',
        "asks-undeclared": 'approve=sealbus.Approval(by="human")',
        "effect-outside-step": "subprocess.run",
    }
    assert written[check] in line


def test_every_finding_has_a_reason_and_a_fix(sloppy: list[dict[str, Any]]) -> None:
    assert all(found["why"] and found["fix"] and found["level"] in ("error", "warning", "note") for found in sloppy)


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEALBUS_TRUST__HIGH_RISK", "guard.raised")


@pytest.mark.usefixtures("raised")
def test_handled_types_that_no_threshold_guards_are_noted_and_fail_nothing() -> None:
    ignored = ("--ignore", "verification-off", "--ignore", "no-rejection-path")
    code, found = lint(THRESHOLDS, *ignored)
    noted = [one for one in found if one["check"] == "no-threshold"]
    assert sorted(one["location"] for one in noted) == sorted(f"guard.{name}" for name in OPEN)
    assert {one["level"] for one in noted} == {"note"}
    assert all('performative="request"' in one["fix"] for one in noted)
    assert code == 0
    assert lint(THRESHOLDS, *ignored, "--fail-on", "note")[0] == 1
    assert lint(THRESHOLDS, *ignored, "--fail-on", "note", "--ignore", "no-threshold")[0] == 0


def test_a_type_whose_risk_no_setting_raises_is_noted() -> None:
    assert "guard.raised" in {one["location"] for one in lint(THRESHOLDS)[1] if one["check"] == "no-threshold"}


def test_the_checklist_is_answered_for_types_that_choose_their_performative_by_value() -> None:
    done = CliRunner().invoke(main, ["check", THRESHOLDS, "--checklist"], catch_exceptions=False)
    assert "no task is needed by guard.request, guard.chosen" in done.stdout


def test_every_built_in_type_says_whether_it_asks_or_informs() -> None:
    assert [kind.name for kind in BUILT_IN if not kind.terms.words] == []


def test_the_vocabulary_itself_is_clean() -> None:
    found = [one for kind in BUILT_IN for one in lint_type(kind) if one.level != "note"]
    assert [(one.check, one.place) for one in found] == [
        # The text of a decision is for people; its kind is for programs.
        ("free-form-status", "decision.made/decision"),
        # Older versions, whose form the contract leaves open.
        ("context-dumping", "blackboard.value/history"),
        # What an operator found out, in the form of the step.
        ("raw-output", "redrive.ordered/result"),
    ]


def test_checks_can_be_left_out_and_the_level_chosen() -> None:
    ignored = [part for name in CHECKS for part in ("--ignore", name)]
    assert lint(SLOPPY, *ignored) == (0, [])
    assert lint(SLOPPY, "--fail-on", "never")[0] == 0


def test_sarif_names_rules_places_and_levels() -> None:
    done = CliRunner().invoke(main, ["check", "--only", "lint", SLOPPY, "-o", "sarif"], catch_exceptions=False)
    log = json.loads(done.stdout)
    assert log["version"] == "2.1.0"
    run = log["runs"][0]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} <= set(CHECKS)
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["locations"]
    located = [place for result in run["results"] for place in result["locations"] if "physicalLocation" in place]
    assert located[0]["physicalLocation"]["region"]["startLine"] > 0


@payload("agent.report")
class Report(msgspec.Struct, frozen=True, kw_only=True):
    status: str = "ok"
    output: Any = None
    error: Any = None
    context: Any = None


async def record_traffic(url: str) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    async with connect(url, agent="a@svc") as bus:
        await bus.publish(Report(output={"status_code": 200, "headers": {}, "choices": []}))
        await bus.publish(Report(error={"text": "no"}))
        await bus.publish(Report(context={"turns": turns}))
        for number in range(20):
            await bus.publish(Report(status=f"state {number}"), to="b@svc")
        await bus.publish(TaskResult(status="completed"), task_id="t-1")


def test_recorded_traffic_is_looked_at(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bus.db"
    asyncio.run(record_traffic(url))
    code, found = lint("--recorded", "--bus", url)
    assert code == 1
    checks = {one["check"] for one in found}
    assert {"raw-output", "error-without-code", "context-dumping", "free-form-status"} <= checks
    assert next(one for one in found if one["check"] == "raw-output")["location"].startswith("agents.agent.report/")


def test_an_unknown_check_is_refused_with_those_there_are() -> None:
    done = CliRunner().invoke(main, ["check", SLOPPY, "--ignore", "nothing"])
    assert done.exit_code == 2
    assert "hard-coded-recipient" in done.output


def test_the_checklist_answers_fifteen_questions() -> None:
    done = CliRunner().invoke(main, ["check", SLOPPY, "--checklist", "-o", "json"], catch_exceptions=False)
    answers = {json.loads(line)["question"]: json.loads(line) for line in done.stdout.splitlines()}
    assert done.exit_code == 1
    assert len(answers) == 15
    assert answers["Does every message have a schema version?"]["answer"] == "yes"
    assert answers["Are errors machine-routable?"] == {
        "question": "Are errors machine-routable?",
        "answer": "no",
        "because": "job.report/error",
    }
    assert answers["Are side effects idempotent?"]["answer"] == "no"
    assert answers["Are handoffs accepted or rejected explicitly?"]["answer"] == "unused"
