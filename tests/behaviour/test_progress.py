"""What an agent says while it works reaches who asked, and nobody who did not ask for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.settings.loading import load
from bus.topics.names import agent_slug, message_topic, reply_topic
from bus.transports.read_all import scan_topic
from bus.trust.keys.private_keys import pem_of
from consumers.app.testing import TestBus
from sealbus import (
    App,
    Approval,
    BlockingContext,
    Context,
    PublishRejected,
    RequestTimedOut,
    connect,
    connect_sync,
    payload,
)
from sealbus.errors import ContractError
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_progress, on_start
from sealbus.vocabulary import (
    StatusUpdate,
    TaskAccepted,
    TaskArtifact,
    TaskClarification,
    TaskRequest,
    TaskResult,
)
from tests.keyrings import jwks_of, key_of
from tests.kit import Answered, Asked

TESTER = "test@sealbus"


@payload("chapter.written")
class Chapter(msgspec.Struct, frozen=True):
    number: int


@payload("test.wanted", performative="request")
class Wanted(msgspec.Struct, frozen=True):
    pass


@payload("test.finished")
class Finished(msgspec.Struct, frozen=True):
    heard: tuple[str, ...] = ()


def talking(work: Any, **options: Any) -> App:
    """An agent whose handler of `Asked` does *work* and answers."""
    app = App("worker@svc", types=[StatusUpdate, Chapter])

    @app.on(Asked, **options)
    async def handle(asked: Asked, context: Context) -> Answered:
        await work(context)
        return Answered(text="done")

    return app


async def messages_of(bus: TestBus, topic: str) -> list[Message]:
    if topic not in await bus.transport.admin.topics():
        return []
    return [sealing.parse(record.value) async for record in scan_topic(bus.transport, topic)]


async def replies(bus: TestBus, agent: str = TESTER) -> list[str]:
    """The types of what came to the reply topic of *agent*, in its order."""
    return [message.message_type for message in await messages_of(bus, reply_topic("agents", agent))]


def texts(shown: list[Any]) -> list[str | None]:
    return [event.payload.message for event in shown]


async def test_progress_is_shown_before_the_answer() -> None:
    async def work(context: Context) -> None:
        await context.progress("reading", pct=40)

    shown: list[Any] = []
    async with talking(work).test() as bus:
        assert await bus.request(Asked(), Answered, on_progress=shown.append) == Answered(text="done")
        (event,) = shown
        assert (event.payload.message, event.payload.progress_pct, event.is_last) == ("reading", 40, False)
        assert event.message.routing.progress is True
        assert await replies(bus) == ["status.update", "question.answered"]
        assert await messages_of(bus, message_topic("agents", "status.update")) == []


async def test_who_did_not_ask_for_progress_gets_none_and_the_topic_of_its_type_has_it() -> None:
    async def work(context: Context) -> None:
        await context.progress("reading", pct=40)
        await context.send_now(Chapter(number=1), to_requester=True)

    async with talking(work).test() as bus:
        await bus.request(Asked(), Answered)
        assert await replies(bus) == ["question.answered"]
        for kind in ("status.update", "chapter.written"):
            assert len(await messages_of(bus, message_topic("agents", kind))) == 1


async def test_who_publishes_and_does_not_ask_has_its_progress_seen_by_others() -> None:
    seen: list[Any] = []
    board = App("board@svc")

    @board.on(StatusUpdate)
    async def see(update: StatusUpdate) -> None:
        seen.append(update.message)

    async def work(context: Context) -> None:
        await context.progress("reading")

    async with talking(work).test(board) as bus:
        await bus.publish(Asked())
        await bus.settle()
        assert seen == ["reading"]


async def test_of_many_in_a_moment_the_first_and_the_last_leave() -> None:
    async def work(context: Context) -> None:
        for number in range(1000):
            await context.progress(f"page {number}")

    shown: list[Any] = []
    async with talking(work).test() as bus:
        await bus.request(Asked(), Answered, on_progress=shown.append)
        assert texts(shown) == ["page 0", "page 999"]
        assert await replies(bus) == ["status.update", "status.update", "question.answered"]
        bus.assert_all_handled()


@pytest.mark.medium
async def test_at_most_five_a_second_leave(tmp_path: Path) -> None:
    async def work(context: Context) -> None:
        end_s = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < end_s:
            await context.progress(f"{context.remaining_s}")
            await asyncio.sleep(0.001)

    url, shown = f"sqlite:///{tmp_path}/log.db", list[Any]()
    async with talking(work).running(url), connect(url, agent="asker@svc", env={}) as bus:
        await bus.request(Asked(), Answered, timeout_s=60, on_progress=shown.append)
    # One at each end of a second, and the last one.
    assert 3 <= len(shown) <= 7


async def test_own_types_are_shown_each_and_without_their_class_as_messages() -> None:
    async def work(context: Context) -> None:
        for number in range(100):
            await context.send_now(Chapter(number=number), to_requester=True)

    for types in ((Chapter,), ()):
        shown: list[Any] = []
        async with talking(work).test() as bus:
            await bus.request(Asked(), Answered, on_progress=shown.append, progress_types=types)
        numbers = [msgspec.json.decode(event.message.data)["number"] for event in shown]
        assert numbers == list(range(100))
        assert [event.payload for event in shown] == [
            Chapter(number=number) if types else None for number in range(100)
        ]


async def test_progress_of_the_type_of_the_answer_does_not_end_the_request() -> None:
    async def work(context: Context) -> None:
        await context.send_now(Answered(text="part"), to_requester=True)

    shown: list[Any] = []
    async with talking(work).test() as bus:
        assert await bus.request(Asked(), Answered, on_progress=shown.append) == Answered(text="done")
    assert [event.payload.text for event in shown] == ["part"]


async def test_progress_names_no_other_addressee() -> None:
    async def work(context: Context) -> None:
        with pytest.raises(ContractError, match="leave to out"):
            await context.send_now(Chapter(number=1), to_requester=True, to="other@svc")
        for pct in ("40", True):
            with pytest.raises(ContractError, match="pct"):
                await context.progress("x", pct=pct)
        # Half a character, and a text that is too long: cut, not refused.
        await context.progress("\ud800" + "x" * 100_000)

    shown: list[Any] = []
    async with talking(work).test() as bus:
        await bus.request(Asked(), Answered, on_progress=shown.append)
        bus.assert_all_handled()
    assert len(texts(shown)[0] or "") <= 4_000


async def test_a_returned_acceptance_is_progress_and_the_result_answers() -> None:
    app, shown = App("worker@svc"), list[Any]()

    @app.on(TaskRequest)
    async def work(task: TaskRequest) -> list[Any]:
        return [TaskAccepted(understood_goal=task.goal), TaskResult(status="completed")]

    async with app.test() as bus:
        for on_progress in (None, shown.append):
            result = await bus.request(TaskRequest(goal="it"), TaskResult, task_id="t1", on_progress=on_progress)
            assert result.status == "completed"
        assert await replies(bus) == ["task.result", "task.accepted", "task.result"]
    assert [event.payload.understood_goal for event in shown] == ["it"]


async def test_progress_that_cannot_be_sent_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Any] = []

    async def work(context: Context) -> None:
        publisher = context._publisher
        send = publisher.send

        async def send_no_status(sealed: Any, **options: Any) -> Any:
            if sealed.message_type != "status.update":
                return await send(sealed, **options)
            refused.append(sealed)
            raise PublishRejected("the log is away")

        monkeypatch.setattr(publisher, "send", send_no_status)
        for number in range(10):
            await context.progress(f"page {number}")
            await asyncio.sleep(0)

    async with talking(work).test() as bus:
        assert await bus.request(Asked(), Answered, on_progress=print) == Answered(text="done")
        # The topic that has taken nothing is not tried again at once.
        assert len(refused) == 1
        bus.assert_all_handled()


# Silence.


async def test_a_silent_callee_ends_the_request_and_is_cancelled(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    async def work(context: Context) -> None:
        await context.progress("begun")
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    url = f"sqlite:///{tmp_path}/log.db"
    async with talking(work, timeout_s=None).running(url), connect(url, agent="asker@svc", env={}) as bus:
        with pytest.raises(RequestTimedOut, match=r"was silent for 0\.5 s"):
            await bus.request(Asked(), Answered, timeout_s=3600, idle_s=0.5)
        async with asyncio.timeout(30):
            await cancelled.wait()


async def test_progress_keeps_a_request_alive_and_never_beyond_its_time(tmp_path: Path) -> None:
    async def work(context: Context) -> None:
        while True:
            await context.progress("still at it")
            await asyncio.sleep(0.05)

    url, shown = f"sqlite:///{tmp_path}/log.db", list[Any]()
    async with talking(work).running(url), connect(url, agent="asker@svc", env={}) as bus:
        with pytest.raises(RequestTimedOut, match="not answered within 3 s"):
            await bus.request(Asked(), Answered, timeout_s=3, idle_s=2, on_progress=shown.append)
    assert len(shown) > 3


@pytest.mark.parametrize("idle_s", [0, -1, True, "1", float("nan")])
async def test_an_idle_time_that_is_none_is_refused(idle_s: Any) -> None:
    async with talking(asyncio.sleep).test() as bus:
        with pytest.raises(PublishRejected, match="idle_s"):
            await bus.request(Asked(), Answered, idle_s=idle_s)


# Others who ask.


async def test_a_coroutine_function_is_awaited_one_after_another() -> None:
    running, shown = 0, list[int]()

    async def show(event: Any) -> None:
        nonlocal running
        running += 1
        await asyncio.sleep(0)
        shown.append(running)
        running -= 1

    async def work(context: Context) -> None:
        for number in range(20):
            await context.send_now(Chapter(number=number), to_requester=True)

    async with talking(work).test() as bus:
        await bus.request(Asked(), Answered, on_progress=show)
    assert shown == [1] * 20


async def test_a_handler_hears_the_agent_that_it_asks_and_says_it_on() -> None:
    app = App("middle@svc", types=[Asked])

    @app.on(Wanted)
    async def middle(wanted: Wanted, context: Context) -> Finished:
        heard: list[str] = []

        async def show(event: Any) -> None:
            heard.append(event.payload.message)
            await context.progress(f"worker: {event.payload.message}")

        await context.request(Asked(), Answered, on_progress=show)
        return Finished(heard=tuple(heard))

    async def work(context: Context) -> None:
        await context.progress("reading")

    shown: list[Any] = []
    async with app.test(talking(work)) as bus:
        assert await bus.request(Wanted(), Finished, on_progress=shown.append) == Finished(heard=("reading",))
    assert texts(shown) == ["worker: reading"]


@pytest.mark.medium
async def test_a_blocking_handler_says_and_hears_progress() -> None:
    app = App("middle@svc", types=[Asked])
    threads: set[int] = set()

    @app.on(Wanted, blocking=True)
    def middle(wanted: Wanted, context: BlockingContext) -> Finished:
        heard: list[str] = []

        def show(event: Any) -> None:
            threads.add(threading.get_ident())
            heard.append(event.payload.message)

        threads.add(threading.get_ident())
        context.progress("asking", pct=10)
        context.send_now(Chapter(number=1), to_requester=True)
        context.request(Asked(), Answered, on_progress=show)
        return Finished(heard=tuple(heard))

    async def work(context: Context) -> None:
        await context.progress("reading")

    shown: list[Any] = []
    async with app.test(talking(work)) as bus:
        finished = await bus.request(Wanted(), Finished, on_progress=shown.append, progress_types=[Chapter])
    assert finished == Finished(heard=("reading",))
    assert Chapter(number=1) in [event.payload for event in shown]
    assert len(threads) == 1


@pytest.mark.medium
async def test_a_program_without_a_loop_is_shown_progress_in_its_own_thread(tmp_path: Path) -> None:
    async def work(context: Context) -> None:
        await context.progress("reading")

    url, seen = f"sqlite:///{tmp_path}/log.db", list[tuple[str, int]]()

    def ask() -> tuple[Answered, int]:
        with connect_sync(url, agent="asker@svc", env={}) as bus:
            answer = bus.request(
                Asked(),
                Answered,
                on_progress=lambda event: seen.append((event.payload.message, threading.get_ident())),
            )
        return answer, threading.get_ident()

    async with talking(work).running(url):
        answer, thread = await asyncio.to_thread(ask)
    assert answer == Answered(text="done")
    assert seen == [("reading", thread)]


class State(msgspec.Struct, kw_only=True):
    heard: list[str] = []


class Deaf(Saga[State], version="1.0.0", name="deaf"):
    @on_start(Wanted)
    async def wanted(self, wanted: Wanted, context: SagaContext) -> None:
        context.progress("asking", pct=5)
        context.ask("work", Asked(), to="worker@svc", answer_by_s=600)

    @on_answer("work", Answered)
    async def answered(self, answered: Answered, context: SagaContext) -> None:
        context.answer(Finished(heard=tuple(self.state.heard)))
        context.finish()

    @on_failure("work")
    async def lost(self, context: SagaContext) -> None:
        context.finish()


class Listening(Deaf, version="1.0.0", name="listening"):
    @on_progress("work", StatusUpdate, Chapter)
    async def heard(self, said: StatusUpdate | Chapter, context: SagaContext) -> None:
        self.state.heard.append(said.message or "" if isinstance(said, StatusUpdate) else f"chapter {said.number}")


@pytest.mark.medium
@pytest.mark.parametrize(("saga", "heard"), [(Deaf, ()), (Listening, ("reading", "chapter 1"))])
async def test_a_saga_gets_the_progress_that_it_has_methods_for(saga: type[Any], heard: tuple[str, ...]) -> None:
    async def work(context: Context) -> None:
        await context.progress("reading")
        await asyncio.sleep(0)
        await context.send_now(Chapter(number=1), to_requester=True)

    app, shown = App("asker@svc", types=[Asked, Finished, StatusUpdate]), list[Any]()
    app.add(saga)
    async with app.test(talking(work)) as bus:
        finished = await bus.request(Wanted(), Finished, timeout_s=600, on_progress=shown.append)
        assert sorted(finished.heard) == sorted(heard)
        assert texts(shown) == ["asking"]
        (asked,) = bus.messages(Asked)
        assert asked.routing.accepts_progress is (True if heard else None)
        bus.assert_all_handled()


async def test_a_message_that_waits_for_a_person_says_so_to_who_asked() -> None:
    app, shown = App("worker@svc", types=[StatusUpdate]), list[Any]()

    @app.on(Asked, approval=Approval(by="human"))
    async def handle(asked: Asked) -> Answered:
        return Answered(text="done")

    async with app.test() as bus:

        async def approve(event: Any) -> None:
            shown.append(event.payload)
            (held,) = await bus.held()
            assert held.approval_id == event.payload.approval_id
            await bus.approve(held, by="lead@acme")

        answer = await bus.request(Asked(), Answered, timeout_s=3600, on_progress=approve)
        assert answer == Answered(text="done")
        assert [update.new_status for update in shown] == ["waiting_for_approval"]
        assert await messages_of(bus, message_topic("agents", "status.update")) == []


async def test_a_run_that_begins_anew_says_the_same_once() -> None:
    app, shown, runs = App("worker@svc", types=[StatusUpdate]), list[Any](), list[int]()

    async def nothing() -> str:
        return "nothing"

    @app.on(Asked, asks=True)
    async def handle(asked: Asked, context: Context) -> Answered:
        runs.append(1)
        await context.progress("reading", pct=40)
        await context.send_now(Chapter(number=1), to_requester=True)
        await context.step("pay", nothing, approve=Approval(by="human"))
        return Answered(text="done")

    async with app.test() as bus:

        async def show(event: Any) -> None:
            shown.append(event.message.message_type)
            if getattr(event.payload, "approval_id", None):
                (held,) = await bus.held()
                bus.clock.advance(1)
                await bus.approve(held, by="lead@acme")

        await bus.request(Asked(), Answered, timeout_s=3600, on_progress=show)
        assert len(runs) == 2
        assert sorted(shown) == ["chapter.written", "status.update", "status.update"]
        assert len(await replies(bus)) == 6


POLICY = """
[[rules]]
id = "all"
effect = "allow"
action = ["publish", "handle"]
agents = ["planner@svc", "worker@svc"]
types = ["question.*", "task.*", "status.update", "chapter.*", "test.*", "error.reported"]

