"""A worker that believes everything: what consuming would cost without verification.

sealbus has no switch for that, so this takes the place of the part that judges a record
(`consumers.delivery.receiving.verification.RecordVerifier`, as `consumers.worker.wiring` builds it) with a bare typed
decode of the record, nothing compared and nothing hashed: no canonical form, no seal, no recipient, no lifetime, no
policy. All that comes before and after it (fetching, order per key, handlers, settling, commits) is the worker's own.
Only for this benchmark.
"""

from __future__ import annotations

import msgspec
from speed.payloads import TYPE, Report

from bus.protocol.envelope import Metadata, Routing
from bus.protocol.sealing import Message
from bus.transports.base import Record
from consumers.deadletters.records import Control
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


class _Credulous(RecordVerifier):
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
            subscription=self._view.subscriptions[TYPE],
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
    assembly.RecordVerifier = _Credulous  # type: ignore[attr-defined]
