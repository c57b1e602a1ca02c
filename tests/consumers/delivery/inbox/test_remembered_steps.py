"""What one run of a message remembers of its steps, on a store that stands for the inbox's."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import pydantic
import pytest
from structlog.testing import capture_logs

from bus.errors import ContractError
from bus.trust.effective_labels import EffectiveLabels
from consumers.delivery.inbox.base import Write, Written
from consumers.delivery.inbox.remembered_steps import MAX_RESULT_BYTES, MAX_STEP_BYTES, RememberedSteps
from consumers.delivery.inbox.step_call import StepCall
from producers.sealing.run_labels import RunLabels

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


class Plan(pydantic.BaseModel):
    text: str


class Rows:
    """The rows of one message."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.begun = asyncio.Event()
        self.slow = asyncio.Event()
        self.slow.set()
        self.holds = True

    async def read(self) -> Mapping[str, bytes]:
        return dict(self.data)

    async def write(self, name: str, data: bytes) -> bool:
        self.begun.set()
        await self.slow.wait()
        if self.holds:
            self.data[name] = data
        return self.holds

    async def write_with(self, name: str, data: bytes, writes: Sequence[Write]) -> Written:
        return "written" if await self.write(name, data) else "stale"


class Labels:
    """What a run has read."""

    def __init__(self, level: str = "user_request") -> None:
        self.current = EffectiveLabels(level=level)
        self.read: list[EffectiveLabels] = []

    def read_at(self, labels: EffectiveLabels) -> None:
        self.read.append(labels)


def run(rows: Rows, labels: Labels | None = None, version: str = "1.0.0") -> RememberedSteps:
    return RememberedSteps(rows, cast("RunLabels", labels or Labels()), version=version)


async def step(run: RememberedSteps, function: Any, *arguments: Any, key: Any = None, kind: Any = None) -> Any:
    return await run.step(StepCall(name="a", function=function, arguments=arguments, key=key, kind=kind))


async def steps(run: RememberedSteps, *functions: Any, keys: Any = None, limit: int = 4) -> list[Any]:
    return await run.steps("a", functions, keys=keys, limit=limit, kind=None)


async def think(text: str) -> Plan:
    CALLS.append(text)
    await asyncio.sleep(0)
    return Plan(text=text)


async def fail(text: str) -> None:
    CALLS.append(text)
    await asyncio.sleep(0)
    raise LookupError(text)


async def large() -> str:
    CALLS.append("large")
    return "x" * MAX_RESULT_BYTES


async def strange(what: str) -> Any:
    CALLS.append(what)
    return {"nan": float("nan"), "surrogate": "\ud83d", "object": object, "int": 2**60}[what]


async def test_a_later_run_gets_what_an_earlier_one_paid_for() -> None:
    rows = Rows()
    assert await step(run(rows), think, "x", kind=Plan) == Plan(text="x")
    assert await step(run(rows), think, "x", kind=Plan) == Plan(text="x")
    assert CALLS == ["x"]


async def test_the_first_run_gets_what_a_later_one_would() -> None:
    rows = Rows()
    assert await step(run(rows), think, "x") == {"text": "x"}
    assert await step(run(rows), think, "x") == {"text": "x"}


async def test_calls_under_one_name_do_not_overwrite_each_other() -> None:
    rows = Rows()
    first = run(rows)
    assert [(await step(first, think, text))["text"] for text in "abc"] == ["a", "b", "c"]
    second = run(rows)
    assert [(await step(second, think, text))["text"] for text in "cab"] == ["c", "a", "b"]
    assert CALLS == ["a", "b", "c"]


async def test_steps_in_another_order_get_their_own_results() -> None:
    rows = Rows()
    await steps(run(rows), *(functools.partial(think, text) for text in "abc"))
    again = await steps(run(rows), *(functools.partial(think, text) for text in "cab"))
    assert again == [{"text": "c"}, {"text": "a"}, {"text": "b"}]
    assert sorted(CALLS) == ["a", "b", "c"]


