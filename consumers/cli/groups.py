"""`sealbus groups [GROUP]`: which group reads what, and how far behind.

With `--skip-lost`, it moves a group past deleted records; `--park` is in `consumers.cli.park`. Owns joining members,
commits and ends into rows, and finding commits that point at deleted records. The transport's admin owns the groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError
from bus.nearest import nearest
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import GroupInfo, PartitionRange
from consumers.cli.interrupts import execute
from consumers.cli.io.known_names import complete_groups
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.park import park
from consumers.cli.session import CommandSession, with_session
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.operations.survey.survey import group_ranges, state_of_group, topics_of

__all__ = ["groups"]


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of one group; *lag* counts stored records that are not settled."""

    group: str
    topic: str
    partition: int
    owner: str | None
    committed: int | None
    start: int
    end: int
    lag: int


class _Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose committed offset was deleted; *start* is the oldest stored offset."""

    group: str
    topic: str
    partition: int
    committed: int
    start: int
    end: int


@click.command()
@click.argument("group", required=False, shell_complete=complete_groups)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Continue GROUP at the oldest stored record where retention deleted its next records.",
)
@click.option(
    "--park",
    "location",
    metavar="PLACE",
    help="Dead-letter the message at TOPIC/PARTITION/OFFSET for GROUP instead of running it.",
)
@click.option("--why", metavar="TEXT", default="", help="Why, for the journal.")
@click.option("--dry-run", is_flag=True, help="With --skip-lost or --park: show where, and change nothing.")
@click.option("--yes", is_flag=True, help="With --skip-lost or --park: do not ask.")
@with_session
def groups(
    session: CommandSession,
    group: str | None,
    *,
    skip_lost: bool,
    location: str | None,
    why: str,
    dry_run: bool,
    yes: bool,
) -> int:
    """Show groups, one line each; with GROUP the owner, committed offset, end and lag of each partition.

    LAG counts the stored records that the group has not settled yet.

    A worker does not start if retention has deleted the next records of its group, because messages may be lost. After
    you have accepted the loss, --skip-lost continues at the oldest stored record. The group's workers must be stopped.
    No stored record is skipped.

    --park dead-letters a message that the group has not settled, whether its workers run or not: when a worker reaches
    it, it writes the dead letter (rejected, Parked) and continues. The dead letter is parked: only `sealbus dlq redrive
    --force` sends it back.

    \b
    Examples:
      sealbus groups
      sealbus groups researcher-svc-1c2d3e4f --output json
      sealbus groups researcher-svc-1c2d3e4f --skip-lost --why "away for a month"
      sealbus groups researcher-svc-1c2d3e4f --park agents.research.request/2/4711 --why "hangs the parser, ticket 12"
    """
    settings = session.settings()
    if skip_lost or location is not None:
        group = _named(group, skip_lost=skip_lost, location=location, why=why)
        session.announce()
        change = _skip if location is None else partial(park, location=location)
        return change(session, settings, group, why=why, dry_run=dry_run, yes=yes)
    return _list(session, settings, group)


def _named(group: str | None, *, skip_lost: bool, location: str | None, why: str) -> str:
    """Return the group to change; raise UsageError for options that do not fit together."""
    if skip_lost and location is not None:
        raise click.UsageError("one at a time: --skip-lost or --park")
    if group is None:
        raise click.UsageError(f"{'--skip-lost' if skip_lost else '--park'} needs a GROUP")
    if location is not None and not why:
        raise click.UsageError("--park needs --why TEXT, for the journal")
    return group


def _list(session: CommandSession, settings: Settings, group: str | None) -> int:
    async def body(_: object) -> int:
        chosen, ranges = await _seen(session, settings, group)
        brief: list[tuple[object, ...]] = []
        for info in chosen:
            rows = list(_rows(info, ranges))
            if not rows and group is None:
                continue
            if session.as_json:
                for row in rows:
                    print_json(row)
            elif group is None:
                state = state_of_group(info, ranges)
                brief.append((state.name, state.members, len(rows), state.lag, state.worst or "-"))
            else:
                _print(info, rows)
            _warn(info, list(_lost(info, ranges)))
        if brief:
            print_table(("GROUP", "MEMBERS", "PARTITIONS", "LAG", "WORST TOPIC"), brief)
            click.echo("hint: `sealbus groups GROUP` shows its partitions", err=True)
        if not chosen:
            click.echo("no group has read anything yet; `sealbus worker MODULE:APP` starts one", err=True)
        return 0

    return execute(body)


async def _seen(
    session: CommandSession, settings: Settings, group: str | None
) -> tuple[list[GroupInfo], dict[tuple[str, int], PartitionRange]]:
    async with session.open(settings) as transport:
        chosen = _choose(await NamespaceGroups(transport.admin, settings.bus.namespace).infos(), group)
        return chosen, await group_ranges(transport, chosen, settings.bus.namespace)


def _skip(session: CommandSession, settings: Settings, group: str, *, why: str, dry_run: bool, yes: bool) -> int:
    lost: list[_Lost] = []

    async def look(_: object) -> int:
        (info,), ranges = await _seen(session, settings, group)
        lost.extend(_lost(info, ranges))
        return 0

    async def move(_: object) -> int:
        async with session.open(settings) as transport:
            await prepare_journal(transport, settings)
            groups = NamespaceGroups(transport.admin, settings.bus.namespace)
            await groups.move(group, {(each.topic, each.partition): each.start for each in lost})
            journal = Journal(transport, settings, SystemClock(), verb="groups", why=why)
            await journal.note("skipped", group=group, why=why, places=[msgspec.to_builtins(each) for each in lost])
        click.echo(f"moved in {len(lost)} partitions", err=True)
        return 0

    code = execute(look)
    if code:
        return code
    _print_lost(session, lost)
    if not lost or dry_run:
        click.echo(f"would be moved in {len(lost) or 'no'} partitions", err=True)
        return 0
    if not yes:
        click.confirm(f"Let {printable(group)} go on at START in {len(lost)} partitions?", abort=True, err=True)
    return execute(move)


def _lost(info: GroupInfo, ranges: Mapping[tuple[str, int], PartitionRange]) -> Iterator[_Lost]:
    for location, committed in sorted(info.committed.items()):
        retained = ranges.get(location)
        if retained is not None and not retained.start <= committed <= retained.end:
            yield _Lost(
                group=info.name,
                topic=location[0],
                partition=location[1],
                committed=committed,
                start=retained.start,
                end=retained.end,
            )


def _warn(info: GroupInfo, lost: Sequence[_Lost]) -> None:
    """Warn about a group that has lost records and has stopped, which the lag does not show."""
    if lost:
        first = lost[0]
        click.echo(
            f"{printable(info.name)}: in {len(lost)} partitions what it would read next is not kept, as in "
            f"{first.topic}/{first.partition} "
            f"(committed {first.committed}, kept {first.start} to {first.end}); no worker reads on there before "
            "--skip-lost",
            err=True,
        )


def _print_lost(session: CommandSession, lost: Sequence[_Lost]) -> None:
    if session.as_json:
        for each in lost:
            print_json(each)
    elif lost:
        cells = [(each.topic, each.partition, each.committed, each.start, each.end) for each in lost]
        print_table(("TOPIC", "PARTITION", "COMMITTED", "START", "END"), cells)


def _choose(infos: Sequence[GroupInfo], group: str | None) -> list[GroupInfo]:
    if group is None:
        return list(infos)
    chosen = [info for info in infos if info.name == group]
    if not chosen:
        names = [info.name for info in infos]
        error = BusError(f"there is no group {group!r}{nearest(group, names)}")
        error.add_note("`sealbus groups` lists them; a group exists once a worker has joined it")
        raise error
    return chosen


def _rows(info: GroupInfo, ranges: Mapping[tuple[str, int], PartitionRange]) -> Iterator[_Row]:
    owners = {location: member for member, locations in info.members.items() for location in locations}
    topics = topics_of(info)
    # Include partitions without a commit: their records are not settled either.
    for location in sorted(location for location in ranges if location[0] in topics):
        retained, committed = ranges[location], info.committed.get(location)
        lag = retained.end - max(retained.start, retained.start if committed is None else committed)
        yield _Row(
            group=info.name,
            topic=location[0],
            partition=location[1],
            owner=owners.get(location),
            committed=committed,
            start=retained.start,
            end=retained.end,
            lag=max(0, lag),
        )


def _print(info: GroupInfo, rows: list[_Row]) -> None:
    click.echo(f"{info.name}: {len(info.members)} members, lag {sum(row.lag for row in rows)}")
    cells = [
        (row.topic, row.partition, row.owner or "-", "-" if row.committed is None else row.committed, row.end, row.lag)
        for row in rows
    ]
    print_table(("TOPIC", "PARTITION", "OWNER", "COMMITTED", "END", "LAG"), cells)
    click.echo()
