"""A transaction that was left open is told from those that come and go."""

from __future__ import annotations

from aiokafka import TopicPartition

from bus.transports.kafka.consumer.consumer import StalledPartitions

ONE, OTHER = TopicPartition("a.b", 0), TopicPartition("a.b", 1)


def test_a_stalled_partition_is_reported_once() -> None:
    unfinished = StalledPartitions()
    told = [unfinished.late({ONE: 7}, now_s) for now_s in (0.0, 5.0, 10.0, 15.0, 99.0)]
    assert told == [[], [], [ONE], [], []]


def test_a_partition_that_progresses_is_never_reported_as_stalled() -> None:
    unfinished = StalledPartitions()
    assert [unfinished.late({ONE: int(now_s)}, now_s) for now_s in (0.0, 9.0, 18.0, 27.0)] == [[]] * 4


def test_a_second_stall_is_reported_again() -> None:
    unfinished = StalledPartitions()
    told = [
        unfinished.late(held_up, now_s)
        for held_up, now_s in (({ONE: 7}, 0.0), ({ONE: 7}, 10.0), ({}, 11.0), ({ONE: 9}, 12.0), ({ONE: 9}, 22.0))
    ]
    assert told == [[], [ONE], [], [], [ONE]]


def test_each_partition_has_its_own_time() -> None:
    unfinished = StalledPartitions()
    assert unfinished.late({ONE: 7}, 0.0) == []
    assert unfinished.late({ONE: 7, OTHER: 1}, 10.0) == [ONE]
    assert unfinished.late({ONE: 7, OTHER: 1}, 20.0) == [OTHER]
