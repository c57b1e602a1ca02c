"""`sealbus dlq purge`: mark dead letters as dealt with.

Owns the options, the confirmation and the exit code; `consumers.deadletters.purge` marks the letters.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import click

from bus.clock import SystemClock
from bus.settings.schema import Settings
from consumers.cli.dlq.filters import with_selection
from consumers.cli.dlq.near_misses import tell_near_misses
from consumers.cli.dlq.places import pinned
from consumers.cli.interrupts import Interrupts, execute
from consumers.cli.io.printing import bars, print_json
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, with_session
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.deadletters.purge import Purge
from consumers.deadletters.selection import Selection

__all__ = ["purge"]


@click.command()
@click.argument("locations", nargs=-1, metavar="[PLACE]...")
@with_selection
@click.option("--why", metavar="TEXT", default="", help="Why, for the journal.")
@click.option("--dry-run", is_flag=True, help="Show what would be purged, by reason and type, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_session
def purge(session: CommandSession, *, selection: Selection, why: str, dry_run: bool, yes: bool) -> int:
    """Mark dead letters as purged: they count as finished, and a redrive skips them.

    Their records stay in the log until topics.deadletter_retention_s has passed. Without a PLACE or a filter all dead
    letters are purged.

    \b
    Examples:
      sealbus dlq purge --dry-run --until 7d
      sealbus dlq purge --reason malformed --sender scanner@lab --why "load test by mistake"
      sealbus dlq purge agents.research.request.dlq/0/3 --yes
    """
    settings = session.settings()
    session.announce()
    counts, selection = _plan(session, settings, selection)
    total = counts.total()
    if dry_run or not total:
        _show_plan(session, counts)
        return 0
    if not yes:
        for line in bars(("REASON", "TYPE", "GROUP"), counts):
            click.echo(line, err=True)
        click.confirm(f"Purge {total} dead letters?", abort=True, err=True)

    async def body(interrupts: Interrupts) -> int:
        stop = asyncio.Event()
        interrupts.soften = stop.set
        async with session.open(settings) as transport:
            await prepare_journal(transport, settings)
            journal = Journal(transport, settings, SystemClock(), verb="purge", why=why)
            with Progress(total, unit="purged", alone=True) as progress:
                result = await Purge(transport, settings, selection).run(
                    journal, stop=stop, on_progress=lambda done: progress.show(done.purged, done.purged)
                )
        if session.as_json:
            print_json(result)
        click.echo(f"{result.purged} dead letters purged; {result.outcome}, run {result.run}", err=True)
        return 0

    return execute(body)


def _plan(
    session: CommandSession, settings: Settings, selection: Selection
) -> tuple[Counter[tuple[str, str, str]], Selection]:
    found: list[tuple[Counter[tuple[str, str, str]], Selection]] = []

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            await prepare_journal(transport, settings, create=False)
            meant = await pinned(transport, settings, selection)
            counts = await Purge(transport, settings, meant).plan()
            found.append((counts, meant))
            if not counts:
                await tell_near_misses(transport, settings, selection)
        return 0

    code = execute(body)
    if not found:
        raise click.exceptions.Exit(code)
    return found[0]


def _show_plan(session: CommandSession, counts: Counter[tuple[str, str, str]]) -> None:
    if session.as_json:
        for (reason, message_type, group), letters in counts.most_common():
            print_json({"reason": reason, "message_type": message_type, "group": group, "letters": letters})
    else:
        for line in bars(("REASON", "TYPE", "GROUP"), counts):
            click.echo(line)
    click.echo(f"{counts.total() or 'no'} dead letters would be purged", err=True)
