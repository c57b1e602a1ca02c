"""The same application, unchanged, has the same outcomes on the embedded log and on Kafka."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import msgspec
import pytest

from bus.clock import ManualClock, SystemClock
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.topics.specs import message_topics
from bus.transports import open_configured
from bus.transports.base import Appended, NewRecord, Transport
from bus.transports.read_all import scan_topic
from consumers.deadletters.letters import list_dead_letters
from consumers.worker.host import make_worker
from consumers.worker.needed_topics import needed_topics
from producers.connection import make_publisher
from producers.publisher import Publisher
from producers.sealing.sealed_record import SealedRecord
from sealbus import App, Context, Outgoing, Reject, Retry, RetryLater, payload
from sealbus.telemetry import Metrics


@payload("parity.job", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The action."""

    how: str
    amount: float = 1.5


@payload("parity.done", version="1.0.0")
class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    how: str
    attempt: int


@payload("parity.other", version="1.0.0")
class Other(msgspec.Struct, frozen=True, kw_only=True):
    """A type that is not handled."""

    text: str = "x"


def make_app(runs: list[str]) -> App:
    app = App("parity@svc")

    @app.on(Job, retry=Retry(attempts=3, base_s=0.05, cap_s=1))
    async def handle(job: Job, context: Context) -> Done | None:
        runs.append(job.how)
        match job.how:
            case "reject":
                raise Reject("no")
            case "broken":
                raise ValueError("always")
            case "flaky" if context.attempt < 3:
                raise ValueError("twice")
            case "later" if context.attempt < 2:
                raise RetryLater("busy", after_s=2)
            case "silent":
                return None
        return Done(how=job.how, attempt=context.attempt)

    return app


def altered(sealed: SealedRecord, old: bytes, new: bytes) -> NewRecord:
    value = sealed.record.value or b""
    assert old in value
    return msgspec.structs.replace(sealed.record, value=value.replace(old, new))


def messages(publisher: Publisher, past: Publisher, elsewhere: Publisher) -> dict[str, NewRecord]:
    """Every kind of record by its name."""

    def sealed(how: str, **options: object) -> SealedRecord:
        return publisher.sealer.seal(Outgoing(Job(how=how), **options))

    good = sealed("good")
    job_topic = good.record.topic
    return {
        "good": good.record,
        "silent": sealed("silent").record,
        "rejected": sealed("reject").record,
        "flaky": sealed("flaky").record,
        "broken": sealed("broken").record,
        "later": sealed("later").record,
        "keyed": sealed("keyed", key="a" * 256).record,
        "for nobody here": sealed("skipped", to="somebody@else").record,
        "for this agent": sealed("addressed", to="parity@svc").record,
        "expired": past.sealer.seal(Outgoing(Job(how="expired"), ttl_s=60)).record,
        "other namespace": msgspec.structs.replace(
            elsewhere.sealer.seal(Outgoing(Job(how="moved"))).record, topic=job_topic
        ),
        "altered data": altered(sealed("altered"), b"1.5", b"9.5"),
        "altered metadata": altered(sealed("sender"), b"tester@svc", b"sneaky@svc"),
        "other order": altered(sealed("order"), b'{"amount":1.5,"how":"order"}', b'{"how":"order","amount":1.5}'),
        "other key": msgspec.structs.replace(sealed("key").record, key=b"another"),
        "no key": msgspec.structs.replace(sealed("nokey").record, key=None, partition=0),
        "type that is not handled": msgspec.structs.replace(
            publisher.sealer.seal(Outgoing(Other())).record, topic=job_topic
        ),
        "garbage": NewRecord(job_topic, b"g", b"\x00\xff{"),
        "tombstone": NewRecord(job_topic, b"t", None),
        "empty": NewRecord(job_topic, b"e", b""),
        "deep": NewRecord(job_topic, b"d", b"[" * 200_000),
    }


