"""A tool with permission: a model may look, and each refund that it wants waits for a person, with its arguments.

No worker waits with it. After the decision the run begins again, and its model calls return what they have returned. A
refund is made once, also if the worker dies in it: then the bank is asked what became of it.

    sealbus run tool_permission:app
    sealbus approval list
"""

from __future__ import annotations

import json
from typing import Any

from sealbus import App, Approval, Context, RetryLater
from sealbus.errors import NotDone
from sealbus.vocabulary import TaskRequest, TaskResult

app = App("support@svc")
bank: dict[str, int] = {}
turns: list[int] = []


@app.tool(output="trusted_tool_result")
async def order(number: str) -> str:
    """Return what was ordered, and for how much."""
    return f"order {number}: tea, 450 cents"


async def look_up_refund(number: str, cents: int) -> str:
    if number not in bank:
        raise NotDone("the bank knows no such refund")
    return f"refunded {bank[number]} cents"


@app.tool(
    side_effect="external",
    approval=Approval(by="human"),
    output="trusted_tool_result",
    once=True,
    reconcile=look_up_refund,
)
async def refund(number: str, cents: int) -> str:
    """Pay money back for an order. A person decides first."""
    bank[number] = bank.get(number, 0) + cents
    if number == "broken":
        raise RetryLater("the connection broke after the payment")
    return f"refunded {cents} cents"


async def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Stand in for a language model: it looks at the order, wants a refund, and says what came of it."""
    turns.append(len(messages))
    number = messages[0]["content"].split()[-1]
    if len(messages) == 1:
        return {"role": "assistant", "call": {"id": "a", "name": "order", "arguments": json.dumps({"number": number})}}
    if len(messages) == 3:
        arguments = json.dumps({"number": number, "cents": 450})
        return {"role": "assistant", "call": {"id": "b", "name": "refund", "arguments": arguments}}
    return {"role": "assistant", "content": messages[-1]["content"]}


@app.on(TaskRequest, asks=True, dedup="always")
async def support(task: TaskRequest, context: Context) -> TaskResult:
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.goal}]
    while True:
        answer = await context.step("model", model, messages)
        messages.append(answer)
        if "call" not in answer:
            return TaskResult(status="completed", summary=answer["content"])
        call = answer["call"]
        result = await app.tools.call(call["name"], call["arguments"], context, key=call["id"])
        messages.append({"role": "tool", "content": result.text})


async def waiting(bus: Any, number: str) -> Any:
    """What waits after a customer has asked for a refund of that order."""
    bank.clear()
    turns.clear()
    await bus.publish(TaskRequest(goal=f"refund order {number}"), to="support@svc", ttl_s=86_400, task_id="t-1")
    await bus.settle()
    (held,) = await bus.held()
    assert (held.tool, held.arguments) == ("refund", {"number": number, "cents": 450})
    assert bank == {}
    return held


async def test_a_refund_is_made_after_an_approval_and_no_call_is_repeated() -> None:
    async with app.test() as bus:
        await bus.approve(await waiting(bus, "7"), by="lead@acme")
        await bus.settle()
        assert bus.sent(TaskResult) == [TaskResult(status="completed", summary="refunded 450 cents")]
    assert (bank, turns) == ({"7": 450}, [1, 3, 5])


async def test_the_model_hears_of_a_refusal() -> None:
    async with app.test() as bus:
        await bus.reject(await waiting(bus, "7"), by="lead@acme", reason="too old")
        await bus.settle()
        (answer,) = bus.sent(TaskResult)
        assert "too old" in (answer.summary or "")
    assert bank == {}


async def test_a_refund_that_broke_off_is_looked_up_and_not_repeated() -> None:
    async with app.test() as bus:
        await bus.approve(await waiting(bus, "broken"), by="lead@acme")
        await bus.advance(120)
        assert bus.sent(TaskResult) == [TaskResult(status="completed", summary="refunded 450 cents")]
    assert bank == {"broken": 450}
