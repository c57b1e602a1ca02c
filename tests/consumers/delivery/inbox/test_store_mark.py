"""Two workers learn whether they share one inbox, however its URL is written."""

from __future__ import annotations

from pathlib import Path

from bus.clock import SystemClock
from consumers.delivery.inbox.open import open_inbox
from consumers.delivery.inbox.store_mark import NO_STORE, mark_of_store, members_elsewhere
from tests.consumers.delivery.inbox.stores import Store


async def test_all_who_open_a_store_find_one_mark(shared_store: Store, tmp_path: Path) -> None:
    first, second = await shared_store.open("a"), await shared_store.open("b")
    mark = await mark_of_store(first)
    assert len(mark) == 8
    assert await mark_of_store(second) == await mark_of_store(first) == mark
    other = open_inbox(f"sqlite:///{tmp_path}/another.db", owner="c", clock=SystemClock())
    await other.open()
    assert await mark_of_store(other) not in ("", NO_STORE, mark)
    await other.close()
    assert await mark_of_store(None) == NO_STORE


async def test_a_member_that_never_opened_the_store_is_elsewhere(shared_store: Store) -> None:
    first = await shared_store.open("host-1")
    leaves = await shared_store.open("host-2")
    await shared_store.die(leaves)
    found = await members_elsewhere(first, ["host-1", "host-2", "host-2 a-second-of-this-name", "host-3"])
    assert found == ["host-3"]