async def outcomes_of(settings: Settings) -> tuple[dict[str, str], list[tuple[str, int]], list[str]]:
    """Outcome by record, outputs, and runs of the handler."""
    runs: list[str] = []
    app = make_app(runs)
    clock, metrics = SystemClock(), Metrics()
    transport = open_configured(settings, clock=clock)
    try:
        await transport.admin.create_topics(
            [
                *message_topics(settings, ["parity.other"]),
                *needed_topics(settings, app.declaration),
            ]
        )
        worker = make_worker(app.declaration, transport, settings, member="m", clock=clock, metrics=metrics)
        await worker.start(create_topics=False)
        stop = asyncio.Event()
        running = asyncio.create_task(worker.run(stop))
        places = await append_all(transport, settings)
        async with asyncio.timeout(40):
            while running.done() or not await everything_settled(transport, app.group, settings):
                assert not running.done(), running.result()
                await asyncio.sleep(0.2)
        stop.set()
        await running
        assert await worker.stop(5) == 0
        dead = {
            (letter.topic, letter.partition, letter.offset): letter.reason
            async for letter in list_dead_letters(transport, settings.bus.namespace)
        }
        outputs = [
            msgspec.json.decode(record.value)["data"]
            async for record in scan_topic(transport, f"{settings.bus.namespace}.parity.done")
            if record.value
        ]
        return (
            {name: dead.get((place.topic, place.partition, place.offset), "settled") for name, place in places.items()},
            sorted((output["how"], output["attempt"]) for output in outputs),
            sorted(runs),
        )
    finally:
        await transport.close()


async def append_all(transport: Transport, settings: Settings) -> dict[str, Appended]:
    clock, metrics = SystemClock(), Metrics()
    publisher = make_publisher(transport, settings, "tester@svc", clock=clock, metrics=metrics)
    past = make_publisher(
        transport, settings, "tester@svc", clock=ManualClock(clock.now_ms() - 3_600_000), metrics=metrics
    )
    foreign = msgspec.structs.replace(settings, bus=msgspec.structs.replace(settings.bus, namespace="elsewhere"))
    records = messages(publisher, past, make_publisher(transport, foreign, "tester@svc", clock=clock, metrics=metrics))
    outcomes = await transport.append(list(records.values()), timeout_s=20)
    return {name: outcome for name, outcome in zip(records, outcomes, strict=True) if isinstance(outcome, Appended)}


async def everything_settled(transport: Transport, group: str, settings: Settings) -> bool:
    for info in await transport.admin.groups():
        if info.name == f"{settings.bus.namespace}.{group}":
            for (topic, partition), offset in info.committed.items():
                if (await transport.admin.ranges(topic))[partition].end > offset:
                    return False
            return any(topic == f"{settings.bus.namespace}.parity.job" for topic, _ in info.committed)
    return False


EXPECTED = {
    "good": "settled",
    "silent": "settled",
    "rejected": "rejected",
    "flaky": "settled",
    "broken": "retries_exhausted",
    "later": "settled",
    "keyed": "settled",
    "for nobody here": "settled",
    "for this agent": "settled",
    "expired": "expired",
    "other namespace": "wrong_audience",
    "altered data": "hash_mismatch",
    "altered metadata": "seal_mismatch",
    "other order": "malformed",
    "other key": "key_mismatch",
    "no key": "key_mismatch",
    "type that is not handled": "type_mismatch",
    "garbage": "malformed",
    "tombstone": "malformed",
    "empty": "malformed",
    "deep": "malformed",
}


@pytest.mark.timeout(150)
async def test_the_same_application_has_the_same_outcomes(tmp_path: Path, kafka: str) -> None:
    flags = {"bus.namespace": f"p{uuid.uuid4().hex[:8]}", "retry.tiers": "2s,5s"}
    embedded = load(flags={**flags, "bus.url": f"sqlite:///{tmp_path}/log.db"}, env={}, file=None).settings
    cluster = load(flags={**flags, "bus.url": f"kafka://{kafka}"}, env={}, file=None).settings
    ours = await outcomes_of(embedded)
    assert ours[0] == EXPECTED
    assert await outcomes_of(cluster) == ours
