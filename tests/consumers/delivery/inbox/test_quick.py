"""Answering many claims and finishes by one statement makes no difference to anybody: answers and rows are those of the
rules."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from bus.clock import ManualClock
from bus.transports.base import NewRecord
from consumers.delivery.inbox import claim_rules as rules
from consumers.delivery.inbox.base import AlreadyDone, Ask, Claimed, ClaimedElsewhere
from consumers.delivery.inbox.claim_rules import Claimant
from consumers.delivery.inbox.sqlite import MEMORY, SqliteInbox
from consumers.delivery.inbox.sqlite import bulk as quick
from consumers.delivery.inbox.sqlite.group_commit import InboxJob
from consumers.delivery.inbox.sqlite.table import Table
from tests.consumers.delivery.inbox.stores import LATER_MS, OUTPUTS, claim, claimed, key

_RESULTS: tuple[Sequence[NewRecord], ...] = ((), OUTPUTS, OUTPUTS[:1])


async def opened(path: Path) -> SqliteInbox:
    inbox = SqliteInbox(str(path), owner="a", clock=ManualClock())
    await inbox.open()
    return inbox


def stored(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = connection.execute("SELECT * FROM sealbus_inbox ORDER BY key").fetchall()
    connection.close()
    # The number of a row is nobody's business.
    return [row[1:] for row in rows]


async def story(path: Path, seed: int) -> list[object]:
    """What three owners, two of which die, are told about few keys that they want again and again."""
    chance = random.Random(seed)
    owners = [await opened(path) for _ in range(3)]
    tokens: dict[str, int] = {}
    told: list[object] = []
    for _ in range(12):
        inbox = chance.choice(owners)
        calls = []
        names = [f"task-{number}" for number in chance.choices(range(40), k=chance.choice((1, 2, 9, 30, 70)))]
        for name in names:
            match chance.randrange(5):
                case 0 | 1:
                    calls.append(
                        inbox.claim(
                            key(name),
                            f"hash-{chance.randrange(8) // 7}",
                            keep_until_ms=LATER_MS,
                            alone=bool(chance.randrange(2)),
                        )
                    )
                case 2 | 3:
                    calls.append(
                        inbox.finish(key(name), tokens.get(name, 1) - chance.randrange(6) // 5, chance.choice(_RESULTS))
                    )
                case _:
                    calls.append(inbox.release(key(name), tokens.get(name, 1)))
        answers: list[object] = list(await asyncio.gather(*calls))
        tokens |= {
            name: answer.token for name, answer in zip(names, answers, strict=True) if isinstance(answer, Claimed)
        }
        told += answers
        if not chance.randrange(4) and len(owners) > 1:
            await owners.pop().close()
    for inbox in owners:
        await inbox.close()
    return told


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(12))
async def test_answers_and_rows_are_those_of_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    told = await story(tmp_path / "together.db", seed)
    monkeypatch.setattr(quick, "answer_batch", lambda *_: None)
    assert await story(tmp_path / "alone.db", seed) == told
    assert stored(tmp_path / "alone.db") == stored(tmp_path / "together.db")


async def test_a_first_claim_is_what_the_rules_make_of_no_row() -> None:
    table = Table(MEMORY)
    table.begin()
    assert table.claim(7, [("k", "h", 9, "m-1")]) is None
    assert rules.decide_claim(None, Claimant(7, "h", 9, reopen=2, alone=True, message_id="m-1"), rules.CLOSED) == (
        table.rows(["k"])["k"],
        rules.FIRST,
    )
    table.close()


@pytest.mark.medium
@pytest.mark.parametrize("count", [1, 7, 8, 9, 63, 256, 257, 600])
async def test_known_and_unknown_keys_in_one_group_of_any_size(tmp_path: Path, count: int) -> None:
    inbox = await opened(tmp_path / "inbox.db")
    known = {f"task-{number}" for number in range(0, count, 3)}
    for name in known:
        assert await inbox.finish(key(name), (await claimed(inbox, name)).token, OUTPUTS)
    names = [f"task-{number}" for number in range(count)]
    answers = await asyncio.gather(*(claim(inbox, name) for name in names))
    assert answers == [AlreadyDone(OUTPUTS) if name in known else Claimed(1) for name in names]
    # All are asked about; those that were done before have another result, which stays.
    finished = await asyncio.gather(
        *(inbox.finish(key(name), 1, OUTPUTS[1:] if number % 2 else ()) for number, name in enumerate(names))
    )
    assert finished == [name not in known for name in names]
    answers = await asyncio.gather(*(claim(inbox, name) for name in names))
    assert answers == [
        AlreadyDone(OUTPUTS if name in known else OUTPUTS[1:] if number % 2 else ())
        for number, name in enumerate(names)
    ]
    await inbox.close()


async def test_a_row_that_was_forgotten_under_its_run_is_still_somebodys(tmp_path: Path) -> None:
    inbox = await opened(tmp_path / "inbox.db")
    await claimed(inbox)
    with closing(sqlite3.connect(tmp_path / "inbox.db")) as connection, connection:
        connection.execute("DELETE FROM sealbus_inbox")
    connection.close()
    assert isinstance(await claim(inbox), ClaimedElsewhere)
    assert not await inbox.finish(key(), 1, ())
    await inbox.close()


async def test_jobs_on_one_key_keep_their_order() -> None:
    inbox = SqliteInbox(MEMORY, owner="a", clock=ManualClock())
    await inbox.open()
    token = (await claimed(inbox)).token
    answers = await asyncio.gather(
        inbox.finish(key(), token, OUTPUTS), claim(inbox), inbox.finish(key(), token, ()), claim(inbox, "other")
    )
    assert answers == [True, AlreadyDone(OUTPUTS), False, Claimed(1)]
    await inbox.close()


def test_what_is_left_over_has_no_answer() -> None:
    table = Table(MEMORY)
    table.begin()
    asks = [Ask(key(name), "h", 9, identity=name) for name in ("a", "a", "b", "c", "d")]
    quick.answer_batch(
        table, [InboxJob(asks=asks[:2]), InboxJob(asks=asks[2:]), InboxJob(action=lambda _: None, key="d")], 1, {"c": 1}
    )
    assert [ask.answer for ask in asks] == [None, None, rules.FIRST, None, None]
    table.close()
