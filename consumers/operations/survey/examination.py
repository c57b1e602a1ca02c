"""Examination: all checks of a set-up in one list, for the command line and the console."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from bus.clock import Clock
from bus.errors import BusError, NotPermittedError
from bus.settings.schema import Settings
from bus.topics.specs import creates_topics
from bus.transports.base import TopicSpec, Transport
from consumers.operations.survey import drift
from consumers.operations.survey.doctor import (
    CheckResult,
    check_clock,
    check_here,
    check_inbox,
    check_trust,
    of_cards,
    of_survey,
)
from consumers.operations.survey.survey import Survey

__all__ = ["examine_here", "examine_log", "log_fault", "readable", "worst_first"]


async def examine_here(
    settings: Settings, agents: tuple[str, ...], clock: Clock, environment: Mapping[str, str] = os.environ
) -> list[CheckResult]:
    """Judge what can be judged without the log: this machine, keys and policy of *agents*, the inbox."""
    return [
        CheckResult(area="settings", state="ok", text="can be read, and fit together"),
        *check_here(settings, environment),
        *check_trust(settings, agents, clock),
        await check_inbox(settings, clock),
    ]


async def examine_log(
    transport: Transport,
    settings: Settings,
    survey: Survey,
    wanted: Sequence[TopicSpec],
    clock: Clock,
    *,
    target: str | None = None,
    groups: Sequence[str] = (),
) -> list[CheckResult]:
    """Judge the log, the topics *wanted* by the apps *target* of a command line, and what goes on. Raises BusError.

    *groups* are those of the apps: the retry tiers that the settings no longer have are looked for in them.
    """
    makes = creates_topics(settings, transport.features)
    plan = await transport.admin.plan(wanted)
    tiers = [tier for group in groups for tier in await drift.read_left_tiers(transport.admin, settings, group)]
    findings = [
        *drift.of_changes(plan, "MODULE:APP" if target is None else target),
        *drift.of_settings(settings),
        *drift.of_tiers(tiers),
    ]
    unread = ""
    try:
        findings += drift.of_brokers(await transport.admin.brokers(), settings)
    except NotPermittedError as error:
        # Reading the brokers' settings needs a right on the whole cluster.
        unread = str(error)
    missing = [each for each in findings if each.setting == "topic" and makes]
    findings = [each for each in findings if each not in missing]
    fine = "agree with the settings" if wanted else "the retention is long enough"
    topics = [
        CheckResult(
            area="topics",
            state="hint" if each.severity == "hint" else "fault",
            text=f"{each.topic or each.setting}: {each.detail}",
            cure=each.advice,
        )
        for each in findings
    ] or ([] if missing else [CheckResult(area="topics", state="ok", text=fine)])
    if missing:
        named = ", ".join(each.topic or "" for each in missing[:3]) + (", ..." if missing[3:] else "")
        text = f"{len(missing)} not created yet: {named}; the first worker creates them"
        topics.append(CheckResult(area="topics", state="hint", text=text))
    if unread:
        text = f"not looked at: whether brokers create topics by themselves or forget offsets ({unread})"
        topics.append(CheckResult(area="brokers", state="hint", text=text, cure="allow DescribeConfigs on the cluster"))
    topics += of_cards(survey.agents, await transport.admin.topics(), settings.bus.namespace)
    answers = CheckResult(area="log", state="ok", text=f"{settings.bus.url} answers")
    return [answers, *topics, await check_clock(transport, survey, settings, clock), *of_survey(survey)]


def log_fault(error: BusError) -> CheckResult:
    """Return the fault of a log that cannot be read."""
    cure = "; ".join(getattr(error, "__notes__", ())) or "start the brokers, or correct bus.url"
    return CheckResult(area="log", state="fault", text=str(error), cure=cure)


def readable(settings: Settings, found: Sequence[CheckResult]) -> Settings:
    """Return *settings*, without keys and policy where these are at fault: the log is looked at nevertheless."""
    if not any(each.area == "keys" and each.state == "fault" for each in found):
        return settings
    return msgspec.structs.replace(
        settings,
        trust=msgspec.structs.replace(settings.trust, keys="", key_file=""),
        policy=msgspec.structs.replace(settings.policy, file=""),
    )


def worst_first(found: Sequence[CheckResult]) -> list[CheckResult]:
    """Return *found* with faults first, then hints, then successes."""
    return sorted(found, key=lambda result: ("fault", "hint", "ok").index(result.state))
