"""`sealbus group list|show|skip-lost`: which group reads what, and how far behind it is."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError
from bus.nearest import nearest
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import GroupInfo, PartitionRange, Transport
from consumers.cli.io.known_names import complete_groups
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.session import CommandSession, changing, verb
from consumers.cli.shell import VerbGroup
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.operations.survey.group_rows import (
    GroupPartition,
    GroupSummary,
    LostPartition,
    group_partitions,
    lost_notes,
    lost_partitions,
)
from consumers.operations.survey.group_state import group_ranges, state_of_group
from consumers.operations.survey.survey import opened_surveyor
from consumers.operations.survey.verdicts import of_group

__all__ = ["group"]

_LOST_COLUMNS: Final = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "COMMITTED": "committed",
    "START": "start",
    "END": "end",
}
_group = click.argument("name", metavar="GROUP", shell_complete=complete_groups)


@click.group(cls=VerbGroup)
def group() -> None:
    """Show the groups, the topics they read, and their lag.

    \b
    Examples:
      sealbus group list
      sealbus group show researcher-svc-1c2d3e4f
      sealbus group skip-lost researcher-svc-1c2d3e4f --why "away for a month"
    """


@group.command("list")
@verb(GroupSummary)
async def list_(session: CommandSession) -> VerbResult:
    """List the groups. LAG counts stored records that the group has not finished.

    \b
    Examples:
      sealbus group list
      sealbus group list -o json
    """
    settings = session.settings()
    async with session.open(settings) as transport:
        found, ranges = await _seen(transport, settings, None)
    rows, notes = [], []
    for info in found:
        state, lost = state_of_group(info, ranges), list(lost_partitions(info, ranges))
        count = len(list(group_partitions(info, ranges)))
        notes += lost_notes(info.name, lost)
        if count:
            rows.append(
                GroupSummary(
                    group=state.name,
                    workers=state.members,
                    partitions=count,
                    lag=state.lag,
                    most_behind=state.worst,
                    lost_partitions=len(lost),
                )
            )
    return Listing(
        rows,
        {
            "GROUP": "group",
            "WORKERS": "workers",
            "PARTITIONS": "partitions",
            "LAG": "lag",
            "MOST BEHIND": "most_behind",
        },
        empty="no groups found. `sealbus run` starts the first one",
        notes=notes,
    )


@group.command()
@_group
@verb(GroupPartition)
async def show(session: CommandSession, *, name: str) -> VerbResult:
    """Show the partitions of one group: who reads each, the committed offset, the end and the lag.

    \b
    Examples:
      sealbus group show researcher-svc-1c2d3e4f
      sealbus group show researcher-svc-1c2d3e4f -o json
    """
    settings = session.settings()
    async with session.open(settings) as transport:
        (info,), ranges = await _seen(transport, settings, name)
        clock = SystemClock()
        async with opened_surveyor(transport, settings, clock) as surveyor:
            state = await surveyor.look_at_group(info)
    rows = list(group_partitions(info, ranges))
    for found in () if state is None else of_group(state, clock.now_ms()):
        session.note(printable(found.text) + (f" -> {printable(found.cure)}" if found.state != "ok" else ""))
    return Listing(
        rows,
        {
            "TOPIC": "topic",
            "PARTITION": "partition",
            "OWNER": "owner",
            "COMMITTED": "committed",
            "END": "end",
            "LAG": "lag",
        },
        notes=lost_notes(info.name, list(lost_partitions(info, ranges))),
    )


@group.command("skip-lost")
@_group
@changing
@verb(LostPartition)
async def skip_lost(session: CommandSession, *, name: str, why: str, dry_run: bool, yes: bool) -> VerbResult:
    """Continue GROUP at the oldest stored record where retention deleted its next records.

    A worker does not start in such a partition, because messages may be lost. Use this after you have accepted the
    loss. Stop the workers of the group first. No stored record is skipped.

    \b
    Examples:
      sealbus group skip-lost researcher-svc-1c2d3e4f --dry-run
      sealbus group skip-lost researcher-svc-1c2d3e4f --why "away for a month"
    """
    settings = session.settings()
    session.announce()
    async with session.open(settings) as transport:
        (info,), ranges = await _seen(transport, settings, name)
        lost = list(lost_partitions(info, ranges))
        if not lost or dry_run:
            return Listing(
                lost, _LOST_COLUMNS, notes=[f"{printable(name)}: {len(lost) or 'no'} partitions would be skipped"]
            )
        session.confirm(f"Continue {printable(name)} at the oldest record of {len(lost)} partitions?", yes=yes)
        await prepare_journal(transport, settings)
        await NamespaceGroups(transport.admin, settings.bus.namespace).move(
            name, {(each.topic, each.partition): each.start for each in lost}
        )
        journal = Journal(transport, settings, SystemClock(), verb="groups", why=why)
        await journal.note("skipped", group=name, why=why, places=[msgspec.to_builtins(each) for each in lost])
    done = f"{printable(name)}: skipped the deleted records in {len(lost)} partitions"
    return Listing(lost, _LOST_COLUMNS, notes=[done])


async def _seen(
    transport: Transport, settings: Settings, name: str | None
) -> tuple[list[GroupInfo], dict[tuple[str, int], PartitionRange]]:
    """Return the groups, or the one called *name*, and the ranges of their topics. Raises BusError."""
    infos = list(await NamespaceGroups(transport.admin, settings.bus.namespace).infos())
    chosen = infos if name is None else [info for info in infos if info.name == name]
    if name is not None and not chosen:
        error = BusError(f"no group {name!r}{nearest(name, [info.name for info in infos])}")
        error.add_note("`sealbus group list` shows them; a group exists once a worker has joined it")
        raise error
    return chosen, await group_ranges(transport, chosen, settings.bus.namespace)
