"""RecordVerifier: from a fetched record to a delivery that carries its verdict.

Owns running the gates in order for one record, the short way for a record like one that passed them all before, the way
a retry tier holds records until they are due, and what is skipped. Pure but for the clock it is given. Does not own
what follows from the verdict.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bus import gates
from bus.clock import Clock
from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType, Risk
from bus.protocol.fast_parse import KnownLayouts
from bus.protocol.reasons import gate_of
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.topics.names import read_topic
from bus.transports.base import HEADER_BYTES, Record, header_bytes, size_of
from consumers.deadletters.records import CONTROL_HEADERS, Control, read_control
from consumers.declaration import Subscription
from consumers.group_plan import GroupView
from consumers.resilience.retry_clock import RetryClock
from consumers.state.delivery import Accepted, Delivery, Refused
from consumers.state.partition import Partition

__all__ = ["RecordVerifier"]


class _Passed(msgspec.Struct, frozen=True):
    """What was found about a message that passed every gate, and holds for all of its mould: sender, recipient, type
    and route are the same."""

    kind: PayloadType
    subscription: Subscription
    label: str


class RecordVerifier:
    """Judges records for one group."""

    def __init__(self, view: GroupView, clock: Clock, log_clock: RetryClock) -> None:
        self._view = view
        self._clock = clock
        self._log_clock = log_clock
        self._moulds: KnownLayouts[_Passed] = KnownLayouts()
        self._checks = gates.Checks(
            max_message_bytes=view.max_message_bytes,
            own_headers=CONTROL_HEADERS,
            prove=view.registry.prove,
            is_addressed=lambda message: gates.is_addressed(message, view.agent_id, view.roles),
            namespace=view.namespace,
            risk_of=self._risk_of,
            verifier=view.verifier,
            kind_of=lambda message: gates.known_type(message, view.registry),
            max_hops=view.max_hops,
            max_ttl_ms=view.max_ttl_ms,
            policy=view.policy,
            group=view.group,
        )

    def judge(self, record: Record, partition: Partition, now_ms: int) -> Delivery | None:
        """The delivery of *record*, refused or not; None when it is addressed to somebody else."""
        return self._judge_alike(record, partition, now_ms) or self._judge_fully(record, partition, now_ms)

    def _risk_of(self, message: Message) -> Risk:
        kind = self._view.registry.get(message.message_type)
        return kind.risk if kind is not None else "medium"

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
        return Accepted(
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

    def _judge_fully(self, record: Record, partition: Partition, now_ms: int) -> Delivery | None:
        """Walk every gate for *record*."""
        view, is_own = self._view, partition.own
        control = read_control(record) if is_own else Control(record.topic, record.partition, record.offset)
        case = gates.Case(
            record=record,
            is_own=is_own,
            expected_type=partition.expected_type or _origin_type(control),
            key=record.key,
        )
        place = (record.partition, record.offset, record.topic)
        facts: dict[str, Any] = {"record": record, "partition": partition, "control": control, "key": place}
        facts["size"] = size_of(record)
        verdict = gates.judge(case, self._checks, last="schema")
        if isinstance(verdict, gates.NotAddressed):
            return None
        message = verdict.message
        if message is not None and not (
            isinstance(verdict, gates.Failed) and gate_of(verdict.error.reason) == "integrity"
        ):
            facts |= {
                "message": message,
                "label": view.registry.label(message.message_type),
                "sealed_ms": parse_ms(message.metadata.timestamp) or 0,
                "expires_ms": max(parse_ms(message.routing.expires_at) or 0, control.extend_until_ms),
            }
        if isinstance(verdict, gates.Failed):
            return self._refused(facts, verdict.error)
        accepted = self._accepted(facts, verdict)
        if accepted is None:
            text = f"{verdict.message.message_type} has no handler here"
            return self._refused(facts, ContractError(text, "/metadata/message_type", "unknown_type"))
        # What the inbox knows as done is not asked what follows.
        case.now_ms, case.extend_until_ms = now_ms, control.extend_until_ms
        case.append_ms = self._append_ms(accepted)
        verdict = gates.judge(case, self._checks, first="lifetime")
        if isinstance(verdict, gates.Failed):
            return self._refused(facts, verdict.error, accepted)
        self._schedule(accepted, now_ms)
        self._remember(accepted, case.kind)
        return accepted

    def _accepted(self, facts: dict[str, Any], verdict: gates.Passed) -> Accepted | None:
        """The delivery that *facts* and *verdict* make; None where nobody handles its type."""
        message, kind = verdict.message, verdict.kind
        subscription = self._view.subscriptions.get(message.message_type)
        if subscription is None or kind is None or verdict.payload is None:
            return None
        facts = facts | {"size": facts["size"] + _decoded_bytes(kind, message.value)}
        if message.routing.priority is not None:
            facts["priority"] = message.routing.priority
        if subscription.order != "none":
            facts["key"] = (message.message_type, facts["record"].key)
        return Accepted(**facts, subscription=subscription, payload=verdict.payload)

    def _refused(self, facts: dict[str, Any], error: ContractError, otherwise: Accepted | None = None) -> Refused:
        tier = facts["partition"].tier
        # Another worker of the group may know the type.
        requeue = tier if error.reason == "unknown_type" else None
        return Refused(**facts, requeue=requeue, error=error, otherwise=otherwise)

    def read_again(self, delivery: Accepted) -> None:
        """Give *delivery*, which passed every gate, a payload that no run has changed."""
        delivery.message = msgspec.structs.replace(delivery.message, payload=None)
        try:
            _, delivery.payload = gates.schema_gate(delivery.message, self._view.registry)
        except ContractError as error:
            error.__cause__ = error.__context__ = None
            delivery.unreadable = error.with_traceback(None)

    def label(self, partition: Partition) -> str:
        """The metric label of what comes from *partition*."""
        return self._view.registry.label(partition.expected_type or "")

    def check_lifetime(self, delivery: Accepted, now_ms: int) -> None:
        """The lifetime gate once more; raises ContractError."""
        gates.lifetime_gate(
            delivery.message,
            now_ms=now_ms,
            append_ms=self._append_ms(delivery),
            max_hops=self._view.max_hops,
            max_ttl_ms=self._view.max_ttl_ms,
            extend_until_ms=delivery.control.extend_until_ms,
        )

    def remaining_s(self, delivery: Delivery) -> float:
        """Seconds of lifetime left to what was parsed."""
        return (delivery.expires_ms - self._clock.now_ms()) / 1000

    def _append_ms(self, delivery: Accepted) -> int:
        # A record of our own topics was appended by a worker, whose clock says nothing about the sender's: that was
        # judged at the first.
        return delivery.sealed_ms if delivery.partition.own else delivery.record.timestamp_ms

    def _schedule(self, delivery: Accepted, now_ms: int) -> None:
        control, tier = delivery.control, delivery.partition.tier
        if not control.not_before_ms or tier is None:
            return
        due_ms = self._log_clock.due_ms(control.not_before_ms, delivery.record.timestamp_ms, tier.delay_s)
        if due_ms > now_ms:
            # It asked for longer than the largest tier: one more hop, no attempt used.
            delivery.requeue = tier
            delivery.control = msgspec.structs.replace(control, not_before_ms=due_ms)

    def _remember(self, delivery: Accepted, kind: PayloadType | None) -> None:
        """Have the next message like *delivery* verified the short way."""
        message = delivery.message
        if not delivery.partition.own and kind is not None and message.metadata.schema_version == kind.version:
            self._moulds.learn(message, kind, _Passed(kind, delivery.subscription, delivery.label))


def _decoded_bytes(kind: PayloadType, value: bytes) -> int:
    """What a payload takes besides its bytes, where that is worth counting."""
    return kind.weight.of(value) if len(value) > kind.small_bytes else 0


def _origin_type(control: Control) -> str | None:
    name = read_topic(control.origin_topic)
    return name.message_type if name is not None and name.kind == "message" else None
