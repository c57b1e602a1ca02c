"""A tier that was taken out of the settings: what waits in it comes back, in its own time, and nothing goes there any
more."""

from __future__ import annotations

from bus.clock import ManualClock
from bus.settings.loading import load
from bus.transports import open_transport
from bus.transports.base import Transport
from consumers.delivery.group_plan import leftover_tiers, make_plan
from consumers.worker.host import make_worker
from producers.connection import make_publisher
from sealbus import App, Outgoing, RetryLater
from sealbus.telemetry import Metrics
from tests.kit import Job


def app_of(runs: list[tuple[int, float]], clock: ManualClock, *, failing: bool) -> App:
    app = App("leftover@tests")

    @app.on(Job)
    async def handle(job: Job) -> None:
        runs.append((job.number, clock.monotonic_s()))
        if failing:
            raise RetryLater(after_s=50)

    return app


async def work(app: App, transport: Transport, tiers: str, clock: ManualClock, seconds: int) -> None:
    settings = load(flags={"retry.tiers": tiers, "inbox.url": "off"}, env={}, file=None).settings
    worker = make_worker(app.declaration, transport, settings, member=f"m{tiers}", clock=clock, metrics=Metrics())
    await worker.start(create_topics=True)
    for _ in range(seconds):
        await worker.cycle(0)
        await worker.slots.quiet()
        await worker.commit()
        clock.advance(1)
    await worker.stop(0)


async def test_a_message_in_a_removed_retry_tier_is_handled_when_due() -> None:
    clock = ManualClock()
    runs: list[tuple[int, float]] = []
    transport = open_transport("memory://", clock=clock, session_timeout_s=1e9, heartbeat_s=3600)
    settings = load(flags={}, env={}, file=None).settings
    publisher = make_publisher(transport, settings, "tests@tests", clock=clock, metrics=Metrics())
    await work(app_of(runs, clock, failing=False), transport, "5s,1m", clock, 1)
    await publisher.publish(Outgoing(Job(1)))
    await work(app_of(runs, clock, failing=True), transport, "5s,1m", clock, 3)
    ((_, failed_s),) = runs
    await work(app_of(runs, clock, failing=False), transport, "5s", clock, 90)
    (_, (_, handled_s)) = runs
    assert 60 <= handled_s - failed_s <= 62
    await publisher.close()
    await transport.close()


def test_only_this_groups_own_tiers_count() -> None:
    plan = make_plan(
        app_of([], ManualClock(), failing=False).declaration,
        load(flags={"retry.tiers": "5s"}, env={}, file=None).settings,
    )
    group = plan.group
    topics = [
        f"agents._retry.{group}.5s",
        f"agents._retry.{group}.1m",
        f"agents._retry.{group}.later",
        "agents._retry.others.1m",
        f"other._retry.{group}.1m",
        "agents.job.asked",
        "x",
    ]
    assert {topic: tier.delay_s for topic, tier in leftover_tiers(topics, plan).items()} == {
        f"agents._retry.{group}.1m": 60.0
    }
