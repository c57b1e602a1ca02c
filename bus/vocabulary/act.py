"""Speech acts with generic content, for agents that share no narrower type."""

from __future__ import annotations

from typing import ClassVar

from bus.payloads.payload_types import payload
from bus.payloads.rules import All, Every, Is, IsText, Rule, Size
from bus.vocabulary.forms import Flag, Object, Value
from bus.vocabulary.parts import CalledTool, Ref


class _Act(Value, frozen=True, kw_only=True):
    """The shape that all acts have."""

    content: Object
    tool_calls: tuple[CalledTool, ...] = ()
    """Only in act.request, act.propose and act.accept."""
    attachments: tuple[Ref, ...] = ()
    concludes: Flag = False
    """Closes the conversation where the sender may close it."""


_NO_TOOLS = Rule("tool_calls are for act.request, act.propose and act.accept", "/tool_calls", Size("tool_calls", 0, 0))
_NO_END = Rule("an act that wants an answer does not conclude", "/concludes", Is("concludes", (False,)))
_SAYS_WHY = Rule(
    "content has code and message, texts",
    "/content",
    Every("content", All((IsText("code"), IsText("message")))),
)


@payload("act.request", version="1.0.0", performative="request", ttl_s=3600, rules=(_NO_END,))
class ActRequest(_Act, frozen=True, kw_only=True):
    """An agent asks for something."""


@payload("act.inform", version="1.0.0", performative="inform", ttl_s=3600, side_effect="none", rules=(_NO_TOOLS,))
class ActInform(_Act, frozen=True, kw_only=True):
    """An agent says something."""


@payload("act.propose", version="1.0.0", performative="propose", ttl_s=3600)
class ActPropose(_Act, frozen=True, kw_only=True):
    """An agent proposes something."""


@payload("act.accept", version="1.0.0", performative="accept", ttl_s=3600)
class ActAccept(_Act, frozen=True, kw_only=True):
    """An agent accepts a proposal."""


@payload("act.reject", version="1.0.0", performative="reject", ttl_s=3600, side_effect="none", rules=(_NO_TOOLS,))
class ActReject(_Act, frozen=True, kw_only=True):
    """An agent rejects a proposal."""


@payload(
    "act.query",
    version="1.0.0",
    performative="query",
    ttl_s=3600,
    side_effect="read",
    rules=(
        _NO_TOOLS,
        _NO_END,
    ),
)
class ActQuery(_Act, frozen=True, kw_only=True):
    """An agent asks a question; it has no side effects."""


@payload("act.confirm", version="1.0.0", performative="confirm", ttl_s=3600, side_effect="none", rules=(_NO_TOOLS,))
class ActConfirm(_Act, frozen=True, kw_only=True):
    """An agent confirms something."""


@payload(
    "act.error",
    version="1.0.0",
    performative="error",
    ttl_s=3600,
    side_effect="none",
    rules=(
        _NO_TOOLS,
        _SAYS_WHY,
    ),
)
class ActError(_Act, frozen=True, kw_only=True):
    """An agent says what went wrong."""

    __example__: ClassVar = {"content": {"code": "error.transient", "message": "the index is being rebuilt"}}


@payload(
    "act.call-for-proposal",
    version="1.0.0",
    performative="call_for_proposal",
    ttl_s=3600,
    rules=(
        _NO_TOOLS,
        _NO_END,
    ),
)
class ActCallForProposal(_Act, frozen=True, kw_only=True):
    """An agent calls for proposals."""


@payload(
    "act.subscribe",
    version="1.0.0",
    performative="subscribe",
    ttl_s=3600,
    rules=(
        _NO_TOOLS,
        _NO_END,
    ),
)
class ActSubscribe(_Act, frozen=True, kw_only=True):
    """An agent subscribes to something."""


@payload("act.cancel", version="1.0.0", performative="cancel", ttl_s=3600, rules=(_NO_TOOLS,))
class ActCancel(_Act, frozen=True, kw_only=True):
    """An agent takes back what was asked."""
