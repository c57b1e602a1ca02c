"""`sealbus dlq redrive`: send dead letters back to the groups in which they failed.

Owns the options, the confirmation and the words of the result; `consumers.deadletters.redrive` sends them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from bus.clock import SystemClock
from bus.telemetry.terminal import printable
from bus.telemetry.terminal_bars import bars
from bus.trust.opening import open_trust
from consumers.cli.dlq.filters import with_selection
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.io.parameter_types import DURATION_TYPE, RATE
from consumers.cli.io.printing import print_json
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, changing, gathered, key_options, verb
from consumers.cli.shell import Command
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.deadletters.letter_state import MAX_REDRIVES
from consumers.deadletters.locations import pinned
from consumers.deadletters.near_misses import near_misses
from consumers.deadletters.recipients import Recipient, recipients_of
from consumers.deadletters.redrive import Redrive
from consumers.deadletters.redrive_rules import RedriveCounts, RedriveOrders, RedriveResult, StepAnswer
from consumers.deadletters.redrive_words import (
    VERDICT_WORDS,
    LetterCount,
    counted_letters,
    forged_lines,
    result_lines,
    unchanged_lines,
    unreachable_lines,
)
from consumers.deadletters.selection import Selection
from producers.sealing.sealer import make_sealer

__all__ = ["LetterCount", "print_counts", "redrive"]


class _RedriveOptions(msgspec.Struct, frozen=True, kw_only=True):
    selection: Selection
    rate: float | None
    stop_after: int | None
    wait: bool
    extend: float | None
    force: bool
    to_stopped: bool
    step_done: str | None
    step_again: bool
    step: str | None
    why: str
    dry_run: bool
    yes: bool
    key_file: Path | None
    agent: str | None


@click.command(cls=Command)
@click.argument("locations", nargs=-1, metavar="[LOCATION]...")
@with_selection
@click.option("--rate", type=RATE, help="Maximum rate, such as 20/s.")
@click.option(
    "--stop-after", type=click.IntRange(1), metavar="N", help="Stop when N of the redriven ones failed again."
)
@click.option("--wait", is_flag=True, help="Wait until their groups have handled them, and count those that failed.")
@click.option("--extend", type=DURATION_TYPE, help="New lifetime of messages that are expired or would expire before.")
@click.option(
    "--force",
    is_flag=True,
    help=f"Send also what was redriven {MAX_REDRIVES} times and is parked, and what no redrive can change.",
)
@click.option("--to-stopped", is_flag=True, help="Also send to a group without workers whose types another reads.")
@click.option("--step-done", metavar="JSON", help="The step in doubt had its effect, and returned this.")
@click.option("--step-again", is_flag=True, help="The step in doubt had no effect: call it again.")
@click.option("--step", metavar="STEP_ID", help="Which step is meant, where several are in doubt.")
@key_options
@changing
@verb(RedriveResult)
@gathered(_RedriveOptions)
async def redrive(session: CommandSession, options: _RedriveOptions) -> VerbResult | int:
    """Send each dead letter back, with its original bytes, to the group that failed on it and to no other.

    Without a LOCATION (as `sealbus dlq list` shows it) or a filter all open dead letters are sent. You may interrupt
    it at any moment, also by a crash: run it again to continue; nothing is sent twice. Of two redrives at a time one
    stops. After three redrives a dead letter is parked. What the bytes alone decide, such as `malformed`, is left out.
    The operations journal (topic _audit) records each redrive.

    With keys configured, --extend for a type of high risk needs an order signed by an agent with the right to redrive:
    give --key-file. With --stop-after it sends few at first and waits until the group has handled them, so a worker of
    the group must be running.

    A message that died by `effect_in_doubt` has a step that must not run twice and has no result: look whether it had
    its effect, and tell so for that one LOCATION with --step-done or --step-again. The first answer counts.

    \b
    Examples:
      sealbus dlq redrive --dry-run
      sealbus dlq redrive LOCATION --step-done '"invoice 17"' --why "found in the ledger"
      sealbus dlq redrive --cause 3f9a1c20 --why "fixed in 1.4.2"
      sealbus dlq redrive --group researcher-svc-1c2d3e4f --rate 20/s --stop-after 5
      sealbus dlq redrive --reason expired --extend 2h --yes

    \b
    Exit codes: 0 done, 1 stopped because messages failed again, a redrive cannot change what was
    chosen, or a group cannot be reached or has no workers while another reads its types,
    75 try again: the log or the group did not answer, or another redrive is running.
    """
    settings = session.settings(key_file=options.key_file)
    acting, clock, stop = session.acting_agent(settings, options.agent), SystemClock(), asyncio.Event()
    session.announce()
    answer = _answer_of(options)
    orders = RedriveOrders(force=options.force, extend_ms=round((options.extend or 0) * 1000), answer=answer)
    async with session.open(settings) as transport:
        # Report a missing topic for states before the confirmation, not after it.
        await prepare_journal(transport, settings, create=False)
        chosen = await pinned(transport, settings, options.selection)
        plan = await Redrive(transport, settings, clock, chosen, orders).plan()
        if not plan.counts:
            for hint in await near_misses(transport, settings.bus.namespace, options.selection):
                session.note(f"hint: {hint}")
        _check_answer(answer, plan)
        recipients = await recipients_of(transport, settings.bus.namespace, plan)
        if _tell_recipients(session, recipients) and not (options.to_stopped or options.dry_run):
            return FAILED
        if options.dry_run or not plan.meant:
            _show_plan(session, plan)
            if options.dry_run:
                return 0
            if not plan.unresolved and not plan.unended:
                return FAILED if plan.unreachable or plan.total("decided by its bytes") else 0
        elif not options.yes:
            _show_plan(session, plan, err=True)
            groups = ", ".join(map(printable, plan.groups)) or "no group"
            session.confirm(f"Redrive {plan.total('send')} dead letters to {groups}?", yes=False)
        session.interrupts.soften = stop.set
        await prepare_journal(transport, settings)
        trust = open_trust(settings, acting, clock=clock)
        if answer is not None and trust.signer is None and trust.verifier is not None:
            raise click.UsageError("workers here believe only a signed answer about a step: give --key-file")
        sealer = (
            None
            if trust.signer is None and answer is None
            else make_sealer(settings, acting, clock=clock, signer=trust.signer, verifier=trust.verifier)
        )
        journal = Journal(transport, settings, clock, verb="redrive", why=options.why)
        run = Redrive(transport, settings, clock, chosen, orders, journal=journal, sealer=sealer)
        with Progress(plan.meant, unit="sent", alone=True) as progress:
            result = await run.run(
                stop=stop,
                rate=options.rate,
                stop_after=options.stop_after,
                wait=options.wait,
                on_progress=lambda done: progress.show(done.sent + done.parked + done.twins, done.sent),
            )
    code = {"finished": 0, "interrupted": 0, "unread": LATER, "withdrawn": LATER}.get(result.outcome, FAILED)
    if answer is not None and not options.wait:
        session.note(_believed_where(acting))
    code = code or (FAILED if result.left or (options.wait and result.failures) else 0)
    return Listing([result] if session.as_json else [], {}, notes=result_lines(result, plan), code=code)


def _answer_of(options: _RedriveOptions) -> StepAnswer | None:
    """Return what the operator says about a step in doubt."""
    if options.step_done is None and not options.step_again:
        if options.step is not None:
            raise click.UsageError("--step needs --step-done JSON or --step-again: add what became of the step")
        return None
    if options.step_done is not None and options.step_again:
        raise click.UsageError("--step-done and --step-again contradict each other: give one of them")
    if len(options.selection.places) != 1:
        raise click.UsageError("an answer about a step is for one dead letter: give its LOCATION")
    if not options.why:
        raise click.UsageError("give --why TEXT: the operations journal records who said so and why")
    if options.step_again:
        return StepAnswer(answer="again", step=options.step)
    try:
        result = msgspec.json.decode(options.step_done or "")
    except msgspec.DecodeError as error:
        raise click.UsageError(f"--step-done is no JSON ({error}): write a text as '\"text\"'") from error
    return StepAnswer(answer="done", step=options.step, result=result)


def _believed_where(acting: str) -> str:
    return (
        f"workers believe the answer where their policy has a `redrive` rule for {acting}: --wait shows what became "
        "of it, and the error of a new dead letter has the reason of a refusal"
    )


def _check_answer(answer: StepAnswer | None, plan: RedriveCounts) -> None:
    """Refuse an answer about a step for a message that died of something else."""
    if answer is None or answer.step is not None:
        return
    for reason in sorted({str(count.reason) for count in plan.counts} - {"effect_in_doubt"}):
        raise click.UsageError(
            f"this message died by {printable(reason)}, and has no step in doubt: "
            "redrive it without an answer, or name the step with --step STEP_ID"
        )


def _tell_recipients(session: CommandSession, recipients: Sequence[Recipient]) -> bool:
    """Show the groups without workers, and return whether one of them reads nothing any more."""
    for recipient in recipients:
        if recipient.text:
            click.echo(f"{'error' if recipient.is_nobody else 'hint'}: {printable(recipient.text)}", err=True)
        if recipient.cure:
            session.note(f"hint: {printable(recipient.cure)} (--to-stopped)")
    return any(recipient.is_nobody for recipient in recipients)


def print_counts(session: CommandSession, rows: Sequence[LetterCount], *, err: bool = False) -> None:
    """Print *rows*; with *err* on standard error, with bars."""
    if session.as_json and not err:
        for row in rows:
            print_json(row)
        return
    table = Counter(
        {
            (VERDICT_WORDS.get(row.why or row.action, ""), row.reason, row.type, row.group): row.dead_letters
            for row in rows
        }
    )
    if rows and rows[0].action == "dismiss":
        headings: tuple[str, ...] = ("REASON", "TYPE", "GROUP")
        lines = bars(headings, {key[1:]: count for key, count in table.items()})
    else:
        lines = bars(("WOULD BE", "REASON", "TYPE", "GROUP"), table)
    for line in lines:
        click.echo(line, err=err)


def _show_plan(session: CommandSession, plan: RedriveCounts, *, err: bool = False) -> None:
    print_counts(session, counted_letters(plan), err=err)
    count = plan.counts.total()
    matching = "1 dead letter matches" if count == 1 else f"{count} dead letters match"
    session.note(f"{matching}; {plan.total('send') or 'none'} would be redriven")
    for run in plan.unended:
        session.note(
            f"hint: redrive {printable(run)} has not ended: it is still at work, or it was cut off and the next one "
            "continues it"
        )
    for line in (*forged_lines(plan), *unchanged_lines(plan)):
        session.note(printable(line))
    for line in unreachable_lines(plan.unreachable):
        click.echo(line, err=True)
    if plan.unresolved:
        session.note(
            f"hint: for {plan.unresolved} dead letters the redrive first looks whether an earlier one sent them"
        )
