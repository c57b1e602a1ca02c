"""`sealbus groups [GROUP]`: who reads what, and how far behind.

Owns joining members, commits and ends into rows. Does not own groups themselves (the transport's admin).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click
import msgspec

from bus.errors import BusError, TopicMissingError
from bus.topics import read_topic
from bus.transports.base import GroupInfo, PartitionRange, Transport
from consumers.cli.printing import print_json, print_table
from consumers.cli.running import execute
from consumers.cli.session import Session, nearest, with_session

__all__ = ["groups"]


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of one group; *lag* counts what is not settled."""

    group: str
    topic: str
    partition: int
    owner: str | None
    committed: int | None
    end: int
    lag: int


@click.command()
@click.argument("group", required=False)
@with_session
def groups(session: Session, group: str | None) -> int:
    """Show groups: members, and per partition its owner, committed offset, end and lag.

    LAG counts the records that the group has not settled yet.

    \b
    Examples:
      sealbus groups
      sealbus groups researcher-svc-1c2d3e4f --output json
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            chosen = _choose(await transport.admin.groups(), group)
            ranges = await _ranges(transport, chosen, settings.bus.namespace)
        for info in chosen:
            rows = list(_rows(info, ranges))
            if not rows and group is None:
                continue
            if session.as_json:
                for row in rows:
                    print_json(row)
            else:
                _print(info, rows)
        if not chosen:
            click.echo("no group has read anything yet; `sealbus worker MODULE:APP` starts one", err=True)
        return 0

    return execute(body)


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


async def _ranges(transport: Transport, infos: list[GroupInfo], namespace: str) -> dict[tuple[str, int], PartitionRange]:
    places = {place for info in infos for held in (info.committed, *info.members.values()) for place in held}
    ranges = {}
    for topic in sorted({topic for topic, _ in places}):
        name = read_topic(topic)
        if name is None or name.namespace != namespace:
            continue
        try:
            found = await transport.admin.ranges(topic)
        except TopicMissingError:
            continue
        ranges.update({(topic, partition): kept for partition, kept in found.items()})
    return ranges


def _rows(info: GroupInfo, ranges: Mapping[tuple[str, int], PartitionRange]) -> Iterator[_Row]:
    owners = {place: member for member, places in info.members.items() for place in places}
    for place in sorted({*owners, *info.committed}):
        if place not in ranges:
            continue
        kept, committed = ranges[place], info.committed.get(place)
        lag = kept.end - max(kept.start, kept.start if committed is None else committed)
        yield _Row(
            group=info.name, topic=place[0], partition=place[1], owner=owners.get(place), committed=committed, end=kept.end, lag=max(0, lag)
        )


def _print(info: GroupInfo, rows: list[_Row]) -> None:
    click.echo(f"{info.name}: {len(info.members)} members, lag {sum(row.lag for row in rows)}")
    cells = [(row.topic, row.partition, row.owner or "-", "-" if row.committed is None else row.committed, row.end, row.lag) for row in rows]
    print_table(("TOPIC", "PARTITION", "OWNER", "COMMITTED", "END", "LAG"), cells)
    click.echo()
