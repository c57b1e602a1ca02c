"""Examination: all checks of an installation in one list, from one survey: for doctor, status, console and exporter.

Whoever shows the state of a namespace takes it from here, so that all of them tell one story.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from bus.clock import Clock
from bus.errors import BusError, ConfigurationError, NotPermittedError, text_of
from bus.settings.schema import Settings
from bus.topics.specs import creates_topics
from bus.transports.base import TopicSpec, Transport
from bus.trust.opening import Trust, believed_keys, believed_policy, keyless
from bus.trust.policy.policy import NO_POLICY
from consumers.operations.survey import drift
from consumers.operations.survey.doctor import (
    check_audit_policy,
    check_here,
    check_inbox,
    check_trust,
    check_worker_keys,
    without_policy,
)
from consumers.operations.survey.results import CheckResult, fault, hint, ok, unknown, worst_first
from consumers.operations.survey.survey import Survey, Surveyor, opened_surveyor
from consumers.operations.survey.verdicts import of_cards, of_log, of_survey, of_topics

__all__ = ["Examination", "Examiner", "opened_examiner"]

_LASTS_S: Final = 15.0
_OF_LOG: Final = ("topics", "groups", "letters", "agents", "audit", "clock")
"""Areas that are judged by what is in the log."""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at an installation has found, worst first."""

    taken_ms: int
    results: tuple[CheckResult, ...]
    survey: Survey | None
    """None: the log cannot be read."""

    @property
    def faults(self) -> int:
        """The number of faults."""
        return sum(each.state == "fault" for each in self.results)

    @property
    def unseen(self) -> int:
        """The number of checks that were not made."""
        return sum(each.state == "unknown" for each in self.results)


class Examiner:
    """Looks at one installation; a second look reuses what need not be read again.

    *wanted* are the topics of the apps *target* of a command line, *groups* their groups, *agents* their agents.
    """

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        surveyor: Surveyor,
        clock: Clock,
        *,
        agents: tuple[str, ...] = (),
        wanted: Sequence[TopicSpec] = (),
        groups: Sequence[str] = (),
        target: str = "",
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._clock = clock
        self._agents = agents
        self._wanted = wanted
        self._groups = groups
        self._target = target
        self._inbox_fault: tuple[CheckResult, float] | None = None
        """The last fault of the inbox, and when it was seen, on the monotonic clock."""
        self.surveyor = surveyor

    async def look(self) -> Examination:
        """Look at everything. A log that cannot be read is a fault among the others; nothing is raised for it."""
        taken_ms = self._clock.now_ms()
        # The inbox may hang: the log is looked at beside it.
        here = asyncio.get_running_loop().create_task(examine_here(self._settings, self._agents, self._clock))
        survey = None
        try:
            try:
                survey = await self.surveyor.take()
                of_log = await self._of_log(survey, _readable(self._settings, self._clock)[1])
            except BusError as error:
                of_log = log_faults(error)
            found = [*await here, *of_log]
        finally:
            here.cancel()
        # The same is known of a topic from its name and from the app that wants it, of a file from each agent.
        found = list(dict.fromkeys(self._lasting(found)))
        return Examination(taken_ms=taken_ms, results=tuple(worst_first(found)), survey=survey)

    def _lasting(self, found: list[CheckResult]) -> list[CheckResult]:
        """Return *found*, with the inbox's fault for some seconds longer than it is seen.

        Statements behind a lock are given up and asked again: between two attempts nobody waits, and all seems well.
        """
        now_s = self._clock.monotonic_s()
        faults = [each for each in found if each.area == "inbox" and each.state == "fault"]
        if faults:
            self._inbox_fault = faults[0], now_s
        elif self._inbox_fault is not None and now_s - self._inbox_fault[1] < _LASTS_S:
            return [each for each in found if each.area != "inbox"] + [self._inbox_fault[0]]
        return found

    async def _of_log(self, survey: Survey, trust: Trust) -> list[CheckResult]:
        """Judge the log, the topics, and what goes on. Raises BusError."""
        settings, existing = self._settings, await self._transport.admin.topics()
        return [
            *of_log(survey, settings.bus.url),
            *of_topics(survey),
            *await self._of_wanted(),
            *await self._of_brokers(),
            *of_cards(survey.agents, existing, settings.bus.namespace),
            *check_worker_keys(trust, survey.groups, self._clock),
            *(() if survey.audit is None else check_audit_policy(trust, settings.bus.namespace, self._clock)),
            *of_survey(survey),
        ]

    async def _of_wanted(self) -> list[CheckResult]:
        makes = creates_topics(self._settings, self._transport.features)
        plan = await self._transport.admin.plan(self._wanted)
        tiers = [
            tier
            for group in self._groups
            for tier in await drift.read_left_tiers(self._transport.admin, self._settings, group)
        ]
        findings = [
            *drift.of_changes(plan, self._target or "MODULE:APP"),
            *drift.of_settings(self._settings),
            *drift.of_tiers(tiers),
        ]
        missing = [each for each in findings if each.setting == "topic" and makes]
        found = [
            (hint if each.severity == "hint" else fault)(
                "topics", f"{each.topic or each.setting}: {each.detail}", each.advice
            )
            for each in findings
            if each not in missing
        ]
        if self._wanted and not findings:
            found.append(ok("topics", f"the {len(self._wanted)} that the apps need agree with the settings"))
        if missing:
            named = ", ".join(each.topic or "" for each in missing[:3]) + (", ..." if missing[3:] else "")
            found.append(hint("topics", f"{len(missing)} not created yet: {named}; the first worker creates them"))
        return found

    async def _of_brokers(self) -> list[CheckResult]:
        try:
            brokers = await self._transport.admin.brokers()
        except NotPermittedError as error:
            # Reading the brokers' settings needs a right on the whole cluster.
            text = f"whether brokers create topics by themselves or forget offsets ({error})"
            return [unknown("brokers", text, "allow DescribeConfigs on the cluster")]
        return [
            fault("brokers", f"{each.setting}: {each.detail}", each.advice)
            for each in drift.of_brokers(brokers, self._settings)
        ]


