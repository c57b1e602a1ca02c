"""`sealbus topics list|apply|check`: the topics of a log, and those an app needs.

Owns the three verbs and their output. `bus.topics.specs` owns the wanted topics, `bus.transports.topic_settings` the
comparison, `consumers.operations.survey.drift` which differences matter, and the transport's admin carries out changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bus.clock import SystemClock
from bus.errors import ConfigurationError, NotPermittedError
from bus.nearest import nearest
from bus.telemetry.terminal import printable
from bus.topics.names import read_topic, reply_topic
from bus.topics.specs import message_topics, reply_topics
from bus.transports.base import Change, TopicSpec, Transport
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import execute
from consumers.cli.io.parameter_types import TEXT_ID
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.session import CommandSession, with_session
from consumers.cli.shell import VerbGroup
from consumers.operations.survey import drift
from consumers.worker.needed_topics import needed_topics

if TYPE_CHECKING:
    from bus.settings.schema import Settings
    from consumers.app.app import App

__all__ = ["topics", "wanted_topics"]

_workflows = click.option(
    "--workflow",
    "workflows",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also the topics of what this workflow sends; repeatable.",
)


@click.group(cls=VerbGroup)
def topics() -> None:
    """List, create and compare topics.

    \b
    Examples:
      sealbus topics list
      sealbus topics apply agents:app --dry-run
      sealbus topics check agents:app
    """


@topics.command("list")
@click.option(
    "--all", "everything", is_flag=True, help="Also topics of other namespaces, and those that are not the bus's."
)
@with_session
def list_(session: CommandSession, everything: bool) -> int:
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
@click.argument("targets", metavar="[MODULE:APP]...", nargs=-1)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    type=TEXT_ID,
    metavar="ID",
    help="The topic of answers to this agent; repeatable. Without MODULE:APP, only these topics.",
)
@_workflows
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@with_session
def apply(
    session: CommandSession,
    targets: tuple[str, ...],
    agents: tuple[str, ...],
    workflows: tuple[Path, ...],
    dry_run: bool,
) -> int:
    """Create the topics that apps need, and bring existing ones into line.

    These are all topics that an app, and the bus in its name, may read or append to. Partitions are only added, and no
    topic is removed. The bus's own agents are named by their ids. For an agent that only sends requests and handles
    nothing, give --agent.

    \b
    Examples:
      sealbus topics apply agents:app --dry-run
      sealbus topics apply orders:app billing:app
      sealbus topics apply workflow@sealbus --workflow research.json
      sealbus topics apply registry@sealbus
      sealbus topics apply --agent client@svc
    """
    # Whoever names something means that alone.
    apps = () if not targets and (agents or workflows) else session.apps(targets)
    if not apps and not agents and not workflows:
        raise click.UsageError("name an app, MODULE:APP, or an agent that only asks, --agent ID")
    settings, sent = session.settings(apps), _sent_by(workflows, apps)
    session.announce()

    async def body(_: object) -> int:
        async with session.open(settings, create=not dry_run) as transport:
            replies = reply_topics(settings, [reply_topic(settings.bus.namespace, agent) for agent in agents])
            specs = _distinct([*wanted_topics(settings, apps), *replies, *message_topics(settings, sent)])
            plan = await transport.admin.plan(specs)
            to_do = [change for change in plan if not change.by_hand]
            _warn(plan)
            _tell_cost(to_do)
            if to_do and not dry_run:
                # Another process reports its own changes.
                changed = set(await transport.admin.create_topics(specs))
                to_do = [change for change in to_do if change.topic in changed]
        _show_changes(session, to_do)
        count = len({change.topic for change in to_do})
        done = f"{count} {'would be ' if dry_run else ''}changed" if count else "nothing to do"
        click.echo(f"{len(specs)} topics wanted, {done}", err=True)
        return 0

    return execute(body)


@topics.command()
@click.argument("targets", metavar="[MODULE:APP]...", nargs=-1)
@_workflows
@with_session
def check(session: CommandSession, targets: tuple[str, ...], workflows: tuple[Path, ...]) -> int:
    """Compare the log with what apps need.

    Exit code 1 if a topic is missing or wrongly configured, if records or offsets are retained too briefly, if the
    broker creates unknown topics automatically, or if messages wait in a retry tier that was removed from the settings.

    \b
    Examples:
      sealbus topics check agents:app
      sealbus topics check orders:app billing:app --output json
    """
    apps = session.needed_apps(targets)
    settings, sent = session.settings(apps), _sent_by(workflows, apps)

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            specs = _distinct([*wanted_topics(settings, apps), *message_topics(settings, sent)])
            plan = await transport.admin.plan(specs)
            groups = sorted({app.group for app in apps})
            tiers = [tier for group in groups for tier in await drift.read_left_tiers(transport.admin, settings, group)]
            brokers, unread = await _brokers(transport)
        findings = [
            *drift.of_changes(plan, " ".join(targets)),
            *drift.of_settings(settings),
            *drift.of_brokers(brokers, settings),
            *drift.of_tiers(tiers),
        ]
        _show_findings(session, findings)
        if unread:
            click.echo(
                f"hint: whether brokers create topics by themselves or forget offsets was not checked: {unread}",
                err=True,
            )
        wrong = sum(finding.severity == "error" for finding in findings)
        click.echo(f"{len(specs)} topics wanted, {wrong or 'no'} findings", err=True)
        return FAILED if wrong else 0

    return execute(body)


def wanted_topics(settings: Settings, apps: Sequence[App]) -> Sequence[TopicSpec]:
    """Return the topics that *apps* need, each once."""
    return _distinct([spec for app in apps for spec in _wanted_by(settings, app)])


def _wanted_by(settings: Settings, app: App) -> Sequence[TopicSpec]:
    declared = app.declaration
    # A policy may want approvals: they need a mailbox, and topics of their own. Without its keys it is read elsewhere.
    if settings.policy.file:
        from bus.trust.opening import keyless
        from consumers.worker.host import trusting

        try:
            declared = trusting(declared, keyless(settings), SystemClock())
        except ConfigurationError as error:
            click.echo(f"hint: what the policy needs is left out: {printable(str(error))}", err=True)
    return needed_topics(settings, declared)


def _distinct(specs: Sequence[TopicSpec]) -> Sequence[TopicSpec]:
    return [*{spec.name: spec for spec in specs}.values()]


def _sent_by(workflows: Sequence[Path], apps: Sequence[App]) -> Sequence[str]:
    """Return the types that *workflows* send. Raises UsageError for an unknown type, so that a typo creates no
    topic."""
    if not workflows:
        return ()
    from bus.vocabulary import BUILT_IN
    from consumers.agents.workflows.definition import sent_by
    from consumers.cli.io.workflow_file import read_workflow

    known = BUILT_IN.names().union(*(app.registry.names() for app in apps))
    found: set[str] = set()
    for file in workflows:
        sent = set(sent_by(read_workflow(file)))
        if unknown := sorted(sent - known):
            raise click.BadParameter(
                f"{file} sends {printable(unknown[0])!r}, which is no built-in type and none of a named app"
                f"{nearest(unknown[0], known)}",
                param_hint="--workflow",
            )
        found |= sent
    return sorted(found)


def _tell_cost(plan: Sequence[Change]) -> None:
    """Print the cost of new topics for the brokers, before they are created."""
    new: dict[str, dict[str, str]] = {}
    for change in plan:
        if change.found is None:
            new.setdefault(change.topic, {})[change.setting] = change.wanted
    if new:
        partitions = sum(int(wanted["partitions"]) for wanted in new.values())
        replicas = sum(int(wanted["partitions"]) * int(wanted.get("replicas", "1")) for wanted in new.values())
        copies = f", {replicas} with their replicas" if replicas > partitions else ""
        click.echo(f"{len(new)} topics are new: {partitions} partitions{copies}", err=True)


async def _brokers(transport: Transport) -> tuple[Mapping[str, Mapping[str, str]], str]:
    """Return the brokers' settings, or none with the reason: reading them needs a right on the whole cluster."""
    try:
        return await transport.admin.brokers(), ""
    except NotPermittedError as error:
        return {}, str(error)


