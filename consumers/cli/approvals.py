"""`sealbus approvals list|show|approve|reject`: messages that wait for a decision.

Owns the verbs and their output. They read only the log: open requests, and the waiting message itself, whose bytes are
shown beside the approval request. A decision is signed with the key of the person who makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError, ConfigurationError
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms, parse_ms
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.transports.base import Transport
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.session import CommandSession, key_options, keys_to_believe, with_session
from consumers.cli.shell import VerbGroup
from consumers.processes.approvals.deciding import DecisionVerb, decision_about, seal_decision
from consumers.processes.approvals.open_requests import (
    HASH_DIGITS,
    OpenRequest,
    action_of,
    agrees,
    held_message,
    open_requests,
)

__all__ = ["approvals"]

_DIGITS: Final = 12
_PREFIX: Final = "sha256:"
_AFTER_APPROVAL: Final[Mapping[str, str]] = MappingProxyType(
    {"consumed": "it has run", "expired": "but it did not run in time", "void": "but that is void"}
)


@click.group(cls=VerbGroup)
def approvals() -> None:
    """Show messages that wait for an approval, and decide about them.

    A decision is about one action packet, identified by its hash: type, data, sender, recipient, level and authority.
    The approval lets exactly this action run, once.

    \b
    Examples:
      sealbus approvals list
      sealbus approvals show 834a77aab005
      sealbus approvals approve 834a77aab005 --key-file lead.pem --hash b5124a78
      sealbus approvals reject 834a77aab005 --key-file lead.pem --reason "not on a Friday"
    """


@approvals.command(name="list")
@click.option("--all", "closed", is_flag=True, help="Include closed and expired ones.")
@with_session
def list_approvals(session: CommandSession, *, closed: bool) -> int:
    """List what waits for a decision, the most urgent first; with --all also what was decided, and by whom.

    \b
    Examples:
      sealbus approvals list --output json
      sealbus approvals list --all
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            found = await _requests(transport, settings, closed=closed)
        found.sort(key=lambda each: each.message.routing.expires_at)
        if session.as_json:
            for each in found:
                print_json(_described(each))
        elif found:
            headings = ("ID", "ACTION", "FOR", "RISK", "RULE", "UNTIL", "WHAT")
            rows = [
                (
                    each.digits[:_DIGITS],
                    each.request.action.type,
                    each.request.action.sender or each.message.metadata.sender.id or "-",
                    each.request.risk_assessment.risk_level,
                    each.request.rule_id or "-",
                    each.message.routing.expires_at,
                    each.request.action.description,
                    *((_end_text(each),) if closed else ()),
                )
                for each in found
            ]
            print_table((*headings, *(("STATE",) if closed else ())), rows)
        else:
            click.echo("no approval was asked for" if closed else "nothing waits for a decision", err=True)
        return 0

    return execute(body)


