"""What is known of a topic, and what follows from it for whoever writes to it. Pure.

Does not own asking the cluster, nor how long an answer counts (`link`).
"""

from __future__ import annotations

import sys

import msgspec

__all__ = ["BATCH_OVERHEAD", "TopicFacts"]


class TopicFacts(msgspec.Struct, frozen=True):
    """What is known of a topic: leaders, the largest batch, and replicas in sync.

    Leaders are by partition (-1: none just now); the largest batch it takes is None where that is not told; and how
    many replicas of each partition are in sync and have to be.
    """

    leaders: tuple[int, ...]
    max_batch_bytes: int | None = None
    in_sync: tuple[int, ...] = ()
    min_in_sync: int = 1

    @property
    def partitions(self) -> int:
        """How many it has."""
        return len(self.leaders)

    @property
    def max_record_bytes(self) -> int:
        """The largest record that the topic takes, as `batching.record_sizes` counts.

        Without a limit as far as is known.
        """
        return sys.maxsize if self.max_batch_bytes is None else self.max_batch_bytes - BATCH_OVERHEAD

    def hindrance(self, partition: int) -> str:
        """Why nobody can write to *partition* just now; empty where nothing is known to be in the way."""
        if partition >= self.partitions or self.leaders[partition] < 0:
            return "it has no leader"
        if self.in_sync and self.in_sync[partition] < self.min_in_sync:
            return f"of its replicas {self.in_sync[partition]} in sync, and min.insync.replicas is {self.min_in_sync}"
        return ""


BATCH_OVERHEAD = 512
"""More than a batch takes besides its records."""
