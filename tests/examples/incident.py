"""The incident that structured messages are for, and what happens to it here.

Three agents check a pull request: one analyses, one runs the tests, one reports. The analyser says `result`, the tester
reads `output`; nobody says an error, no test runs, and a security fix is merged untested. Wired wrongly in four ways,
the pipeline says each time what is wrong, and nothing passes in silence.

sealbus run incident:analyser incident:tester incident:reporter
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from sealbus import App, PublishRejected, connect, payload
from sealbus import vocabulary as words
from sealbus.errors import ConfigurationError


@payload("pull-request.opened")
class PullRequestOpened(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("pull-request.analysed", version="2.0.0")
class Analysed(msgspec.Struct, frozen=True, kw_only=True):
    """What the tester reads."""

    number: int
    output: Literal["pass", "fail"]


@payload("pull-request.analysed", version="2.0.0")
class AnalysedByAnotherTeam(msgspec.Struct, frozen=True, kw_only=True):
    """What the analyser writes, in the code of another team."""

    number: int
    result: Literal["pass", "fail"]


@payload("pull-request.analysed", version="1.0.0")
class AnalysedLongAgo(msgspec.Struct, frozen=True, kw_only=True):
    """What an analyser writes that nobody has upgraded."""

    number: int
    result: Literal["pass", "fail"]


analyser, tester, reporter = App("analyser@ci"), App("tester@ci"), App("reporter@ci")


@analyser.on(PullRequestOpened)
async def analyse(opened: PullRequestOpened) -> Analysed:
    return Analysed(number=opened.number, output="pass")


@tester.on(Analysed)
async def run_tests(analysed: Analysed) -> words.TestExecutionResult:
    run = words.TestRun(command="make test", status="passed")
    return words.TestExecutionResult(status="passed", tests=(run,))


@reporter.on(words.TestExecutionResult)
async def report(result: words.TestExecutionResult) -> words.NotificationSent:
    return words.NotificationSent(title=f"tests {result.status}", audience=("ci",))


async def test_wired_rightly_the_report_arrives() -> None:
    async with analyser.test(tester, reporter) as bus:
        await bus.publish(PullRequestOpened(number=1842))
        await bus.settle()
        bus.assert_all_handled()
        (sent,) = bus.sent(words.NotificationSent)
        assert sent.title == "tests passed"


async def test_a_bare_dict_is_refused_when_it_is_published() -> None:
    message: Any = {"number": 1842, "result": "pass"}
    async with connect("memory://", agent="analyser@ci") as bus:
        with pytest.raises(PublishRejected, match="dict is not a payload"):
            await bus.publish(message)


async def test_a_field_of_another_name_is_a_dead_letter_that_names_both() -> None:
    another = App("analyser@ci", group="another")

    @another.on(PullRequestOpened)
    async def analyse(opened: PullRequestOpened) -> AnalysedByAnotherTeam:
        return AnalysedByAnotherTeam(number=opened.number, result="pass")

    async with another.test(tester, reporter) as bus:
        await bus.publish(PullRequestOpened(number=1842))
        await bus.settle()
        (letter,) = bus.dead_letters
        assert (letter.reason, letter.pointer) == ("schema_violation", "/data/output")
        assert bus.sent(words.NotificationSent) == []


async def test_an_older_version_without_an_upcaster_is_dead_lettered_with_the_reason() -> None:
    old = App("analyser@ci", group="old")

    @old.on(PullRequestOpened)
    async def analyse(opened: PullRequestOpened) -> AnalysedLongAgo:
        return AnalysedLongAgo(number=opened.number, result="pass")

    async with old.test(tester, reporter) as bus:
        await bus.publish(PullRequestOpened(number=1842))
        await bus.settle()
        (letter,) = bus.dead_letters
        assert letter.reason == "unsupported_version"
        assert "no upcaster leads from 1 to 2" in repr(letter)


def test_a_handler_for_another_type_stops_the_start() -> None:
    with pytest.raises(ConfigurationError, match="write `analysed: Analysed`"):

        @App("tester@ci", group="wrong").on(Analysed)
        async def run_tests(analysed: PullRequestOpened) -> None: ...


async def test_a_pass_without_a_test_is_refused() -> None:
    hasty = App("tester@ci", group="hasty")

    @hasty.on(Analysed)
    async def run_tests(analysed: Analysed) -> words.TestExecutionResult:
        return words.TestExecutionResult(status="passed", tests=())

    async with analyser.test(hasty, reporter) as bus:
        await bus.publish(PullRequestOpened(number=1842))
        await bus.settle()
        (letter,) = bus.dead_letters
        assert "no test failed and at least one passed" in repr(letter)
        assert bus.sent(words.NotificationSent) == []