@approvals.command()
@click.argument("approval", metavar="ID")
@with_session
def show(session: CommandSession, *, approval: str) -> int:
    """Show what would run: the action packet, its hash, and the held message as it is in the log; and its end.

    \b
    Examples:
      sealbus approvals show 834a77aab005
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            found = await _chosen(transport, settings, approval)
            pending = await held_message(transport, settings.bus.namespace, found)
        described = _described(found)
        if session.as_json:
            print_json({**described, "held": _held_described(pending)})
            return 0
        request = found.request
        click.echo(f"approval   {found.digits}")
        click.echo(f"asked by   {printable(found.message.metadata.sender.id or '?')}, until {described['until']}")
        click.echo(f"state      {printable(_end_text(found))}")
        click.echo(f"reason     {printable(request.reason)}")
        click.echo(
            f"rule       {printable(request.rule_id or '-')}, {request.quorum} of "
            f"{printable(', '.join(request.approvers) or 'those the policy lets')}"
        )
        click.echo("action     exactly this, and nothing else:")
        click.echo(_indented(action_of(found.message)))
        click.echo(f"hash       {request.action_hash}")
        if pending is None:
            click.echo("held       not in the log any more: this request cannot be verified", err=True)
        else:
            match = (
                "the packet agrees with it" if agrees(found.message, pending) else "THE PACKET DIFFERS FROM THE MESSAGE"
            )
            who = printable(pending.metadata.sender.id or "?")
            click.echo(f"held       {pending.message_type} {pending.message_id} of {who}: {match}")
        return 0

    return execute(body)


@approvals.command()
@click.argument("approval", metavar="ID")
@key_options
@click.option("--hash", "digits", metavar="DIGITS", help="The first 8 digits of the action's hash.")
@click.option("--condition", "conditions", multiple=True, metavar="TEXT", help="A condition; may be repeated.")
@with_session
def approve(
    session: CommandSession,
    *,
    approval: str,
    agent: str | None,
    key_file: Path | None,
    digits: str | None,
    conditions: tuple[str, ...],
) -> int:
    """Agree to an action, with your own key. Without --hash you are asked for the hash's first digits.

    A handler that takes no conditions does not run on a conditional approval.

    \b
    Examples:
      sealbus approvals approve 834a77aab005 --key-file lead.pem
    """
    return _decide(session, approval, "approve", agent, key_file, digits=digits, conditions=conditions)


@approvals.command()
@click.argument("approval", metavar="ID")
@key_options
@click.option("--reason", metavar="TEXT", required=True, help="Why; the requester reads it.")
@click.option("--change", "changes", multiple=True, metavar="TEXT", help="What to change; may be repeated.")
@with_session
def reject(
    session: CommandSession,
    *,
    approval: str,
    agent: str | None,
    key_file: Path | None,
    reason: str,
    changes: tuple[str, ...],
) -> int:
    """Refuse an action, with your own key; with --change, ask for changes.

    \b
    Examples:
      sealbus approvals reject 834a77aab005 --key-file lead.pem --reason "not on a Friday"
    """
    verb: DecisionVerb = "request_changes" if changes else "reject"
    return _decide(session, approval, verb, agent, key_file, reason=reason, changes=changes)


def _decide(
    session: CommandSession,
    approval: str,
    verb: DecisionVerb,
    named: str | None,
    key_file: Path | None,
    *,
    digits: str | None = None,
    **members: Any,
) -> int:
    settings = session.settings_for(key_file)
    agent = session.acting_agent(settings, named)
    session.announce()

    async def body(_: object) -> int:
        async with session.acting(settings, agent) as bus:
            if not bus.publisher.sealer.signs:
                raise ConfigurationError("a decision is signed: give --key-file, or SEALBUS_KEY_FILE")
            found = await _chosen(bus.transport, settings, approval)
            if not found.is_open:
                raise BusError(f"nothing is to be decided about {found.digits[:_DIGITS]} any more: {_end_text(found)}")
            pending = await held_message(bus.transport, settings.bus.namespace, found)
            if verb == "approve":
                _confirm(found, pending, digits)
            decision = decision_about(found.message, verb, by=agent, **members)
            receipt = await bus.publisher.send(seal_decision(bus.publisher.sealer, decision, found.message))
        click.echo(f"{verb.replace('_', ' ')}: {found.digits[:_DIGITS]} as {printable(agent)} ({receipt.message_id})")
        click.echo(
            "Decision sent. The requesting group verifies it; the result is in `sealbus approvals list`, a refusal in "
            "`sealbus dlq list`.",
            err=True,
        )
        return 0

    return execute(body)


def _confirm(found: OpenRequest, pending: Message | None, digits: str | None) -> None:
    """Ask the person for the hash of the action they have read. Raises BusError."""
    if pending is not None and not agrees(found.message, pending):
        raise BusError("the packet differs from the waiting message: reject it, and find its sender")
    if digits is None:
        click.echo(_indented(action_of(found.message)), err=True)
        digits = click.prompt(f"The first {HASH_DIGITS} digits of {found.request.action_hash}", err=True)
    if not found.is_named_by(str(digits)):
        raise BusError(f"that is not the hash of this action: `sealbus approvals show {found.digits[:_DIGITS]}`")


async def _requests(transport: Transport, settings: Settings, *, closed: bool = False) -> list[OpenRequest]:
    clock = SystemClock()
    keys = keys_to_believe(settings, clock)
    return await open_requests(transport, settings.bus.namespace, verifier=keys, clock=clock, closed=closed)


async def _chosen(transport: Transport, settings: Settings, digits: str) -> OpenRequest:
    """Return the approval whose id begins with *digits*, an open one before others. Raises BusError."""
    wanted = digits.removeprefix(_PREFIX)
    matching = [each for each in await _requests(transport, settings, closed=True) if each.digits.startswith(wanted)]
    found = [each for each in matching if each.is_open] or matching
    if len({each.digits for each in found}) > 1:
        raise BusError(f"{digits!r} begins the ids of {len(found)} approvals: give more digits")
    if not found:
        raise BusError(f"no approval begins with {digits!r}: `sealbus approvals list --all` shows them")
    return found[-1]


def _end_text(found: OpenRequest) -> str:
    """Return the state of *found*, or its decision and the approvers."""
    if found.closing is None:
        return "its time is over" if found.is_late else "open"
    state = found.closing.state
    by = f" by {', '.join(found.closing.decided_by)}" if found.closing.decided_by else ""
    if state in _AFTER_APPROVAL:
        return f"approved{by}, {_AFTER_APPROVAL[state]}"
    return f"{state.replace('_', ' ') or 'closed'}{by}"


def _indented(action: dict[str, Any]) -> str:
    text = msgspec.json.format(msgspec.json.encode(action), indent=2).decode()
    return "\n".join(f"    {printable(line)}" for line in text.splitlines())


def _described(found: OpenRequest) -> dict[str, Any]:
    request = found.request
    return {
        "approval": request.approval_id,
        "action": action_of(found.message),
        "action_hash": request.action_hash,
        "reason": request.reason,
        "risk": request.risk_assessment.risk_level,
        "rule": request.rule_id,
        "quorum": request.quorum,
        "asked_by": found.message.metadata.sender.id,
        "until": format_ms(parse_ms(found.message.routing.expires_at) or 0),
        "request": found.message.message_id,
        "state": _state(found),
        "decided_by": list(found.closing.decided_by) if found.closing is not None else [],
    }


def _state(found: OpenRequest) -> str:
    if found.closing is not None:
        return found.closing.state or "closed"
    return "overdue" if found.is_late else "open"


def _held_described(pending: Message | None) -> dict[str, Any] | None:
    return (
        None
        if pending is None
        else {"message_id": pending.message_id, "seal": pending.seal, "sender": pending.metadata.sender.id}
    )