[[agents]]
id = "planner@svc"

[[agents]]
id = "worker@svc"
"""


def keys_in(folder: Path) -> dict[str, Any]:
    """The settings of a project with keys and a policy."""
    folder.mkdir(mode=0o700)
    for agent in ("planner@svc", "worker@svc"):
        file = folder / f"{agent_slug(agent)}.pem"
        file.write_bytes(pem_of(key_of(agent)))
        file.chmod(0o600)
    for name, text in (("jwks.json", jwks_of("planner@svc", "worker@svc")), ("policy.toml", POLICY.encode())):
        (folder / name).write_bytes(text)
        (folder / name).chmod(0o644)
    return {
        "bus": f"sqlite:///{folder}/log.db",
        "inbox.url": f"sqlite:///{folder}/inbox.db",
        "trust.keys": str(folder / "jwks.json"),
        "trust.key_file": str(folder),
        "policy.file": str(folder / "policy.toml"),
    }


class Accepting(Saga[State], version="1.0.0", name="accepting"):
    @on_start(Wanted)
    async def wanted(self, wanted: Wanted, context: SagaContext) -> None:
        context.ask("work", Asked(), to="worker@svc", answer_by_s=60, task_id="t-1")

    @on_progress("work", TaskAccepted)
    async def accepted(self, accepted: TaskAccepted, context: SagaContext) -> None:
        self.state.heard.append(accepted.understood_goal)

    @on_answer("work", Answered)
    async def answered(self, answered: Answered, context: SagaContext) -> None:
        context.answer(Finished(heard=tuple(self.state.heard)))
        context.finish()

    @on_failure("work")
    async def lost(self, context: SagaContext) -> None:
        context.finish()


@pytest.mark.medium
async def test_progress_of_an_agent_that_has_read_a_page_is_shown_in_order(
    tmp_path: Path,
) -> None:
    async def work(context: Context) -> None:
        await context.progress("reading")
        await asyncio.sleep(0.3)
        context.taint("untrusted_content", "a page")
        await context.progress("has read")
        for part in (
            Chapter(number=1),
            TaskAccepted(understood_goal="it"),
            TaskClarification(questions=("which?",)),
            TaskArtifact(artifact_id="a", index=0, content="text"),
        ):
            await context.send_now(part, to_requester=True)

    settings = load(flags=keys_in(tmp_path / "keys"), env={}, file=None).settings
    saga, shown = App("planner@svc", types=[Asked, Finished]), list[Any]()
    saga.add(Accepting)
    async with (
        talking(work).running(None, saga, settings=settings),
        connect(agent="planner@svc", settings=settings) as bus,
    ):
        options: dict[str, Any] = {"to": "worker@svc", "task_id": "t-1", "timeout_s": 60}
        await bus.request(Asked(), Answered, on_progress=shown.append, progress_types=[Chapter], **options)
        kinds = [event.message.message_type for event in shown]
        assert kinds == [
            "status.update",
            "status.update",
            "chapter.written",
            "task.accepted",
            "task.clarification",
            "task.artifact",
        ]
        assert {event.message.metadata.security.trust_level for event in shown[1:]} == {"untrusted_content"}
        assert await bus.request(Wanted(), Finished, timeout_s=60) == Finished(heard=("it",))
        for topic in await bus.transport.admin.topics():
            if topic.endswith(".dlq"):
                assert [record async for record in scan_topic(bus.transport, topic)] == []


@pytest.mark.parametrize(("said", "shown"), [(-1, 0), (100.4, 100), (float("inf"), 100), (float("nan"), None)])
async def test_an_estimate_that_is_off_ends_no_work(said: float, shown: int | None) -> None:
    async def work(context: Context) -> None:
        await context.progress("x", pct=said)

    seen: list[Any] = []
    async with talking(work).test() as bus:
        await bus.request(Asked(), Answered, on_progress=seen.append)
        bus.assert_all_handled()
    assert [event.payload.progress_pct for event in seen] == [shown]
