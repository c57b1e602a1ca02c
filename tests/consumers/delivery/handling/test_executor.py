"""A retry that no tier can take is a death like any other: counted as one, and the requester is told."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from bus.clock import ManualClock
from bus.settings.loading import load
from bus.transports import open_transport
from bus.transports.base import TopicSpec
from consumers.worker.host import make_worker
from producers.connection import make_publisher
from sealbus import App, Context, DependencyDown, Outgoing, Retry, RetryLater, payload
from sealbus.telemetry import Metrics
from tests.kit import Asked

REPLY = "agents._reply.asker-0123abcd"


async def test_a_retry_too_large_for_its_tier_is_counted_and_reported_as_dead() -> None:
    app, clock, metrics = App("execution@tests"), ManualClock(), Metrics()

    @app.on(Asked, retry=Retry(attempts=3))
    async def handle(job: Asked) -> None:
        raise RetryLater(after_s=3)

    settings = load(flags={"bus.url": "memory://"}, env={}, file=None).settings
    # The message fits, with the control headers of a tier it does not.
    transport = open_transport("memory://", clock=clock, session_timeout_s=1e9, max_record_bytes=4_150)
    worker = make_worker(app.declaration, transport, settings, member="m", clock=clock, metrics=metrics)
    await worker.start(create_topics=True)
    publisher = make_publisher(transport, settings, "tests@tests", clock=clock, metrics=metrics)
    await transport.admin.create_topics([TopicSpec(name=REPLY, partitions=1)])
    await publisher.publish(Outgoing(Asked("x" * 3_250), reply_to=REPLY))
    while await worker.cycle(0):
        await worker.slots.quiet()
    labels = {"type": "question.asked", "group": app.group}
    dead = metrics.registry.get_sample_value(
        "sealbus_settled_total", {**labels, "outcome": "dead", "reason": "retries_exhausted"}
    )
    moved = metrics.registry.get_sample_value("sealbus_retried_total", {**labels, "tier": "5s"})
    assert (dead, moved) == (1, 0)
    assert len(await transport.read(REPLY, 0, 0, max_records=9, max_bytes=1 << 20)) == 1
    await worker.stop(0)
    await publisher.close()
    await transport.close()


@payload("execution.order", version="1.0.0")
class Order(msgspec.Struct):
    lines: list[str]


@pytest.mark.parametrize(
    "how", [lambda: RetryLater(after_s=0.5), lambda: RetryLater(after_s=5), lambda: DependencyDown("db")]
)
async def test_context_changes_of_a_failed_run_do_not_reach_the_next(how: Callable[[], Exception]) -> None:
    app = App("execution@tests")
    runs: list[list[str]] = []

    @app.on(Order)
    async def handle(order: Order, context: Context) -> None:
        assert context.message.payload is None or context.message.payload is order
        runs.append(list(order.lines))
        order.lines.clear()
        if len(runs) == 1:
            raise how()

    async with app.test() as bus:
        await bus.publish(Order(["a", "b"]))
        await bus.settle()
        await bus.advance(60)
    assert runs == [["a", "b"], ["a", "b"]]
