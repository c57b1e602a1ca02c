"""A chat agent: it remembers what was said before in the conversation, and with whom.

What it hears and answers is kept with its answer. Another conversation, and another sender, begin anew.

    sealbus run chat_agent:app
    sealbus ask chat@svc --chat
"""

from __future__ import annotations

from collections.abc import Sequence

from sealbus import App, Context, Retry
from sealbus.vocabulary import TaskRequest, TaskResult

app = App("chat@svc")
paid: list[int] = []


async def model(messages: Sequence[tuple[str, str]]) -> str:
    """Stand in for a language model: it knows what it was told in these messages, and nothing else."""
    paid.append(len(messages))
    *before, (_, question) = messages
    if question == "What is my name?":
        names = [text.removeprefix("I am ") for role, text in before if role == "user" and text.startswith("I am ")]
        return f"You are {names[-1]}." if names else "You have not said it."
    return "I see."


@app.on(TaskRequest, dedup="always", retry=Retry(attempts=3))
async def chat(task: TaskRequest, context: Context) -> TaskResult:
    memory = await context.conversation()
    said = [(each.role, str(each.content)) for each in memory.items]
    answer = await context.step("model", model, [*said, ("user", task.goal)])
    memory.add("user", task.goal)
    memory.add("assistant", answer)
    if task.goal == "stumble" and context.attempt == 1:
        raise ConnectionError("the answer was paid for, and not yet sent")
    return TaskResult(status="completed", summary=answer)


async def test_a_conversation_is_remembered_and_others_know_nothing_of_it() -> None:
    async with app.test() as bus:

        async def ask(text: str, conversation: str, by: str = "ann@people") -> str | None:
            request = TaskRequest(goal=text)
            answer = await bus.as_agent(by).request(request, TaskResult, conversation_id=conversation, task_id="t")
            return answer.summary

        assert await ask("I am Ann", "c-1") == "I see."
        assert await ask("What is my name?", "c-1") == "You are Ann."
        assert await ask("What is my name?", "c-2") == "You have not said it."
        # The id of a conversation opens it for nobody else.
        assert await ask("What is my name?", "c-1", by="eve@people") == "You have not said it."


async def test_an_answer_is_paid_for_once_and_remembered_once() -> None:
    paid.clear()
    async with app.test() as bus:
        for text in ("stumble", "And now?"):
            await bus.publish(TaskRequest(goal=text), conversation_id="c-1", to="chat@svc", task_id=text)
            await bus.advance(60)
        bus.assert_all_handled()
    # The second call was given the first question, its answer, and the second question.
    assert paid == [1, 3]
