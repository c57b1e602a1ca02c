"""The demo's output: the timeline, the report, and finally the table of outcomes.

Foreign text (file names, findings) is escaped, as it may hold anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bus.protocol.timestamps import format_ms
from bus.vocabulary.review import DraftOutput, ReviewOutput
from consumers.agents.demo.story import Story
from consumers.agents.demo.watch import Check, Event

__all__ = ["outcomes_of", "report_text", "show_story"]

_SHOWN_LINES = 12


def show_story(story: Story, console: Console) -> None:
    """Print *story*."""
    console.print(_timeline(story.timeline))
    console.print()
    console.print(_report(story.report, story.review))
    console.print()
    console.print(outcomes_of("Outcomes", story.checks))


def report_text(report: DraftOutput) -> str:
    """Return the whole report as Markdown."""
    parts = [
        f"# {report.title}",
        report.summary,
        *(f"## {section.heading}\n\n{section.content}" for section in report.sections),
    ]
    return "\n\n".join(parts) + "\n"


def _timeline(events: Sequence[Event]) -> Table:
    table = Table(title="The conversation in the log", title_justify="left", title_style="bold")
    for column in ("appended", "sender", "type", "topic/partition/offset", "seal"):
        table.add_column(column, overflow="fold")
    for event in events:
        record, metadata = event.record, event.message.metadata
        place = f"{record.topic}/{record.partition}/{record.offset}"
        seal = "[green]verified[/]" if event.is_sealed else "[red]broken[/]"
        table.add_row(
            format_ms(record.timestamp_ms)[11:23], escape(metadata.sender.id or ""), metadata.message_type, place, seal
        )
    return table


def _report(report: DraftOutput, review: ReviewOutput) -> str:
    lines = [
        line
        for section in report.sections
        for line in (f"[bold]{escape(section.heading)}[/]", *escape(section.content).splitlines())
    ]
    left_out = len(lines) - _SHOWN_LINES
    shown = lines[:_SHOWN_LINES] + (
        [f"[dim]... {left_out} more lines; --keep DIR keeps the whole report[/]"] if left_out > 0 else []
    )
    verdict = f"[bold]{review.verdict}[/], score {review.score}"
    return "\n".join([f"[bold]{escape(report.title)}[/] ({verdict})", escape(report.summary), *shown])


def outcomes_of(title: str, checks: Sequence[Check]) -> Table:
    """Return the expected and the observed outcomes of *checks*."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("what happened", "expected", "observed", ""):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(
            check.what, check.expected, escape(check.observed), "[green]ok[/]" if check.holds else "[red]NO[/]"
        )
    return table
