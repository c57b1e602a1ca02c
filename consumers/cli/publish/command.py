"""`sealbus publish TYPE [FILE]`: JSON lines in, receipts out.

Owns the options and the exit code. `consumers.cli.publish.json_lines` turns lines into messages, `producers` publishes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

import click
import msgspec

from bus.clock import SystemClock
from bus.dialects import DIALECT_ALIASES, DIALECTS, Defaults, open_dialect
from bus.dialects.type_names import type_names_of
from bus.errors import BusError, TopicMissingError
from bus.nearest import nearest
from bus.payloads.payload_types import Registry, untyped
from bus.protocol.envelope import Agent
from bus.settings.schema import Settings
from bus.topics.names import message_topic
from bus.topics.specs import creates_topics
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.interrupts import Interrupts, execute
from consumers.cli.io.known_names import complete_types
from consumers.cli.io.parameter_types import DURATION_TYPE, INPUT, MESSAGE_TYPE, PRIORITY_TYPE, TEXT_ID, VERSION, OneOf
from consumers.cli.io.printing import LineWriter
from consumers.cli.io.progress import Progress
from consumers.cli.publish.foreign_lines import ForeignFeed
from consumers.cli.publish.json_lines import Feed, LineFeed
from consumers.cli.session import (
    COMMAND_LINE,
    CommandSession,
    app_option,
    gathered,
    key_options,
    registry_of,
    with_session,
)
from producers.connection import Bus, connect
from producers.outcomes import PublishUnknown, Receipt, Result
from producers.sealing.options import Options

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


@click.command()
@click.argument("what", metavar="TYPE [FILE]", nargs=-1, shell_complete=complete_types)
@app_option
@click.option(
    "--dialect",
    type=OneOf(DIALECTS, DIALECT_ALIASES),
    help="Each line is a message of this dialect (or 000 to 004) and has its own type: leave TYPE out.",
)
@click.option(
    "--schema-version", type=VERSION, help="Publish a type that is not known here; its receivers judge the data."
)
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
@with_session
@gathered(_PublishOptions)
def publish(session: CommandSession, options: _PublishOptions) -> int:
    """Publish JSON lines from FILE or standard input.

    Each line is one JSON object, the payload of one message. For each line one line of JSON is printed, in the same
    order: the location of the message in the log, or why it was rejected. A rejected line does not stop the others. A
    line with an unknown field is rejected, too. Each line is published as soon as it arrives.

    \b
    Examples:
      echo '{"repository": "acme/app"}' | sealbus publish research.request --ttl 10m
      sealbus publish job.run jobs.ndjson --app agents:app > receipts.ndjson
      echo '{"name": "tea"}' | sealbus publish alarm.set --app alarms:app --delay 5m
      my-program | sealbus publish sensor.reading --schema-version 1.0.0 --key sensor-7
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
        return _publish_foreign(settings, options.dialect, fallback, file, options.timeout, types=registry_of(apps))
    kind = (
        untyped(message_type, options.schema_version) if options.schema_version else registry_of(apps).get(message_type)
    )
    if kind is None:
        known = registry_of(apps).names()
        raise click.UsageError(
            f"no type {message_type!r} is known here{nearest(message_type, known)}. "
            "Name your app with --app MODULE:APP, or the version with --schema-version 1.0.0 to publish without a check"
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
            await _require_topic(bus, message_type)
        typed = options.schema_version is None
        return Feed(bus.publisher, kind, sealing, typed=typed, stream=file, ignore_unknown=options.ignore_unknown)

    return _run(settings, acting, open_feed, options.timeout, message_type)


def _what(provided: tuple[str, ...], dialect: str | None) -> tuple[str, BinaryIO]:
    """Return the type and the file in the arguments; with a dialect the messages have their own types."""
    max_words = 1 if dialect else 2
    if len(provided) > max_words or (not provided and dialect is None):
        form = "[FILE], for each line says its type" if dialect else "TYPE [FILE]"
        raise click.UsageError(f"publish takes {form}")
    name = "" if dialect else MESSAGE_TYPE.convert(provided[0], None, None)
    file = provided[-1] if len(provided) == max_words else "-"
    return name, INPUT.convert(file, None, click.get_current_context())


def _publish_foreign(
    settings: Settings, dialect: str, defaults: Defaults, file: BinaryIO, timeout_s: float | None, *, types: Registry
) -> int:
    opened = open_dialect(dialect, types=types, names=type_names_of(settings))

    async def open_feed(bus: Bus) -> LineFeed:
        return ForeignFeed(bus.publisher, opened, defaults, file, types=types)

    return _run(settings, defaults.sender or COMMAND_LINE, open_feed, timeout_s, f"messages of dialect {dialect}")


def _run(
    settings: Settings,
    agent: str | Agent,
    open_feed: Callable[[Bus], Awaitable[LineFeed]],
    timeout_s: float | None,
    what: str,
) -> int:
    """Publish the lines of the feed that *open_feed* opens, until they or the user end it."""

    async def body(interrupts: Interrupts) -> int:
        async with connect(settings=settings, agent=agent) as bus:
            if not bus.publisher.sealer.proves and settings.trust.keys:
                click.echo(
                    f"note: {agent} publishes unsigned: receivers with keys refuse all but types of low risk. Give "
                    "--key-file",
                    err=True,
                )
            if not bus.transport.features.durable:
                raise click.UsageError(
                    "a log in memory ends with this command, and its messages are lost: give --bus sqlite:///x.db or "
                    "kafka://..."
                )
            feed = await open_feed(bus)
            interrupts.soften = feed.stop
            return await _publish(bus, feed, timeout_s, what)

    return execute(body)


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


async def _require_topic(bus: Bus, message_type: str) -> None:
    """Check the topic once instead of failing for each line.

    A type known only by name may be a typo, and a cluster may refuse every record.
    """
    topic = message_topic(bus.namespace, message_type)
    existing = await bus.transport.admin.topics()
    if topic not in existing:
        # Topics this user may not see are not listed; the log reports them when asked by name.
        with suppress(TopicMissingError):
            await bus.transport.admin.ranges(topic)
        raise TopicMissingError(f"there is no topic {topic}{nearest(topic, existing)}")


async def _publish(bus: Bus, feed: LineFeed, timeout_s: float | None, message_type: str) -> int:
    started_s = time.monotonic()
    tally = _Tally()
    if feed.from_terminal:
        click.echo("reading JSON lines from the terminal, one object per line; Ctrl-D ends", err=True)
    with LineWriter() as writer, Progress(feed.size) as progress:
        async for result in bus.publish_many(feed, timeout_s=timeout_s):
            writer.write_json(tally.count(result, feed.lines.popleft()))
            progress.show(feed.consumed, tally.total)
    seconds = max(time.monotonic() - started_s, 1e-6)
    click.echo(
        f"published {tally.accepted} {_location(bus, message_type)} in {seconds:.1f} s "
        f"({tally.accepted / seconds:.0f}/s); "
        f"{tally.rejected} rejected, {tally.unknown} unknown",
        err=True,
    )
    for name in sorted(feed.made):
        flag = "--task" if name == "task_id" else "--idempotency-key"
        click.echo(f"note: {message_type} needs a {name}: each line got one of its own; {flag} says which", err=True)
    for warning in feed.warnings():
        click.echo(f"warning: {warning}", err=True)
    sys.stderr.flush()
    return tally.exit_code


def _location(bus: Bus, message_type: str) -> str:
    return message_type if " " in message_type else f"to {message_topic(bus.namespace, message_type)}"


class _Tally:
    """Counts how the lines ended, and prints the summary."""

    def __init__(self) -> None:
        self.accepted = self.rejected = self.unknown = self._for_good = 0

    @property
    def total(self) -> int:
        return self.accepted + self.rejected + self.unknown

    @property
    def exit_code(self) -> int:
        if self.unknown or (self.rejected and not self._for_good):
            return LATER
        return FAILED if self.rejected else 0

    def count(self, result: Result, line: int) -> dict[str, object]:
        if isinstance(result, Receipt):
            self.accepted += 1
            return {
                "message_id": result.message_id,
                "topic": result.topic,
                "partition": result.partition,
                "offset": result.offset,
            }
        if isinstance(result, PublishUnknown):
            self.unknown += 1
            return {"outcome": "unknown", "line": line, "message_id": result.message.message_id, "error": str(result)}
        self.rejected += 1
        cause = result.__cause__
        self._for_good += not (isinstance(cause, BusError) and cause.retriable)
        why = {name: found for name in ("reason", "pointer") if (found := getattr(cause, name, ""))}
        return {"outcome": "rejected", "line": line, **why, "error": str(result)}
