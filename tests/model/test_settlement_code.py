"""The worker itself, on a log in memory, killed at any failpoint in any life: what the model promises holds of the
code."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import structlog
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bus import failpoints
from bus.clock import ManualClock
from bus.failpoints import FAILPOINTS
from bus.protocol import sealing
from bus.settings.loading import load
from bus.telemetry.logs import configure
from bus.topics.names import dead_letter_topic
from bus.transports import open_transport
from bus.transports.base import NewRecord, Transport
from bus.transports.read_all import scan_topic
from consumers.delivery.group_plan import make_plan
from consumers.delivery.handling import claims
from consumers.delivery.inbox import claim_rules as rules
from consumers.delivery.inbox.base import (
    AlreadyDead,
    AlreadyDone,
    Claim,
    Claimed,
    InboxKey,
    SomeAsk,
    SomeEnd,
    Transaction,
)
from consumers.delivery.inbox.row_encoding import encode_outputs
from consumers.delivery.resilience.retry import Tier
from consumers.delivery.settling import dispositions
from consumers.delivery.settling.durable_append import DurableAppender
from consumers.delivery.state.commit_frontier import Frontier
from consumers.delivery.state.delivery import Delivery
from consumers.worker.worker import Worker
from producers.connection import make_publisher
from sealbus import App, Outgoing, Reject, Retry, payload
from sealbus.telemetry import Metrics
from tests.kit import Done

pytestmark = pytest.mark.medium  # whole workers

SETTINGS = load(flags={"bus.url": "memory://", "topics.partitions": 2, "retry.tiers": "5s"}, env={}, file=None).settings
LEASE_S = 20.0
LONG_S = 120.0


@payload("model.job")
class Job(msgspec.Struct, frozen=True):
    number: int
    fails: int = 0
    """So many runs raise before one goes through; negative: it is rejected."""


class Killed(BaseException):
    """As a kill is: no handler of exceptions stands in its way."""


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Thousands of failures are meant to happen here, and writing down each with its trace takes longer than all the
    rest."""
    configure("error")
    yield
    structlog.reset_defaults()


class Life:
    """One life of a worker: whatever it asks for after its death never happens."""

    def __init__(self, failpoint: str | None, count: int) -> None:
        self.failpoint = failpoint
        self.left = count
        self.over = False

    def reach(self, name: str) -> None:
        if self.over:
            raise Killed
        if name == self.failpoint:
            self.left -= 1
            if self.left <= 0:
                self.over = True
                raise Killed

    def ask(self) -> None:
        if self.over:
            raise Killed


class Severed:
    """Passes everything on while its owner lives."""

    def __init__(self, behind: object, life: Life) -> None:
        self._behind = behind
        self._life = life

    def __getattr__(self, name: str) -> object:
        found = getattr(self._behind, name)
        if not callable(found):
            return found

        def call(*arguments: object, **named: object) -> object:
            self._life.ask()
            return found(*arguments, **named)

        return call


