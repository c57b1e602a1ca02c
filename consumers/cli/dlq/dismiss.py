"""`sealbus dlq dismiss`: mark dead letters as dealt with. `consumers.deadletters.dismissal` marks them."""

from __future__ import annotations

import asyncio

import click

from bus.clock import SystemClock
from consumers.cli.dlq.filters import with_selection
from consumers.cli.dlq.redrive import LetterCount, print_counts
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, changing, verb
from consumers.cli.shell import Command
from consumers.deadletters.dismissal import Dismissal, DismissalResult
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.deadletters.locations import pinned
from consumers.deadletters.near_misses import near_misses
from consumers.deadletters.selection import Selection

__all__ = ["dismiss"]


@click.command(cls=Command)
@click.argument("locations", nargs=-1, metavar="[LOCATION]...")
@with_selection
@changing
@verb(DismissalResult)
async def dismiss(
    session: CommandSession, *, selection: Selection, why: str, dry_run: bool, yes: bool
) -> VerbResult | int:
    """Dismiss dead letters: they count as finished, and a redrive skips them.

    Their records stay in the log until topics.deadletter_retention_s has passed. Without a LOCATION or a filter all
    dead letters are dismissed.

    \b
    Examples:
      sealbus dlq dismiss --dry-run --until 7d
      sealbus dlq dismiss --reason malformed --sender scanner@lab --why "load test by mistake"
      sealbus dlq dismiss agents.desk.question.dlq/0/3 --yes
    """
    settings, stop = session.settings(), asyncio.Event()
    session.announce()
    async with session.open(settings) as transport:
        await prepare_journal(transport, settings, create=False)
        chosen = await pinned(transport, settings, selection)
        run = Dismissal(transport, settings, chosen)
        counts = await run.plan()
        total = counts.total()
        rows = [
            LetterCount(action="dismiss", reason=reason, type=kind, group=group, dead_letters=count)
            for (reason, kind, group), count in counts.most_common()
        ]
        if dry_run or not total:
            print_counts(session, rows)
            session.note(f"{total or 'no'} dead letters would be dismissed")
            for hint in [] if total else await near_misses(transport, settings.bus.namespace, selection):
                session.note(f"hint: {hint}")
            return 0
        if not yes:
            print_counts(session, rows, err=True)
        session.confirm(f"Dismiss {total} dead letters?", yes=yes)
        session.interrupts.soften = stop.set
        await prepare_journal(transport, settings)
        journal = Journal(transport, settings, SystemClock(), verb="dismiss", why=why)
        with Progress(total, unit="dismissed", alone=True) as progress:
            result = await run.run(
                journal, stop=stop, on_progress=lambda done: progress.show(done.dismissed, done.dismissed)
            )
    done = f"{result.dismissed} dead letters dismissed; {result.outcome}, run {result.run}"
    return Listing([result] if session.as_json else [], {}, notes=[done])
