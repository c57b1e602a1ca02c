"""A survey as tables for a terminal."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from rich.console import Group

from bus.telemetry.terminal import printable
from consumers.operations.survey.survey import Survey

__all__ = ["picture"]


_MAX_ROWS: Final = 12


def picture(survey: Survey, namespace: str) -> Group:
    """Return *survey* as tables; untrusted text is escaped, so it contains no markup or control characters."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(title: str, *columns: str) -> Table:
        found = Table(title=title, title_justify="left", expand=True, box=None, header_style="bold")
        for column in columns:
            # People copy a cause into the next command.
            width = {"CAUSE": 8, "COUNT": 5}.get(column)
            found.add_column(column, overflow="ellipsis", no_wrap=True, min_width=width)
        return found

    def cells(*values: object, style: str = "") -> list[Text]:
        return [Text(printable(str(value)), style=style) for value in values]

    letters, work = survey.letters, survey.work
    groups = table("Groups", "GROUP", "WORKERS", "LAG", "MOST BEHIND")
    for group in survey.groups[:_MAX_ROWS]:
        bad = group.stands or (group.lag and not group.members)
        shown = f"{group.worst} (cannot continue in {group.stands} partitions)" if group.stands else group.worst
        groups.add_row(*cells(group.name, group.members, f"{group.lag:,}", shown, style="red" if bad else ""))
    causes = table(
        f"Dead letters: {letters.count:,} open", "CAUSE", "COUNT", "REASON", "TYPE", "FROM", "FIELD", "ERROR"
    )
    for cause, count, _ in letters.causes[:_MAX_ROWS]:
        row = (cause.name, f"{count:,}", cause.reason, cause.message_type, cause.sender, cause.pointer, cause.error)
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
    at = time.strftime("%H:%M:%S", time.localtime(survey.taken_ms / 1000))
    return Group(Text(f"{namespace}  {at}", style="bold"), line, groups, causes, agents)
