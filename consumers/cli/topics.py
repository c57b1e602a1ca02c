"""`sealbus topics list|apply|check`: the topics of a log, and those an app needs.

Owns the comparison of what there is with what is wanted. Does not own what is wanted (`bus.topology`) or creating it (the transport's admin).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from bus import durations
from bus.topics import read_topic
from bus.topology import group_topics, message_topics
from bus.transports.base import TopicSpec, Transport
from consumers.cli.outcomes import FAILED
from consumers.cli.printing import print_json, print_table
from consumers.cli.running import execute
from consumers.cli.session import Session, app_of, with_session

if TYPE_CHECKING:
    from bus.settings import Settings
    from consumers.app import App

__all__ = ["topics"]


class _Difference(NamedTuple):
    topic: str
    change: str
    detail: str
    short: bool
    """Something is missing or too little; more than is wanted is no drift."""


@click.group()
def topics() -> None:
    """List, create and compare topics.

    \b
    Examples:
      sealbus topics list
      sealbus topics apply agents:app --dry-run
      sealbus topics check agents:app
    """


@topics.command("list")
@click.option("--all", "everything", is_flag=True, help="Also topics of other namespaces, and those that are not the bus's.")
@with_session
def list_(session: Session, everything: bool) -> int:
    """List topics: what each is for, partitions, retention, records.

    \b
    Examples:
      sealbus topics list
      sealbus topics list --all --output json
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            rows = [
                await _describe(transport, spec)
                for name, spec in sorted((await transport.admin.topics()).items())
                if everything or _namespace_of(name) == settings.bus.namespace
            ]
        if session.as_json:
            for row in rows:
                print_json(row)
        else:
            print_table(("TOPIC", "KIND", "PARTITIONS", "RETENTION", "RECORDS"), [_cells(row) for row in rows])
        return 0

    return execute(body)


@topics.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@with_session
def apply(session: Session, target: str, dry_run: bool) -> int:
    """Create the topics that an app needs, and bring existing ones into line.

    Partitions are only ever added, and no topic is removed.

    \b
    Examples:
      sealbus topics apply agents:app --dry-run
      sealbus topics apply agents:app
    """
    app = app_of(target)
    settings = session.settings(app)

    async def body(_: object) -> int:
        async with session.open(settings, create=not dry_run) as transport:
            specs = _wanted(settings, app)
            differences = _compare(specs, await transport.admin.topics())
            if not dry_run:
                await transport.admin.create_topics(specs)
        _show(session, differences)
        click.echo(f"{len(specs)} topics wanted, {len(differences)} {'would be ' if dry_run else ''}changed", err=True)
        return 0

    return execute(body)


@topics.command()
@click.argument("target", metavar="MODULE:APP")
@with_session
def check(session: Session, target: str) -> int:
    """Compare the topics of the log with those that an app needs.

    Exit code 1 when one is missing, has too few partitions or keeps its records for too short a time.

    \b
    Examples:
      sealbus topics check agents:app
    """
    app = app_of(target)
    settings = session.settings(app)

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            specs = _wanted(settings, app)
            differences = _compare(specs, await transport.admin.topics())
        short = [difference for difference in differences if difference.short]
        _show(session, short)
        click.echo(f"{len(specs)} topics wanted, {len(short)} not as they should be", err=True)
        if short:
            click.echo(f"hint: `sealbus topics apply {target}` puts that right", err=True)
        return FAILED if short else 0

    return execute(body)


def _wanted(settings: Settings, app: App | None) -> Sequence[TopicSpec]:
    if app is None:
        return ()
    return [*message_topics(settings, sorted({kind.name for kind in app.registry})), *group_topics(settings, app.group)]


def _compare(specs: Sequence[TopicSpec], existing: Mapping[str, TopicSpec]) -> list[_Difference]:
    return [difference for spec in specs if (difference := _difference(spec, existing.get(spec.name))) is not None]


def _difference(wanted: TopicSpec, found: TopicSpec | None) -> _Difference | None:
    if found is None:
        return _Difference(wanted.name, "create", f"{wanted.partitions} partitions, kept {_time(wanted.retention_ms)}", short=True)
    details = []
    short = found.partitions < wanted.partitions
    if short:
        details.append(f"{found.partitions} -> {wanted.partitions} partitions")
    if found.retention_ms != wanted.retention_ms:
        details.append(f"kept {_time(found.retention_ms)} -> {_time(wanted.retention_ms)}")
        short = short or (found.retention_ms is not None and (wanted.retention_ms is None or found.retention_ms < wanted.retention_ms))
    if found.retention_bytes != wanted.retention_bytes:
        details.append(f"{_size(found.retention_bytes)} -> {_size(wanted.retention_bytes)}")
        short = short or (found.retention_bytes or 2**63) < (wanted.retention_bytes or 2**63)
    return _Difference(wanted.name, "change", "; ".join(details), short) if details else None


def _show(session: Session, differences: Sequence[_Difference]) -> None:
    if session.as_json:
        for difference in differences:
            print_json({"topic": difference.topic, "change": difference.change, "detail": difference.detail})
    elif differences:
        print_table(("TOPIC", "CHANGE", "DETAIL"), [difference[:3] for difference in differences])


async def _describe(transport: Transport, spec: TopicSpec) -> dict[str, object]:
    ranges = await transport.admin.ranges(spec.name)
    name = read_topic(spec.name)
    return {
        "topic": spec.name,
        "kind": name.kind if name is not None else "foreign",
        "partitions": spec.partitions,
        "retention_ms": spec.retention_ms,
        "records": sum(kept.end - kept.start for kept in ranges.values()),
    }


def _cells(row: dict[str, object]) -> list[object]:
    retention = row["retention_ms"]
    return [row["topic"], row["kind"], row["partitions"], _time(retention if isinstance(retention, int) else None), row["records"]]


def _namespace_of(topic: str) -> str:
    name = read_topic(topic)
    return name.namespace if name is not None else ""


def _time(ms: int | None) -> str:
    return "for ever" if ms is None else durations.text(ms / 1000)


def _size(count: int | None) -> str:
    return "any size" if count is None else f"{count} bytes"
