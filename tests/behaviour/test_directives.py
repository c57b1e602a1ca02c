"""What a run asks for that has read untrusted text runs nowhere, whichever way it asks; what it tells arrives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from consumers.app.testing import TestBus
from sealbus import App, Bus, Context, Outgoing, PublishRejected, RequestError, payload
from sealbus import vocabulary as words
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_start
from sealbus.trust import Security
from tests.kit import handling

UNTRUSTED = "untrusted_content"
DECLARED: dict[str, dict[str, Any]] = {
    "request": {"performative": "request"},
    "cancel": {"performative": "cancel"},
    "inform": {"performative": "inform"},
    "nothing": {},
    "read": {"side_effect": "read"},
    "effect": {"side_effect": "irreversible"},
    "high": {"risk": "high"},
    "key": {"required_options": ("idempotency_key",)},
}
TYPES: dict[str, Any] = {
    name: payload(f"shell.{name}", **terms)(msgspec.defstruct("Asked", [("text", str, "rm -rf /")]))
    for name, terms in DECLARED.items()
}


@payload("shell.output", performative="inform")
class Out(msgspec.Struct):
    text: str = ""


@payload("page.read", performative="request")
class ReadPage(msgspec.Struct):
    url: str = "https://example.test"


@payload("page.found", performative="inform")
class PageFound(msgspec.Struct):
    text: str = ""


Way = Callable[[Context, Bus, Any], Awaitable[Any]]


async def by_send(context: Context, bus: Bus, asked: Any) -> None:
    context.send(asked, idempotency_key=asked.text)


async def by_send_now(context: Context, bus: Bus, asked: Any) -> None:
    await context.send_now(asked, idempotency_key=asked.text)


async def by_publish(context: Context, bus: Bus, asked: Any) -> None:
    await bus.publish(asked, idempotency_key=asked.text)


async def by_return(context: Context, bus: Bus, asked: Any) -> Outgoing:
    return Outgoing(asked, idempotency_key=asked.text)


async def by_request(context: Context, bus: Bus, asked: Any) -> None:
    with suppress(RequestError):
        await context.request(asked, Out, timeout_s=5, idempotency_key=asked.text)


async def by_request_of_a_bus(context: Context, bus: Bus, asked: Any) -> None:
    with suppress(RequestError):
        await bus.request(asked, Out, timeout_s=5, idempotency_key=asked.text)


async def by_submit(context: Context, bus: Bus, asked: Any) -> None:
    await bus.submit(asked, idempotency_key=asked.text, ttl_s=60)


TELLING: tuple[Way, ...] = (by_send, by_send_now, by_publish, by_return)
ASKING: tuple[Way, ...] = (by_request, by_request_of_a_bus, by_submit)


def shell(ran: list[str], *names: str) -> App:
    app = App("shell@svc")
    for name in names or TYPES:

        @app.on(TYPES[name])
        async def run(asked: Any) -> Out:
            ran.append(asked.text)
            return Out()

    return app


def reader(read: Callable[[Context, Bus], Awaitable[Any]], found: list[Bus]) -> App:
    app = App("reader@svc", types=[*TYPES.values(), Out])

    @app.on(ReadPage)
    async def handle(page: ReadPage, context: Context) -> Any:
        return await read(context, found[0])

    return app


async def read_page(bus: TestBus, found: list[Bus]) -> list[str]:
    """Have the reader read a page; return the reasons of the dead letters that follow."""
    found.append(Bus(bus.as_agent("reader@svc").publisher, bus.transport))
    await bus.publish(ReadPage())
    await bus.advance(70)
    await found[0].requests.close()
    return [letter.reason for letter in bus.dead_letters]


@pytest.mark.parametrize("way", [*TELLING, *ASKING])
async def test_an_instruction_from_untrusted_text_never_runs(way: Way) -> None:
    ran: list[str] = []
    found: list[Bus] = []

    async def read(context: Context, bus: Bus) -> list[Outgoing]:
        context.taint(UNTRUSTED, "a page")
        returned = [await way(context, bus, cls(text=name)) for name, cls in TYPES.items()]
        return [draft for draft in returned if draft is not None]

    informing = {"inform", "nothing", "read"} if way in TELLING else {"inform"}
    async with reader(read, found).test(shell(ran), keys=True) as bus:
        assert await read_page(bus, found) == ["untrusted_instruction"] * (len(TYPES) - len(informing))
        assert {letter.message_type for letter in bus.dead_letters} == {
            f"shell.{name}" for name in TYPES.keys() - informing
        }
        assert set(ran) == informing


@pytest.mark.parametrize("name", ["nothing", "effect", "key"])
@pytest.mark.parametrize("keys", [False, True])
async def test_a_sender_that_writes_inform_talks_no_type_out_of_it(name: str, keys: bool) -> None:
    ran: list[str] = []
    found: list[Bus] = []

    async def read(context: Context, bus: Bus) -> None:
        context.taint(UNTRUSTED, "a page")
        with suppress(RequestError):
            await context.request(TYPES[name](), Out, timeout_s=5, idempotency_key="k", performative="inform")

    async with reader(read, found).test(shell(ran), keys=keys) as bus:
        assert await read_page(bus, found) == ["untrusted_instruction"]
        assert ran == []


async def test_a_type_that_asks_goes_out_with_no_other_word() -> None:
    async with shell([]).test() as bus:
        with pytest.raises(PublishRejected, match=r"'inform' is not what shell\.request says"):
            await bus.publish(TYPES["request"](), performative="inform")


async def test_a_task_that_untrusted_text_submits_never_runs() -> None:
    ran: list[str] = []
    found: list[Bus] = []
    worker = App("worker@svc")

    @worker.on(words.TaskRequest)
    async def work(task: words.TaskRequest) -> words.TaskResult:
        ran.append(task.goal)
        return words.TaskResult(status="completed")

    async def read(context: Context, bus: Bus) -> None:
        context.taint(UNTRUSTED, "a page")
        task = words.TaskRequest(goal="rm -rf /")
        await bus.submit(task, to="worker@svc", task_id="t", ttl_s=60)

    async with reader(read, found).test(worker) as bus:
        assert await read_page(bus, found) == ["untrusted_instruction"]
        assert ran == []


async def test_a_submitted_request_is_caused_by_the_message_that_is_handled() -> None:
    found: list[Bus] = []

    async def read(context: Context, bus: Bus) -> None:
        await bus.submit(TYPES["request"](), ttl_s=60)

    async with reader(read, found).test(shell([])) as bus:
        assert await read_page(bus, found) == []
        (asked,) = bus.messages(TYPES["request"])
        assert asked.metadata.hops == 1
        assert asked.metadata.causation_id is not None


@pytest.mark.parametrize("by_events", [False, True])
async def test_events_of_a_submitted_task_lower_the_trust_of_the_run_that_reads_them(by_events: bool) -> None:
    ran: list[str] = []
    found: list[Bus] = []
    browser = handling(
        App("browser@svc"),
        TYPES["read"],
        Outgoing(Out(text="run rm -rf /"), security=Security(trust_level=UNTRUSTED)),
    )

    async def read(context: Context, bus: Bus) -> None:
        task = await bus.submit(TYPES["read"](), ttl_s=60)
        for _ in range(2):
            if by_events:
                async for _event in task.events(Out):
                    pass
            else:
                await task.result(Out)
        assert context.labels.level == UNTRUSTED
        context.send(TYPES["request"]())

    async with reader(read, found).test(browser, shell(ran, "request")) as bus:
        assert await read_page(bus, found) == ["untrusted_instruction"]
        assert ran == []


class Nothing(msgspec.Struct):
    pass


def asking(name: str) -> App:
    class Asking(Saga[Nothing], version="1.0.0"):
        @on_start(PageFound, key="/data/text")
        async def found(self, page: PageFound, context: SagaContext) -> None:
            context.ask("shell", TYPES[name](text=page.text), answer_by_s=20)

        @on_answer("shell", Out)
        async def done(self, out: Out, context: SagaContext) -> None:
            context.finish()

        @on_failure("shell")
        async def refused(self, context: SagaContext) -> None:
            context.finish()

    app = App("saga@svc", types=[TYPES[name]])
    app.add(Asking)
    return app


@pytest.mark.parametrize(("name", "level"), [*((name, UNTRUSTED) for name in TYPES), ("nothing", "user_request")])
async def test_a_process_cannot_act_on_instructions_from_untrusted_text(name: str, level: str) -> None:
    ran: list[str] = []
    async with asking(name).test(shell(ran), keys=True) as bus:
        await bus.publish(PageFound(text="rm"), security=Security(trust_level=level))
        await bus.settle()
        await bus.advance(60)
        assert bool(ran) is (level == "user_request" or name == "inform")


# Answers.


@pytest.mark.parametrize("name", ["nothing", "effect", "high", "key"])
async def test_an_untrusted_answer_is_delivered_and_lowers_the_trust_of_its_reader(name: str) -> None:
    """A type without performative of any risk and effect still answers who waits for it."""
    ran: list[str] = []
    found: list[Bus] = []
    tool = handling(
        App("tool@svc", types=[TYPES[name]]),
        words.ToolCall,
        Outgoing(TYPES[name](text="run this"), idempotency_key="k", security=Security(trust_level=UNTRUSTED)),
    )

    async def read(context: Context, bus: Bus) -> None:
        call = words.ToolCall(tool_call_id="1", tool_name="fetch", arguments={})
        asked = await context.request(call, TYPES[name], timeout_s=5)
        context.send(TYPES["request"](text=asked.text))

    async with reader(read, found).test(tool, shell(ran, "request"), keys=True) as bus:
        assert await read_page(bus, found) == ["untrusted_instruction"]
        assert len(bus.messages(TYPES["request"])) == 1
        assert ran == []


@pytest.mark.parametrize("name", ["nothing", "effect", "high", "key"])
async def test_an_answer_to_a_process_is_not_an_instruction(name: str) -> None:
    class Asking(Saga[Nothing], version="1.0.0"):
        @on_start(PageFound, key="/data/text")
        async def found(self, page: PageFound, context: SagaContext) -> None:
            call = words.ToolCall(tool_call_id="1", tool_name="fetch", arguments={})
            context.ask("tool", call, answer_by_s=20)

        @on_answer("tool", TYPES[name])
        async def done(self, out: Any, context: SagaContext) -> None:
            context.send(Out(text=out.text))
            context.finish()

        @on_failure("tool")
        async def refused(self, context: SagaContext) -> None:
            context.finish()

    app = App("saga@svc", types=[TYPES[name], Out])
    app.add(Asking)
    tool = App("tool@svc", types=[TYPES[name]])

    @tool.on(words.ToolCall)
    async def answer(call: words.ToolCall) -> Outgoing:
        security = Security(trust_level=UNTRUSTED)
        return Outgoing(TYPES[name](text="told"), idempotency_key="k", security=security)

    async with app.test(tool, keys=True) as bus:
        await bus.publish(PageFound(text="x"))
        await bus.settle()
        bus.assert_all_handled()
        assert bus.sent(Out) == [Out(text="told")]
