"""What an agent remembers of a conversation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.trust.effective_labels import EffectiveLabels
from consumers.app.testing import TestBus
from consumers.delivery.inbox.conversation import MemoryItem, MemoryRow, fitting
from sealbus import App, Context, RetryLater, payload
from tests.consumers.delivery.inbox.stores import Store


@payload("chat.say", version="1.0.0", performative="request")
class Say(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("chat.said", version="1.0.0", performative="inform")
class Said(msgspec.Struct, frozen=True, kw_only=True):
    heard: tuple[str, ...]


def chatting(*, fails: bool = False, taints: bool = False) -> App:
    app, broken = App("chat@svc"), [fails]

    @app.on(Say, dedup="always")
    async def say(request: Say, context: Context) -> Said:
        memory = await context.conversation()
        if taints and request.text == "page":
            context.taint("untrusted_content", "a page")
        memory.add("user", request.text)
        memory.add("assistant", f"re: {request.text}")
        if broken.pop() if broken else False:
            raise RetryLater("broken")
        return Said(heard=tuple(str(each.content) for each in memory.items))

    return app


async def heard(bus: TestBus, text: str, conversation: str = "c1", agent: str = "ann@acme") -> tuple[str, ...]:
    said = await bus.as_agent(agent).request(Say(text=text), Said, conversation_id=conversation)
    return said.heard


async def test_a_conversation_remembers_what_was_said_and_answered() -> None:
    async with chatting().test() as bus:
        assert await heard(bus, "one") == ()
        assert await heard(bus, "two") == ("one", "re: one")
        assert await heard(bus, "three") == ("one", "re: one", "two", "re: two")


async def test_another_conversation_and_another_party_hear_nothing_of_it() -> None:
    async with chatting().test() as bus:
        await heard(bus, "secret")
        assert await heard(bus, "hello", "c2") == ()
        assert await heard(bus, "hello", agent="eve@acme") == ()


async def test_a_run_that_fails_leaves_nothing() -> None:
    async with chatting(fails=True).test() as bus:
        assert await heard(bus, "one") == ()
        assert await heard(bus, "two") == ("one", "re: one")


async def test_its_level_is_the_least_that_went_in() -> None:
    async with chatting(taints=True).test(keys=True) as bus:
        await heard(bus, "page")
        await heard(bus, "later")
        levels = [message.metadata.security.trust_level for message in bus.messages(Said) if message.metadata.security]
        assert levels[-1] == "untrusted_content"


@given(st.lists(st.text(max_size=50), max_size=60), st.integers(2, 2_000))
def test_the_newest_items_are_kept(texts: list[str], limit: int) -> None:
    items = [MemoryItem("user", text) for text in texts]
    data = fitting(items, limit)
    kept: list[Any] = msgspec.json.decode(data, type=list[MemoryItem])
    assert len(data) <= max(limit, 2)
    assert kept == items[len(items) - len(kept) :]


@pytest.mark.parametrize("size", [100, 70_000])
async def test_a_long_conversation_forgets_its_beginning(size: int) -> None:
    async with chatting().test() as bus:
        for number in range(8):
            await heard(bus, f"{number}" + "x" * (size // 8))
        last = await heard(bus, "end")
        assert last[-1].startswith("re: 7")


async def test_runs_that_end_side_by_side_lose_nothing_of_each_other(store: Store) -> None:
    inbox = await store.open()
    row = MemoryRow(inbox, {"conversation": "c"})
    assert await row.read() == ([], None)
    for level, text in (("untrusted_content", "a"), ("user_request", "b")):
        transaction = await inbox.begin()
        await row.write(transaction, [MemoryItem("user", text)], EffectiveLabels(level=level, classification="public"))
        await transaction.commit()
    items, labels = await row.read()
    assert ([each.content for each in items], labels and labels.level) == (["a", "b"], "untrusted_content")