async def test_functions_that_cannot_be_told_apart_are_refused_before_any_is_called() -> None:
    calls = [functools.partial(think, "a"), *(lambda text=text: think(text) for text in "bc")]
    with pytest.raises(ContractError, match=r"write functools.partial\(f, x\) .* say by keys=\[...\]"):
        await steps(run(Rows()), *calls)
    assert CALLS == []


async def test_keys_say_which_functions_are_the_same() -> None:
    rows = Rows()
    await steps(run(rows), *(lambda text=text: think(text) for text in "ab"), keys=["a", "b"])
    again = await steps(run(rows), *(lambda text=text: think(text) for text in "ba"), keys=["b", "a"])
    assert again == [{"text": "b"}, {"text": "a"}]
    assert sorted(CALLS) == ["a", "b"]


async def test_functions_and_keys_may_come_from_generators() -> None:
    calls = (functools.partial(think, text) for text in "ab")
    assert await run(Rows()).steps("a", calls, keys=(text for text in "ab"), limit=4, kind=Plan) == [
        Plan(text="a"),
        Plan(text="b"),
    ]
    assert await steps(run(Rows())) == []


async def test_there_is_a_key_for_each_function() -> None:
    with pytest.raises(ContractError, match="1 keys for 2 functions"):
        await steps(run(Rows()), functools.partial(think, "a"), functools.partial(think, "b"), keys=["a"])
    assert CALLS == []


async def test_equal_functions_are_called_once_and_all_get_the_result() -> None:
    found = await steps(run(Rows()), *(functools.partial(think, text) for text in "aba"))
    assert found == [{"text": "a"}, {"text": "b"}, {"text": "a"}]
    assert sorted(CALLS) == ["a", "b"]


async def test_two_functions_of_one_name_are_refused() -> None:
    def other() -> Any:
        async def think(text: str) -> str:
            return text

        return think

    def another() -> Any:
        async def think(text: str) -> str:
            return text * 2

        think.__qualname__ = other().__qualname__
        return think

    steps = run(Rows())
    assert await step(steps, other(), "a") == "a"
    assert await step(steps, other(), "a") == "a"
    with pytest.raises(ContractError, match="two functions of one name"):
        await step(steps, another(), "a")
    assert await step(steps, another(), "a", key="another") == "aa"


async def test_no_more_than_the_limit_are_at_work() -> None:
    at_work: list[int] = []
    now = 0

    async def work() -> None:
        nonlocal now
        now += 1
        at_work.append(now)
        await asyncio.sleep(0)
        now -= 1

    await steps(run(Rows()), *[work] * 9, keys=[*range(9)], limit=3)
    assert max(at_work) == 3


async def test_the_others_are_kept_where_one_fails() -> None:
    rows = Rows()
    thoughts = [functools.partial(think, text) for text in "abc"]
    with pytest.raises(LookupError, match="bad"):
        await steps(run(rows), functools.partial(fail, "bad"), *thoughts, limit=2)
    assert sorted(CALLS) == ["a", "b", "bad", "c"]
    assert len(rows.data) == 3
    CALLS.clear()
    await steps(run(rows), *(functools.partial(think, text) for text in "abc"))
    assert CALLS == []


async def test_several_failures_are_a_group() -> None:
    with pytest.raises(ExceptionGroup, match="2 of 3 steps 'a' have failed") as raised:
        await steps(run(Rows()), *(functools.partial(fail, text) for text in "ab"), functools.partial(think, "c"))
    assert [type(error) for error in raised.value.exceptions] == [LookupError, LookupError]


async def test_a_run_that_is_cut_cancels_all_its_steps() -> None:
    ended: list[str] = []
    began = asyncio.Event()

    async def hang(what: str) -> None:
        if what == "b":
            began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(what)

    calls = [functools.partial(hang, text) for text in "abcdef"]
    task = asyncio.create_task(steps(run(Rows()), *calls, keys="abcdef", limit=2))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["a", "b"]


