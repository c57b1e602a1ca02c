"""Lifting trust: a validator vouches for content."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta

from bus.payloads.payload_types import payload
from bus.payloads.rules import Every, Has, Rule, exactly_one
from bus.vocabulary.forms import Any_, Hash, Level, Text, Value, Word
from bus.vocabulary.parts import Ref


@payload(
    "trust.lifted",
    version="1.0.0",
    risk="high",
    performative="inform",
    ttl_s=86400,
    must_match={"/level": "/metadata/security/trust_level"},
    rules=(
        Rule("has exactly one of content, ref", "/content", exactly_one(Has("content", null=True), "ref")),
        Rule("ref needs its sha256", "/ref/sha256", Every("ref", Has("sha256"))),
    ),
)
class TrustLifted(Value, frozen=True, kw_only=True):
    """A validator that the policy allows to lift; cause: the message it validated.

    What follows from it handles this message, not the old one.
    """

    subject: Hash
    """Seal of the validated message; equals the first parent."""
    level: Level
    """Equals the sealed trust_level of this message; from untrusted_content at most trusted_tool_result."""
    method: Word
    """Known: schema, allow_list, human, second_model, sandbox."""
    checks: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """What was looked at."""
    content: Any_ = UNSET
    """The validated content, if it goes on; exactly one of content, ref."""
    ref: Ref | None = None
    """With sha256."""
    limitations: tuple[Text, ...] = ()
