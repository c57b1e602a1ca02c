"""What ten and a thousand times the messages would take: arithmetic from two measured rates and the measured size of a
record. Pure.

Owns the assumptions, each named below, and the table. What follows from it for the design is written in RESULTS.md by
hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from speed.tables import number

__all__ = ["rows"]

RAW_BYTES = 1_700
"""A sealed record: 1,036 bytes of payload, the envelope, key and headers."""
PRODUCER_LOAD, WORKER_LOAD = 0.7, 0.6
"""How busy a process may be: workers have to catch up after a rebalance."""
PARTITIONS_PER_WORKER = 3
REPLICAS, GROUPS = 3, 2
BROKER_OUT_BYTES, BROKER_DISK_BYTES = 0.6e9, 0.5e9
"""Half of a 10 Gbit/s network, and half of what one NVMe disk writes on and on: the other half is for a broker that
died."""
RETENTION_DAYS = 7
COMMITS_PER_S = 2
"""Of each worker: worker.commit_interval_s is half a second."""
KEPT_ALIVE_PER_S = 1
_DAY_S = 86_400


def rows(
    publish_per_s: float, consume_per_s: float, wire_bytes: float, times: Sequence[int] = (1, 10, 1_000)
) -> list[list[str]]:
    """A column for each of *times* the rate at which one process publishes now."""
    columns = [_column(publish_per_s * each, publish_per_s, consume_per_s, wire_bytes) for each in times]
    head = ["", *(f"{each:,}x" for each in times)]
    return [head, *([name, *(column[name] for column in columns)] for name in columns[0])]


def _column(rate: float, publish_per_s: float, consume_per_s: float, wire_bytes: float) -> dict[str, str]:
    inward = rate * wire_bytes
    outward = inward * (REPLICAS - 1 + GROUPS)
    written = inward * REPLICAS
    workers = math.ceil(rate / (consume_per_s * WORKER_LOAD))
    partitions = workers * PARTITIONS_PER_WORKER
    brokers = max(3, math.ceil(outward / BROKER_OUT_BYTES), math.ceil(written / BROKER_DISK_BYTES))
    producers = math.ceil(rate / (publish_per_s * PRODUCER_LOAD))
    return {
        "messages/s": number(rate),
        f"producer processes at {PRODUCER_LOAD:.0%} ({number(publish_per_s)}/s each)": f"{producers:,}",
        f"worker processes of a group at {WORKER_LOAD:.0%} ({number(consume_per_s)}/s each)": f"{workers:,}",
        f"partitions, {PARTITIONS_PER_WORKER} a worker": f"{partitions:,}",
        "messages/s of a partition": number(rate / partitions),
        f"sealed, {RAW_BYTES:,} bytes each": f"{rate * RAW_BYTES / 1e6:,.0f} MB/s",
        f"to the brokers, {wire_bytes:.0f} bytes each (zstd, "
        f"{RAW_BYTES / wire_bytes:.1f}x)": f"{inward / 1e6:,.0f} MB/s",
        f"written to disks, {REPLICAS} replicas": f"{written / 1e6:,.0f} MB/s",
        f"out of brokers: replication and {GROUPS} groups": f"{outward / 1e6:,.0f} MB/s",
        "brokers, by network and disk": f"{brokers:,}",
        f"kept for {RETENTION_DAYS} days, one copy": f"{inward * _DAY_S * RETENTION_DAYS / 1e12:,.1f} TB",
        f"kept for {RETENTION_DAYS} days, {REPLICAS} copies": f"{written * _DAY_S * RETENTION_DAYS / 1e12:,.1f} TB",
        "commit requests/s at a group's coordinator": f"{workers * COMMITS_PER_S:,}",
        "offsets/s in them": f"{partitions * COMMITS_PER_S:,}",
        "heartbeats/s at it": f"{workers * KEPT_ALIVE_PER_S:,}",
        "messages of a partition in a chunk of 1,024 of one producer": number(1_024 / partitions),
    }
