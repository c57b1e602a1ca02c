"""Facts about a topic, and what they mean for a producer. Pure.

`bus.transports.kafka.cluster.client` reads them and decides how long they are valid.
"""

from __future__ import annotations

import sys

import msgspec

__all__ = ["BATCH_OVERHEAD", "TopicFacts"]


class TopicFacts(msgspec.Struct, frozen=True):
    """Facts about a topic: its leaders, its largest batch, and its in-sync replicas.

    *leaders* are broker ids by partition (-1: no leader at present). *max_batch_bytes* is None if unknown. *in_sync*
    counts the in-sync replicas by partition; *min_in_sync* is the count that writing needs.
    """

    leaders: tuple[int, ...]
    max_batch_bytes: int | None = None
    in_sync: tuple[int, ...] = ()
    min_in_sync: int = 1

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.leaders)

    @property
    def max_record_bytes(self) -> int:
        """Return the largest record the topic accepts, as `record_sizes` counts; unlimited if unknown."""
        return sys.maxsize if self.max_batch_bytes is None else self.max_batch_bytes - BATCH_OVERHEAD

    def hindrance(self, partition: int) -> str:
        """Explain why *partition* cannot be written now; empty if no reason is known."""
        if partition >= self.partitions or self.leaders[partition] < 0:
            return "it has no leader"
        if self.in_sync and self.in_sync[partition] < self.min_in_sync:
            return f"of its replicas {self.in_sync[partition]} in sync, and min.insync.replicas is {self.min_in_sync}"
        return ""


BATCH_OVERHEAD = 512
"""An upper bound of a batch's bytes besides its records."""
