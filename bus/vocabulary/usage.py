"""Usage of models."""

from __future__ import annotations

from bus.payloads.payload_types import payload
from bus.payloads.rules import AtMost, Rule
from bus.vocabulary.forms import Count, Text, Value, Word
from bus.vocabulary.parts import Money


@payload(
    "usage.reported",
    version="1.0.0",
    risk="low",
    performative="inform",
    ttl_s=86400,
    side_effect="none",
    rules=(
        Rule(
            "cached_input_tokens are part of input_tokens",
            "/cached_input_tokens",
            AtMost("cached_input_tokens", "input_tokens"),
        ),
    ),
)
class UsageReported(Value, frozen=True, kw_only=True):
    """Any agent after a model call; task and conversation are in the envelope."""

    model: Text
    input_tokens: Count
    output_tokens: Count
    provider: Word | None = None
    cached_input_tokens: Count = 0
    """Part of input_tokens."""
    tool_calls: Count = 0
    cost: Money | None = None
    """Absent: from the price table of the settings (C_in, C_out)."""
    duration_ms: Count | None = None
