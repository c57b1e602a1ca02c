"""`sealbus docs asyncapi MODULE:APP`: documents that other tools read.

Owns the verb; `bus.schemas.asyncapi` builds the document.
"""

from __future__ import annotations

from typing import IO

import click
import msgspec

from bus.redaction import redacted
from bus.schemas.asyncapi import asyncapi_of
from consumers.cli.io.printing import encode_json
from consumers.cli.session import CommandSession, with_session
from consumers.cli.shell import VerbGroup

__all__ = ["docs"]


@click.group(cls=VerbGroup)
def docs() -> None:
    """Write documents about an app for other tools.

    \b
    Examples:
      sealbus docs asyncapi agents:app > asyncapi.json
    """


@docs.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("--title", help="What the document is about.  [default: the agent's id]")
@click.option("--document-version", default="1.0.0", show_default=True, help="The version of the document.")
@click.option("--to", "file", type=click.File("w", lazy=True), default="-", help="A file instead of standard output.")
@with_session
def asyncapi(
    session: CommandSession, target: str | None, title: str | None, document_version: str, file: IO[str]
) -> int:
    """Write the AsyncAPI 3.0 document of an app: its topics, messages, and the types it receives and sends.

    \b
    Examples:
      sealbus docs asyncapi agents:app > asyncapi.json
      sealbus docs asyncapi agents:app --bus kafka://kafka:9092 --title "Review agents" --to asyncapi.json
    """
    apps = session.apps([target] if target else [])
    if len(apps) != 1:
        raise click.UsageError(f"the document is about one app, and there are {len(apps)}: name it, MODULE:APP")
    settings = session.settings(apps)
    declaration = apps[0].declaration
    document = asyncapi_of(
        title=title or declaration.agent_id,
        version=document_version,
        namespace=settings.bus.namespace,
        group=declaration.group,
        url=redacted(settings.bus.url),
        handled=[subscription.kind for subscription in declaration.subscriptions.values()],
        published=declaration.published,
    )
    file.write(msgspec.json.format(encode_json(document), indent=2).decode() + "\n")
    return 0
