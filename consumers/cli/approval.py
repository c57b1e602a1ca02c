"""`sealbus approval list|show|approve|reject|hook`: actions that wait for a person.

The verbs read only the log: open requests, and the waiting message itself, whose bytes are compared with the request. A
decision is signed with the key of the person who makes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from bus.errors import BusError, ConfigurationError
from bus.protocol.sealing import Message
from bus.telemetry.terminal import printable
from bus.trust.policy.decision import admits
from consumers.cli.claude_settings import WrittenHook, check_gateway_url, managed_file, steps_left, write_hook
from consumers.cli.interrupts import asking
from consumers.cli.io.output import Detail, Listing, VerbResult
from consumers.cli.io.parameter_types import OneOf
from consumers.cli.session import CommandSession, key_options, limit_option, verb
from consumers.cli.shell import VerbGroup
from consumers.processes.approvals.approval_rows import (
    SHORT_DIGITS,
    ApprovalDetails,
    ApprovalRow,
    approval_lines,
    approval_row,
    end_of_approval,
    indented_action,
)
from consumers.processes.approvals.deciding import DecisionVerb, decision_about, seal_decision
from consumers.processes.approvals.decisions import senders_of
from consumers.processes.approvals.open_requests import (
    HASH_DIGITS,
    OpenRequest,
    action_of,
    agrees,
    held_message,
    readable_requests,
    request_of,
)

__all__ = ["approval"]

_hash_option = click.option(
    "--hash", "digits", metavar="DIGITS", help="The first 8 digits of the action's hash, as `approval show` prints it."
)


class SentDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that was sent."""

    approval: str
    decision: str
    by: str
    message_id: str


@click.group(cls=VerbGroup)
def approval() -> None:
    """Show actions that wait for an approval, and decide about them.

    A decision is about one action, identified by its hash: type, data, sender, recipient, level and authority. The
    approval lets exactly this action run, once.

    \b
    Examples:
      sealbus approval list
      sealbus approval show 834a77aab005
      sealbus approval approve 834a77aab005 --key-file lead.pem --hash b5124a78
      sealbus approval reject 834a77aab005 --key-file lead.pem --why "not on a Friday"
    """


@approval.command("list")
@click.option("--all", "closed", is_flag=True, help="Also those that are decided or expired.")
@limit_option
@verb(ApprovalRow)
async def list_(session: CommandSession, *, closed: bool, limit: int) -> VerbResult:
    """List what waits for a decision, the most urgent first; with --all also what was decided, and by whom.

    \b
    Examples:
      sealbus approval list -o json
      sealbus approval list --all
    """
    settings = session.settings()
    async with session.open(settings) as transport:
        found = await readable_requests(transport, settings, closed=closed)
    found.sort(key=lambda each: each.message.routing.expires_at)
    columns = {
        "ID": lambda each: each.digits[:SHORT_DIGITS],
        "ACTION": lambda each: (each.request.action.within or {}).get("tool") or each.request.action.type,
        "FOR": lambda each: each.request.action.sender or each.message.metadata.sender.id,
        "RISK": lambda each: each.request.risk_assessment.risk_level,
        "RULE": lambda each: each.request.rule_id,
        "UNTIL": lambda each: each.message.routing.expires_at,
        "WHAT": lambda each: each.request.action.description,
        **({"STATE": end_of_approval} if closed else {}),
    }
    empty = "no approvals were requested" if closed else "no action waits for a decision"
    more = [f"{len(found) - limit} more: --limit"] if len(found) > limit else []
    rows: list[Any] = [approval_row(each) for each in found[:limit]] if session.as_json else list(found[:limit])
    return Listing(rows, columns, empty=empty, notes=more)


@approval.command()
@click.argument("which", metavar="ID")
@verb(ApprovalDetails)
async def show(session: CommandSession, *, which: str) -> VerbResult:
    """Show what would run: the action, its hash, and the waiting message as it is in the log; and its end.

    \b
    Examples:
      sealbus approval show 834a77aab005
    """
    settings = session.settings()
    async with session.open(settings) as transport:
        found = await request_of(transport, settings, which)
        waiting = await held_message(transport, settings.bus.namespace, found)
    shown = ApprovalDetails(
        **msgspec.structs.asdict(approval_row(found, is_whole=True)),
        approvers=tuple(found.request.approvers),
        waiting_message=None if waiting is None else waiting.message_id,
        waiting_sender=None if waiting is None else waiting.metadata.sender.id,
        agrees=None if waiting is None else agrees(found.message, waiting),
    )
    return Detail(shown, approval_lines(found, shown, waiting))


@approval.command()
@click.argument("which", metavar="ID")
@key_options
@_hash_option
@click.option("--condition", "conditions", multiple=True, metavar="TEXT", help="A condition; may be repeated.")
@verb(SentDecision)
async def approve(
    session: CommandSession,
    *,
    which: str,
    agent: str | None,
    key_file: Path | None,
    digits: str | None,
    conditions: tuple[str, ...],
) -> VerbResult:
    """Approve an action, with your own key. Without --hash you are asked for the hash's first digits.

    A handler that takes no conditions does not run on a conditional approval.

    \b
    Examples:
      sealbus approval approve 834a77aab005 --key-file lead.pem
    """
    return await _decide(session, which, "approve", agent, key_file, digits=digits, conditions=conditions)