class Store:
    """The rows of a paper inbox, and who lives. What is not on its disk outlives a worker, and not a machine."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.rows: dict[InboxKey, rules.ClaimRow] = {}
        self.effects: Counter[str] = Counter()
        self.alive_until_s: dict[int, float] = {}
        self._disk: tuple[dict[InboxKey, rules.ClaimRow], Counter[str]] = ({}, Counter())

    def sync(self) -> None:
        self._disk = (self.rows.copy(), self.effects.copy())

    def lose_power(self) -> None:
        rows, effects = self._disk
        self.rows, self.effects = rows.copy(), effects.copy()


class PaperInbox:
    """An inbox that follows `rules` and keeps its rows on paper; one owner."""

    shared = True

    def __init__(self, store: Store, life: Life) -> None:
        self.store = store
        self.owner = len(store.alive_until_s) + 1
        self._life = life
        self._running: dict[InboxKey, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        self.store.alive_until_s[self.owner] = self.store.clock.monotonic_s() + LEASE_S

    async def claim(
        self,
        key: InboxKey,
        content_hash: str,
        *,
        keep_until_ms: int,
        reopen: int = 0,
        alone: bool = False,
        message_id: str = "",
    ) -> Claim:
        await asyncio.sleep(0)
        self._life.ask()
        self.store.alive_until_s[self.owner] = self.store.clock.monotonic_s() + LEASE_S
        row = self.store.rows.get(key)
        asker = rules.Claimant(
            self.owner,
            content_hash,
            keep_until_ms,
            running=key in self._running,
            reopen=reopen,
            alone=alone,
            message_id=message_id,
        )
        rest_s = (
            self.store.alive_until_s[row.owner] - self.store.clock.monotonic_s()
            if row is not None and row.owner
            else rules.CLOSED
        )
        written, claim = rules.decide_claim(row, asker, rest_s)
        if written is not None:
            self.store.rows[key] = written
        if isinstance(claim, Claimed):
            self._running[key] = claim.token
        return claim

    async def finish(
        self, key: InboxKey, token: int, outputs: Sequence[NewRecord], transaction: Transaction | None = None
    ) -> bool:
        is_done = await self._finish(key, token, outputs)
        self.store.sync()
        return is_done

    async def _finish(self, key: InboxKey, token: int, outputs: Sequence[NewRecord]) -> bool:
        await asyncio.sleep(0)
        self._life.ask()
        written = rules.finished(
            self.store.rows.get(key), owner=self.owner, token=token, outputs=encode_outputs(outputs)
        )
        self._running.pop(key, None)
        if written is None:
            return False
        self.store.rows[key] = written
        # The handler's effect is in the same transaction.
        self.store.effects[key.idempotency_key] += 1
        return True

    def claim_soon(self, asks: Sequence[SomeAsk], told: Callable[[Sequence[SomeAsk]], object]) -> None:
        for ask in asks:
            asking = self.claim(ask.key, ask.content_hash, keep_until_ms=ask.keep_until_ms, reopen=ask.reopen)
            self._soon(asking, ask, told)

    def finish_soon(self, ends: Sequence[SomeEnd], told: Callable[[Sequence[SomeEnd]], object]) -> None:
        for end in ends:
            self._soon(self._finish(end.key, end.token, ()), end, told)

    def _soon(self, asking: Coroutine[Any, Any, Any], item: Any, told: Callable[[Sequence[Any]], object]) -> None:
        async def tell() -> None:
            with contextlib.suppress(Killed):
                item.answer = await asking
                told([item])

        self._tasks.append(asyncio.create_task(tell()))

    async def sync(self) -> None:
        self._life.ask()
        self.store.sync()

    async def find_done(self, key: InboxKey, content_hash: str) -> AlreadyDone | AlreadyDead | None:
        self._life.ask()
        return rules.found_done(self.store.rows.get(key), content_hash)

    async def release(self, key: InboxKey, token: int) -> None:
        self._life.ask()
        written = rules.released(self.store.rows.get(key), owner=self.owner, token=token)
        self._running.pop(key, None)
        if written is not None:
            self.store.rows[key] = written

    async def close(self) -> None:
        self._life.ask()


def answers(number: int) -> bool:
    """Whether the handler does; else its effect is all that there is."""
    return number % 3 != 2


jobs = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-1, 3), st.booleans()), min_size=1, max_size=8)
deaths = st.lists(st.tuples(st.sampled_from(FAILPOINTS), st.integers(1, 6), st.booleans()), max_size=4)


@pytest.mark.slow  # a hundred lives of whole workers
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(jobs=jobs, deaths=deaths, strict=st.booleans())
@example(jobs=[("a", 0, False)], deaths=[("claimed", 1, False)] * 2, strict=False)
def test_wherever_workers_die_nothing_is_lost_and_no_effect_happens_twice(
    jobs: list[tuple[str, int, bool]], deaths: list[tuple[str, int, bool]], strict: bool
) -> None:
    asyncio.run(live_and_die(jobs, deaths, strict))


async def live_and_die(jobs: list[tuple[str, int, bool]], deaths: list[tuple[str, int, bool]], strict: bool) -> None:
    """*deaths*: where in its life a worker dies, at which time it comes there, and whether the machine of its inbox
    goes down with it."""
    clock = ManualClock()
    transport = open_transport("memory://", clock=clock, session_timeout_s=30, heartbeat_s=5)
    try:
        await live_and_die_on(transport, clock, jobs, deaths, strict)
    finally:
        await transport.close()


async def live_and_die_on(
    transport: Transport,
    clock: ManualClock,
    jobs: list[tuple[str, int, bool]],
    deaths: list[tuple[str, int, bool]],
    strict: bool,
) -> None:
    store = Store(clock)
    left = {number: fails for number, (_, fails, _) in enumerate(jobs)}
    done: list[int] = []
    app = App("model@tests")

    @app.on(
        Job, order="key_strict" if strict else "key", retry=Retry(attempts=5, base_s=3, cap_s=3, backoff="constant")
    )
    async def handle(job: Job) -> Done | None:
        if job.fails < 0:
            raise Reject("as asked")
        if left[job.number] > 0:
            left[job.number] -= 1
            raise ValueError("not yet")
        done.append(job.number)
        return Done(job.number) if answers(job.number) else None

    publisher = make_publisher(transport, SETTINGS, "source@tests", clock=clock, metrics=Metrics())
    accepted: dict[str, int] = {}
    for failpoint, count, power_fails in [*deaths, (None, 0, False)]:
        life = Life(failpoint, count)
        with reaching(life):
            living = await born(app, transport, store, life, clock)
            if not accepted:
                for number, (key, fails, repeated) in enumerate(jobs):
                    for _ in range(1 + repeated):
                        draft = Outgoing(Job(number, fails), key=key, idempotency_key=f"k{number}", ttl_s=86_400)
                        accepted[(await publisher.publish(draft)).message_id] = number
            await run(living, life, clock)
            await bury(living, life)
        if power_fails and life.over:
            store.lose_power()
        # Whoever died is not missed at once.
        clock.advance(LONG_S)
    await judge(transport, store, accepted, jobs)
    if strict and not deaths:
        assert_in_order(done, jobs)
    await publisher.close()


@contextlib.contextmanager
def reaching(life: Life) -> Iterator[None]:
    with patch.object(failpoints, "is_armed", new=True), patch.object(failpoints, "reach", life.reach):
        yield


async def born(app: App, transport, store: Store, life: Life, clock: ManualClock) -> Worker:
    severed = Severed(transport, life)
    own = make_publisher(severed, SETTINGS, app.agent, clock=clock, metrics=Metrics())
    name = f"w{len(store.alive_until_s)}"
    living = Worker(
        app.declaration,
        make_plan(app.declaration, SETTINGS),
        own,
        inbox=PaperInbox(store, life),
        member=name,
    )
    await living.start(create_topics=True)
    return living


async def run(living: Worker, life: Life, clock: ManualClock) -> None:
    """Until it is dead, or nothing is left to do for a long time."""
    idle_s = 0.0
    with contextlib.suppress(Killed):
        while idle_s < LONG_S and living.slots.failure is None:
            if await living.cycle(0):
                idle_s = 0
            for _ in range(30):
                await asyncio.sleep(0)
            await living.commit()
            clock.advance(1)
            idle_s += 1
        if living.slots.failure is not None and not isinstance(living.slots.failure, Killed):
            raise living.slots.failure


async def bury(living: Worker, life: Life) -> None:
    """Its tasks are gone with it; an orderly end for one that lived."""
    if not life.over and living.slots.failure is None:
        await living.stop(0)
        return
    life.over = True
    with contextlib.suppress(Killed):
        await living.slots.close()
    # What its session's end would do.
    if living._partitions.subscription is not None:
        await living._partitions.subscription.close()


def assert_in_order(done: list[int], jobs: list[tuple[str, int, bool]]) -> None:
    for key in "ab":
        mine = [number for number in done if jobs[number][0] == key]
        assert mine == sorted(mine)


async def judge(transport, store: Store, accepted: dict[str, int], jobs: list[tuple[str, int, bool]]) -> None:
    sent: dict[int, set[bytes]] = defaultdict(set)
    answered = {number for number in range(len(jobs)) if not answers(number) and store.effects[f"k{number}"]}
    async for record in scan_topic(transport, "agents.job.done"):
        number = msgspec.json.decode(record.value or b"")["data"]["number"]
        sent[number].add(record.value or b"")
        answered.add(number)
    dead = {
        sealing.parse(record.value).message_id
        async for record in scan_topic(transport, dead_letter_topic("agents.model.job"))
    }
    lost = {message_id for message_id, number in accepted.items() if number not in answered and message_id not in dead}
    assert not lost
    assert [key for key, count in store.effects.items() if count > 1] == []
    assert all(len(values) == 1 for values in sent.values()), "a repeat was answered in another way"
    assert {accepted[message_id] for message_id in dead} <= {
        number for number, (_, fails, _) in enumerate(jobs) if fails < 0
    }


def some_lives(count: int) -> None:
    for seed in range(count):
        chance = random.Random(seed)
        jobs = [
            (chance.choice("ab"), chance.choice([0, 0, 1, 3, -1]), chance.random() < 0.4)
            for _ in range(chance.randint(1, 8))
        ]
        deaths = [
            (chance.choice(FAILPOINTS), chance.randint(1, 6), chance.random() < 0.5)
            for _ in range(chance.randint(0, 4))
        ]
        asyncio.run(live_and_die(jobs, deaths, chance.random() < 0.5))


def commits_the_highest_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Frontier, "committable", property(lambda self: self._position))


def marks_before_the_work(patch: pytest.MonkeyPatch) -> None:
    decide = rules.decide_claim

    def marked(*arguments: object) -> rules.ClaimDecision:
        row, claim = decide(*arguments)
        return rules.ClaimDecision(
            msgspec.structs.replace(row, state="done", outputs=encode_outputs(())) if row else None, claim
        )

    patch.setattr(rules, "decide_claim", marked)
    patch.setattr(rules, "finished", lambda row, **_: row)


def settles_without_a_dead_letter(patch: pytest.MonkeyPatch) -> None:
    async def bury(*_: object) -> None: ...

    patch.setattr(DurableAppender, "write_dead_letter", bury)


def settles_without_the_retry_record(patch: pytest.MonkeyPatch) -> None:
    async def move(self: dispositions.Dispositions, delivery: Delivery, tier: Tier, *_: object) -> None:
        self._in_flight.retried(delivery, tier.name)

    patch.setattr(dispositions.Dispositions, "_move", move)


def asks_no_inbox(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims.InboxClient, "key_of", lambda *_: None)


@pytest.mark.parametrize(
    "bug",
    [
        commits_the_highest_seen,
        marks_before_the_work,
        settles_without_a_dead_letter,
        settles_without_the_retry_record,
        asks_no_inbox,
    ],
)
def test_a_worker_with_a_known_bug_is_found_out(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        some_lives(40)


def lives_that_end_with_the_machine_after_a_commit() -> None:
    for count in range(1, 7):
        asyncio.run(live_and_die([("a", 0, False)] * 3, [("committed", count, True)], False))


def test_a_worker_that_commits_what_is_not_on_its_disk_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def made_durable(_: claims.InboxClient) -> bool:
        return True

    lives_that_end_with_the_machine_after_a_commit()
    monkeypatch.setattr(claims.InboxClient, "made_durable", made_durable)
    with pytest.raises(AssertionError):
        lives_that_end_with_the_machine_after_a_commit()
