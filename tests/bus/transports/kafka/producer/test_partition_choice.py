"""Which partition each record goes to: the compiled hot path finds what Python finds."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.transports.base import NewRecord
from bus.transports.kafka.cluster.topic_facts import TopicFacts
from bus.transports.kafka.producer.batches import AppendCall
from bus.transports.kafka.producer.partition_choice import distributed
from tests.twins_alone import twins_alone

KEYS = st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple)
USUAL = st.builds(NewRecord, st.just("t"), KEYS, st.none() | st.binary(max_size=300), HEADERS)
ODD = st.builds(
    NewRecord,
    st.sampled_from(["t", "".join(["", "t"]), "u"]),
    st.none() | KEYS,
    st.binary(max_size=600),
    HEADERS,
    st.none() | st.integers(0, 5),
)


def places(records: list[NewRecord], partitions: int, largest: int | None) -> tuple[list[object], list[str]]:
    done: Any = mock.Mock()
    call = AppendCall(len(records), done)
    facts = TopicFacts((1,) * partitions, largest)
    topics = {record.topic: facts for record in records}
    found = distributed(call, records, topics, max_record_bytes=400, turn=3)
    spans: list[object] = [(where, span.records, span.indices, span.sizes) for where, span in found.items()]
    return spans, [repr(outcome) for outcome in call.outcomes]


@pytest.mark.medium
@given(
    st.lists(USUAL, max_size=30) | st.lists(USUAL | ODD, max_size=8),
    st.integers(0, 7),
    st.sampled_from([None, 100, 800, 1_000_000]),
)
def test_records_are_distributed_as_python_distributes_them(
    records: list[NewRecord], partitions: int, largest: int | None
) -> None:
    with twins_alone():
        expected = places(records, max(1, partitions), largest)
    assert places(records, max(1, partitions), largest) == expected


@given(st.lists(USUAL, min_size=1, max_size=30), st.integers(1, 300))
def test_each_record_is_in_one_place_and_in_order(records: list[NewRecord], partitions: int) -> None:
    spans, _ = places(records, partitions, None)
    indices = [index for _, _, mine, _ in spans for index in mine]  # type: ignore[misc]
    assert sorted(indices) == list(range(len(records)))
    for _, mine, where, _ in spans:  # type: ignore[misc]
        assert mine == [records[index] for index in where]
        assert where == sorted(where)
