"""What every inbox promises, whatever keeps its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bus.clock import SystemClock
from bus.errors import InboxError
from consumers.delivery.inbox.base import (
    AlreadyDone,
    Ask,
    Claim,
    Claimed,
    ClaimedElsewhere,
    Conflict,
    End,
    Inbox,
    InboxKey,
    KeepsCrashing,
    Write,
)
from consumers.delivery.inbox.open import open_inbox
from tests.consumers.delivery.inbox.stores import LATER_MS, OUTPUTS, Store, claim, claimed, key


async def unheld(inbox: Inbox) -> Claim:
    """The first answer that is more than "ask again"."""
    async with asyncio.timeout(30):
        while True:
            answer = await claim(inbox)
            if not isinstance(answer, ClaimedElsewhere):
                return answer
            await asyncio.sleep(0.02)


# --- one owner --------------------------------------------------------------------------------------------------------


async def test_a_new_message_is_claimed(store: Store) -> None:
    assert await claim(await store.open()) == Claimed(token=1, starts=1, alone=False)


async def test_a_message_that_runs_here_cannot_be_claimed_again(store: Store) -> None:
    inbox = await store.open()
    await claimed(inbox)
    held = await claim(inbox)
    assert isinstance(held, ClaimedElsewhere)
    assert 0 < held.wait_s <= 1


async def test_a_message_that_is_done_answers_with_the_very_outputs(store: Store) -> None:
    inbox = await store.open()
    assert await inbox.finish(key(), (await claimed(inbox)).token, OUTPUTS)
    assert await claim(inbox) == AlreadyDone(OUTPUTS)


async def test_done_without_outputs_is_done(store: Store) -> None:
    inbox = await store.open()
    assert await inbox.finish(key(), (await claimed(inbox)).token, ())
    assert await claim(inbox) == AlreadyDone(())


@pytest.mark.parametrize("state", ["claimed", "free", "done"])
async def test_other_content_under_a_key_is_a_conflict_in_any_state(store: Store, state: str) -> None:
    inbox = await store.open()
    token = (await claimed(inbox)).token
    if state == "free":
        await inbox.release(key(), token)
    elif state == "done":
        await inbox.finish(key(), token, ())
    assert await claim(inbox, content_hash="hash-2") == Conflict("hash-1")


async def test_a_released_message_is_claimed_with_a_higher_token_and_a_clean_record(store: Store) -> None:
    inbox = await store.open()
    await inbox.release(key(), (await claimed(inbox)).token)
    assert await claim(inbox) == Claimed(token=2, starts=1, alone=False)


async def test_an_old_token_neither_finishes_nor_releases(store: Store) -> None:
    inbox = await store.open()
    old = (await claimed(inbox)).token
    await inbox.release(key(), old)
    new = (await claimed(inbox)).token
    assert not await inbox.finish(key(), old, OUTPUTS)
    await inbox.release(key(), old)
    assert isinstance(await claim(inbox), ClaimedElsewhere)
    assert await inbox.finish(key(), new, ())
    assert await claim(inbox) == AlreadyDone(())


async def test_finishing_again_with_the_same_result_is_true_and_with_another_is_not(store: Store) -> None:
    inbox = await store.open()
    token = (await claimed(inbox)).token
    assert await inbox.finish(key(), token, OUTPUTS)
    assert await inbox.finish(key(), token, OUTPUTS)
    assert not await inbox.finish(key(), token, ())
    assert await claim(inbox) == AlreadyDone(OUTPUTS)


async def test_every_part_of_a_key_counts(store: Store) -> None:
    inbox = await store.open()
    fields = ("a", "b", "c", "d", "e")
    keys = {InboxKey(*fields[:at], "x", *fields[at + 1 :]) for at in range(5)} | {  # type: ignore[call-arg]
        InboxKey("a,b", "", "c", "d", "e"),
        InboxKey("a", "b,", "c", "d", 'e"'),
    }
    answers = [await inbox.claim(each, "h", keep_until_ms=9) for each in keys]
    assert answers == [Claimed(1)] * 7


async def test_long_foreign_keys_are_kept_apart(store: Store) -> None:
    inbox = await store.open()
    names = ["\U0001f600" * 256, "\U0001f600" * 255 + "x", "\x00", "'; DROP TABLE sealbus_inbox; --"]
    assert [await claim(inbox, name) for name in names] == [Claimed(1)] * 4


async def test_a_thousand_at_once(store: Store) -> None:
    inbox = await store.open()
    answers = await asyncio.gather(*(claim(inbox, f"task-{number}") for number in range(1000)))
    assert answers == [Claimed(1)] * 1000
    assert all(await asyncio.gather(*(inbox.finish(key(f"task-{number}"), 1, OUTPUTS) for number in range(1000))))
    assert await claim(inbox, "task-999") == AlreadyDone(OUTPUTS)


async def test_of_many_who_want_the_same_message_at_once_one_gets_it(store: Store) -> None:
    inbox = await store.open()
    answers = await asyncio.gather(*(claim(inbox) for _ in range(200)))
    assert sorted(type(answer).__name__ for answer in answers) == ["Claimed"] + ["ClaimedElsewhere"] * 199


async def test_a_caller_that_gave_up_leaves_nothing_claimed(store: Store) -> None:
    inbox = await store.open()
    for turns in range(12):
        caller = asyncio.ensure_future(claim(inbox))
        for _ in range(turns):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        if not caller.cancelled() and isinstance(answer := caller.result(), Claimed):
            await inbox.release(key(), answer.token)
    assert isinstance(await unheld(inbox), Claimed)


async def test_rows_whose_time_has_passed_are_forgotten_but_not_under_a_living_run(store: Store) -> None:
    inbox = await store.open()
    for number in range(3):
        token = (await claim(inbox, f"old-{number}", until_ms=store.now_ms() - 1)).token
        await inbox.finish(key(f"old-{number}"), token, OUTPUTS)
    await claim(inbox, "running", until_ms=store.now_ms() - 1)
    await inbox.finish(key("kept"), (await claimed(inbox, "kept")).token, ())
    assert await inbox.purge() == 3
    assert await inbox.purge() == 0
    assert await claim(inbox, "old-0") == Claimed(1)
    assert isinstance(await claim(inbox, "running"), ClaimedElsewhere)
    assert await claim(inbox, "kept") == AlreadyDone(())


async def test_a_later_claim_keeps_the_row_for_longer(store: Store) -> None:
    inbox = await store.open()
    await inbox.release(key(), (await claim(inbox, until_ms=store.now_ms() - 1)).token)
    await inbox.finish(key(), (await claimed(inbox)).token, ())
    assert await inbox.purge() == 0


async def test_nothing_works_before_it_is_opened_or_after_it_is_closed(store: Store) -> None:
    unopened = open_inbox(store.url, owner="a", clock=SystemClock(), lease_s=5)
    with pytest.raises(InboxError):
        await claim(unopened)
    await unopened.close()
    inbox = await store.open()
    await inbox.close()
    await inbox.close()
    for call in (claim(inbox), inbox.begin(), inbox.purge(), inbox.open(), inbox.release(key(), 1)):
        with pytest.raises(InboxError):
            await call


# --- transactions -----------------------------------------------------------------------------------------------------


async def with_table(store: Store) -> Inbox:
    inbox = await store.open()
    await claimed(inbox, "table")
    transaction = await inbox.begin()
    await transaction.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY, label TEXT NOT NULL)")
    assert await inbox.finish(key("table"), 1, (), transaction)
    return inbox


async def labels(inbox: Inbox) -> list[tuple[object, ...]]:
    transaction = await inbox.begin()
    rows = await transaction.fetch("SELECT number, label FROM orders ORDER BY number")
    await transaction.rollback()
    return rows


async def test_a_transaction_and_the_row_become_durable_together(store: Store) -> None:
    inbox = await with_table(store)
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    await transaction.execute("INSERT INTO orders VALUES ($2, $1)", "first", 7)
    assert await transaction.fetchrow("SELECT number FROM orders WHERE label = $1", "first") == (7,)
    assert await transaction.fetchrow("SELECT number FROM orders WHERE label = $1", "none") is None
    assert await inbox.finish(key(), token, OUTPUTS, transaction)
    assert await claim(inbox) == AlreadyDone(OUTPUTS)
    assert await labels(inbox) == [(7, "first")]


async def test_a_stale_token_takes_the_transaction_with_it(store: Store) -> None:
    inbox = await with_table(store)
    old = (await claimed(inbox)).token
    await inbox.release(key(), old)
    new = (await claimed(inbox)).token
    transaction = await inbox.begin()
    await transaction.execute("INSERT INTO orders VALUES (1, 'stale')")
    assert not await inbox.finish(key(), old, OUTPUTS, transaction)
    assert await labels(inbox) == []
    assert await inbox.finish(key(), new, ())


async def test_a_rollback_writes_nothing_and_keeps_the_claim(store: Store) -> None:
    inbox = await with_table(store)
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    await transaction.execute("INSERT INTO orders VALUES (1, 'x')")
    await transaction.rollback()
    await transaction.rollback()
    assert await labels(inbox) == []
    with pytest.raises(InboxError):
        await transaction.execute("INSERT INTO orders VALUES (1, 'x')")
    assert await inbox.finish(key(), token, ())


async def test_a_fault_of_a_statement_is_the_databases_own_error(store: Store) -> None:
    inbox = await with_table(store)
    for statement in ("SELEKT 1", "INSERT INTO orders VALUES (1, NULL)", "SELECT * FROM nowhere"):
        transaction = await inbox.begin()
        with pytest.raises(Exception, match=r"(?i)syntax|null|nowhere") as caught:
            await transaction.execute(statement)
        assert not isinstance(caught.value, InboxError)
        await transaction.rollback()


async def test_statements_of_several_tasks_take_turns(store: Store) -> None:
    inbox = await with_table(store)
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    await asyncio.gather(*(transaction.execute("INSERT INTO orders VALUES ($1, 'x')", number) for number in range(20)))
    assert await inbox.finish(key(), token, (), transaction)
    assert len(await labels(inbox)) == 20


def inserted(number: int, label: str | None = "x", *, must_return: bool = False) -> Write:
    fresh = "INSERT INTO orders VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING number"
    return Write(fresh if must_return else "INSERT INTO orders VALUES ($1, $2)", (number, label), must_return)


async def test_writes_and_the_row_become_durable_together(store: Store) -> None:
    inbox = await with_table(store)
    token = (await claimed(inbox)).token
    assert await inbox.finish_with(key(), token, OUTPUTS, [inserted(1, must_return=True), inserted(2)]) == "written"
    assert await labels(inbox) == [(1, "x"), (2, "x")]
    assert await claim(inbox) == AlreadyDone(OUTPUTS)
    # As after an answer that was lost: it is there.
    assert await inbox.finish_with(key(), token, OUTPUTS, [inserted(1, must_return=True)]) in {"written", "moved"}
    assert await labels(inbox) == [(1, "x"), (2, "x")]


async def test_a_stale_token_writes_nothing(store: Store) -> None:
    inbox = await with_table(store)
    old = (await claimed(inbox)).token
    await inbox.release(key(), old)
    await claimed(inbox)
    assert await inbox.finish_with(key(), old, OUTPUTS, [inserted(1)]) == "stale"
    assert await labels(inbox) == []


async def test_where_a_row_has_moved_nothing_is_written_and_the_claim_stands(store: Store) -> None:
    inbox = await with_table(store)
    token = (await claimed(inbox)).token
    assert await inbox.finish_with(key("other"), (await claimed(inbox, "other")).token, (), [inserted(2)]) == "written"
    writes = [inserted(1), inserted(2, must_return=True), inserted(3)]
    assert await inbox.finish_with(key(), token, OUTPUTS, writes) == "moved"
    assert await labels(inbox) == [(2, "x")]
    assert await inbox.finish_with(key(), token, OUTPUTS, [inserted(1)]) == "written"
    assert await labels(inbox) == [(1, "x"), (2, "x")]


async def test_a_write_that_fails_fails_alone(store: Store) -> None:
    inbox = await with_table(store)
    tokens = [(await claimed(inbox, f"task-{number}")).token for number in range(9)]
    ended = await asyncio.gather(
        *(
            inbox.finish_with(
                key(f"task-{number}"),
                token,
                (),
                [inserted(number), inserted(100 + number, None if number == 4 else "x")],
            )
            for number, token in enumerate(tokens)
        ),
        return_exceptions=True,
    )
    failed = ended.pop(4)
    assert isinstance(failed, Exception)
    assert not isinstance(failed, InboxError)
    assert ended == ["written"] * 8
    assert len(await labels(inbox)) == 16
    # Its claim stands: the caller releases it.
    assert await inbox.finish(key("task-4"), tokens[4], ())


async def test_claims_are_answered_after_an_open_transaction_at_the_latest(store: Store) -> None:
    inbox = await with_table(store)
    transaction = await inbox.begin()
    waiting = asyncio.ensure_future(asyncio.gather(*(claim(inbox, f"other-{number}") for number in range(20))))
    await transaction.execute("INSERT INTO orders VALUES (1, 'x')")
    await transaction.rollback()
    assert await waiting == [Claimed(1)] * 20


async def test_transactions_of_several_handlers_do_not_mix(store: Store) -> None:
    inbox = await with_table(store)

    async def handle(number: int) -> None:
        token = (await claimed(inbox, f"order-{number}")).token
        transaction = await inbox.begin()
        await transaction.execute("INSERT INTO orders VALUES ($1, $2)", number, "odd" if number % 2 else "even")
        await asyncio.sleep(0)
        if number % 2:
            await inbox.finish(key(f"order-{number}"), token, (), transaction)
        else:
            await transaction.rollback()
            await inbox.release(key(f"order-{number}"), token)

    await asyncio.gather(*(handle(number) for number in range(40)))
    assert await labels(inbox) == [(number, "odd") for number in range(1, 40, 2)]


async def test_closing_undoes_a_transaction_that_is_open(shared_store: Store) -> None:
    inbox = await with_table(shared_store)
    transaction = await inbox.begin()
    await transaction.execute("INSERT INTO orders VALUES (1, 'x')")
    await inbox.close()
    assert await labels(await shared_store.open()) == []


# --- several owners ---------------------------------------------------------------------------------------------------


async def test_a_message_of_another_live_owner_cannot_be_claimed(shared_store: Store) -> None:
    first, second = await shared_store.open("a"), await shared_store.open("b")
    await claimed(first)
    await shared_store.run_out()
    assert isinstance(await claim(second), ClaimedElsewhere)


async def test_the_dead_ones_message_runs_again_and_the_dead_cannot_finish_it(shared_store: Store) -> None:
    first, second = await shared_store.open("a"), await shared_store.open("b")
    old = await claimed(first)
    await shared_store.die(first)
    assert isinstance(await claim(second), ClaimedElsewhere)
    await shared_store.run_out()
    assert await claim(second) == Claimed(token=2, starts=2, alone=False)
    assert not await first.finish(key(), old.token, OUTPUTS)
    await first.release(key(), old.token)
    assert await second.finish(key(), 2, ())


async def test_only_deaths_alone_count_and_the_third_is_the_last(shared_store: Store) -> None:
    for starts in range(1, 6):
        owner = await shared_store.open(f"owner {starts}")
        assert await claim(owner) == Claimed(token=starts, starts=starts, alone=starts > 2)
        await shared_store.die(owner)
        await shared_store.run_out()
    last = await shared_store.open("last")
    assert await claim(last) == KeepsCrashing(3)
    assert await claim(last) == KeepsCrashing(3)
    assert await claim(last, reopen=1) == Claimed(token=6, starts=6, alone=True)


async def test_one_who_closed_in_order_leaves_messages_free_and_unsuspected(shared_store: Store) -> None:
    first, second = await shared_store.open("a"), await shared_store.open("b")
    await claimed(first)
    await first.close()
    assert await claim(second) == Claimed(token=2, starts=1, alone=False)


async def test_owners_of_one_name_are_not_taken_for_each_other(shared_store: Store) -> None:
    first, second = await shared_store.open("same"), await shared_store.open("same")
    await claimed(first)
    assert isinstance(await claim(second), ClaimedElsewhere)


@pytest.mark.medium
async def test_a_kill_between_claim_and_finish_is_a_death(shared_store: Store) -> None:
    shared_store.clock, shared_store.lease_s = None, 1.0
    child = await shared_store.child("claim", "task-1")
    assert child.stdout is not None
    assert b"token=1" in await child.stdout.readline()
    inbox = await shared_store.open()
    assert isinstance(await claim(inbox), ClaimedElsewhere)
    child.kill()
    await child.wait()
    assert await unheld(inbox) == Claimed(token=2, starts=2, alone=False)


@pytest.mark.medium
async def test_two_processes_run_each_of_two_thousand_messages_once(shared_store: Store) -> None:
    shared_store.lease_s = 20.0
    children = [await shared_store.child("race", "2000") for _ in range(2)]
    for child in children:
        assert child.stdout is not None
        assert await child.stdout.readline() == b"ready\n"
    answers = await asyncio.gather(*(child.communicate(b"go\n") for child in children))
    ran = [int(number) for out, _ in answers for number in out.decode().strip().split(",") if number]
    assert sorted(ran) == list(range(2000))


async def test_many_open_a_new_store_at_once(shared_store: Store) -> None:
    inboxes = await asyncio.gather(*(shared_store.open(f"owner {number}") for number in range(6)))
    answers = await asyncio.gather(*(claim(inbox) for inbox in inboxes))
    assert sorted(type(answer).__name__ for answer in answers) == ["Claimed"] + ["ClaimedElsewhere"] * 5


# --- without waiting --------------------------------------------------------------------------------------------------


async def asked(inbox: Inbox, content_hash: str = "hash-1", name: str = "task-1") -> Claim | Exception | None:
    future: asyncio.Future[Claim | Exception | None] = asyncio.get_running_loop().create_future()
    inbox.claim_soon([Ask(key(name), content_hash, LATER_MS)], lambda asks: future.set_result(asks[0].answer))
    assert not future.done(), "told from within the call"
    return await asyncio.wait_for(future, 30)


async def asked_together(inbox: Inbox, asks: list[Ask]) -> list[Ask]:
    """In the order in which they were told."""
    order: list[Ask] = []
    enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told(some: Sequence[Ask]) -> None:
        order.extend(some)
        if len(order) >= len(asks) and not enough.done():
            enough.set_result(None)

    inbox.claim_soon(asks, told)
    await asyncio.wait_for(enough, 30)
    await asyncio.sleep(0.05)
    return order


async def finished_soon(inbox: Inbox, token: int, name: str = "task-1") -> bool | Exception | None:
    future: asyncio.Future[bool | Exception | None] = asyncio.get_running_loop().create_future()
    inbox.finish_soon([End(key(name), token)], lambda ends: future.set_result(ends[0].answer))
    assert not future.done(), "told from within the call"
    return await asyncio.wait_for(future, 30)


async def test_callback_claims_get_the_same_answers_as_awaited_ones(store: Store) -> None:
    inbox = await store.open()
    assert await asked(inbox) == Claimed(token=1, starts=1, alone=False)
    assert isinstance(await asked(inbox), ClaimedElsewhere)
    assert await asked(inbox, "hash-2") == Conflict("hash-1")
    assert await finished_soon(inbox, 1) is True
    assert await asked(inbox) == AlreadyDone(())
    assert await claim(inbox) == AlreadyDone(())


async def test_a_callback_result_reports_a_stale_claim(store: Store) -> None:
    inbox = await store.open()
    old = (await claimed(inbox)).token
    await inbox.release(key(), old)
    await claimed(inbox)
    assert await finished_soon(inbox, old) is False
    assert isinstance(await claim(inbox), ClaimedElsewhere)


async def test_a_callback_reports_a_closed_inbox(store: Store) -> None:
    inbox = await store.open()
    await inbox.close()
    assert isinstance(await asked(inbox), InboxError)
    assert isinstance(await finished_soon(inbox, 1), InboxError)


async def test_each_callback_gets_its_own_answer(shared_store: Store) -> None:
    inbox, other = await shared_store.open("a"), await shared_store.open("b")
    held, done = (await claimed(other, "held")).token, (await claimed(other, "done")).token
    assert await other.finish(key("done"), done, OUTPUTS)
    news = [f"new-{number}" for number in range(200)]
    answers = await asyncio.gather(*(asked(inbox, name=name) for name in ("held", "done", "twice", "twice", *news)))
    assert isinstance(answers[0], ClaimedElsewhere)
    assert answers[1] == AlreadyDone(OUTPUTS)
    assert sorted(type(answer).__name__ for answer in answers[2:4]) == ["Claimed", "ClaimedElsewhere"]
    assert answers[4:] == [Claimed(token=1, starts=1, alone=False)] * 200
    assert await other.finish(key("held"), held, ())
    results = await asyncio.gather(*(finished_soon(inbox, 1, name) for name in (*news, "held")))
    assert results == [True] * 200 + [False]
    assert await claim(other, "new-7") == AlreadyDone(())


async def test_of_many_in_one_question_each_is_told_once_and_its_own(shared_store: Store) -> None:
    inbox, other = await shared_store.open("a"), await shared_store.open("b")
    await claimed(other, "held")
    names = ["held", "twice", "twice", *(f"new-{number}" for number in range(300))]
    asks = [Ask(key(name), "hash-1", LATER_MS) for name in names]
    told = await asked_together(inbox, asks)
    assert sorted(map(id, told)) == sorted(map(id, asks))
    assert isinstance(asks[0].answer, ClaimedElsewhere)
    assert sorted(type(ask.answer).__name__ for ask in asks[1:3]) == ["Claimed", "ClaimedElsewhere"]
    assert [ask.answer for ask in asks[3:]] == [Claimed(token=1, starts=1, alone=False)] * 300


async def test_of_two_who_ask_for_the_same_many_at_once_each_message_has_one(shared_store: Store) -> None:
    inboxes = [await shared_store.open("a"), await shared_store.open("b")]
    names = [f"m-{number}" for number in range(300)]
    asking = [
        asked(inbox, name=name) for inbox, order in zip(inboxes, (names, names[::-1]), strict=True) for name in order
    ]
    answers = list(zip((*names, *names[::-1]), await asyncio.gather(*asking), strict=True))
    assert sorted(name for name, answer in answers if isinstance(answer, Claimed)) == sorted(names)
    assert all(isinstance(answer, Claimed | ClaimedElsewhere) for _, answer in answers)


async def test_a_memory_and_its_writes_become_durable_together(store: Store) -> None:
    inbox = await with_table(store)
    token = (await claimed(inbox)).token
    assert await inbox.remember_with(key(), token, "begun", b"1", [inserted(1, must_return=True)]) == "written"
    assert (await inbox.remembered(key()), await labels(inbox)) == ({"begun": b"1"}, [(1, "x")])


async def test_a_memory_whose_writes_find_a_moved_row_is_not_kept(store: Store) -> None:
    inbox = await with_table(store)
    token = (await claimed(inbox)).token
    await inbox.remember(key(), token, "begun", b"ready")
    assert await inbox.remember_with(key(), token, "other", b"0", [inserted(1)]) == "written"
    writes = [inserted(2), inserted(1, must_return=True)]
    assert await inbox.remember_with(key(), token, "begun", b"1", writes) == "moved"
    assert (await inbox.remembered(key()), await labels(inbox)) == ({"begun": b"ready", "other": b"0"}, [(1, "x")])


async def test_a_stale_token_remembers_nothing_with_its_writes(store: Store) -> None:
    inbox = await with_table(store)
    old = (await claimed(inbox)).token
    await inbox.release(key(), old)
    await claimed(inbox)
    assert await inbox.remember_with(key(), old, "begun", b"1", [inserted(1)]) == "stale"
    assert (await inbox.remembered(key()), await labels(inbox)) == ({}, [])


async def test_a_run_that_gets_on_is_no_suspect(shared_store: Store) -> None:
    for number in range(5):
        inbox = await shared_store.open(f"owner-{number}")
        token = (await claimed(inbox)).token
        assert await inbox.remember(key(), token, f"step-{number}", b"1")
        await shared_store.die(inbox)
        await shared_store.run_out()
    assert await claimed(await shared_store.open("last")) == Claimed(6, 2)
