"""Claims that could not be given up while the store was away: for as long as their owner lives nobody else could have
the message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from bus.clock import ManualClock, SystemClock
from bus.errors import InboxError
from bus.telemetry.metrics import Metrics
from consumers.delivery.handling.claims import ActiveClaim, InboxClient, Keeping
from consumers.delivery.inbox.base import AlreadyDone, Claimed, ClaimedElsewhere
from consumers.delivery.inbox.sqlite import SqliteInbox
from consumers.delivery.settling.durable_append import GaveUpError
from tests.consumers.delivery.inbox.stores import LATER_MS, OUTPUTS, claim, key

OPEN: Any = SimpleNamespace(closed=False)


class Faulty:
    """A store whose answers are lost: what it is asked for is done or not, and *failing* says so."""

    def __init__(self, inbox: SqliteInbox) -> None:
        self.inbox = inbox
        self.failing = False
        self.carries_out = False

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            answer = (
                await getattr(self.inbox, name)(*arguments, **named) if self.carries_out or not self.failing else None
            )
            if self.failing:
                raise InboxError("no answer")
            return answer

        return call


class Case:
    def __init__(self, store: Faulty, other: SqliteInbox) -> None:
        self.store = store
        self.other = other
        self.clock = ManualClock()
        self.claims = InboxClient(
            store,
            namespace="agents",
            group="g",
            keep_s=Keeping(60.0, 60.0),
            clock=self.clock,
            metrics=Metrics(),
            pause=lambda _partition, _held: None,
        )

    async def give_up_claiming(self, name: str) -> None:
        """Its partition is gone before the store has answered."""
        message: Any = SimpleNamespace(
            message_id="m-1",
            metadata=SimpleNamespace(other_version=None),
            verification=SimpleNamespace(content_hash="hash-1"),
        )
        delivery: Any = SimpleNamespace(
            expires_ms=LATER_MS,
            control=SimpleNamespace(redrive_count=0),
            partition=SimpleNamespace(closed=True),
            message=message,
        )
        with pytest.raises(GaveUpError):
            await self.claims.claim(key(name), delivery, after=InboxError("no answer"))


@pytest.fixture
async def case(tmp_path: Path) -> AsyncIterator[Case]:
    mine, other = (SqliteInbox(str(tmp_path / "inbox.db"), owner=name, clock=SystemClock()) for name in ("a", "b"))
    await mine.open()
    await other.open()
    yield Case(Faulty(mine), other)
    await mine.close()
    await other.close()


async def test_a_failed_release_is_repeated_when_the_store_is_back(case: Case) -> None:
    token = (await case.store.claim(key("one"), "hash-1", keep_until_ms=LATER_MS)).token
    case.store.failing = True
    await case.claims.release(ActiveClaim(case.claims, key("one"), token))
    assert isinstance(await claim(case.other, "one"), ClaimedElsewhere)
    await case.claims.release_leftovers()
    assert isinstance(await claim(case.other, "one"), ClaimedElsewhere)
    case.store.failing = False
    await case.claims.release_leftovers()
    assert isinstance(await claim(case.other, "one"), Claimed)


async def test_a_claim_of_unknown_fate_for_a_lost_partition_is_released(case: Case) -> None:
    case.store.failing = case.store.carries_out = True
    with pytest.raises(InboxError):
        await case.store.claim(key("one"), "hash-1", keep_until_ms=LATER_MS)
    # A store that does not know whether its commit was written does not count it as running.
    case.store.inbox._running.clear()
    case.store.failing = False
    await _given_up(case, "one")
    assert isinstance(await claim(case.other, "one"), ClaimedElsewhere)
    await case.claims.release_leftovers()
    assert isinstance(await claim(case.other, "one"), Claimed)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_whether_a_step_without_an_answer_is_stored_says_the_next_claim(case: Case, is_stored: bool) -> None:
    token = (await case.store.claim(key("one"), "hash-1", keep_until_ms=LATER_MS)).token
    case.store.failing, case.store.carries_out = True, is_stored
    assert await case.claims.finish_with(ActiveClaim(case.claims, key("one"), token), OUTPUTS, ()) == "stale"
    case.store.failing = False
    await case.claims.release_leftovers()
    found = await claim(case.store.inbox, "one")
    assert found == AlreadyDone(OUTPUTS) if is_stored else isinstance(found, Claimed)


async def test_what_others_have_or_have_done_is_left_to_them(case: Case) -> None:
    assert isinstance(await claim(case.other, "held"), Claimed)
    done = await claim(case.other, "done")
    assert isinstance(done, Claimed)
    assert await case.other.finish(key("done"), done.token, ())
    for name in ("held", "done"):
        await _given_up(case, name)
    await case.claims.release_leftovers()
    assert await case.other.finish(key("held"), 1, ())
    assert await claim(case.other, "done") == AlreadyDone(())


async def test_no_claim_is_released_twice(case: Case) -> None:
    token = (await case.store.claim(key("one"), "hash-1", keep_until_ms=LATER_MS)).token
    case.store.failing = True
    await case.claims.release(ActiveClaim(case.claims, key("one"), token))
    case.store.failing = False
    await case.claims.release_leftovers()
    again = await case.store.claim(key("one"), "hash-1", keep_until_ms=LATER_MS)
    assert isinstance(again, Claimed)
    await case.claims.release_leftovers()
    assert await case.store.finish(key("one"), again.token, ())


async def _given_up(case: Case, name: str) -> None:
    asking = asyncio.create_task(case.give_up_claiming(name))
    for _ in range(5):
        await asyncio.sleep(0)
        case.clock.advance(1)
    await asyncio.wait_for(asking, 30)


async def test_tasks_of_one_handler_that_ask_at_once_get_the_same_transaction(case: Case) -> None:
    pause = ActiveClaim(case.claims, key("one"), 1)
    first, second = await asyncio.gather(case.claims.begin(pause, OPEN), case.claims.begin(pause, OPEN))
    assert first is second
    await case.claims.release(pause)


async def test_a_transaction_after_the_end_of_the_handler_is_refused_without_blocking(case: Case) -> None:
    pause = ActiveClaim(case.claims, key("one"), 1)
    late = asyncio.ensure_future(case.claims.begin(pause, OPEN))
    await asyncio.sleep(0)
    pause.over = True
    for asked in (late, case.claims.begin(pause, OPEN)):
        with pytest.raises(InboxError, match="has ended"):
            await asked
    async with asyncio.timeout(30):
        await (await case.store.begin()).rollback()


async def test_a_handler_waits_for_its_transaction_while_the_store_cannot_open_one(case: Case) -> None:
    pause = ActiveClaim(case.claims, key("one"), 1)
    case.store.failing = True
    asked = asyncio.ensure_future(case.claims.begin(pause, OPEN))
    for _ in range(20):
        await asyncio.sleep(0)
        case.clock.advance(30)
    assert not asked.done()
    case.store.failing = False
    for _ in range(5):
        await asyncio.sleep(0)
        case.clock.advance(30)
    assert await asyncio.wait_for(asked, 30) is pause.transaction
    await case.claims.release(pause)


async def test_a_handler_that_waits_for_its_transaction_is_given_up_with_its_partition(case: Case) -> None:
    partition: Any = SimpleNamespace(closed=False)
    case.store.failing = True
    asked = asyncio.ensure_future(case.claims.begin(ActiveClaim(case.claims, key("one"), 1), partition))
    await asyncio.sleep(0)
    partition.closed = True
    case.clock.advance(1)
    with pytest.raises(GaveUpError):
        await asyncio.wait_for(asked, 30)


async def test_an_unreachable_store_is_logged_once_for_all_waiting_messages(case: Case) -> None:
    case.store.failing = True
    with capture_logs() as lines:
        waiting = [
            asyncio.ensure_future(case.claims.begin(ActiveClaim(case.claims, key(str(number)), 1), OPEN))
            for number in range(64)
        ]
        for _ in range(4):
            await asyncio.sleep(0.01)
            case.clock.advance(60)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    assert [(line["event"], line["again_in_s"]) for line in lines] == [
        ("inbox.unreachable", pause_s) for pause_s in (0.5, 1.0, 2.0, 4.0)
    ]
