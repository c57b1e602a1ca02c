"""Groups: which do not keep up and since when; one of them over time, with the messages that hold it up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
from litestar import Response, get

from bus.topics.namespace_groups import NamespaceGroups
from consumers.operations.console.model import Console
from consumers.operations.console.pages.frame import PageRequest, console_of, page_of, parameter, problem
from consumers.operations.console.sequence import StateMark
from consumers.operations.console.words import clock_time, duration, short_count
from consumers.operations.survey.group_rows import GroupPartition, group_partitions
from consumers.operations.survey.group_state import GroupState, group_ranges
from consumers.operations.survey.results import CheckResult
from consumers.operations.survey.verdicts import of_group

__all__ = ["GROUPS_ROUTES", "last_of"]

_MAX_PARTITIONS: Final = 64
_BEHIND_S: Final = 10.0
_AXIS: Final = 5


class JudgedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group as it is judged."""

    state: GroupState
    judged: tuple[CheckResult, ...]
    mark: StateMark
    since_ms: float | None
    """Since when its first record has waited for more than 10 seconds."""


def _views(console: Console) -> list[JudgedGroup]:
    survey = console.survey
    if survey is None:
        return []
    now_ms = console.clock.now_ms()
    return [
        JudgedGroup(
            state=group,
            judged=(judged := tuple(of_group(group, survey.taken_ms))),
            mark=_mark(group, judged),
            since_ms=console.samples.since_ms(f"{group.name} oldest_s", now_ms, above=_BEHIND_S),
        )
        for group in survey.groups
    ]


def _mark(group: GroupState, judged: Sequence[CheckResult]) -> StateMark:
    worst = {check.state for check in judged}
    if group.stands:
        return StateMark("dead", "cannot go on")
    if group.lag and (group.is_silent or not group.members):
        return StateMark("dead", "silent" if group.is_silent else "no worker")
    if "fault" in worst:
        return StateMark(
            "dead", "falls behind" if group.trend == "grows" else "held up" if group.hold_ups else "behind"
        )
    if "hint" in worst or group.hold_ups:
        return StateMark("hint", "held up" if group.hold_ups else "slow")
    if group.oldest_s is not None and group.oldest_s > _BEHIND_S:
        return StateMark("hint", "behind")
    return StateMark("ok", "keeps up") if group.members else StateMark("off", "empty, no worker")


@get("/groups")
async def groups_page(request: PageRequest) -> Response[str]:
    """Show the groups, their lag, and what holds them up; one of them with its history."""
    console = console_of(request)
    views, now_ms, name = _views(console), console.clock.now_ms(), parameter(request, "name")
    samples = console.samples
    chosen = next((view for view in views if view.state.name == name), None)
    if name and chosen is None:
        return problem(request, f"no group {name}", "a group exists once a worker has joined it")
    lines = {
        view.state.name: {kind: samples.hour(f"{view.state.name} {kind}", now_ms) for kind in ("oldest_s", "in", "out")}
        for view in views[:64]
    }
    return page_of(
        request,
        "groups.html",
        views=views,
        behind=sum(view.mark.kind == "dead" for view in views),
        slow=sum(view.mark.kind == "hint" for view in views),
        working=sum(view.mark.kind == "ok" for view in views),
        chosen=chosen,
        lines=lines,
        last=last_of,
        partitions=[] if chosen is None else await _partitions(console, chosen.state.name),
        axis=None if chosen is None else _axes(console, chosen.state.name, now_ms),
        begun_ms=samples.begun_ms,
    )


class _Axes(msgspec.Struct, frozen=True, kw_only=True):
    """What the two plots of a group show."""

    ages_s: Sequence[float]
    lags: Sequence[float]
    top_s: float
    top_lag: float
    y_ages: tuple[str, ...]
    y_lags: tuple[str, ...]
    x: tuple[str, ...]


def _axes(console: Console, name: str, now_ms: int) -> _Axes:
    shown_ms = 1000 * console.samples.shown_s(now_ms)
    ages_s = console.samples.hour(f"{name} oldest_s", now_ms)
    lags = console.samples.hour(f"{name} lag", now_ms)
    top_s = max(10.0, *(value for value in ages_s if not math.isnan(value)), 10.0)
    top_lag = max(10.0, *(value for value in lags if not math.isnan(value)), 10.0)
    return _Axes(
        ages_s=ages_s,
        lags=lags,
        top_s=top_s,
        top_lag=top_lag,
        y_ages=tuple(duration(top_s * part / 3) if part else "0" for part in (3, 2, 1, 0)),
        y_lags=(short_count(top_lag), "0"),
        x=tuple(clock_time(now_ms - shown_ms * part / (_AXIS - 1)) for part in range(_AXIS - 1, -1, -1)),
    )


def last_of(values: Sequence[float]) -> str:
    """Return the newest value of a line; a dash where there is none."""
    known = [value for value in values if not math.isnan(value)]
    return short_count(known[-1]) if known else "–"


async def _partitions(console: Console, name: str) -> list[GroupPartition]:
    """Return the partitions of a group, those with most records before others."""
    infos = await NamespaceGroups(console.transport.admin, console.settings.bus.namespace).infos()
    info = next((each for each in infos if each.name == name), None)
    if info is None:
        return []
    ranges = await group_ranges(console.transport, [info], console.settings.bus.namespace)
    return sorted(group_partitions(info, ranges), key=lambda row: -(row.lag or 0))[:_MAX_PARTITIONS]


GROUPS_ROUTES = (groups_page,)
