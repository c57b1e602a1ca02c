"""`sealbus trace CONVERSATION|MESSAGE_ID`: the messages of one conversation, their outcomes and their causes.

`consumers.operations.lineage` reads and judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from bus.clock import SystemClock
from bus.errors import BusError
from bus.protocol.identifiers import is_text_id
from bus.telemetry.terminal import printable
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.io.progress import Progress
from consumers.cli.session import (
    CommandSession,
    app_option,
    risk_in,
    trusted_keys,
    trusted_keys_option,
    verb,
    whole_log_option,
)
from consumers.cli.shell import Command
from consumers.operations.lineage.timeline import Timeline, TimelineEvent, mermaid_of, tree_lines
from consumers.operations.survey.look_up import looked_in_words, timeline_of_traced, trace_up

__all__ = ["trace"]


@click.command(cls=Command)
@click.argument("conversation", metavar="CONVERSATION|MESSAGE_ID")
@trusted_keys_option
@whole_log_option
@app_option
@verb(TimelineEvent, forms=("mermaid",))
async def trace(
    session: CommandSession, *, conversation: str, jwks: Path | None, whole_log: bool, targets: tuple[str, ...]
) -> VerbResult | int:
    """Show a conversation: its messages in the order of time, and the tree of causes.

    Marks show the outcome of a message: dead letters, retries, redrives, and invalid messages. Messages that are
    deleted from the log come from the audit, if there is one.

    \b
    Examples:
      sealbus trace 019b7a3c-4c00-7000-8000-000000000001
      sealbus trace order-1842 -o json
      sealbus trace order-1842 -o mermaid > order.mmd

    \b
    Exit codes: 0 shown, 1 no such conversation.
    """
    if not is_text_id(conversation):
        raise click.BadParameter("is not 1 to 256 characters without control characters", param_hint="CONVERSATION")
    apps = session.apps(targets)
    settings = session.settings(apps, jwks=jwks)
    verifier = trusted_keys(settings, SystemClock())
    with Progress(None, unit="records", alone=True) as progress:
        async with session.open(settings) as transport:
            found = await trace_up(
                transport, settings, conversation, whole=whole_log, on_progress=lambda read: progress.show(0, read)
            )
            risk_of = risk_in(await session.types_in(transport, settings, apps))
    looked = looked_in_words(found.search.looked, conversation)
    timeline = timeline_of_traced(found, namespace=settings.bus.namespace, risk_of=risk_of, verifier=verifier)
    if found.audit_error:
        session.note(f"hint: {printable(found.audit_error)}; this is what the log has")
    if found.is_cut:
        session.note(
            f"hint: the newest {len(found.audited):,} records; all: sealbus audit export --conversation {conversation}"
        )
    if not timeline.events:
        raise BusError(f"no conversation {conversation} in namespace {settings.bus.namespace}: {looked}")
    if not found.search.looked.is_whole:
        session.note(f"hint: {looked}")
    if session.form == "mermaid":
        for line in mermaid_of(timeline):
            click.echo(line)
        return 0
    tree = _tree(timeline) if not session.as_json else ()
    return Listing(
        timeline.events,
        {
            "N": "number",
            "TIME": "timestamp",
            "SENDER": "sender",
            "RECIPIENT": "recipient",
            "TYPE": "message_type",
            "MESSAGE": "message_id",
            "MARKS": "marks",
        },
        below=tree,
    )


def _tree(timeline: Timeline) -> Iterator[str]:
    yield ""
    for line in tree_lines(timeline):
        yield printable(line)
