"""Agents: who is there and well, and one agent: what it does now, how it keeps up, what died there."""

from __future__ import annotations

from urllib.parse import quote

import msgspec
from litestar import Response, get

from bus.topics.names import group_of_agent
from consumers.operations.console.model import Console, NotRead
from consumers.operations.console.pages.conversations import newest_of_agent
from consumers.operations.console.pages.frame import PageRequest, console_of, page_of, parameter, problem
from consumers.operations.console.sequence import StateMark
from consumers.operations.console.words import short_count
from consumers.operations.survey.group_state import GroupState
from consumers.operations.survey.results import CheckResult
from consumers.operations.survey.run_times import RunTimes, run_times_of
from consumers.operations.survey.verdicts import of_group
from producers.directory.presence import AgentEntry

__all__ = ["AGENTS_ROUTES", "AgentView"]

_MAX_AGENTS = 500


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """One agent with the group in which it works. Its texts are untrusted."""

    entry: AgentEntry
    mark: StateMark
    group: GroupState | None
    judged: tuple[CheckResult, ...]
    dead: int
    """Open dead letters of its group."""
    sends_dead: int
    """Open dead letters that it has sent."""
    times: RunTimes | None
    """How long its handlers took in the last minute; None: its workers do not say."""
    slow_ms: float | None
    """Since when its handlers take three times as long as in the rest of the hour, and a second; None: they do not."""


def _views(console: Console) -> list[AgentView]:
    survey = console.survey
    if survey is None:
        return []
    groups, now_ms = {group.name: group for group in survey.groups}, console.clock.now_ms()
    found = []
    for entry in survey.agents:
        group = groups.get(group_of_agent(entry.agent_id))
        judged = () if group is None else tuple(of_group(group, survey.taken_ms))
        died = sum(
            count for cause, count, _ in survey.letters.causes if group is not None and cause.group == group.name
        )
        sent = sum(
            count
            for (_, count, _), sender in zip(survey.letters.causes, survey.letters.senders, strict=False)
            if sender == entry.agent_id
        )
        slow_ms = console.samples.unusual_since_ms(f"agent {entry.agent_id} half_s", now_ms, least=1.0)
        found.append(
            AgentView(
                entry=entry,
                mark=_mark(entry, judged, sent, slow_ms),
                group=group,
                judged=judged,
                dead=died,
                sends_dead=sent,
                times=run_times_of(entry.runs),
                slow_ms=slow_ms,
            )
        )
    order = ("dead", "hint", "held", "busy", "ok", "off")
    return sorted(found, key=lambda view: (order.index(view.mark.kind), view.entry.agent_id))


def _mark(entry: AgentEntry, judged: tuple[CheckResult, ...], sent: int, slow_ms: float | None) -> StateMark:
    if entry.unwell:
        return StateMark("dead", "stuck")
    if entry.health == "unhealthy":
        return StateMark("dead", "not heard")
    if any(check.state == "fault" for check in judged):
        return StateMark("hint", "behind")
    if slow_ms is not None:
        return StateMark("hint", "slow")
    if sent:
        return StateMark("hint", "messages die")
    if any(check.state == "hint" for check in judged):
        return StateMark("hint", "held up")
    return StateMark("ok", "healthy") if entry.is_healthy else StateMark("off", entry.health)


@get("/agents")
async def agents_page(request: PageRequest) -> Response[str]:
    """Show which agents are there, those in trouble first."""
    console = console_of(request)
    views, now_ms = _views(console), console.clock.now_ms()
    return page_of(
        request,
        "agents.html",
        views=views[:_MAX_AGENTS],
        total=len(views),
        heard=sum(view.entry.is_healthy for view in views),
        troubled=sum(view.mark.kind in ("dead", "hint") for view in views),
        lines={
            view.entry.agent_id: console.samples.hour(f"agent {view.entry.agent_id}", now_ms) for view in views[:64]
        },
    )


@get("/agents/show")
async def agent_page(request: PageRequest) -> Response[str]:
    """Show one agent: what it does now, how its group keeps up, what died there."""
    identity, console = parameter(request, "id"), console_of(request)
    view = next((each for each in _views(console) if each.entry.agent_id == identity), None)
    if view is None:
        return problem(
            request,
            f"no worker of {identity} was heard lately",
            "a worker sends its card when it starts; who only sends has none",
            link=(f"/conversations?agent={quote(identity, safe='')}", "Its conversations"),
        )
    survey, now_ms = console.survey, console.clock.now_ms()
    assert survey is not None  # noqa: S101 - the view is of it
    name = group_of_agent(identity)
    causes = [
        (cause, count, cause_name, sender)
        for (cause, count, _), cause_name, sender in zip(
            survey.letters.causes, survey.letters.names, survey.letters.senders, strict=False
        )
        if cause.group == name or sender == identity
    ]
    talks = await newest_of_agent(console, identity)
    samples = console.samples
    return page_of(
        request,
        "agent.html",
        view=view,
        group_name=name,
        causes=causes,
        talks=None if isinstance(talks, NotRead) else talks,
        talks_unread=talks.why if isinstance(talks, NotRead) else "",
        oldest=samples.hour(f"{name} oldest_s", now_ms),
        lines={
            kind: samples.hour(f"agent {identity} {kind}", now_ms)
            for kind in ("a_minute", "half_s", "most_s", "retried")
        },
        short_count=short_count,
        behind_ms=samples.since_ms(f"{name} oldest_s", now_ms, above=10.0),
        begun_ms=samples.begun_ms,
    )


AGENTS_ROUTES = (agents_page, agent_page)
