"""Redrive orders: how far an operator's redrive may extend the lifetime of a message, and what it says about a step.

Owns rules R5 and S6 of design part two section 14: any process with write access to a redrive topic can write
`sb-extend-until`. For a message of high risk, where keys are configured, the header counts only with a sealed
`redrive.ordered` from an agent that may redrive the message. For all others it is limited to the longest lifetime.
What an operator says about a step in doubt counts only with such an order, where keys are configured.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from bus import gates
from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType, payload_type, raised_risk
from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.transports.base import Record
from bus.vocabulary.bus import RedriveOrdered
from consumers.deadletters.records import Control
from consumers.delivery.group_plan import GroupView

__all__ = ["granted_until_ms", "order_about"]


def granted_until_ms(record: Record, control: Control, message: Message, kind: PayloadType, view: GroupView) -> int:
    """Return until when *message* may live beyond its own end; 0: no longer than its own end."""
    asked_ms = control.extend_until_ms
    if not asked_ms:
        return 0
    if view.verifier is None or raised_risk(kind, view.high_risk) != "high":
        return min(asked_ms, record.timestamp_ms + view.max_ttl_ms)
    own_end_ms = parse_ms(message.routing.expires_at) or 0
    if asked_ms > own_end_ms + view.inbox_keep_ms:
        # The inbox may have forgotten that it ran.
        return 0
    return asked_ms if control.order and _is_ordered(control, message, kind, view) else 0


class OperatorOrder(NamedTuple):
    """A redrive order that holds for one message; *message* is the order itself."""

    message: Message
    order: RedriveOrdered


def order_about(control: Control, message: Message, kind: PayloadType, view: GroupView) -> OperatorOrder | None:
    """Return the order with which *message* was sent back; None if there is none.

    Raises ContractError where the order is not valid for the message here and now.
    """
    if not control.order:
        return None
    if view.verifier is not None:
        return _ordered(control, message, kind, view)
    # Nobody is verified here: whoever may write to the redrive topic may send any message, too.
    parsed = sealing.parse(control.order)
    sealing.check_integrity(parsed)
    return _about(parsed, payload_type(RedriveOrdered).open(parsed), message, view)


def _is_ordered(control: Control, message: Message, kind: PayloadType, view: GroupView) -> bool:
    try:
        found = _ordered(control, message, kind, view)
    except ContractError:
        return False
    until = found.order.extend_until
    return (None if until is None else round(until.timestamp() * 1000)) == control.extend_until_ms


def _ordered(control: Control, message: Message, kind: PayloadType, view: GroupView) -> OperatorOrder:
    order_kind = payload_type(RedriveOrdered)
    checks = gates.Checks(
        max_message_bytes=view.max_message_bytes,
        namespace=view.namespace,
        risk_of=lambda _: "high",
        verifier=view.verifier,
        kind_of=lambda found: order_kind if found.message_type == order_kind.name else None,
    )
    record = msgspec.structs.replace(_EMPTY, value=control.order)
    verdict = gates.judge(gates.Case(record=record, expected_type=order_kind.name), checks, stage="before_inbox")
    if isinstance(verdict, gates.Failed):
        raise verdict.error
    if isinstance(verdict, gates.NotAddressed):
        raise ContractError("the redrive order is for another agent", "/metadata/recipient")
    found = _about(verdict.message, verdict.payload, message, view)
    view.admission.check_redrive(verdict.message, message, kind)
    return found


def _about(parsed: Message, order: object, message: Message, view: GroupView) -> OperatorOrder:
    if not isinstance(order, RedriveOrdered) or order.group != view.group or message.seal not in order.seals:
        raise ContractError("the redrive order is about another message or group", "/data/seals")
    return OperatorOrder(parsed, order)


_EMPTY = Record(topic="", partition=0, offset=0, timestamp_ms=0, key=None, value=None)
