"""Intake: from a fetched record to a delivery that carries its verdict.

Owns running the gates in order for one record, the way a retry tier holds records until they are due, and what is skipped. Pure but for the
clock it is given. Does not own what follows from the verdict.
"""

from __future__ import annotations

from bus.clock import Clock
from bus.errors import ContractError
from bus.sealing import Message
from bus.times import parse_ms
from bus.topics import read_topic
from bus.transports.base import Record
from consumers import gates
from consumers.app import Subscription
from consumers.deadletter import Control, read_control
from consumers.delivery import Delivery, Partition
from consumers.plan import View

__all__ = ["Intake", "due_ms"]


def due_ms(record: Record, partition: Partition) -> int:
    """When a record of a retry tier may be looked at: never before the tier's delay has passed since it was appended."""
    return record.timestamp_ms + round(partition.tier.delay_s * 1000) if partition.tier else 0


class Intake:
    """Judges records for one group."""

    def __init__(self, view: View, clock: Clock) -> None:
        self._view = view
        self._clock = clock

    def judge(self, record: Record, partition: Partition) -> Delivery | None:
        """The delivery of *record*, refused or not; None when it is addressed to somebody else."""
        control = read_control(record) if partition.own else Control(record.topic, record.partition, record.offset)
        size = len(record.value or b"") + len(record.key or b"")
        delivery = Delivery(record=record, partition=partition, control=control, key=(record.partition, record.offset, record.topic), size=size)
        try:
            return self._pass(delivery)
        except ContractError as error:
            delivery.refusal = error
            if error.reason == "unknown_type" and partition.tier is not None:
                delivery.requeue = partition.tier
            return delivery

    def label(self, partition: Partition) -> str:
        """The metric label of what comes from *partition*."""
        return self._view.registry.label(partition.expected_type or "")

    def _pass(self, delivery: Delivery) -> Delivery | None:
        view, record = self._view, delivery.record
        gates.size_gate(record, view.max_message_bytes)
        message = gates.parse_gate(record, view.registry)
        gates.integrity_gate(message)
        delivery.message = message
        delivery.label = view.registry.label(message.message_type)
        if not gates.is_addressed(message, view.agent_id, view.roles):
            return None
        expected = delivery.partition.expected_type or _origin_type(delivery.control)
        gates.audience_gate(message, view.namespace, expected, record.key)
        kind = view.registry.get(message.message_type)
        gates.authenticity_gate(message, kind.risk if kind else "medium", view.verifier)
        _, delivery.payload = gates.schema_gate(message, view.registry)
        self.check_lifetime(message, record.timestamp_ms, delivery.control)
        gates.policy_gate(message, view.policy, view.group)
        subscription = view.subscriptions.get(message.message_type)
        if subscription is None:
            raise ContractError(f"{message.message_type} has no handler here", "/metadata/message_type", "unknown_type")
        delivery.subscription = subscription
        if message.routing.priority is not None:
            delivery.priority = message.routing.priority
        self._schedule(delivery, message, subscription)
        return delivery

    def check_lifetime(self, message: Message, append_ms: int, control: Control) -> None:
        """The lifetime gate, as of now; raises ContractError."""
        gates.lifetime_gate(
            message,
            now_ms=self._clock.now_ms(),
            append_ms=append_ms,
            max_hops=self._view.max_hops,
            extend_until_ms=control.extend_until_ms,
        )

    def remaining_s(self, message: Message, control: Control) -> float:
        """Seconds of lifetime left."""
        expires_ms = max(parse_ms(message.routing.expires_at) or 0, control.extend_until_ms)
        return (expires_ms - self._clock.now_ms()) / 1000

    def _schedule(self, delivery: Delivery, message: Message, subscription: Subscription) -> None:
        if subscription.order == "key":
            delivery.key = (message.message_type, delivery.record.key)
        if delivery.control.not_before_ms > self._clock.now_ms():
            # It asked for longer than the largest tier: one more hop, no attempt used.
            delivery.requeue = delivery.partition.tier


def _origin_type(control: Control) -> str | None:
    name = read_topic(control.origin_topic)
    return name.message_type if name is not None and name.kind == "message" else None