@asynccontextmanager
async def opened_examiner(
    transport: Transport,
    settings: Settings,
    clock: Clock,
    *,
    agents: tuple[str, ...] = (),
    wanted: Sequence[TopicSpec] = (),
    groups: Sequence[str] = (),
    target: str = "",
    letters_within_s: float | None = None,
) -> AsyncGenerator[Examiner]:
    """Yield what examines the installation of *settings*; see `Examiner` and `Surveyor`."""
    readable, _ = _readable(settings, clock)
    async with opened_surveyor(transport, readable, clock, letters_within_s=letters_within_s) as surveyor:
        yield Examiner(transport, settings, surveyor, clock, agents=agents, wanted=wanted, groups=groups, target=target)


async def examine_here(
    settings: Settings, agents: tuple[str, ...], clock: Clock, environment: Mapping[str, str] = os.environ
) -> list[CheckResult]:
    """Judge what can be judged without the log: this machine, keys and policy of *agents*, the inbox."""
    return [
        ok("settings", "can be read, and fit together"),
        *check_here(settings, environment),
        *check_trust(settings, agents, clock),
        await check_inbox(settings, clock),
    ]


def log_faults(error: BusError) -> list[CheckResult]:
    """Return the fault of a log that cannot be read, and what was not looked at for it."""
    cure = "; ".join(getattr(error, "__notes__", ())) or "start the brokers, or correct bus.url"
    return [fault("log", text_of(error), cure), *(unknown(area, "the log cannot be read") for area in _OF_LOG)]


def _readable(settings: Settings, clock: Clock) -> tuple[Settings, Trust]:
    """Return *settings* without a private key, and without trusted keys or a policy that cannot be read, opened too.

    The log is looked at nevertheless: what cannot be read is told by the checks.
    """
    settings, trust = keyless(settings), Trust(None, None, NO_POLICY)
    try:
        trust = msgspec.structs.replace(trust, verifier=believed_keys(settings, clock))
    except ConfigurationError:
        settings = msgspec.structs.replace(settings, trust=msgspec.structs.replace(settings.trust, keys=""))
    try:
        trust = msgspec.structs.replace(trust, policy=believed_policy(settings, clock))
    except ConfigurationError:
        settings = without_policy(settings)
    return settings, trust
