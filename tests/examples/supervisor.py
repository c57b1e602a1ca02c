"""A supervisor: it splits a task, gives the parts to workers, keeps a budget, settles what they disagree about, and
puts the answers together. It may be killed at any point: what is asked stays asked.

sealbus run supervisor:supervisor supervisor:counter supervisor:doubter
"""

from __future__ import annotations

import msgspec

from sealbus import App, Reject, payload
from sealbus.envelope import Agent
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_start

MAX_CENTS = 10


@payload("study.request", version="1.0.0")
class StudyRequest(msgspec.Struct, frozen=True, kw_only=True):
    texts: list[str]


@payload("study.result", version="1.0.0")
class StudyResult(msgspec.Struct, frozen=True, kw_only=True):
    words: int
    left_out: int = 0
    disputed: int = 0


@payload("count.request", version="1.0.0")
class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    part: int
    text: str


@payload("count.output", version="1.0.0")
class CountOutput(msgspec.Struct, frozen=True, kw_only=True):
    part: int
    words: int
    cents: int


class StudyState(msgspec.Struct):
    todo: list[str] = []
    part: int = 0
    cents: int = 0
    words: int = 0
    left_out: int = 0
    disputed: int = 0
    first: int | None = None
    """What the first of two workers has said about the part."""


class Study(Saga[StudyState], version="1.0.0"):
    @on_start(StudyRequest)
    async def asked(self, request: StudyRequest, context: SagaContext) -> None:
        self.state.todo = list(request.texts)
        self.next_part(context)

    def next_part(self, context: SagaContext) -> None:
        """Route the next part to two workers, while the budget lasts."""
        state = self.state
        if not state.todo or state.cents >= MAX_CENTS:
            state.left_out = len(state.todo)
            context.answer(StudyResult(words=state.words, left_out=state.left_out, disputed=state.disputed))
            context.finish()
            return
        state.first, state.part = None, state.part + 1
        request = CountRequest(part=state.part, text=state.todo.pop(0))
        context.ask("first", request, to="counter@svc", answer_by_s=60)
        context.ask("second", request, to=Agent(role="doubter"), answer_by_s=60)

    @on_answer("first", CountOutput)
    async def first_said(self, output: CountOutput, context: SagaContext) -> None:
        self.heard(output.words, output.cents, context)

    @on_answer("second", CountOutput)
    async def second_said(self, output: CountOutput, context: SagaContext) -> None:
        self.heard(output.words, output.cents, context)

    @on_failure("first")
    async def first_failed(self, context: SagaContext) -> None:
        self.heard(0, 0, context)

    @on_failure("second")
    async def second_failed(self, context: SagaContext) -> None:
        self.heard(0, 0, context)

    def heard(self, words: int, cents: int, context: SagaContext) -> None:
        """Keep the budget; where two disagree the larger count stands, and is told as disputed."""
        state = self.state
        state.cents += cents
        if state.first is None:
            state.first = words
            return
        state.disputed += words != state.first
        state.words += max(words, state.first)
        self.next_part(context)


supervisor = App("supervisor@svc", types=[CountRequest, StudyResult])
supervisor.add(Study)
counter, doubter = App("counter@svc"), App("doubter@svc", roles=["doubter"])


@counter.on(CountRequest)
async def count(request: CountRequest) -> CountOutput:
    return CountOutput(part=request.part, words=len(request.text.split()), cents=2)


@doubter.on(CountRequest)
async def doubt(request: CountRequest) -> CountOutput:
    if "?" in request.text:
        raise Reject("does not count questions")
    return CountOutput(part=request.part, words=len(request.text.split()), cents=2)


async def test_the_parts_are_put_together() -> None:
    async with supervisor.test(counter, doubter) as bus:
        result = await bus.request(StudyRequest(texts=["a b c", "is it?"]), StudyResult, timeout_s=300)
        assert result == StudyResult(words=5, disputed=1)


async def test_an_exhausted_budget_ends_the_work_and_lists_the_rest() -> None:
    async with supervisor.test(counter, doubter) as bus:
        result = await bus.request(StudyRequest(texts=["a"] * 5), StudyResult, timeout_s=300)
        assert result == StudyResult(words=3, left_out=2)


async def test_the_supervisor_ends_without_answers() -> None:
    async with supervisor.test() as bus:
        result = await bus.request(StudyRequest(texts=["a b"]), StudyResult, timeout_s=3_000)
        assert result == StudyResult(words=0)
