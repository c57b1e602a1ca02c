"""A worker that believes everything: what consuming would cost without verification.

sealbus has no switch for that, so this takes the place of the part that judges a record
(`consumers.delivery.receiving.verification.RecordVerifier`, as `consumers.worker.wiring` builds it) with a bare typed
decode of the record, nothing compared and nothing hashed: no canonical form, no seal, no recipient, no lifetime, no
policy. All that comes before and after it (fetching, order per key, handlers, settling, commits) is the worker's own.
It takes part by what a verifier is made with and by `judge`, and by nothing else of it. Only for this benchmark.
"""

from __future__ import annotations

from typing import Any

import msgspec
from speed.payloads import TYPE, Report

from bus.protocol.envelope import Metadata, Routing
from bus.protocol.sealing import Message
from bus.transports.base import Record
from consumers.deadletters.records import Control
from consumers.delivery.group_plan import GroupView
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.partition import Partition
from consumers.worker import wiring as assembly

__all__ = ["install"]

_NEVER_MS = 4_102_444_800_000
_NOTHING = None


class _Whole(msgspec.Struct, gc=False):
    data: Report
    metadata: Metadata
    routing: Routing


_decode = msgspec.json.Decoder(_Whole).decode


class Credulous(RecordVerifier):
    """Believes every record of `speed.payloads`."""

    def __init__(self, view: GroupView, *others: Any, **options: Any) -> None:
        super().__init__(view, *others, **options)
        self._subscription = view.subscriptions[TYPE]

    def judge(self, record: Record, partition: Partition, now_ms: int) -> Delivery | None:
        value, key = record.value, record.key
        if partition.own or value is None or key is None:
            return super().judge(record, partition, now_ms)
        whole = _decode(value)
        return Accepted(
            record=record,
            partition=partition,
            key=(TYPE, key),
            size=len(value) + len(key),
            control=Control(record.topic, record.partition, record.offset),
            message=Message(value, whole.metadata, whole.routing, _NOTHING, _NOTHING, 0, whole.data),
            subscription=self._subscription,
            payload=whole.data,
            label=TYPE,
            sealed_ms=record.timestamp_ms,
            expires_ms=_NEVER_MS,
        )


def install() -> None:
    """Let workers that are made from now on believe everything."""
    if getattr(assembly, "RecordVerifier", None) is not RecordVerifier:
        raise RuntimeError(
            "consumers.worker.wiring builds no RecordVerifier any more: this benchmark has to be adapted"
        )
    assembly.RecordVerifier = Credulous  # type: ignore[attr-defined]
