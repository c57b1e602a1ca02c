"""`sealbus dlq list|causes|show|adapt`: dead letters, their reasons, and their history.

Owns the list and finding one dead letter; `redrive` and `purge` are modules of their own.
`consumers.deadletters.letters` reads dead letters, `consumers.cli.dlq.letter_view` formats one.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

import click
import msgspec

from bus.telemetry.terminal import printable
from consumers.cli.dlq.filters import with_selection
from consumers.cli.dlq.letter_view import as_json, as_text, row
from consumers.cli.dlq.near_misses import near_misses
from consumers.cli.dlq.places import find_letter, parse_location
from consumers.cli.dlq.purge import purge
from consumers.cli.dlq.redrive import redrive
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import bars, print_json, print_table
from consumers.cli.session import CommandSession, app_option, registry_of, with_session
from consumers.cli.shell import VerbGroup
from consumers.deadletters.adapter import adapter_of
from consumers.deadletters.causes import Cause, cause_of
from consumers.deadletters.diagnosis import examine
from consumers.deadletters.letter_state import LetterState, LetterStatus, Step, known_state_of, load_states, state_of
from consumers.deadletters.letters import DeadLetter, list_dead_letters, read_dead_letter
from consumers.deadletters.selection import Selection

__all__ = ["dlq"]


@click.group(cls=VerbGroup)
def dlq() -> None:
    """Dead letters: messages that a group could not or must not handle. Show, redrive or purge them.

    \b
    Examples:
      sealbus dlq list
      sealbus dlq list --type research.request --reason schema_violation --since 2h
      sealbus dlq show agents.research.request.dlq/0/3
      sealbus dlq adapt order.placed 0 3 --app agents:app
      sealbus dlq redrive --reason schema_violation --dry-run
      sealbus dlq purge --reason malformed
    """


dlq.add_command(redrive)
dlq.add_command(purge)


@dlq.command("list")
@with_selection
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Show the newest N.")
@with_session
def list_(session: CommandSession, *, selection: Selection, limit: int) -> int:
    """List dead letters, the newest last, and count them by reason.

    PLACE is what `sealbus dlq show` takes. STATE is open, redriven (sent back), parked (sent back three times, or by
    hand) or purged.

    \b
    Examples:
      sealbus dlq list --state open
      sealbus dlq list --group researcher-svc-1c2d3e4f --reason rejected --limit 5
      sealbus dlq list --sender planner@svc --since 2026-01-31T12:00:00Z
      sealbus dlq list --output json | jq -r .place
    """
    settings = session.settings()

    async def body(_: object) -> int:
        counts: Counter[str] = Counter()
        by_state: Counter[tuple[str, ...]] = Counter()
        newest: list[tuple[int, int, DeadLetter]] = []
        async with session.open(settings) as transport:
            states = await load_states(transport, settings.bus.namespace)
            async for letter in list_dead_letters(transport, settings.bus.namespace, selection.message_type):
                state = state_of(letter, states.get(letter.place))
                if selection.takes(letter, state):
                    counts[letter.reason] += 1
                    by_state[letter.reason, state] += 1
                    (heapq.heappush if len(newest) < limit else heapq.heappushpop)(
                        newest, (letter.failed_ms, counts.total(), letter)
                    )
            hints = [] if counts else await near_misses(transport, settings, selection)
        _print(session, [letter for _, _, letter in sorted(newest, key=lambda entry: entry[:2])], states)
        reasons = ", ".join(f"{count} {printable(name) or 'without a reason'}" for name, count in counts.most_common())
        shown = f", the newest {len(newest)} shown" if counts.total() > len(newest) else ""
        click.echo(f"{counts.total()} dead letters{shown}" + (f": {reasons}" if reasons else ""), err=True)
        for hint in hints:
            click.echo(f"hint: {hint}", err=True)
        if not session.as_json:
            for line in bars(("REASON", "STATE"), by_state):
                click.echo(line, err=True)
        return 0

    return execute(body)


@dlq.command()
@with_selection
@with_session
def causes(session: CommandSession, *, selection: Selection) -> int:
    """Group dead letters by cause, the most frequent first: each cause is one thing to fix.

    A cause is the reason, type, group, sender, field and error, without the numbers in its text. Without --state only
    open dead letters count. After a fix, `sealbus dlq redrive --cause ID` sends back its dead letters.

    \b
    Examples:
      sealbus dlq causes
      sealbus dlq causes --since 2h --output json
      sealbus dlq redrive --cause 3f9a1c20 --why "fixed in 1.4.2"
    """
    settings = session.settings()
    wanted = selection if selection.states else msgspec.structs.replace(selection, states=frozenset({"open"}))

    async def body(_: object) -> int:
        counts: Counter[Cause] = Counter()
        first: dict[Cause, DeadLetter] = {}
        async with session.open(settings) as transport:
            states = await load_states(transport, settings.bus.namespace)
            async for letter in list_dead_letters(transport, settings.bus.namespace, selection.message_type):
                if wanted.takes(letter, state_of(letter, states.get(letter.place))):
                    cause = cause_of(letter)
                    counts[cause] += 1
                    first.setdefault(cause, letter)
        for cause, count in counts.most_common() if session.as_json else ():
            letter = first[cause]
            about = {"cause": cause.name, "letters": count, "first": letter.failed_at, "example": letter.place}
            print_json({**about, **msgspec.to_builtins(cause)})
        if counts and not session.as_json:
            listed = [(each, count, msgspec.structs.astuple(each)) for each, count in counts.most_common()]
            rows = [
                (cause.name, count, reason, kind, sender, pointer, error, first[cause].failed_at)
                for cause, count, (reason, kind, _, sender, pointer, error) in listed
            ]
            print_table(("CAUSE", "LETTERS", "REASON", "TYPE", "FROM", "FIELD", "ERROR", "FIRST DIED"), rows)
        click.echo(f"{counts.total():,} dead letters of {len(counts)} causes", err=True)
        return 0

    return execute(body)


@dlq.command()
@click.argument("location", nargs=-1, required=True, metavar="TOPIC PARTITION OFFSET")
@click.option("--raw", is_flag=True, help="Write the bytes of the dead message and nothing else.")
@app_option
@with_session
def show(session: CommandSession, location: tuple[str, ...], raw: bool, targets: tuple[str, ...]) -> int:
    """Show one dead letter: the check that refused it and why, the values expected and found, its history and its
    content.

    TOPIC PARTITION OFFSET locate the dead letter itself, as `sealbus dlq list` prints them (TOPIC/PARTITION/OFFSET); a
    message type may stand for the topic. The checks are run again on the stored bytes; --app adds types of your own.

    \b
    Examples:
      sealbus dlq show agents.research.request.dlq/0/3
      sealbus dlq show research.request 0 3 --app agents:app
      sealbus dlq show research.request/0/3 --raw > message.json
    """
    name, partition, offset = parse_location(location)
    apps = session.apps(targets)
    settings = session.settings(apps)

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            record = await find_letter(transport, settings, name, partition, offset)
            states = {} if raw else await load_states(transport, settings.bus.namespace)
        if raw:
            click.echo(record.value or b"", nl=False)
            return 0
        letter, registry = read_dead_letter(record), registry_of(apps)
        finding = examine(
            letter, registry, namespace=settings.bus.namespace, max_message_bytes=settings.publish.max_message_bytes
        )
        facts = (letter, states.get(letter.place), _history(letter, states), finding, registry)
        if session.as_json:
            print_json(as_json(*facts))
        else:
            for line in as_text(*facts):
                click.echo(line)
        return 0

    return execute(body)


@dlq.command()
@click.argument("location", nargs=-1, required=True, metavar="TOPIC PARTITION OFFSET")
@app_option
@with_session
def adapt(session: CommandSession, location: tuple[str, ...], targets: tuple[str, ...]) -> int:
    """Write an upcaster that would make a dead message valid, for you to review: similar names, converted values.

    For dead letters whose data the current type refuses (schema_violation, unsupported_version). Give the type the
    printed version, with the function among its upcasters; then redrive the cause.

    \b
    Examples:
      sealbus dlq adapt order.placed 0 3 --app agents:app >> upcasters.py
      sealbus dlq adapt agents.order.placed.dlq/0/3 --app agents:app --output json

    \b
    Exit codes: 0 written, 1 written with open questions (they raise), 2 there is nothing to adapt.
    """
    name, partition, offset = parse_location(location)
    apps = session.apps(targets)
    settings = session.settings(apps)

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            record = await find_letter(transport, settings, name, partition, offset)
        message = read_dead_letter(record).message
        kind = None if message is None else registry_of(apps).get(message.message_type)
        if message is None or kind is None:
            raise click.BadParameter("its type is not known here: name your app with --app MODULE:APP")
        data = msgspec.json.decode(message.data)
        major = int(message.metadata.schema_version.partition(".")[0])
        made = adapter_of(kind, data, major) if isinstance(data, dict) else None
        if made is None:
            raise click.BadParameter("its data, or its class, has no fields that could be compared")
        if session.as_json:
            print_json(msgspec.to_builtins(made))
        else:
            click.echo(made.source, nl=False)
        click.echo(
            f'hint: @payload("{kind.name}", version="{made.next_version}", upcasters={{{major}: {made.name}}}), '
            "then `sealbus dlq redrive --cause N --wait`",
            err=True,
        )
        return FAILED if made.open_questions else 0

    return execute(body)


def _history(letter: DeadLetter, states: Mapping[str, LetterState]) -> list[tuple[str, Step]]:
    """Return the history of this dead letter and of earlier ones of the same message and group, oldest first."""
    own = known_state_of(letter, states.get(letter.place))
    steps = [(letter.place, step) for step in own.steps] if own is not None else []
    steps += [
        (location, step)
        for location, state in states.items()
        if location != letter.place and letter.origin and (state.origin, state.group) == (letter.origin, letter.group)
        if state.content in ("", letter.content)
        for step in state.steps
    ]
    return sorted(steps, key=lambda entry: entry[1].at)


def _print(session: CommandSession, letters: list[DeadLetter], states: Mapping[str, LetterState]) -> None:
    if session.as_json:
        for letter in letters:
            print_json(row(letter, states.get(letter.place)))
    elif letters:
        headings = ("PLACE", "DIED", "STATE", "GROUP", "REASON", "POINTER", "FROM", "MESSAGE")
        print_table(headings, [_cells(letter, state_of(letter, states.get(letter.place))) for letter in letters])


def _cells(letter: DeadLetter, state: LetterStatus) -> list[str]:
    return [
        letter.place,
        letter.failed_at or "-",
        state,
        letter.group or "-",
        letter.reason or "-",
        letter.pointer or "-",
        letter.sender or "-",
        letter.message.message_id if letter.message else "(no message)",
    ]
