"""Approvals as rows, and what became of each, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms, parse_ms
from bus.redaction import masked
from bus.telemetry.terminal import printable
from bus.telemetry.terminal_json import details
from consumers.processes.approvals.open_requests import (
    OpenRequest,
    action_of,
    within_of,
)

__all__ = [
    "ApprovalDetails",
    "ApprovalRow",
    "SHORT_DIGITS",
    "approval_lines",
    "approval_row",
    "end_of_approval",
    "indented_action",
]


_AFTER_APPROVAL: Final[Mapping[str, str]] = MappingProxyType(
    {"consumed": "it has run", "expired": "but it did not run in time", "void": "but that is void"}
)


class ApprovalRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request for an approval, and its end."""

    approval: str
    state: str
    """open, overdue, or how it ended."""
    action: dict[str, Any]
    """What would run: exactly this. In a list secrets in the arguments of a step are masked."""
    tool: str
    """The step that would be called; empty where the whole message would be handled."""
    action_hash: str
    reason: str
    risk: str
    rule: str
    """The rule of the policy that asks for it."""
    quorum: int
    asked_by: str | None
    until: str
    request: str
    """The id of the request."""
    decided_by: tuple[str, ...]


class ApprovalDetails(ApprovalRow, frozen=True, kw_only=True):
    """One request beside the waiting message."""

    approvers: tuple[str, ...]
    waiting_message: str | None
    """Its id; None: the log no longer has it."""
    waiting_sender: str | None
    agrees: bool | None
    """Whether the request is about exactly this message; None: not looked at, the message is gone."""


def end_of_approval(found: OpenRequest) -> str:
    """Return the state of *found*, or its decision and the approvers."""
    if found.closing is None:
        return "overdue" if found.is_late else "open"
    state = found.closing.state
    by = f" by {', '.join(found.closing.decided_by)}" if found.closing.decided_by else ""
    if state == "expired" and not by:
        return "cancelled by its requester"
    if state in _AFTER_APPROVAL:
        return f"approved{by}, {_AFTER_APPROVAL[state]}"
    return f"{state.replace('_', ' ') or 'closed'}{by}"


def approval_row(found: OpenRequest, *, is_whole: bool = False) -> ApprovalRow:
    """Return *found* as a row; *is_whole*: with the arguments of a step as they are."""
    request, closing, action = found.request, found.closing, action_of(found.message)
    if not is_whole and (within := within_of(action)):
        action = {**action, "within": {**within, "arguments": masked(within.get("arguments", {}))}}
    state = (closing.state or "closed") if closing is not None else "overdue" if found.is_late else "open"
    return ApprovalRow(
        approval=request.approval_id,
        state=state,
        action=action,
        tool=str(within_of(action).get("tool", "")),
        action_hash=request.action_hash,
        reason=request.reason,
        risk=request.risk_assessment.risk_level,
        rule=request.rule_id or "",
        quorum=request.quorum,
        asked_by=found.message.metadata.sender.id,
        until=format_ms(parse_ms(found.message.routing.expires_at) or 0),
        request=found.message.message_id,
        decided_by=tuple(closing.decided_by) if closing is not None else (),
    )


SHORT_DIGITS: Final = 12


def approval_lines(found: OpenRequest, shown: ApprovalDetails, waiting: Message | None) -> Iterator[str]:
    who = ", ".join(shown.approvers) or "those the policy allows"
    about = {
        "approval": found.digits,
        "asked by": f"{shown.asked_by or '?'}, until {shown.until}",
        "state": end_of_approval(found),
        "reason": shown.reason,
        "rule": f"{shown.rule or '-'}, {shown.quorum} of {who}",
    }
    yield from details(about, width=11)
    if shown.tool:
        yield f"call:      the agent will call {printable(shown.tool)} with"
        yield indented_action(within_of(shown.action).get("arguments", {}))
    yield "action:    exactly this, and nothing else"
    yield indented_action(shown.action)
    yield f"{'hash:':<11}{shown.action_hash}"
    if waiting is None:
        yield "The message to be approved is no longer in the log, so this request cannot be verified. Reject it."
        return
    about = {"message": f"{waiting.message_type} {waiting.message_id} of {shown.waiting_sender or '?'}"}
    yield from details(about, width=11)
    if shown.agrees:
        yield "           the request is about exactly this message"
    else:
        yield (
            "MISMATCH: this request differs from the message it is about. Reject it, and find its sender with "
            f"`sealbus show {printable(found.message.message_id)}`."
        )


def indented_action(action: dict[str, Any]) -> str:
    text = msgspec.json.format(msgspec.json.encode(action), indent=2).decode()
    return "\n".join(f"    {printable(line)}" for line in text.splitlines())
