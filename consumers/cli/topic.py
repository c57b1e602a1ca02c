"""`sealbus topic list|apply`: the topics of a log, and those that apps need.

`consumers.worker.wanted_topics` owns the wanted topics, `bus.transports.topic_settings` the comparison, and the
transport's admin carries out changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError
from bus.nearest import nearest
from bus.telemetry.terminal import printable
from bus.topics.names import read_topic, reply_topic
from bus.topics.specs import message_topics, reply_topics
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.io.parameter_types import TEXT_ID
from consumers.cli.session import CommandSession, changing, verb
from consumers.cli.shell import VerbGroup
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.operations.survey import drift
from consumers.operations.survey.drift import (
    TopicChange,
    TopicRow,
    change_rows,
    changes_on_one_line,
    cost_of,
    warnings_of,
)
from consumers.worker.wanted_topics import distinct_topics, wanted_topics

if TYPE_CHECKING:
    from consumers.app.app import App

__all__ = ["topic", "wanted_topics"]

_NOTE_S: Final = 2.0


@click.group(cls=VerbGroup)
def topic() -> None:
    """List topics, and create those that apps need.

    \b
    Examples:
      sealbus topic list
      sealbus topic apply --dry-run
      sealbus topic apply desk.agent:app --why "release 1.4"
    """


@topic.command("list")
@click.option("--all", "everything", is_flag=True, help="Also topics of other namespaces and of other programs.")
@verb(TopicRow)
async def list_(session: CommandSession, *, everything: bool) -> VerbResult:
    """List topics: what each is for, partitions, retention, records.

    \b
    Examples:
      sealbus topic list
      sealbus topic list --all -o json
    """
    settings, rows = session.settings(), []
    async with session.open(settings) as transport:
        for name, spec in sorted((await transport.admin.topics()).items()):
            read = read_topic(name)
            if everything or (read is not None and read.namespace == settings.bus.namespace):
                ranges = (await transport.admin.ranges(name)).values()
                rows.append(
                    TopicRow(
                        topic=name,
                        kind="foreign" if read is None else read.kind,
                        partitions=spec.partitions,
                        retention_ms=spec.retention_ms,
                        records=sum(each.end - each.start for each in ranges),
                    )
                )
    return Listing(
        rows,
        {
            "TOPIC": "topic",
            "KIND": "kind",
            "PARTITIONS": "partitions",
            "RETENTION": lambda row: drift.duration_text(row.retention_ms),
            "RECORDS": "records",
        },
        empty=f"no topics in namespace {settings.bus.namespace}; `sealbus topic apply` creates those of an app",
    )


@topic.command()
@click.argument("targets", metavar="[MODULE:APP]...", nargs=-1)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    type=TEXT_ID,
    metavar="ID",
    help="The topic of answers to this agent; repeatable. Without MODULE:APP, only these topics.",
)
@click.option(
    "--workflow",
    "workflows",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also the topics of what this workflow sends; repeatable.",
)
@changing
@verb(TopicChange)
async def apply(
    session: CommandSession,
    *,
    targets: tuple[str, ...],
    agents: tuple[str, ...],
    workflows: tuple[Path, ...],
    why: str,
    dry_run: bool,
    yes: bool,
) -> VerbResult:
    """Create the topics that apps need, and change existing ones to what is needed.

    These are all topics that an app, and the bus in its name, may read or append to. Partitions are only added, and no
    topic is removed. Give the bus's own agents by their ids: workflow@sealbus, registry@sealbus, gateway@sealbus,
    permits@svc. For an agent that only sends requests and handles nothing, give --agent. Changes of existing topics ask
    for a confirmation.

    \b
    Examples:
      sealbus topic apply --dry-run
      sealbus topic apply desk.agent:app billing.agent:app
      sealbus topic apply workflow@sealbus --workflow research.json
      sealbus topic apply --agent client@svc
    """
    # Whoever names something means that alone.
    apps = () if not targets and (agents or workflows) else session.apps(targets)
    if not apps and not agents and not workflows:
        raise click.UsageError("name an app, MODULE:APP, or an agent that only sends requests, --agent ID")
    settings, sent = session.settings(apps), _sent_by(workflows, apps)
    session.announce()
    wanted = wanted_topics(settings, [app.declaration for app in apps], on_left_out=session.hint)
    async with session.open(settings, create=not dry_run) as transport:
        replies = reply_topics(settings, [reply_topic(settings.bus.namespace, agent) for agent in agents])
        specs = distinct_topics([*wanted, *replies, *message_topics(settings, sent)])
        plan = await transport.admin.plan(specs)
        to_do = [change for change in plan if not change.by_hand]
        for text in (*warnings_of(plan), *cost_of(to_do)):
            session.note(text)
        changed = sorted({change.topic for change in to_do if change.found is not None})
        if changed and not dry_run:
            named = ", ".join(changed[:5]) + (", ..." if changed[5:] else "")
            session.confirm(f"Change {len(changed)} existing topics ({named})?", yes=yes)
        if to_do and not dry_run:
            # Another process reports its own changes.
            done = set(await transport.admin.create_topics(specs))
            to_do = [change for change in to_do if change.topic in done]
        if changed and not dry_run:
            try:
                await prepare_journal(transport, settings)
                # The topics are there: nobody waits for long where the right to write is missing.
                publish = msgspec.structs.replace(settings.publish, timeout_s=_NOTE_S)
                hurried = msgspec.structs.replace(settings, publish=publish)
                await Journal(transport, hurried, SystemClock(), verb="topics", why=why).note(
                    "changed", topics=changed, why=why
                )
            except BusError as error:
                # A user may have the right to look after topics and none to write to them.
                session.note(f"warning: the topics are changed, and the journal does not name it: {error}")
    count = len({change.topic for change in to_do})
    ending = f"{count} {'would be ' if dry_run else ''}created or changed" if count else "nothing to do"
    rows = change_rows(to_do)
    columns = {"TOPIC": "topic", "CHANGE": "change", "DETAIL": "detail"}
    listed = rows if session.as_json else changes_on_one_line(rows)
    return Listing(listed, columns, notes=[f"{len(specs)} topics wanted, {ending}"])


def _sent_by(workflows: Sequence[Path], apps: Sequence[App]) -> Sequence[str]:
    """Return the types that *workflows* send. Raises UsageError for an unknown type: a typo creates no topic."""
    if not workflows:
        return ()
    from bus.vocabulary import BUILT_IN
    from consumers.agents.workflows.definition import read_workflow, sent_by

    known = BUILT_IN.names().union(*(app.registry.names() for app in apps))
    found: set[str] = set()
    for file in workflows:
        sent = set(sent_by(read_workflow(file)))
        if unknown := sorted(sent - known):
            raise click.BadParameter(
                f"{file} sends {printable(unknown[0])!r}, which is neither a built-in type nor one of a named app"
                f"{nearest(unknown[0], known)}",
                param_hint="--workflow",
            )
        found |= sent
    return sorted(found)
