"""`sealbus dlq redrive`: send dead letters back to the groups in which they died.

Owns the options, the confirmation, the progress bar and the exit code; `consumers.deadletters.redrive` sends them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from bus.clock import Clock, SystemClock
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.trust.opening import open_trust
from consumers.cli.dlq.filters import with_selection
from consumers.cli.dlq.near_misses import tell_near_misses
from consumers.cli.dlq.places import pinned
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.interrupts import Interrupts, execute
from consumers.cli.io.parameter_types import DURATION_TYPE, RATE
from consumers.cli.io.printing import bars, print_json
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, gathered, key_options, with_session
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.deadletters.letter_state import MAX_REDRIVES
from consumers.deadletters.recipients import Recipient, recipients_of
from consumers.deadletters.redrive import Redrive
from consumers.deadletters.redrive_rules import RedriveCounts, RedriveOrders, RedriveResult
from consumers.deadletters.selection import Selection
from producers.sealing.sealer import Sealer, make_sealer

__all__ = ["redrive"]

_WORDS: Final = {
    "send": "sent back",
    "park": "parked",
    "twin": "a repetition of another letter",
    "redriven": "left: sent back already",
    "purged": "left: purged",
    "parked": "left: parked, only --force sends it",
    "stub": "left: a stub, its bytes were too large to keep",
    "no group": "left: it names no group",
    "unreadable origin": "left: it names no origin",
    "unreachable": "left: its group has no redrive topic",
    "expired": "left: expired, --extend DURATION gives it time",
}


class _RedriveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    selection: Selection
    rate: float | None
    stop_after: int | None
    wait: bool
    extend: float | None
    force: bool
    to_stopped: bool
    why: str
    dry_run: bool
    yes: bool
    key_file: Path | None
    agent: str | None


@click.command()
@click.argument("locations", nargs=-1, metavar="[PLACE]...")
@with_selection
@click.option("--rate", type=RATE, help="Maximum rate, such as 20/s.")
@click.option(
    "--stop-after", type=click.IntRange(1), metavar="N", help="Stop when N of those that were sent have died again."
)
@click.option("--wait", is_flag=True, help="Wait until their groups have settled them, and show how many died again.")
@click.option(
    "--extend",
    type=DURATION_TYPE,
    help="Let messages that are expired, or would be before then, live so long from now.",
)
@click.option("--force", is_flag=True, help=f"Send parked letters too: those that were sent back {MAX_REDRIVES} times.")
@click.option(
    "--to-stopped", is_flag=True, help="Send to a group without workers, although another one reads its types."
)
@click.option("--why", metavar="TEXT", default="", help="Why, for the journal.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, by reason and type, and send nothing.")
@key_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_session
@gathered(_RedriveOptions)
def redrive(session: CommandSession, options: _RedriveOptions) -> int:
    """Send each dead letter back, with its original bytes, to the group that failed on it and to no other.

    Without a PLACE (as `sealbus dlq list` shows it) or a filter all open dead letters are sent. The command may be
    interrupted at any moment, by Ctrl-C or a crash: run it again to continue, nothing is sent twice. Of two concurrent
    redrives one stops. After three redrives a dead letter is parked. Every redrive is written into the journal (topic
    _audit) and into the state of each dead letter.

    With keys configured, --extend for a type of high risk needs an order signed by an agent with the right to redrive:
    give --key-file.

    With --stop-after it sends few at first and waits until the group has handled them, so a worker of the group must be
    running.

    \b
    Examples:
      sealbus dlq redrive --dry-run
      sealbus dlq redrive --type research.request --reason schema_violation --why "fixed in 1.4.2"
      sealbus dlq redrive --group researcher-svc-1c2d3e4f --rate 20/s --stop-after 5
      sealbus dlq redrive --reason expired --extend 2h --yes

    \b
    Exit codes: 0 done, 1 stopped because messages failed again, or some groups have no redrive topic, or no
    members while another group reads their types, 75 try again: the log or the group did not answer, or another
    redrive is running.
    """
    selection = options.selection
    settings = session.settings(key_file=options.key_file)
    acting = session.acting_agent(settings, options.agent)
    session.announce()
    orders = RedriveOrders(force=options.force, extend_ms=round((options.extend or 0) * 1000))
    plan, selection, recipients = _plan(session, settings, selection, orders)
    if _tell_recipients(recipients) and not (options.to_stopped or options.dry_run):
        return FAILED
    if options.dry_run or not plan.meant:
        _show_plan(session, plan)
        if not options.dry_run and not plan.unresolved and not plan.unended:
            return FAILED if plan.unreachable else 0
    elif not options.yes:
        _show_plan(session, plan, err=True)
        click.confirm(
            f"Send {plan.total('send')} dead letters back to {', '.join(map(printable, plan.groups)) or 'no group'}?",
            abort=True,
            err=True,
        )
    if options.dry_run:
        return 0

    async def body(interrupts: Interrupts) -> int:
        stop = asyncio.Event()
        interrupts.soften = stop.set
        clock = SystemClock()
        async with session.open(settings) as transport:
            await prepare_journal(transport, settings)
            journal = Journal(transport, settings, clock, verb="redrive", why=options.why)
            run = Redrive(
                transport, settings, clock, selection, orders, journal=journal, sealer=_sealer(settings, acting, clock)
            )
            with Progress(plan.meant, unit="sent", alone=True) as progress:
                result = await run.run(
                    stop=stop,
                    rate=options.rate,
                    stop_after=options.stop_after,
                    wait=options.wait,
                    on_progress=lambda done: progress.show(done.sent + done.parked + done.twins, done.sent),
                )
        _show_result(session, result, plan)
        code = {"finished": 0, "interrupted": 0, "unread": LATER, "withdrawn": LATER}.get(result.outcome, FAILED)
        return code or (FAILED if result.left or (options.wait and result.failures) else 0)

    return execute(body)


def _sealer(settings: Settings, agent: str, clock: Clock) -> Sealer | None:
    """Return who signs orders, where there is a key."""
    trust = open_trust(settings, agent, clock=clock)
    if trust.signer is None:
        return None
    return make_sealer(settings, agent, clock=clock, signer=trust.signer, verifier=trust.verifier)


def _plan(
    session: CommandSession, settings: Settings, selection: Selection, orders: RedriveOrders
) -> tuple[RedriveCounts, Selection, tuple[Recipient, ...]]:
    found: list[tuple[RedriveCounts, Selection, tuple[Recipient, ...]]] = []

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            # Report a missing topic for states before the confirmation, not after it.
            await prepare_journal(transport, settings, create=False)
            meant = await pinned(transport, settings, selection)
            plan = await Redrive(transport, settings, SystemClock(), meant, orders).plan()
            found.append((plan, meant, await recipients_of(transport, settings.bus.namespace, plan)))
            if not plan.counts:
                await tell_near_misses(transport, settings, selection)
        return 0

    code = execute(body)
    if not found:
        raise click.exceptions.Exit(code)
    return found[0]


def _tell_recipients(recipients: Sequence[Recipient]) -> bool:
    """Show the groups without members, and return whether one of them reads nothing any more."""
    for recipient in recipients:
        if recipient.text:
            click.echo(f"{'error' if recipient.is_nobody else 'hint'}: {printable(recipient.text)}", err=True)
        if recipient.cure:
            click.echo(f"hint: {printable(recipient.cure)} (--to-stopped)", err=True)
    return any(recipient.is_nobody for recipient in recipients)


def _show_plan(session: CommandSession, plan: RedriveCounts, *, err: bool = False) -> None:
    if session.as_json and not err:
        for count, letters in sorted(plan.counts.items(), key=lambda item: -item[1]):
            print_json({**msgspec.structs.asdict(count), "letters": letters})
    else:
        table = Counter(
            {
                (_WORDS[count.verdict], count.reason, count.message_type, count.group): letters
                for count, letters in plan.counts.items()
            }
        )
        for line in bars(("WOULD BE", "REASON", "TYPE", "GROUP"), table):
            click.echo(line, err=err)
    sent = plan.total("send")
    click.echo(f"{plan.counts.total()} dead letters match; {sent or 'none'} would be redriven", err=True)
    for run in plan.unended:
        click.echo(
            f"hint: redrive {printable(run)} has not ended: it was cut off, and the next one takes it over, or it is "
            "still at work",
            err=True,
        )
    _show_unreachable(plan.unreachable)
    if plan.unresolved:
        click.echo(
            f"hint: of {plan.unresolved} letters it is looked up first whether an earlier redrive has sent them",
            err=True,
        )


def _show_result(session: CommandSession, result: RedriveResult, plan: RedriveCounts) -> None:
    if session.as_json:
        print_json(result)
    parts = {
        "sent back": result.sent,
        "found to have been sent by an earlier redrive": result.found,
        "parked": result.parked,
        "repetitions of other letters": result.twins,
        "too large for the redrive topic": result.refused,
        "handled": result.sent - result.failures if result.is_settled else 0,
        "died again": result.failures,
        "left: their group has no redrive topic": result.left,
    }
    text = ", ".join(f"{number} {what}" for what, number in parts.items() if number or what == "sent back")
    click.echo(f"{text}; {result.outcome}, run {result.run}", err=True)
    hints = {
        "withdrawn": f"redrive {printable(result.rival)} is still at work: wait for it or stop it, then call this "
        "again",
        "interrupted": "run the same command again to continue",
        "stopped": "`sealbus dlq list --state open` shows what died again",
        "unread": "the group has not read what was sent: start a worker, then call this again",
    }
    if result.outcome in hints:
        click.echo(f"hint: {hints[result.outcome]}", err=True)
    _show_unreachable(result.unreachable)
    gone = (
        plan.meant
        + plan.total("unreachable")
        - sum((result.sent, result.parked, result.twins, result.refused, result.found, result.left))
    )
    if result.outcome == "finished" and gone > 0:
        click.echo(
            f"hint: {gone} of those that were counted were not there any more: retention deleted them "
            "(topics.deadletter_retention_s), "
            "or somebody else has sent them back or purged them",
            err=True,
        )


def _show_unreachable(unreachable: Mapping[str, str]) -> None:
    for group, why in unreachable.items():
        click.echo(f"error: group {group} can't be sent anything back: {printable(why)}", err=True)
    if unreachable:
        click.echo(
            "hint: `sealbus topics apply MODULE:APP` creates the topics of an app, these among them; of a group that "
            "is gone for good "
            "`sealbus dlq purge --group GROUP` puts the letters away",
            err=True,
        )
