"""`sealbus trace CONVERSATION`: the messages of one conversation, their outcomes and their causes.

Owns the options and the output; `consumers.operations.lineage` reads and judges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec

from bus.clock import SystemClock
from bus.protocol.identifiers import is_text_id
from bus.telemetry.terminal import printable
from consumers.cli.blame import risk_in
from consumers.cli.interrupts import execute
from consumers.cli.io.parameter_types import OneOf
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.io.progress import Progress
from consumers.cli.session import (
    CommandSession,
    app_option,
    jwks_option,
    keys_to_believe,
    registry_of,
    whole_log_option,
    with_session,
)
from consumers.operations.audit.timeline import with_audit
from consumers.operations.lineage.timeline import Timeline, mermaid_of, timeline_of, tree_lines
from consumers.operations.survey.look_up import looked_in_words, trace_up

__all__ = ["trace"]

_OUTPUTS: Final = ("table", "json", "mermaid")


@click.command()
@click.argument("conversation", metavar="CONVERSATION")
@jwks_option
@whole_log_option
@app_option
@with_session
def trace(
    session: CommandSession, *, conversation: str, jwks: Path | None, whole_log: bool, targets: tuple[str, ...]
) -> int:
    """Show a conversation: its messages in the order of time, and the tree of causes.

    Marks show the outcome of a message: dead letters, retries, redrives, and invalid messages. Messages that are
    deleted from the log come from the audit, if there is one. CONVERSATION may be the id of one of its messages.

    \b
    Examples:
      sealbus trace 019b7a3c-4c00-7000-8000-000000000001
      sealbus trace order-1842 --output json
      sealbus trace order-1842 --output mermaid > order.mmd

    \b
    Exit codes: 0 shown, 2 there is no such conversation.
    """
    if not is_text_id(conversation):
        raise click.BadParameter("is not 1 to 256 characters without control characters", param_hint="CONVERSATION")
    apps = session.apps(targets)
    settings = session.settings(apps, jwks=jwks)
    registry, verifier = registry_of(apps), keys_to_believe(settings, SystemClock())
    namespace, output = settings.bus.namespace, click.get_current_context().params["output"]

    async def body(_: object) -> int:
        with Progress(None, unit="records", alone=True) as progress:
            async with session.open(settings) as transport:
                found = await trace_up(
                    transport, settings, conversation, whole=whole_log, on_progress=lambda read: progress.show(0, read)
                )
        copies, looked = found.search.copies, looked_in_words(found.search.looked, conversation)
        timeline = timeline_of(copies, namespace=namespace, risk_of=risk_in(registry), verifier=verifier)
        timeline = with_audit(timeline, found.audited)
        if found.audit_error:
            click.echo(f"hint: {printable(found.audit_error)}; this is what the log has", err=True)
        if not timeline.events:
            raise click.BadParameter(
                f"there is no conversation {printable(conversation)} in namespace {namespace}: {looked}",
                param_hint="CONVERSATION",
            )
        if not found.search.looked.is_whole:
            click.echo(f"hint: {looked}", err=True)
        _print(timeline, output)
        return 0

    return execute(body)


for _parameter in trace.params:
    if _parameter.name == "output":
        _parameter.type = OneOf(_OUTPUTS)


def _print(timeline: Timeline, output: str) -> None:
    if output == "json":
        for event in timeline.events:
            print_json(msgspec.structs.asdict(event))
    elif output == "mermaid":
        for line in mermaid_of(timeline):
            click.echo(line)
    else:
        print_table(
            ("N", "TIME", "SENDER", "RECIPIENT", "TYPE", "MESSAGE", "MARKS"),
            [
                (
                    event.number,
                    event.timestamp,
                    event.sender,
                    event.recipient or "-",
                    event.message_type,
                    event.message_id,
                    ", ".join(event.marks) or "-",
                )
                for event in timeline.events
            ],
        )
        click.echo()
        for line in tree_lines(timeline):
            click.echo(printable(line))
