"""`sealbus dlq list|show`: dead letters, and why they died.

Owns the options, the list and finding one letter. Does not own reading letters (`consumers.deadletters`) or
laying one out (`consumers.cli.letter`).
"""

from __future__ import annotations

import heapq
from collections import Counter

import click

from bus.errors import BusError
from bus.reasons import REASONS
from bus.settings import Settings
from bus.topics import dead_letter_topic, message_topic
from bus.transports.base import Record, Transport
from consumers.cli.arguments import MESSAGE_TYPE
from consumers.cli.letter import as_json, as_text
from consumers.cli.printing import print_json, print_table
from consumers.cli.running import execute
from consumers.cli.session import Session, app_of, app_option, registry_of, with_session
from consumers.cli.tail import resolve_topic
from consumers.deadletters import DeadLetter, list_dead_letters, read_dead_letter

__all__ = ["dlq"]

_MAX_RECORD_BYTES = 64 * 1_048_576
_LAST_OFFSET = 2**63 - 1


@click.group()
def dlq() -> None:
    """Look at dead letters: messages that a group could not or must not handle.

    \b
    Examples:
      sealbus dlq list
      sealbus dlq list --type research.request --reason schema_violation
      sealbus dlq show agents.research.request.dlq/0/3
    """


@dlq.command("list")
@click.option("--type", "message_type", type=MESSAGE_TYPE, help="Only of this message type.")
@click.option("--group", help="Only of this group.")
@click.option("--reason", type=click.Choice(sorted(REASONS)), metavar="REASON", help="Only with this reason.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Show the newest N.")
@with_session
def list_(session: Session, message_type: str | None, group: str | None, reason: str | None, limit: int) -> int:
    """List dead letters, the newest last, and count them by reason.

    PLACE is what `sealbus dlq show` takes.

    \b
    Examples:
      sealbus dlq list
      sealbus dlq list --group researcher-svc-1c2d3e4f --reason rejected --limit 5
      sealbus dlq list --output json | jq -r .place
    """
    settings = session.settings()

    async def body(_: object) -> int:
        counts: Counter[str] = Counter()
        newest: list[tuple[str, int, DeadLetter]] = []
        async with session.open(settings) as transport:
            async for letter in list_dead_letters(transport, settings.bus.namespace, message_type):
                if group in (None, letter.group) and reason in (None, letter.reason):
                    counts[letter.reason] += 1
                    (heapq.heappush if len(newest) < limit else heapq.heappushpop)(newest, (letter.failed_at, counts.total(), letter))
        _print(session, [letter for _, _, letter in sorted(newest, key=lambda entry: entry[:2])])
        reasons = ", ".join(f"{count} {name or 'without a reason'}" for name, count in counts.most_common())
        shown = f", the newest {len(newest)} shown" if counts.total() > len(newest) else ""
        click.echo(f"{counts.total()} dead letters{shown}" + (f": {reasons}" if reasons else ""), err=True)
        return 0

    return execute(body)


@dlq.command()
@click.argument("place", nargs=-1, required=True, metavar="TOPIC PARTITION OFFSET")
@click.option("--raw", is_flag=True, help="Write the bytes of the dead message and nothing else.")
@app_option
@with_session
def show(session: Session, place: tuple[str, ...], raw: bool, target: str | None) -> int:
    """Show one dead letter: which gate refused it and why, where it came from, and what it holds.

    TOPIC PARTITION OFFSET are the letter's own, as `sealbus dlq list` prints them (TOPIC/PARTITION/OFFSET); a message type will do as topic.

    \b
    Examples:
      sealbus dlq show agents.research.request.dlq/0/3
      sealbus dlq show research.request 0 3 --app agents:app
      sealbus dlq show research.request/0/3 --raw > message.json
    """
    name, partition, offset = _parse_place(place)
    app = app_of(target)
    settings = session.settings(app)

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            record = await _find(transport, settings, name, partition, offset)
        if raw:
            click.echo(record.value or b"", nl=False)
        elif session.as_json:
            print_json(as_json(read_dead_letter(record), registry_of(app)))
        else:
            for line in as_text(read_dead_letter(record), registry_of(app)):
                click.echo(line)
        return 0

    return execute(body)


def _parse_place(place: tuple[str, ...]) -> tuple[str, int, int]:
    parts = place[0].rsplit("/", 2) if len(place) == 1 else list(place)
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and int(part) <= _LAST_OFFSET for part in parts[1:]):  # noqa: PLR2004
        raise click.UsageError(f"{' '.join(place)!r} is not TOPIC PARTITION OFFSET; `sealbus dlq list` shows them as TOPIC/PARTITION/OFFSET")
    return parts[0], int(parts[1]), int(parts[2])


async def _find(transport: Transport, settings: Settings, name: str, partition: int, offset: int) -> Record:
    existing = await transport.admin.topics()
    candidates = (dead_letter_topic(message_topic(settings.bus.namespace, name)), dead_letter_topic(name))
    topic = next((candidate for candidate in candidates if candidate in existing and not name.endswith(".dlq")), None)
    if topic is None:
        topic = await resolve_topic(transport, settings, name)
    ranges = await transport.admin.ranges(topic)
    if partition in ranges:
        found = await transport.read(topic, partition, offset, max_records=1, max_bytes=_MAX_RECORD_BYTES)
        if found and found[0].offset == offset:
            return found[0]
    error = BusError(f"there is no record at {topic}/{partition}/{offset}")
    error.add_note("`sealbus dlq list` shows the places of dead letters; old ones are deleted after topics.deadletter_retention_s")
    raise error


def _print(session: Session, letters: list[DeadLetter]) -> None:
    if session.as_json:
        for letter in letters:
            print_json(as_json(letter, None))
    elif letters:
        headings = ("PLACE", "DIED", "GROUP", "REASON", "POINTER", "FROM", "MESSAGE")
        print_table(headings, [_cells(letter) for letter in letters])


def _cells(letter: DeadLetter) -> list[str]:
    record, metadata = letter.record, letter.message.metadata if letter.message else None
    return [
        f"{record.topic}/{record.partition}/{record.offset}",
        letter.failed_at or "-",
        letter.group or "-",
        letter.reason or "-",
        letter.pointer or "-",
        (metadata.sender.id or "-") if metadata else "-",
        metadata.message_id if metadata else "(no message)",
    ]
