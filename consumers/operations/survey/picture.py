"""A survey as tables for a terminal."""

from __future__ import annotations

import time
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from rich.console import Group

from bus.telemetry.terminal import printable
from consumers.operations.survey.examination import Examination

__all__ = ["picture"]


_MAX_ROWS: Final = 12
# People copy a cause into the next command. A long error must not push the other columns out.
_LEAST_WIDTHS: Final = MappingProxyType(
    {"CAUSE": 14, "COUNT": 9, "REASON": 10, "TYPE": 12, "FROM": 10, "FIELD": 5, "GROUP": 20, "AGENT": 20}
)


def picture(looked: Examination, namespace: str) -> Group:
    """Return what was found as tables, faults first.

    Untrusted text is escaped, so it contains no markup or control characters.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(title: str, *columns: str) -> Table:
        found = Table(title=title, title_justify="left", expand=True, box=None, header_style="bold")
        for column in columns:
            found.add_column(column, overflow="ellipsis", no_wrap=True, min_width=_LEAST_WIDTHS.get(column))
        return found

    def cells(*values: object, style: str = "") -> list[Text]:
        return [Text(printable(str(value)), style=style) for value in values]

    at = time.strftime("%H:%M:%S", time.localtime(looked.taken_ms / 1000))
    title = Text(f"{namespace}  {at}  {looked.faults or 'no'} fault{'' if looked.faults == 1 else 's'}", style="bold")
    wrong = [each for each in looked.results if each.state in ("fault", "hint")][:_MAX_ROWS]
    told = [
        Text(
            f"{'FAULT' if each.state == 'fault' else 'hint '} {each.area}: {printable(each.text)}\n"
            f"      -> {printable(each.cure)}",
            style="red" if each.state == "fault" else "yellow",
        )
        for each in wrong
    ]
    survey = looked.survey
    if survey is None:
        return Group(title, *told)
    letters, work = survey.letters, survey.work
    groups = table("Groups", "GROUP", "WORKERS", "LAG", "THE FIRST FOR", "MOST BEHIND")
    for group in survey.groups[:_MAX_ROWS]:
        bad = group.stands or (group.lag and not group.members)
        shown = f"{group.worst} (cannot continue in {group.stands} partitions)" if group.stands else group.worst
        trend = {"grows": " ↑", "shrinks": " ↓"}.get(group.trend, "")
        oldest = "" if group.oldest_s is None else f"{group.oldest_s:.0f} s"
        shown_group = (group.name, group.members, f"{group.lag:,}{trend}", oldest, shown)
        groups.add_row(*cells(*shown_group, style="red" if bad else ""))
    causes = table(
        f"Dead letters: {letters.count:,} open", "CAUSE", "COUNT", "REASON", "TYPE", "FROM", "FIELD", "ERROR"
    )
    found = zip(letters.causes[:_MAX_ROWS], letters.names, letters.senders, strict=False)
    for (cause, count, _), name, sender in found:
        row = (name, f"{count:,}", cause.reason, cause.message_type, sender, cause.pointer, cause.error)
        causes.add_row(*cells(*row, style="red"))
    agents = table("Agents", "AGENT", "HEALTH", "WORKERS", "HEARTBEAT", "RUNNING")
    for agent in sorted(survey.agents, key=lambda each: (each.is_healthy, each.agent_id))[:_MAX_ROWS]:
        heard = "-" if agent.heard_s_ago is None else f"{agent.heard_s_ago:.0f} s ago"
        shown_agent = (agent.agent_id, agent.health, agent.instances, heard, agent.active_tasks or 0)
        agents.add_row(*cells(*shown_agent, style="" if agent.is_healthy else "red"))
    line = Text(f"workflows: {sum(work.open.values()):,} open, {work.overdue:,} overdue   ")
    line.append(f"approvals: {work.approvals:,} open")
    if work.oldest_approval_ms is not None:
        line.append(f", the oldest for {timedelta(seconds=(survey.taken_ms - work.oldest_approval_ms) // 1000)}")
    line.append(f"   {work.error}")
    if work.overdue or work.error:
        line.stylize("red")
    return Group(title, *told, line, groups, causes, agents)