@approval.command()
@click.argument("which", metavar="ID")
@key_options
@_hash_option
@click.option("--why", metavar="TEXT", required=True, help="The reason; the requester reads it.")
@click.option("--change", "changes", multiple=True, metavar="TEXT", help="What to change; may be repeated.")
@verb(SentDecision)
async def reject(
    session: CommandSession,
    *,
    which: str,
    agent: str | None,
    key_file: Path | None,
    digits: str | None,
    why: str,
    changes: tuple[str, ...],
) -> VerbResult:
    """Reject an action, with your own key; with --change, ask for changes.

    \b
    Examples:
      sealbus approval reject 834a77aab005 --key-file lead.pem --why "not on a Friday"
    """
    verdict: DecisionVerb = "request_changes" if changes else "reject"
    return await _decide(session, which, verdict, agent, key_file, digits=digits, reason=why, changes=changes)


@approval.command()
@click.argument("program", metavar="claude-code", type=OneOf(["claude-code"]))
@click.option("--url", default="http://127.0.0.1:8766", show_default=True, metavar="URL", help="The gateway.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Where the token is, or will be.")
@click.option("--managed", is_flag=True, help="Write the managed settings, which no session can edit.")
@click.option("--managed-path", type=click.Path(path_type=Path), metavar="FILE", help="Another file for --managed.")
@verb(WrittenHook)
def hook(
    session: CommandSession,
    *,
    program: str,  # noqa: ARG001 - there is one
    url: str,
    token_file: Path | None,
    managed: bool,
    managed_path: Path | None,
) -> VerbResult:
    """Write the settings by which Claude Code asks a person before it calls a tool, and print what is left to do.

    It writes an http hook into .claude/settings.local.json of the current folder, and keeps what is there. Tools that
    only read are not asked about: Read, Grep, Glob, LS, NotebookRead, TodoWrite. Claude Code 2.1.295 or newer blocks a
    call when the gateway does not answer; an older one runs it.

    \b
    Examples:
      sealbus approval hook claude-code --token-file hook.token
      sealbus approval hook claude-code --managed --url https://bus.example.org
    """
    if managed_path is not None and not managed:
        raise click.UsageError("--managed-path goes with --managed")
    check_gateway_url(url)
    file = (managed_path or managed_file()) if managed else Path(".claude", "settings.local.json")
    written = write_hook(file, url)
    state = "written to" if written.is_changed else "already in"
    lines = [f"the hook is {state} {printable(written.file)}", *steps_left(session.settings(), token_file)]
    return Detail(written, lines)


async def _decide(
    session: CommandSession,
    which: str,
    verdict: DecisionVerb,
    named: str | None,
    key_file: Path | None,
    *,
    digits: str | None,
    **members: Any,
) -> VerbResult:
    settings = session.settings_for(key_file)
    agent = session.acting_agent(settings, named)
    session.announce()
    async with session.acting(settings, agent) as bus:
        if not bus.publisher.sealer.signs:
            raise ConfigurationError("a decision is signed: give --key-file, or SEALBUS_KEY_FILE")
        found = await request_of(bus.transport, settings, which)
        short = found.digits[:SHORT_DIGITS]
        if not found.is_open:
            raise BusError(f"{short} is closed, so there is nothing to decide: {end_of_approval(found)}")
        waiting = await held_message(bus.transport, settings.bus.namespace, found)
        _check_part(agent, found, waiting)
        if verdict == "approve" or digits is not None:
            _check_hash(found, waiting if verdict == "approve" else None, digits)
        decision = decision_about(found.message, verdict, by=agent, **members)
        receipt = await bus.publisher.send(seal_decision(bus.publisher.sealer, decision, found.message))
    sent = SentDecision(approval=found.digits, decision=verdict, by=agent, message_id=receipt.message_id)
    return Detail(
        sent,
        [f"{verdict.replace('_', ' ')}: {short} as {printable(agent)} ({receipt.message_id})"],
        notes=[
            (
                "Decision sent. The requesting group verifies it; see the result with "
                f"`sealbus approval show {short}`, and a refusal with `sealbus dlq list`."
            )
        ],
    )


def _check_part(agent: str, found: OpenRequest, waiting: Message | None) -> None:
    """Refuse a decision that the group is certain to refuse. Raises BusError."""
    involved = {found.message.metadata.sender.id} | (senders_of(waiting) if waiting is not None else set())
    if agent in involved:
        raise BusError(
            f"{printable(agent)} takes part in the action, so that it cannot decide: another approver has to"
        )
    if found.request.approvers and not admits([found.request.approvers], agent):
        allowed = ", ".join(map(printable, found.request.approvers))
        raise BusError(f"{printable(agent)} is not among the approvers of this request: {allowed}")


def _check_hash(found: OpenRequest, waiting: Message | None, digits: str | None) -> None:
    """Ask the person for the hash of the action they have read. Raises BusError."""
    short = found.digits[:SHORT_DIGITS]
    if waiting is not None and not agrees(found.message, waiting):
        raise BusError("MISMATCH: this request differs from the message it is about. Reject it, and find its sender")
    if digits is None:
        click.echo(indented_action(action_of(found.message)), err=True)
        with asking():
            digits = click.prompt(f"The first {HASH_DIGITS} digits of {found.request.action_hash}", err=True)
    if not found.is_named_by(str(digits)):
        raise BusError(f"that is not the hash of this action: `sealbus approval show {short}`")
