"""Calls of methods: one request, one response."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from bus.payloads.envelope_terms import ByField
from bus.payloads.payload_types import payload
from bus.payloads.rules import All, Either, Has, Is, Not, Rule
from bus.vocabulary.forms import Object, Value
from bus.vocabulary.parts import ErrorInfo


@payload("method.request", version="1.0.0", performative="request", ttl_s=300, resource="/method")
class MethodRequest(Value, frozen=True, kw_only=True):
    """Client to server agent."""

    method: Annotated[str, Meta(min_length=1, max_length=128)]
    parameters: Object = {}


@payload(
    "method.response",
    version="1.0.0",
    performative=ByField("status", {"success": "inform", "error": "error"}),
    ttl_s=300,
    side_effect="none",
    rules=(
        Rule(
            "data is given exactly with success",
            "/data",
            Either((All((Is("status", ("success",)), Has("data"))), All((Is("status", ("error",)), Not(Has("data")))))),
        ),
        Rule(
            "error is given exactly with error",
            "/error",
            Either(
                (
                    All((Is("status", ("error",)), Has("error"))),
                    All((Is("status", ("success",)), Not(Has("error")))),
                )
            ),
        ),
    ),
)
class MethodResponse(Value, frozen=True, kw_only=True):
    """Server to client."""

    status: Literal["success", "error"]
    data: Object | None = None
    """Given exactly with success."""
    error: ErrorInfo | None = None
    """Given exactly with error."""
