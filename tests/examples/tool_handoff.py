"""A tool-mediated handoff: a model chooses a tool by its name, and the call becomes a request to another agent.

The schema that the model sees is the type's own. Which tools there are, who answers them and whether they may be called
is said here and in the policy, never in a prompt. A wrong call is an answer to the model, which tries again.

sealbus run tool_handoff:assistant tool_handoff:reviewer
"""

from __future__ import annotations

from typing import Any

import msgspec

from sealbus import App, Context, payload


@payload("chat.message", version="1.0.0", performative="request")
class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("chat.reply", version="1.0.0")
class ChatReply(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    told: list[str] = []


@payload("security.review-request", version="1.0.0")
class SecurityReview(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the security reviewer whether a change is safe."""

    diff: str


@payload("security.review-result", version="1.0.0")
class SecurityVerdict(msgspec.Struct, frozen=True, kw_only=True):
    is_safe: bool


async def model(text: str, offered: list[dict[str, Any]], said: list[str]) -> tuple[str, dict[str, Any]]:
    """Stand in for a language model that calls a tool, and learns from what it is told."""
    assert offered[0]["name"] == "transfer_to_security_reviewer"
    is_confused = "confused" in text and not said
    return ("transfer_to_nobody" if is_confused else offered[0]["name"]), {
        "diff": 7 if "number" in text and not said else text
    }


assistant, reviewer = App("assistant@svc"), App("reviewer@svc")
assistant.handoff_tool("transfer_to_security_reviewer", SecurityReview, SecurityVerdict, to="reviewer@svc")


@assistant.on(ChatMessage, dedup="always")
async def chat(message: ChatMessage, context: Context) -> ChatReply:
    told: list[str] = []
    while True:
        name, arguments = await model(message.text, assistant.tools.schemas("anthropic"), told)
        answer = await assistant.tools.call(name, arguments, context)
        if answer.fault is None:
            return ChatReply(text="safe" if answer.output["is_safe"] else "not safe", told=told)
        # A tool that is not there, or arguments that do not fit, are the model's mistake: it is told.
        told.append(answer.text)


@reviewer.on(SecurityReview)
async def look(review: SecurityReview) -> SecurityVerdict:
    return SecurityVerdict(is_safe="eval(" not in review.diff)


async def test_a_tool_call_becomes_a_request_to_the_agent_behind_it() -> None:
    async with assistant.test(reviewer) as bus:
        assert (await bus.request(ChatMessage(text="x = eval(y)"), ChatReply)).text == "not safe"
        assert bus.sent(SecurityReview) == [SecurityReview(diff="x = eval(y)")]


async def test_a_model_is_told_that_a_tool_is_not_there() -> None:
    async with assistant.test(reviewer) as bus:
        reply = await bus.request(ChatMessage(text="confused"), ChatReply)
        (told,) = reply.told
        assert "unknown tool 'transfer_to_nobody'; tools: transfer_to_security_reviewer" in told
        assert reply.text == "safe"


async def test_a_model_is_told_which_argument_does_not_fit() -> None:
    async with assistant.test(reviewer) as bus:
        reply = await bus.request(ChatMessage(text="a number"), ChatReply)
        assert reply.told == ["error wrong_arguments at /diff: expected `str`, got `int`"]
        assert bus.sent(SecurityReview) == [SecurityReview(diff="a number")]
