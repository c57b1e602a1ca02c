"""`sealbus dlq list|show|add`: dead letters, their reasons, and their history.

`redrive` and `dismiss` are modules of their own. `consumers.deadletters` reads dead letters,
`consumers.deadletters.letter_view` formats one.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Final

import click
import msgspec

from bus.clock import SystemClock
from bus.telemetry.terminal import printable
from bus.telemetry.terminal_bars import bars
from consumers.cli.dlq.dismiss import dismiss
from consumers.cli.dlq.filters import with_selection
from consumers.cli.dlq.redrive import redrive
from consumers.cli.io.known_names import complete_groups
from consumers.cli.io.output import Cell, Detail, Listing, VerbResult
from consumers.cli.io.parameter_types import OneOf
from consumers.cli.session import CommandSession, app_option, changing, limit_option, verb
from consumers.cli.shell import VerbGroup
from consumers.deadletters.dead_lettering import park_order_of
from consumers.deadletters.diagnosis import examine
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.deadletters.letter_groups import GROUPINGS, LetterGroups, history_of, is_history
from consumers.deadletters.letter_state import load_states, state_of
from consumers.deadletters.letter_view import LetterDetails, LetterRow, letter_details, letter_lines, letter_row
from consumers.deadletters.letters import list_letter_facts, read_dead_letter
from consumers.deadletters.locations import find_letter, parse_location
from consumers.deadletters.near_misses import near_misses
from consumers.deadletters.park_orders import PARK_FOLLOWED_S
from consumers.deadletters.recorded_states import RecordedStates
from consumers.deadletters.selection import Selection, with_causes

__all__ = ["dlq"]


class OrderedDeath(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the workers of a group are to dead-letter."""

    group: str
    location: str
    message_id: str
    redrives: int


@click.group(cls=VerbGroup)
def dlq() -> None:
    """Dead letters: messages that a group could not or must not handle. Show, redrive or dismiss them.

    \b
    Examples:
      sealbus dlq list
      sealbus dlq list --by cause
      sealbus dlq show agents.desk.question.dlq/0/3
      sealbus dlq redrive --cause 3f9a1c20 --why "fixed in 1.4.2"
      sealbus dlq dismiss --reason malformed --why "load test by mistake"
    """


dlq.add_command(redrive)
dlq.add_command(dismiss)


@dlq.command("list")
@with_selection
@click.option("--by", type=OneOf(GROUPINGS), help="Count those that have this in common: one line per cause, type, ...")
@limit_option
@verb(LetterRow)
async def list_(session: CommandSession, *, selection: Selection, by: str | None, limit: int) -> VerbResult:
    """List dead letters, the newest last; with --by, count them, the most frequent first.

    A cause is the reason, type, group, field and line of code, and the error's text without its ids: each cause is one
    thing to fix. STATE is open, redriven (sent back), parked (sent back three times, or dead-lettered by hand) or
    dismissed. With --by only open ones count, unless --state is given.

    \b
    Examples:
      sealbus dlq list --by cause
      sealbus dlq list --state open --group researcher-svc-1c2d3e4f --reason rejected --limit 5
      sealbus dlq list --sender planner@svc --since 2026-01-31T12:00:00Z
      sealbus dlq list -o json | jq -r .location
    """
    settings = session.settings()
    if by is not None and not selection.states:
        selection = msgspec.structs.replace(selection, states=frozenset({"open"}))
    reasons: Counter[str] = Counter()
    by_state: Counter[tuple[str, ...]] = Counter()
    grouped = None if by is None else LetterGroups(by)
    newest: list[tuple[int, int, LetterRow]] = []
    async with session.open(settings) as transport:
        selection = await with_causes(transport, settings.bus.namespace, selection)
        states = RecordedStates(transport, settings.bus.namespace)
        await states.read_on()
        async for letter in list_letter_facts(transport, settings.bus.namespace, selection.message_type):
            known = states.of(letter)
            state = state_of(letter, known)
            is_wanted = selection.takes(letter, state)
            if grouped is not None:
                grouped.add(letter, counts=is_wanted)
            if not is_wanted:
                continue
            reasons[letter.reason] += 1
            by_state[letter.reason, state] += 1
            if grouped is None and (len(newest) < limit or letter.failed_ms >= newest[0][0]):
                # A row, and not the letter: its payload may be large.
                row = letter_row(read_dead_letter(letter.record), known)
                (heapq.heappush if len(newest) < limit else heapq.heappushpop)(
                    newest, (letter.failed_ms, reasons.total(), row)
                )
        hints = [] if reasons else await near_misses(transport, settings.bus.namespace, selection)
    total = reasons.total()
    if grouped is not None and by is not None:
        rows = grouped.rows()
        named = {"cause": "causes", "type": "types", "reason": "reasons", "sender": "senders", "group": "groups"}[by]
        notes = [f"{total:,} dead letters, {len(rows)} {named}", *hints]
        return Listing(rows[:limit], _GROUP_COLUMNS[by], notes=notes)
    counted = ", ".join(f"{count} {printable(name) or 'without a reason'}" for name, count in reasons.most_common())
    more = f", the newest {len(newest)} shown (--limit)" if total > len(newest) else ""
    drawn = [] if session.as_json else bars(("REASON", "STATE"), by_state)
    return Listing(
        [row for _, _, row in sorted(newest, key=lambda entry: entry[:2])],
        {
            "LOCATION": "location",
            "FAILED": "failed_at",
            "STATE": "state",
            "GROUP": "group",
            "REASON": "reason",
            "FIELD": "pointer",
            "FROM": "sender",
            "MESSAGE": lambda row: row.message_id or "(not a message)",
        },
        notes=[
            f"{total} dead letters{more}" + (f": {counted}" if counted else ""),
            *(f"hint: {hint}" for hint in hints),
            *drawn,
        ],
    )


