"""Where whoever follows a topic begins anew."""

from __future__ import annotations

import pytest

from bus.transports.base import PartitionRange
from bus.transports.read_all import new_partition_starts


@pytest.mark.parametrize(
    ("offsets", "ranges", "anew"),
    [
        ({0: 7}, {0: PartitionRange(3, 7)}, {}),
        ({0: 7}, {0: PartitionRange(3, 9)}, {}),
        ({0: 7}, {0: PartitionRange(3, 9), 1: PartitionRange(2, 5)}, {1: 2}),
        ({0: 7}, {0: PartitionRange(0, 6)}, {0: 0}),
        ({0: 7, 1: 5}, {0: PartitionRange(0, 9)}, {}),
    ],
    ids=["read", "going_on", "added", "made_anew", "gone"],
)
def test_reading_starts_at_the_beginning_of_new_or_recreated_partitions(
    offsets: dict[int, int], ranges: dict[int, PartitionRange], anew: dict[int, int]
) -> None:
    assert new_partition_starts(offsets, ranges) == anew
