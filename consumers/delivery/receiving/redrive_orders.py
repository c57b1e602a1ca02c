"""Redrive orders: how far an operator's redrive may extend the lifetime of a message.

Owns rules R5 and S6 of design part two section 14: any process with write access to a redrive topic can write
`sb-extend-until`. For a message of high risk, where keys are configured, the header counts only with a sealed
`redrive.ordered` from an agent that may redrive the message. For all others it is limited to the longest lifetime.
"""

from __future__ import annotations

import msgspec

from bus import gates
from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType, payload_type, raised_risk
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.transports.base import Record
from bus.vocabulary.bus import RedriveOrdered
from consumers.deadletters.records import Control
from consumers.delivery.group_plan import GroupView

__all__ = ["granted_until_ms"]


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


def _is_ordered(control: Control, message: Message, kind: PayloadType, view: GroupView) -> bool:
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
    if not isinstance(verdict, gates.Passed) or not isinstance(verdict.payload, RedriveOrdered):
        return False
    order = verdict.payload
    until_ms = None if order.extend_until is None else round(order.extend_until.timestamp() * 1000)
    if order.group != view.group or message.seal not in order.seals or until_ms != control.extend_until_ms:
        return False
    try:
        view.admission.check_redrive(verdict.message, message, kind)
    except ContractError:
        return False
    return True


_EMPTY = Record(topic="", partition=0, offset=0, timestamp_ms=0, key=None, value=None)