@dlq.command()
@click.argument("which", metavar="LOCATION|MESSAGE_ID")
@app_option
@verb(LetterDetails, forms=("raw",))
async def show(session: CommandSession, *, which: str, targets: tuple[str, ...]) -> VerbResult | int:
    """Show one dead letter: the check that refused it and why, the values expected and found, its history, its content.

    LOCATION is TOPIC/PARTITION/OFFSET, as `sealbus dlq list` prints it; a message type may stand for the topic. The
    checks are run again on the stored bytes. -o raw writes the bytes of the dead message and nothing else.

    \b
    Examples:
      sealbus dlq show agents.desk.question.dlq/0/3
      sealbus dlq show desk.question/0/3 -o raw > message.json
    """
    apps = session.apps(targets)
    settings = session.settings(apps)
    async with session.open(settings) as transport:
        record = await find_letter(transport, settings, which)
        letter = read_dead_letter(record)
        states = (
            {}
            if session.form == "raw"
            else await load_states(transport, settings.bus.namespace, lambda *each: is_history(letter, *each))
        )
        registry = await session.types_in(transport, settings, apps)
    if session.form == "raw":
        click.echo(record.value or b"", nl=False)
        return 0
    finding = examine(
        letter, registry, namespace=settings.bus.namespace, max_message_bytes=settings.publish.max_message_bytes
    )
    facts = (letter, states.get(letter.place), history_of(letter, states), finding, registry)
    return Detail(letter_details(*facts), letter_lines(*facts))


@dlq.command()
@click.argument("location", metavar="LOCATION")
@click.option("--group", "group", required=True, shell_complete=complete_groups, help="The group that is to skip it.")
@changing
@verb(OrderedDeath)
async def add(session: CommandSession, *, location: str, group: str, why: str, dry_run: bool, yes: bool) -> VerbResult:
    """Dead-letter the message at LOCATION for one group, instead of running it.

    For a message that the group has not finished, whether its workers run or not: a worker dead-letters it when it
    reaches it, and continues. Only `sealbus dlq redrive --force` sends it back.

    \b
    Examples:
      sealbus dlq add agents.desk.question/2/4711 --group desk-svc-1c2d3e4f --why "hangs the parser, ticket 12"
    """
    if not why:
        raise click.UsageError("give --why TEXT: the operations journal records who did this and why")
    settings, clock = session.settings(), SystemClock()
    session.announce()
    where = parse_location(location)
    async with session.open(settings) as transport:
        await prepare_journal(transport, settings, create=False)
        order = await park_order_of(transport, settings, clock, group=group, location=where, why=why)
        shown = OrderedDeath(
            group=order.group,
            location=f"{order.topic}/{order.partition}/{order.offset}",
            message_id=order.message_id,
            redrives=order.redrives,
        )
        columns = {"GROUP": "group", "LOCATION": "location", "MESSAGE": "message_id", "REDRIVES": "redrives"}
        if dry_run:
            return Listing([shown], columns, notes=[f"{printable(shown.location)} would be dead-lettered"])
        session.confirm(f"Dead-letter {printable(location)} for {printable(group)} instead of running it?", yes=yes)
        await prepare_journal(transport, settings)
        journal = Journal(transport, settings, clock, verb="groups", why=why)
        await journal.order(order)
        await journal.note("parked", group=group, why=why, place=location, message_id=order.message_id)
    done = (
        f"a worker of {printable(group)} dead-letters it when it reaches it; workers know within {PARK_FOLLOWED_S:g} s"
    )
    return Listing([shown], columns, notes=[done])


_EACH: Final[Mapping[str, Cell]] = {"DEAD LETTERS": "dead_letters", "FIRST FAILED": "first", "EXAMPLE": "example"}
_GROUP_COLUMNS: Final[Mapping[str, Mapping[str, Cell]]] = {
    "cause": {
        "CAUSE": "value",
        "DEAD LETTERS": "dead_letters",
        "REASON": "reason",
        "TYPE": "type",
        "FROM": lambda row: row.sender or "(several)",
        "FIELD": "pointer",
        "WHERE": "where",
        "ERROR": "error",
        "FIRST FAILED": "first",
    },
    **{by: {by.upper(): "value", **_EACH} for by in ("type", "reason", "sender", "group")},
}
