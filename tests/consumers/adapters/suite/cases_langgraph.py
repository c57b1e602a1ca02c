"""What only LangGraph has: a saver, subgraphs, `Send`, delta channels, interrupts of several forms."""

from __future__ import annotations

import operator
import sys
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest
from cases import Tools, desk, dying, tools  # noqa: F401 - fixtures
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from consumers.adapters.langgraph_saver import Saver, strict_serializer
from sealbus import Retry
from sealbus.adapters import langgraph
from sealbus.errors import ConfigurationError
from sealbus.vocabulary import TaskRequest, TaskResult

try:
    from langgraph.channels import DeltaChannel
except ImportError:
    from langgraph.channels.delta import DeltaChannel


class ListRows:
    """Rows in a list, as text that was written and read again."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []

    async def read(self) -> list[Any]:
        return [msgspec.json.decode(row) for row in self.rows]

    async def append(self, row: Any) -> None:
        self.rows.append(msgspec.json.encode(row))


class Reloaded(Saver):
    """A saver that forgets all before each question, and reads its rows again."""

    def __init__(self) -> None:
        self.kept = ListRows()
        super().__init__(self.kept, eager=True)

    async def _again(self) -> None:
        self.storage.clear()
        self.writes.clear()
        self.blobs.clear()
        await self.load()

    async def aget_tuple(self, config: Any) -> Any:
        await self._again()
        return await super().aget_tuple(config)

    async def alist(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        await self._again()
        async for each in super().alist(*arguments, **options):
            yield each


@checkpointer_test(name="Saver")
async def saver_of_rows() -> AsyncIterator[Any]:
    yield Reloaded()


async def test_the_saver_passes_the_frameworks_own_suite() -> None:
    report = await validate(saver_of_rows)
    assert {name: result.failures for name, result in report.results.items() if result.passed is False} == {}
    assert report.passed_all_base()


def joined(before: Any, writes: Any) -> Any:
    found = [*(before or [])]
    for each in writes:
        found += each
    return found


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    delta: Annotated[list[str], DeltaChannel(joined)]
    goal: str
    output: str


def node(name: str) -> Callable[[State], Any]:
    return lambda _: {"log": [name], "delta": [name]}


def gate(name: str) -> Callable[[State], Any]:
    def ask(_: State) -> Any:
        answer = interrupt({"tool": "push", "args": {"branch": name}})
        return {"log": [f"{name} {answer['approved']}"], "delta": [name]}

    return ask


def chain() -> Any:
    graph = StateGraph(State)
    for name in ("a", "b", "c"):
        graph.add_node(name, node(name) if name != "b" else gate(name))
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", "c")
    graph.add_edge("c", END)
    return graph


def fan() -> Any:
    graph = StateGraph(State)
    graph.add_node("start", node("start"))
    graph.add_node("x", gate("x"))
    graph.add_node("y", gate("y"))
    graph.add_node("z", node("z"))
    graph.add_node("end", node("end"))
    graph.add_edge(START, "start")
    for name in ("x", "y", "z"):
        graph.add_edge("start", name)
        graph.add_edge(name, "end")
    graph.add_edge("end", END)
    return graph


def sent() -> Any:
    graph = StateGraph(State)
    graph.add_node("start", node("start"))
    graph.add_node("work", lambda given: gate(given["goal"])(given))
    graph.add_edge(START, "start")
    graph.add_conditional_edges("start", lambda _: [Send("work", {"goal": each}) for each in "pq"], ["work"])
    graph.add_edge("work", END)
    return graph


def nested() -> Any:
    graph = StateGraph(State)
    graph.add_node("before", node("before"))
    graph.add_node("inner", chain().compile())
    graph.add_node("after", node("after"))
    graph.add_edge(START, "before")
    graph.add_edge("before", "inner")
    graph.add_edge("inner", "after")
    graph.add_edge("after", END)
    return graph


SHAPES = [chain, fan, sent, nested]


async def finished(compiled: Any, config: Any, given: Any) -> Any:
    await compiled.ainvoke(given, config, durability="sync")
    while (state := await compiled.aget_state(config)).interrupts:
        answers = {each.id: {"approved": True} for each in state.interrupts}
        await compiled.ainvoke(Command(resume=answers), config, durability="sync")
    return state.values


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_graph_ends_as_on_the_frameworks_own_saver(shape: Callable[[], Any]) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    own = await finished(shape().compile(checkpointer=InMemorySaver()), config, {"log": ["in"], "delta": ["in"]})
    saver = Reloaded()
    found = await finished(shape().compile(checkpointer=saver), config, {"log": ["in"], "delta": ["in"]})
    assert found == own
    assert len(saver.kept.rows) > 5


def served(shape: Any, **options: Any) -> dict[str, Any]:
    return {
        "agent": shape().compile(name="dev"),
        "input": lambda _, text: {"log": [text], "delta": [text]},
        "output": lambda values: ",".join(sorted(values["log"])),
        **options,
    }


@pytest.mark.parametrize("after", range(1, 9))
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_death_after_each_row_changes_nothing(
    shape: Any,
    after: int,
    dying: Callable[[int], None],  # noqa: F811
) -> None:
    dying(after)
    async with desk(**served(shape)) as d:
        await d.begin()
        await d.finish()
        while held := await d.held():
            for each in held:
                await d.bus.approve(each, by="lead@acme")
            await d.finish()
        assert d.deaths == []
        (result,) = d.results
    config: Any = {"configurable": {"thread_id": "t"}}
    own = await finished(shape().compile(checkpointer=InMemorySaver()), config, {"log": ["push x"], "delta": []})
    assert result == ",".join(sorted(own["log"]))


async def test_interrupts_of_parallel_nodes_are_asked_for_together() -> None:
    async with desk(**served(fan)) as d:
        await d.begin()
        held = await d.held()
        assert sorted(each.arguments["branch"] for each in held) == ["x", "y"]
        await d.bus.approve(held[0], by="lead@acme")
        await d.bus.reject(held[1], by="lead@acme", reason="no")
        await d.finish()
        (result,) = d.results
        assert "True" in result
        assert "False" in result


def asking(value: Any) -> Any:
    def ask(_: State) -> Any:
        return {"output": str(interrupt(value))}

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    return graph.compile(name="dev")


def asked_by(value: Any) -> dict[str, Any]:
    return {
        "agent": asking(value),
        "input": lambda _, text: {"goal": text},
        "output": lambda values: values["output"],
    }


@pytest.mark.parametrize("approve", [True, False])
async def test_the_interrupts_of_agents_of_langchain_are_approvals(approve: bool) -> None:
    value = {"action_requests": [{"name": "push", "args": {"branch": "x"}}], "review_configs": []}
    async with desk(**asked_by(value)) as d:
        await d.begin()
        (held,) = await d.held()
        assert (held.tool, held.arguments) == ("push", {"branch": "x"})
        await d.decide(approve=approve)
        (result,) = d.results
    assert ("'type': 'approve'" in result) == approve
    assert ("not on a friday" in result) == (not approve)


@pytest.mark.parametrize("value", ["which branch?", {"question": "x"}, {"tool": 7, "args": {}}, None])
async def test_a_question_that_is_no_approval_is_rejected_in_words(value: Any) -> None:
    async with desk(**asked_by(value)) as d:
        await d.begin()
        assert d.deaths == ["rejected"]
        assert "other than an approval" in str(d.bus.dead_letters[0])


async def test_a_step_in_a_node_is_called_once_although_the_node_runs_again() -> None:
    calls: list[str] = []

    async def plan(goal: str) -> str:
        calls.append(goal)
        return f"for {goal}"

    async def think(state: State) -> Any:
        found = await langgraph.step("plan", plan, state["goal"], key=state["goal"])
        interrupt({"tool": "push", "args": {"branch": found}})
        return {"output": found}

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    terms = {**asked_by(None), "agent": graph.compile(name="dev")}
    async with desk(**terms) as d:
        await d.begin()
        await d.decide()
        assert d.results == ["for push x"]
    assert calls == ["push x"]


class Swallowing:
    """A graph whose node asks, catches what the question raises, and pushes."""

    def __init__(self, catches: type[BaseException], *, then: str = "push", is_async: bool = True) -> None:
        self.catches = catches
        self.then = then
        self.pushed: list[Any] = []
        self.later: list[str] = []
        self.is_async = is_async

    def ask(self) -> Any:
        try:
            answer = interrupt({"tool": "push", "args": {"branch": "b"}})
        except self.catches:
            if self.then == "raise":
                raise ValueError("no answer") from None
            answer = {"approved": True, "swallowed": True}
            if self.then == "ask":
                # The answer to another question is none to the first.
                interrupt({"tool": "look", "args": {"branch": "b"}})
        if answer["approved"]:
            self.pushed.append(answer)
        return {"output": str(answer)}

    async def ask_in_a_task(self, _: State) -> Any:
        return self.ask()

    def ask_in_a_thread(self, _: State) -> Any:
        return self.ask()

    def compiled(self, *, nested: bool = False) -> Any:
        graph = StateGraph(State)
        graph.add_node("ask", self.ask_in_a_task if self.is_async else self.ask_in_a_thread)
        graph.add_node("later", lambda _: self.later.append("ran"))
        graph.add_edge(START, "ask")
        graph.add_edge("ask", "later")
        graph.add_edge("later", END)
        if not nested:
            return graph.compile(name="dev")
        inner = graph.compile()
        outer = StateGraph(State)

        async def call(state: State) -> Any:
            try:
                return await inner.ainvoke({"goal": state["goal"]})
            except self.catches:
                return {"output": "the inner graph has failed"}

        outer.add_node("call", call)
        outer.add_edge(START, "call")
        outer.add_edge("call", END)
        return outer.compile(name="dev")


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("then", ["push", "raise", "ask"])
@pytest.mark.parametrize("catches", [Exception, BaseException])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_node_that_swallows_its_interrupt_waits_all_the_same(
    catches: type[BaseException], then: str, approve: bool, is_async: bool
) -> None:
    graph = Swallowing(catches, then=then, is_async=is_async)
    async with desk(**{**asked_by(None), "agent": graph.compiled()}) as d:
        await d.begin()
        (held,) = await d.held()
        assert (held.tool, held.arguments) == ("push", {"branch": "b"})
        assert (d.results, d.deaths, graph.later) == ([], [], [])
        if catches is Exception or then != "push":
            assert graph.pushed == []
        await d.decide(approve=approve)
        (result,) = d.results
        assert f"'approved': {approve}" in result
        assert "swallowed" not in result
        assert graph.later == ["ran"]
    assert [each for each in graph.pushed if "swallowed" not in each] == [{"approved": True}] * approve


@pytest.mark.parametrize("catches", [KeyError, Exception, BaseException])
async def test_an_interrupt_that_a_nested_graph_swallows_waits_all_the_same(catches: type[BaseException]) -> None:
    graph = Swallowing(catches)
    async with desk(**{**asked_by(None), "agent": graph.compiled(nested=True)}) as d:
        await d.begin()
        (held,) = await d.held()
        assert (held.tool, held.arguments, d.results) == ("push", {"branch": "b"}, [])
        await d.decide(approve=False)
        (result,) = d.results
    assert "'approved': False" in result


async def test_a_swallowed_interrupt_is_named_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    async with desk(**{**asked_by(None), "agent": Swallowing(BaseException).compiled()}) as d:
        await d.begin()
        assert len(await d.held()) == 1
    said = capsys.readouterr()
    assert "adapters.interrupt_swallowed" in said.out + said.err
    assert "'branch': 'b'" in said.out + said.err


def test_an_interrupt_outside_a_run_is_the_frameworks_own() -> None:
    assert isinstance(GraphInterrupt(()), Exception)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("beside", [True, False])
async def test_a_node_that_exits_ends_its_message_and_no_worker(is_async: bool, beside: bool) -> None:
    def leave(state: State) -> Any:
        if state["goal"] == "leave":
            sys.exit(2)
        return {"output": "stayed"}

    async def leave_in_a_task(state: State) -> Any:
        return leave(state)

    graph = StateGraph(State)
    graph.add_node("leave", leave_in_a_task if is_async else leave)
    graph.add_edge(START, "leave")
    graph.add_edge("leave", END)
    if beside:
        graph.add_node("beside", lambda _: {"log": ["beside"]})
        graph.add_edge(START, "beside")
    terms = {**asked_by(None), "agent": graph.compile(name="dev"), "options": {"retry": Retry(attempts=1)}}
    async with desk(**terms) as d:
        await d.begin(TaskRequest(goal="leave"))
        assert d.deaths == ["retries_exhausted"]
        assert "sys.exit(2)" in str(d.bus.dead_letters[0])
        await d.begin(TaskRequest(goal="stay"), task_id="t-2")
        assert d.results == ["stayed"]


class Foreign(pydantic.BaseModel):
    """A class that no state names."""

    text: str = "x"


def test_checkpoints_make_no_objects_of_foreign_classes() -> None:
    written = strict_serializer([]).dumps_typed({"value": Foreign()})
    allowed = strict_serializer([(Foreign.__module__, Foreign.__qualname__)])
    assert isinstance(allowed.loads_typed(written)["value"], Foreign)
    assert not isinstance(strict_serializer([]).loads_typed(written)["value"], Foreign)


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (lambda: chain().compile(checkpointer=InMemorySaver()), "has a checkpointer, InMemorySaver"),
        (lambda: chain().compile(interrupt_before=["a"]), "interrupt_before"),
        (lambda: chain().compile(interrupt_after=["a"]), "interrupt_after"),
        (chain, r"call .compile\(\) first"),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(graph: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        langgraph.serve(graph())


async def test_a_graph_without_messages_gets_the_members_of_the_payload() -> None:
    async def think(state: State) -> Any:
        return {"output": state["goal"].upper()}

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    async with desk(graph.compile(name="dev"), output=lambda values: values["output"]) as d:
        await d.begin()
        assert d.results == ["PUSH X"]


async def test_a_graph_that_never_ends_is_rejected() -> None:
    graph = StateGraph(State)
    graph.add_node("a", node("a"))
    graph.add_edge(START, "a")
    graph.add_edge("a", "a")
    async with desk(**{**served(chain), "agent": graph.compile(name="dev")}, recursion_limit=5) as d:
        await d.begin()
        assert d.deaths == ["rejected"]


async def test_a_state_that_is_too_large_is_rejected_in_words(tools: Tools) -> None:  # noqa: F811
    graph = StateGraph(State)
    graph.add_node("a", lambda _: {"log": ["x" * 7_000_000]})
    graph.add_edge(START, "a")
    async with desk(**{**served(chain), "agent": graph.compile(name="dev")}) as d:
        await d.begin()
        assert d.deaths == ["rejected"]
        assert "keep large content elsewhere" in str(d.bus.dead_letters[0])
        assert d.bus.sent(TaskResult) == []