async def test_the_same_step_at_once_is_called_once() -> None:
    steps = run(Rows())
    found = await asyncio.gather(*(step(steps, think, "a", kind=Plan) for _ in range(5)))
    assert found == [Plan(text="a")] * 5
    assert CALLS == ["a"]
    found[0].text = "changed"
    assert found[1] == Plan(text="a")


async def test_who_waits_for_a_call_that_fails_makes_its_own() -> None:
    steps = run(Rows())
    found = await asyncio.gather(*(step(steps, fail, "a") for _ in range(2)), return_exceptions=True)
    assert [type(error) for error in found] == [LookupError] * 2
    assert CALLS == ["a", "a"]


async def test_a_second_caller_finishes_a_step_whose_first_caller_is_cancelled() -> None:
    steps = run(Rows())
    first, second = (asyncio.create_task(step(steps, think, "a", kind=Plan)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == Plan(text="a")
    assert first.cancelled()


async def test_the_first_caller_finishes_a_step_whose_second_caller_is_cancelled() -> None:
    steps = run(Rows())
    first, second = (asyncio.create_task(step(steps, think, "a", kind=Plan)) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()
    assert await first == Plan(text="a")
    assert CALLS == ["a"]


async def test_a_step_that_asks_for_itself_is_refused() -> None:
    steps = run(Rows())

    async def again() -> None:
        await step(steps, again, key="a")

    async with asyncio.timeout(30):
        with pytest.raises(ContractError, match="calls itself"):
            await step(steps, again, key="a")


async def test_a_nested_step_is_stored_separately() -> None:
    rows = Rows()
    steps = run(rows)

    async def outer() -> str:
        return str((await step(steps, think, "inner"))["text"])

    assert await step(steps, outer, key="outer") == "inner"
    assert len(rows.data) == 2


async def test_a_finished_step_is_stored_although_its_run_is_cancelled() -> None:
    rows = Rows()
    rows.slow.clear()
    task = asyncio.create_task(step(run(rows), think, "a"))
    await rows.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rows.slow.set()
    await asyncio.sleep(0.01)
    assert len(rows.data) == 1


@pytest.mark.parametrize("what", ["nan", "surrogate", "object", "int"])
async def test_an_unstorable_step_result_is_returned_and_marked(what: str) -> None:
    rows = Rows()
    with capture_logs() as logs:
        result = await step(run(rows), strange, what)
    assert result == result or what == "nan"  # noqa: PLR0124 - a NaN alone is not itself
    assert [line["event"] for line in logs] == ["steps.not_kept"]
    assert len(rows.data) == 1
    with capture_logs() as logs:
        await step(run(rows), strange, what)
    assert [line["event"] for line in logs] == ["steps.called_again", "steps.not_kept"]
    assert len(CALLS) == 2


async def test_a_result_over_the_limit_is_given_and_marked() -> None:
    rows = Rows()
    steps = run(rows)
    with capture_logs() as logs:
        assert len(await step(steps, large)) == MAX_RESULT_BYTES
    assert "at most 8388608 are stored" in logs[0]["detail"]
    assert all(len(data) < 1_000 for data in rows.data.values())
    # In the same run it is there.
    await step(steps, large)
    assert CALLS == ["large"]
    await step(run(rows), large)
    assert CALLS == ["large", "large"]


async def test_the_same_step_at_once_is_called_once_though_it_cannot_be_kept() -> None:
    steps = run(Rows())
    found = await asyncio.gather(*(step(steps, large) for _ in range(3)))
    assert len({*found}) == 1
    assert CALLS == ["large"]


async def test_an_instance_that_its_own_class_would_refuse_is_given_as_it_is() -> None:
    async def made() -> Plan:
        return Plan.model_construct(text=7)

    with capture_logs() as logs:
        assert (await step(run(Rows()), made, kind=Plan)).text == 7
    assert "cannot be read back: /text: expected `str`" in logs[0]["detail"]


async def test_plain_data_that_are_not_of_the_type_are_a_mistake_of_the_function() -> None:
    rows = Rows()

    async def answer() -> dict[str, int]:
        return {"text": 7}

    with pytest.raises(ValueError, match="what the step 'a' returned is not of its type: /text: expected `str`"):
        await step(run(rows), answer, kind=Plan)
    assert rows.data == {}


async def test_a_type_that_cannot_be_kept_is_refused_before_the_call() -> None:
    for kind in (complex, dict[tuple[int, int], str], "Plan"):
        with pytest.raises(ContractError, match="cannot be stored"):
            await step(run(Rows()), think, "a", kind=kind)
        with pytest.raises(ContractError, match="cannot be stored"):
            await run(Rows()).steps("a", [functools.partial(think, "a")], keys=None, limit=1, kind=kind)
    assert CALLS == []


def row(result: bytes) -> bytes:
    return msgspec.msgpack.encode(["", result, "user_request", "internal"])


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        b"\x91" * 100_000,
        *map(
            row, [b"", b"{", b"[]", b"{}", b"1", b"[" * 100_000 + b"]" * 100_000, b"[1" + b"0" * 400 + b"]", b"[\xff]"]
        ),
    ],
)
async def test_an_unreadable_result_counts_as_none(damage: bytes) -> None:
    rows = Rows()
    await step(run(rows), think, "a")
    rows.data = dict.fromkeys(rows.data, damage)
    with capture_logs() as logs:
        assert await step(run(rows), think, "a") == {"text": "a"}
    assert [line["event"] for line in logs] == ["steps.unreadable"]
    assert CALLS == ["a", "a"]
    await step(run(rows), think, "a")
    assert CALLS == ["a", "a"]


async def test_a_result_of_another_type_counts_as_none() -> None:
    rows = Rows()

    async def answer() -> Any:
        CALLS.append("answer")
        return Plan(text="a") if len(CALLS) == 1 else [1]

    assert await step(run(rows), answer, key=1, kind=Plan) == Plan(text="a")
    for _ in range(2):
        # The next release of the program wants something else.
        assert await step(run(rows), answer, key=1, kind=list[int]) == [1]
    assert CALLS == ["answer", "answer"]


async def test_a_result_brings_its_level_back() -> None:
    rows = Rows()
    await step(run(rows, Labels("untrusted_content")), think, "a")
    labels = Labels()
    await step(run(rows, labels), think, "a")
    assert [read.level for read in labels.read] == ["untrusted_content"]


async def test_a_run_that_was_overtaken_has_its_result_all_the_same() -> None:
    rows = Rows()
    rows.holds = False
    steps = run(rows)
    assert await step(steps, think, "a", kind=Plan) == Plan(text="a")
    assert await step(steps, think, "a", kind=Plan) == Plan(text="a")
    assert CALLS == ["a"]


async def test_a_checkpoint_of_every_form_is_resumed() -> None:
    rows = Rows()
    await run(rows).checkpoint(Plan(text="a"))
    assert await run(rows).resumed(Plan) == Plan(text="a")
    assert await run(rows).resumed(None) == {"text": "a"}
    assert await run(rows, version="2.0.0").resumed(Plan) is None


async def test_a_checkpoint_of_a_class_without_a_form_is_refused() -> None:
    with pytest.raises(ContractError, match="a checkpoint has no form in JSON"):
        await run(Rows()).checkpoint([object()])


@pytest.mark.parametrize("value", ["x" * MAX_STEP_BYTES, float("nan"), "\ud83d", 2**60])
async def test_a_checkpoint_that_cannot_be_kept_leaves_the_one_before(value: Any) -> None:
    rows = Rows()
    steps = run(rows)
    await steps.checkpoint("before")
    with capture_logs() as logs:
        await steps.checkpoint(value)
    assert [line["event"] for line in logs] == ["steps.not_kept"]
    assert await run(rows).resumed(None) == "before"


async def test_a_checkpoint_that_cannot_be_read_counts_as_none() -> None:
    rows = Rows()
    await run(rows).checkpoint("text")
    with capture_logs() as logs:
        assert await run(rows).resumed(Plan) is None
    assert [line["event"] for line in logs] == ["steps.unreadable"]
