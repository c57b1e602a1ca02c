"""What an append's outcomes mean to the publisher, each in its place: the compiled hot path answers as Python does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import native
from bus.clock import ManualClock
from bus.errors import AppendUnknownError, TransportError
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.transports import open_transport
from bus.transports.base import Appended, AppendOutcome, NewRecord
from producers.connection import make_publisher
from producers.outcomes import PublishRejected, PublishUnknown, Receipt
from producers.publisher import Publisher
from producers.sealing.sealed_record import SealedRecord
from tests.twins_alone import twins_alone

SETTINGS = load(flags={"bus.url": "memory://"}, env={}, file=None).settings
APPENDED = st.builds(
    Appended, st.sampled_from(["t", "u"]), st.integers(0, 300), st.integers(0, 2**62), st.integers(0, 2**44)
)
FAILED = st.sampled_from([TransportError, AppendUnknownError]).map(lambda kind: kind("the log is away"))


@pytest.fixture(params=["compiled", "python"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "python":
        with twins_alone():
            yield
    elif native.core is None:
        pytest.skip("the compiled hot path is not built: make native")
    else:
        yield


Opened: TypeAlias = Callable[[], Publisher]


@pytest.fixture(scope="module")
def publisher() -> Iterator[Opened]:
    """Makes publishers, each with counts of its own."""
    transport = open_transport("memory://", clock=ManualClock())
    yield lambda: make_publisher(transport, SETTINGS, "tests@tests", clock=ManualClock(), metrics=Metrics())
    asyncio.run(transport.close())


def sealed(count: int) -> list[SealedRecord]:
    return [SealedRecord(f"id-{number}", "kind.of", NewRecord("t", b"k", b"{}")) for number in range(count)]


def seen(results: Sequence[object]) -> list[object]:
    return [result if isinstance(result, Receipt) else (type(result), str(result)) for result in results]


@given(st.lists(APPENDED, max_size=9) | st.lists(APPENDED | FAILED, max_size=9))
def test_both_ways_tell_the_same_of_every_message(publisher: Opened, outcomes: list[AppendOutcome]) -> None:
    messages = sealed(len(outcomes))
    with mock.patch.object(SealedRecord, "message", None):
        with twins_alone():
            expected = publisher().results_of(messages, outcomes)
        assert seen(publisher().results_of(messages, outcomes)) == seen(expected)


@pytest.mark.usefixtures("way")
def test_each_receipt_has_the_location_of_its_own_message(publisher: Opened) -> None:
    outcomes = [Appended("t", 3, 40, 7), Appended("t", 1, 41, 8)]
    assert publisher().results_of(sealed(2), outcomes) == [
        Receipt("id-0", "t", 3, 40, 7),
        Receipt("id-1", "t", 1, 41, 8),
    ]


@pytest.mark.usefixtures("way")
def test_a_failure_keeps_its_place_and_receipts_are_counted_without_it(publisher: Opened) -> None:
    asked = publisher()
    with mock.patch.object(SealedRecord, "message", None):
        results = asked.results_of(sealed(3), (Appended("t", 0, 5, 7), AppendUnknownError("?"), TransportError("no")))
    assert [type(result) for result in results] == [Receipt, PublishUnknown, PublishRejected]
    assert asked.metrics.accepted("kind.of").count == 1


@pytest.mark.usefixtures("way")
def test_an_outcome_too_few_is_an_error_and_not_a_message_without_one(publisher: Opened) -> None:
    with pytest.raises(ValueError, match="shorter"):
        publisher().results_of(sealed(2), [Appended("t", 0, 5, 7)])
