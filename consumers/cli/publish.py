"""`sealbus publish TYPE [FILE]`: JSON lines in, receipts out.

Owns the options and the exit code. `producers.json_lines` turns lines into messages, `producers` publishes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import click
import msgspec

from bus.clock import SystemClock
from bus.dialects import DIALECT_ALIASES, DIALECTS, Defaults, open_dialect
from bus.dialects.type_names import type_names_of
from bus.errors import UnreachableError
from bus.nearest import nearest
from bus.payloads.payload_types import PayloadType, untyped
from bus.protocol.envelope import Agent
from bus.settings.schema import Settings
from bus.topics.names import message_topic
from bus.topics.specs import creates_topics
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.io.known_names import complete_types
from consumers.cli.io.parameter_types import DURATION_TYPE, INPUT, MESSAGE_TYPE, PRIORITY_TYPE, TEXT_ID, VERSION, OneOf
from consumers.cli.io.printing import LineWriter
from consumers.cli.io.progress import Progress
from consumers.cli.session import (
    CommandSession,
    app_option,
    gathered,
    key_options,
    verb,
)
from consumers.cli.shell import Command
from producers.connection import Bus, connect
from producers.json_lines.foreign_lines import ForeignFeed
from producers.json_lines.line_results import PublishedLine, Tally, require_topic
from producers.json_lines.payload_lines import Feed, LineFeed
from producers.sealing.options import Options

if TYPE_CHECKING:
    from consumers.app.app import App

__all__ = ["publish"]


class _PublishOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    what: tuple[str, ...]
    targets: tuple[str, ...]
    dialect: str | None
    schema_version: str | None
    agent: str | None
    key_file: Path | None
    to: str | None
    role: str | None
    key: str | None
    ttl: float | None
    delay: float | None
    idempotency_key: str | None
    priority: int | str | None
    conversation: str | None
    correlation: str | None
    task: str | None
    timeout: float | None
    ignore_unknown: bool


@click.command(cls=Command)
@click.argument("what", metavar="TYPE [FILE]", nargs=-1, shell_complete=complete_types)
@app_option
@click.option(
    "--dialect",
    type=OneOf(DIALECTS, DIALECT_ALIASES),
    help="Each line is a message of this dialect (or 000 to 004) and has its own type: leave TYPE out.",
)
@click.option("--type-version", "schema_version", type=VERSION, help="Publish a type that is unknown here, unchecked.")
@key_options
@click.option("--to", type=TEXT_ID, help="The one agent that is to handle it; without it every subscribed group does.")
@click.option("--role", type=TEXT_ID, help="The role that is to handle it.")
@click.option("--key", type=TEXT_ID, help="Messages of one key stay in order.")
@click.option("--ttl", type=DURATION_TYPE, help="The lifetime of the message, such as 10m.")
@click.option("--delay", type=DURATION_TYPE, help="Handle it no earlier, such as 1h; it waits in the log.")
@click.option(
    "--idempotency-key", type=TEXT_ID, help="Handle it once, however often it is published; for one line only."
)
@click.option("--priority", type=PRIORITY_TYPE, help="0 to 9, or low, normal, high, critical.")
@click.option("--conversation", type=TEXT_ID, help="The conversation it belongs to.")
@click.option("--correlation", type=TEXT_ID, help="The id of the request or workflow it belongs to.")
@click.option("--task", type=TEXT_ID, help="The task it belongs to.")
@click.option("--timeout", type=DURATION_TYPE, help="How long to wait for the log.")
@click.option("--ignore-unknown", is_flag=True, help="Leave out fields that the type does not have, and warn.")
@verb(PublishedLine)
@gathered(_PublishOptions)
async def publish(session: CommandSession, options: _PublishOptions) -> int:
    """Publish JSON lines from FILE or standard input.

    Each line is one JSON object, the payload of one message. For each line one line of JSON is printed, in the same
    order: the location of the message in the log, or why it was rejected. A rejected line does not stop the others. A
    line with an unknown field is rejected, too. Each line is published as soon as it arrives.

    \b
    Examples:
      echo '{"repository": "acme/app"}' | sealbus publish desk.question --ttl 10m
      sealbus publish job.run jobs.ndjson --app agents:app > receipts.ndjson
      echo '{"name": "tea"}' | sealbus publish alarm.set --app alarms:app --delay 5m
      my-program | sealbus publish sensor.reading --type-version 1.0.0 --key sensor-7
      sealbus publish --dialect frameworks tasks.ndjson

    \b
    Exit codes: 0 all published, 1 some rejected, 75 some may or may not be in the log (or: try again later).
    """
    apps = session.apps(options.targets)
    settings = session.settings(apps, key_file=options.key_file)
    acting = session.acting_agent(settings, options.agent)
    session.announce()
    message_type, file = _what(options.what, options.dialect)
    _check_lifetime(options.ttl, options.delay, settings)
    if options.dialect is not None:
        fallback = Defaults(
            sender=Agent(id=acting),
            recipient=Agent(id=options.to, role=options.role) if options.to or options.role else None,
            conversation_id=options.conversation,
            task_id=options.task,
            sent_at_ms=SystemClock().now_ms(),
        )
        types = session.types(apps)
        dialect = open_dialect(options.dialect, types=types, names=type_names_of(settings))

        async def open_foreign(bus: Bus) -> LineFeed:
            return ForeignFeed(bus.publisher, dialect, fallback, file, types=types)

        what = f"messages of dialect {options.dialect}"
        return await _run(session, settings, acting, open_foreign, timeout_s=options.timeout, what=what)
    known = session.types(apps)
    if options.schema_version:
        kind: PayloadType | None = untyped(message_type, options.schema_version)
    elif (kind := known.get(message_type)) is None and settings.bus.url.startswith(("sqlite:", "kafka:")):
        kind = await _described(session, settings, apps, message_type)
    if kind is None:
        raise click.UsageError(
            f"unknown type {message_type!r}{nearest(message_type, known.names())}. "
            "Name your app with --app MODULE:APP, or the version with --type-version 1.0.0 to publish without a check"
        )
    provided: dict[str, object] = {
        "to": Agent(id=options.to, role=options.role) if options.role is not None else options.to,
        "key": options.key,
        "ttl_s": options.ttl,
        "delay_s": options.delay,
        "idempotency_key": options.idempotency_key,
        "priority": options.priority,
        "conversation_id": options.conversation,
        "correlation_id": options.correlation,
        "task_id": options.task,
    }
    sealing = cast("Options", {name: value for name, value in provided.items() if value is not None})

    async def open_feed(bus: Bus) -> LineFeed:
        if options.schema_version is not None or not creates_topics(settings, bus.transport.features):
            await require_topic(bus, message_type)
        typed = options.schema_version is None
        return Feed(bus.publisher, kind, sealing, typed=typed, stream=file, ignore_unknown=options.ignore_unknown)

    return await _run(session, settings, acting, open_feed, timeout_s=options.timeout, what=message_type)


async def _described(
    session: CommandSession, settings: Settings, apps: Sequence[App], message_type: str
) -> PayloadType | None:
    """Return the type as a running agent describes it on its card; None where there is no log yet, or no such type."""
    with suppress(UnreachableError):
        async with session.open(settings) as transport:
            return (await session.types_in(transport, settings, apps)).get(message_type)
    return None


def _what(provided: tuple[str, ...], dialect: str | None) -> tuple[str, BinaryIO]:
    """Return the type and the file in the arguments; with a dialect the messages have their own types."""
    max_words = 1 if dialect else 2
    if len(provided) > max_words or (not provided and dialect is None):
        form = "[FILE], because each line names its type" if dialect else "TYPE [FILE]"
        raise click.UsageError(f"publish takes {form}")
    name = "" if dialect else MESSAGE_TYPE.convert(provided[0], None, None)
    file = provided[-1] if len(provided) == max_words else "-"
    return name, INPUT.convert(file, None, click.get_current_context())


async def _run(
    session: CommandSession,
    settings: Settings,
    agent: str,
    open_feed: Callable[[Bus], Awaitable[LineFeed]],
    *,
    timeout_s: float | None,
    what: str,
) -> int:
    """Publish the lines of the feed that *open_feed* opens, until they or the user end it."""
    async with connect(settings=settings, agent=agent) as bus:
        if not bus.publisher.sealer.proves and settings.trust.keys:
            session.note(f"publishing unsigned as {agent}: receivers with keys will refuse it. Give --key-file.")
        if not bus.transport.features.durable:
            raise click.UsageError(
                "a log in memory ends with this command, and its messages are lost: give --bus sqlite:///x.db or "
                "kafka://..."
            )
        feed = await open_feed(bus)
        session.interrupts.soften = feed.stop
        return await _publish(session, bus, feed, timeout_s, what)


def _check_lifetime(ttl: float | None, delay: float | None, settings: Settings) -> None:
    limit = settings.publish.max_ttl_s
    if ttl is not None and ttl > limit:
        raise click.BadParameter(
            f"{ttl:.0f} s is longer than publish.max_ttl_s allows ({limit:.0f} s)", param_hint="--ttl"
        )
    lifetime = settings.publish.ttl_s if ttl is None else ttl
    if delay is not None and delay + lifetime > limit:
        raise click.BadParameter(
            f"{delay:.0f} s, and {lifetime:.0f} s to live after it, are longer than publish.max_ttl_s allows "
            f"({limit:.0f} s)",
            param_hint="--delay",
        )


async def _publish(
    session: CommandSession, bus: Bus, feed: LineFeed, timeout_s: float | None, message_type: str
) -> int:
    started_s = time.monotonic()
    tally = Tally()
    if feed.from_terminal:
        session.note("reading JSON lines from the terminal, one object per line; Ctrl-D ends")
    with LineWriter() as writer, Progress(feed.size) as progress:
        async for result in bus.publish_many(feed, timeout_s=timeout_s):
            writer.write_json(tally.count(result, feed.lines.popleft()))
            progress.show(feed.consumed, tally.total)
    seconds = max(time.monotonic() - started_s, 1e-6)
    session.note(
        f"published {tally.accepted} {_location(bus, message_type)} in {seconds:.1f} s "
        f"({tally.accepted / seconds:.0f}/s); "
        f"{tally.rejected} rejected, {tally.unknown} unknown"
    )
    for name in sorted(feed.made):
        flag = "--task" if name == "task_id" else "--idempotency-key"
        session.note(f"{message_type} requires {name}; a new one was generated for each line (set it with {flag})")
    for warning in feed.warnings():
        session.note(f"warning: {warning}")
    sys.stderr.flush()
    return LATER if tally.is_worth_repeating else FAILED if tally.rejected else 0


def _location(bus: Bus, message_type: str) -> str:
    return message_type if " " in message_type else f"to {message_topic(bus.namespace, message_type)}"
