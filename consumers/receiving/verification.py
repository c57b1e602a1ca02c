"""Intake: from a fetched record to a delivery that carries its verdict.

Owns running the gates in order for one record, the short way for a record like one that passed them all before, the way
a retry tier holds records until they are due, and what is skipped. Pure but for the clock it is given. Does not own
what follows from the verdict.
"""

from __future__ import annotations

import msgspec

from bus import gates
from bus.clock import Clock
from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType
from bus.protocol.fast_parse import Moulds
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.topics.names import read_topic
from bus.transports.base import HEADER_BYTES, Record, header_bytes, size_of
from consumers.deadletters.records import CONTROL_HEADERS, Control, read_control
from consumers.declaration import Subscription
from consumers.group_plan import View
from consumers.resilience.retry_clock import LogClock
from consumers.state.delivery import Delivery
from consumers.state.partition import Partition

__all__ = ["Intake"]


class _Passed(msgspec.Struct, frozen=True):
    """What was found about a message that passed every gate, and holds for all of its mould: sender, recipient, type
    and route are the same."""

    kind: PayloadType
    subscription: Subscription
    label: str


class Intake:
    """Judges records for one group."""

    def __init__(self, view: View, clock: Clock, log_clock: LogClock) -> None:
        self._view = view
        self._clock = clock
        self._log_clock = log_clock
        self._moulds: Moulds[_Passed] = Moulds()

    def judge(self, record: Record, partition: Partition, now_ms: int) -> Delivery | None:
        """The delivery of *record*, refused or not; None when it is addressed to somebody else."""
        return self._judge_alike(record, partition, now_ms) or self._judge_any(record, partition, now_ms)

    def _judge_alike(self, record: Record, partition: Partition, now_ms: int) -> Delivery | None:
        """The delivery of a record that is like one before, where nothing is to be said against it. None: ask every
        gate."""
        view, value, key = self._view, record.value, record.key
        if (
            value is None
            or len(value) > view.max_message_bytes
            or partition.own
            or len(record.headers) > gates.MOST_HEADERS
        ):
            return None
        header_size = header_bytes(record.headers)
        if header_size > gates.MOST_HEADER_BYTES:
            return None
        cast = self._moulds.cast(value)
        if cast is None:
            return None
        # Recipient, namespace, authenticity, version and hops are the mould's; the rest is each record's own.
        message, passed = cast.message, cast.known
        kind = passed.kind
        if partition.expected_type != kind.name or key != cast.key:
            return None
        if not gates.is_in_time(
            cast.sealed_ms, cast.expires_ms, now_ms=now_ms, append_ms=record.timestamp_ms, max_ttl_ms=view.max_ttl_ms
        ):
            return None
        payload = message.payload
        try:
            if payload is None:
                payload = kind.open(message)
            if view.policy.refusal(message, view.group) is not None:
                return None
        except KeyboardInterrupt:
            raise
        # A policy is anybody's code, and a type's own is in `open`: every gate says what it was.
        except BaseException:  # noqa: BLE001
            return None
        subscription, priority = passed.subscription, message.routing.priority
        return Delivery(
            record=record,
            partition=partition,
            key=(kind.name, key) if subscription.order != "none" else (record.partition, record.offset, record.topic),
            size=len(value) + len(key) + header_size + HEADER_BYTES * len(record.headers) + _decoded_bytes(kind, value),
            priority=5 if priority is None else priority,
            control=Control(record.topic, record.partition, record.offset),
            message=message,
            subscription=subscription,
            payload=payload,
            label=passed.label,
            sealed_ms=cast.sealed_ms,
            expires_ms=cast.expires_ms,
        )

    def _judge_any(self, record: Record, partition: Partition, now_ms: int) -> Delivery | None:
        control = read_control(record) if partition.own else Control(record.topic, record.partition, record.offset)
        size = size_of(record)
        delivery = Delivery(
            record=record,
            partition=partition,
            control=control,
            key=(record.partition, record.offset, record.topic),
            size=size,
        )
        try:
            return self._pass(delivery, now_ms)
        except ContractError as error:
            delivery.refusal = _alone(error)
            if error.reason == "unknown_type" and partition.tier is not None:
                delivery.requeue = partition.tier
            return delivery

    def read_anew(self, delivery: Delivery) -> None:
        """Give *delivery*, which passed every gate, a payload that no run has changed."""
        if delivery.message is None or delivery.subscription is None:
            return
        delivery.message = msgspec.structs.replace(delivery.message, payload=None)
        try:
            _, delivery.payload = gates.schema_gate(delivery.message, self._view.registry)
        except ContractError as error:
            delivery.refusal = _alone(error)

    def label(self, partition: Partition) -> str:
        """The metric label of what comes from *partition*."""
        return self._view.registry.label(partition.expected_type or "")

    def _pass(self, delivery: Delivery, now_ms: int) -> Delivery | None:
        view, record = self._view, delivery.record
        gates.size_gate(record, view.max_message_bytes, CONTROL_HEADERS if delivery.partition.own else ())
        # Where keys are configured nothing typed is built of what nobody has proven yet: it would run code of its type
        # on a stranger's data.
        message = gates.parse_gate(record, view.registry if view.verifier is None else None)
        gates.integrity_gate(message)
        delivery.message = message
        delivery.sealed_ms = parse_ms(message.metadata.timestamp) or 0
        delivery.expires_ms = max(parse_ms(message.routing.expires_at) or 0, delivery.control.extend_until_ms)
        delivery.label = view.registry.label(message.message_type)
        if not gates.is_addressed(message, view.agent_id, view.roles):
            return None
        expected = delivery.partition.expected_type or _origin_type(delivery.control)
        gates.audience_gate(message, view.namespace, expected, record.key)
        kind = view.registry.get(message.message_type)
        gates.authenticity_gate(message, kind.risk if kind else "medium", view.verifier)
        found, delivery.payload = gates.schema_gate(message, view.registry)
        delivery.size += _decoded_bytes(found, message.value)
        # Known before the gates that what was done is not asked.
        delivery.subscription = subscription = view.subscriptions.get(message.message_type)
        self.check_lifetime(delivery, message, now_ms)
        gates.policy_gate(message, view.policy, view.group)
        if subscription is None:
            raise ContractError(f"{message.message_type} has no handler here", "/metadata/message_type", "unknown_type")
        if message.routing.priority is not None:
            delivery.priority = message.routing.priority
        self._schedule(delivery, message, subscription, now_ms)
        if not delivery.partition.own and kind is not None and message.metadata.schema_version == kind.version:
            self._moulds.learn(message, kind, _Passed(kind, subscription, delivery.label))
        return delivery

    def check_lifetime(self, delivery: Delivery, message: Message, now_ms: int) -> None:
        """The lifetime gate; raises ContractError."""
        # A record of our own topics was appended by a worker, whose clock says nothing about the sender's: that was
        # judged at the first.
        append_ms = delivery.sealed_ms if delivery.partition.own else delivery.record.timestamp_ms
        gates.lifetime_gate(
            message,
            now_ms=now_ms,
            append_ms=append_ms,
            max_hops=self._view.max_hops,
            max_ttl_ms=self._view.max_ttl_ms,
            extend_until_ms=delivery.control.extend_until_ms,
        )

    def remaining_s(self, delivery: Delivery) -> float:
        """Seconds of lifetime left to what was parsed."""
        return (delivery.expires_ms - self._clock.now_ms()) / 1000

    def _schedule(self, delivery: Delivery, message: Message, subscription: Subscription, now_ms: int) -> None:
        if subscription.order != "none":
            delivery.key = (message.message_type, delivery.record.key)
        control, tier = delivery.control, delivery.partition.tier
        if not control.not_before_ms or tier is None:
            return
        due_ms = self._log_clock.due_ms(control.not_before_ms, delivery.record.timestamp_ms, tier.delay_s)
        if due_ms > now_ms:
            # It asked for longer than the largest tier: one more hop, no attempt used.
            delivery.requeue = tier
            delivery.control = msgspec.structs.replace(control, not_before_ms=due_ms)


def _decoded_bytes(kind: PayloadType, value: bytes) -> int:
    """What a payload takes besides its bytes, where that is worth counting."""
    return kind.weight.of(value) if len(value) > kind.small_bytes else 0


def _alone(refusal: ContractError) -> ContractError:
    """*refusal* without the way it came: a frame in that has the delivery, and both would wait in memory for the
    garbage collector."""
    refusal.__cause__ = refusal.__context__ = None
    return refusal.with_traceback(None)


def _origin_type(control: Control) -> str | None:
    name = read_topic(control.origin_topic)
    return name.message_type if name is not None and name.kind == "message" else None