def _show_changes(session: CommandSession, changes: Sequence[Change]) -> None:
    if session.as_json:
        for change in changes:
            print_json(
                {
                    "topic": change.topic,
                    "change": _kind(change),
                    "setting": change.setting,
                    "found": change.found,
                    "wanted": change.wanted,
                    "detail": drift.detail(change),
                }
            )
    elif changes:
        rows = [
            (topic, _kind(items[0]), "; ".join(map(drift.detail, items)))
            for topic, items in drift.changes_by_topic(changes)
        ]
        print_table(("TOPIC", "CHANGE", "DETAIL"), rows)


def _kind(change: Change) -> str:
    return "create" if change.found is None else "change"


def _warn(plan: Sequence[Change]) -> None:
    """Print one line per warning, with its topics."""
    topics_by_note: dict[str, list[str]] = {}
    for change in plan:
        if change.note:
            topics_by_note.setdefault(f"{drift.detail(change)}: {change.note}", []).append(change.topic)
    for note, names in topics_by_note.items():
        click.echo(f"warning: {', '.join(names)}: {note}", err=True)


def _show_findings(session: CommandSession, findings: Sequence[drift.TopicFinding]) -> None:
    if session.as_json:
        for finding in findings:
            print_json(finding._asdict())
    elif findings:
        rows = [
            (finding.topic or finding.setting, finding.severity, finding.detail, finding.advice) for finding in findings
        ]
        print_table(("TOPIC OR SETTING", "FINDING", "DETAIL", "WHAT TO DO"), rows)


async def _describe(transport: Transport, spec: TopicSpec) -> dict[str, object]:
    ranges = await transport.admin.ranges(spec.name)
    name = read_topic(spec.name)
    return {
        "topic": spec.name,
        "kind": name.kind if name is not None else "foreign",
        "partitions": spec.partitions,
        "retention_ms": spec.retention_ms,
        "records": sum(duration_text.end - duration_text.start for duration_text in ranges.values()),
    }


def _cells(row: dict[str, object]) -> list[object]:
    retention = row["retention_ms"]
    return [
        row["topic"],
        row["kind"],
        row["partitions"],
        drift.duration_text(retention if isinstance(retention, int) else None),
        row["records"],
    ]


def _namespace_of(topic: str) -> str:
    name = read_topic(topic)
    return name.namespace if name is not None else ""
