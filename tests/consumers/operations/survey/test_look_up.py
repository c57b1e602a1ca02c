"""A look-up answers with what it has, where groups or the audit do not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bus.clock import ManualClock
from bus.errors import NotPermittedError
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.telemetry.metrics import Metrics
from bus.topics.names import message_topic
from bus.transports import open_transport
from bus.transports.base import TopicSpec, Transport
from consumers.operations.lineage.log_reach import FAR_MS, Looked
from consumers.operations.survey.look_up import look_up, looked_in_words, moment_of, trace_up
from producers.connection import make_publisher
from producers.sealing.options import Outgoing
from tests.kit import Job


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(flags={"bus.url": f"sqlite:///{tmp_path}/log.db"}, env={}, file=None).settings


@pytest.fixture
async def log() -> AsyncIterator[Transport]:
    transport = open_transport("memory://", clock=ManualClock())
    await transport.admin.create_topics([TopicSpec(name=message_topic("agents", "job.asked"), partitions=1)])
    yield transport
    await transport.close()


async def published(log: Transport, settings: Settings) -> str:
    publisher = make_publisher(log, settings, "a@svc", clock=ManualClock(), metrics=Metrics())
    return (await publisher.publish(Outgoing(Job()))).message_id


async def test_a_reader_without_the_right_to_see_groups_sees_the_message(
    log: Transport, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused() -> None:
        raise NotPermittedError("Describe on groups is missing")

    name = await published(log, settings)
    assert (await look_up(log, settings, name)).known_groups == ()
    monkeypatch.setattr(log.admin, "groups", refused)
    found = await look_up(log, settings, name)
    assert [copy.message_id for copy in found.search.copies] == [name]
    assert (found.known_groups, "Describe" in found.groups_error) == (None, True)


async def test_an_audit_that_cannot_be_read_is_done_without(log: Transport, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "log-audit.db").write_bytes(b"no database at all" * 1_000)
    name = await published(log, settings)
    found = await look_up(log, settings, name)
    assert [copy.message_id for copy in found.search.copies] == [name]
    assert "audit" in found.audit_error
    traced = await trace_up(log, settings, name)
    assert ([copy.message_id for copy in traced.search.copies], traced.audit_error != "") == ([name], True)
    assert await moment_of(settings, "no-such-id") is None


def test_a_failed_search_reports_what_was_searched() -> None:
    cut = Looked(records=7, since_ms=1, until_ms=2)
    assert "7 records (the id was made at 1970-01-01T00:00:00.005Z)" in looked_in_words(
        cut, "00000000-0005-7000-8000-000000000000"
    )
    assert "no time of a calendar" in looked_in_words(cut, "ffffffff-ffff-7000-8000-000000000000")
    assert "the whole log" in looked_in_words(Looked(records=7, since_ms=0, until_ms=FAR_MS), "mine")
    indexed = Looked(records=7, since_ms=-1, until_ms=FAR_MS, is_index_asked=True)
    assert "the audit has none" in looked_in_words(indexed, "mine")
