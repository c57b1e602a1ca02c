"""Two workers of one group with different inboxes, on a real Kafka: the second warns, and a survey tells it."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from structlog.testing import capture_logs

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.transports import open_transport
from consumers.operations.survey.results import CheckResult
from consumers.operations.survey.survey import opened_surveyor
from consumers.operations.survey.verdicts import of_survey
from sealbus import App
from tests.kit import Job


def worker() -> App:
    app = App("worker@svc")

    @app.on(Job)
    async def work(job: Job) -> None: ...

    return app


async def test_another_inbox_in_a_group_is_told_at_the_join_and_in_each_survey(kafka: str, tmp_path: Path) -> None:
    namespace = f"t{uuid.uuid4().hex[:8]}"

    def settings(inbox: str) -> Settings:
        flags = {
            "bus": f"kafka://{kafka}",
            "namespace": namespace,
            "inbox.url": f"sqlite:///{tmp_path}/{inbox}.db",
            "inbox.local": "true",
            "topics.create": "true",
        }
        return load(flags=flags, env={}, file=None).settings

    with capture_logs() as logs:
        async with worker().running(settings=settings("one")), worker().running(settings=settings("one")):
            sound = await judged(settings("one"), 2)
            before = [each["event"] for each in logs]
            async with worker().running(settings=settings("another")):
                (found,) = [each for each in await judged(settings("one"), 3) if "different inboxes" in each.text]
    assert "process.inboxes_differ" not in before
    assert not [each.text for each in sound if "different inboxes" in each.text]
    (warning,) = [each for each in logs if each["event"] == "process.inboxes_differ"]
    assert len(warning["members"]) == 2
    assert found.state == "fault"
    assert "by 2 workers" in found.text
    assert "by 1 worker (" in found.text


async def judged(settings: Settings, workers: int) -> list[CheckResult]:
    """What a survey means that has heard of so many workers."""
    transport = open_transport(settings.bus.url)
    try:
        async with asyncio.timeout(60), opened_surveyor(transport, settings, SystemClock()) as surveyor:
            while True:
                survey = await surveyor.take()
                if sum(len(agent.members) for agent in survey.agents) == workers:
                    return list(of_survey(survey))
                await asyncio.sleep(0.2)
    finally:
        await transport.close()
