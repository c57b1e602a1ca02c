"""A tool-mediated handoff: a model chooses a tool by its name, and the call becomes a request to another agent.

The schema that the model sees is the type's own. Which tools there are, who answers them and whether they may be called
is said here and in the policy, never in a prompt.

sealbus run tool_handoff:assistant tool_handoff:reviewer
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sealbus import App, Context, RequestFailed, payload


@payload("chat.message", version="1.0.0", performative="request")
class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("chat.reply", version="1.0.0")
class ChatReply(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("security.review-request", version="1.0.0")
class SecurityReview(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the security reviewer whether a change is safe."""

    diff: str


@payload("security.review-result", version="1.0.0")
class SecurityVerdict(msgspec.Struct, frozen=True, kw_only=True):
    is_safe: bool


async def model(text: str, offered: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Stand in for a language model that answers with a tool call."""
    assert offered[0]["name"] == "transfer_to_security_reviewer"
    return ("transfer_to_nobody" if "confused" in text else offered[0]["name"]), {
        "diff": 7 if "number" in text else text
    }


assistant, reviewer = App("assistant@svc"), App("reviewer@svc")
assistant.handoff_tool("transfer_to_security_reviewer", SecurityReview, SecurityVerdict, to="reviewer@svc")


@assistant.on(ChatMessage)
async def chat(message: ChatMessage, context: Context) -> ChatReply:
    name, arguments = await model(message.text, assistant.tool_schemas)
    # A tool that is not there, or arguments that do not fit, are the model's mistake: the requester is told.
    verdict = await assistant.tool(name).call(arguments, context)
    return ChatReply(text="safe" if verdict.is_safe else "not safe")


@reviewer.on(SecurityReview)
async def look(review: SecurityReview) -> SecurityVerdict:
    return SecurityVerdict(is_safe="eval(" not in review.diff)


async def test_a_tool_call_becomes_a_request_to_the_agent_behind_it() -> None:
    async with assistant.test(reviewer) as bus:
        assert (await bus.request(ChatMessage(text="x = eval(y)"), ChatReply)).text == "not safe"
        assert bus.sent(SecurityReview) == [SecurityReview(diff="x = eval(y)")]


@pytest.mark.medium
async def test_a_tool_that_is_not_there_is_refused() -> None:
    async with assistant.test(reviewer) as bus:
        with pytest.raises(RequestFailed, match="no tool 'transfer_to_nobody'"):
            await bus.request(ChatMessage(text="confused"), ChatReply)


async def test_arguments_that_do_not_fit_are_refused() -> None:
    async with assistant.test(reviewer) as bus:
        with pytest.raises(RequestFailed, match="wrong arguments"):
            await bus.request(ChatMessage(text="a number"), ChatReply)
        assert bus.sent(SecurityReview) == []
