"""The parts that several types of the vocabulary share, each written once.

Owns references, evidence, budgets, errors and the like. Whatever may be large is a `Ref`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from bus.payloads.rules import Either, Has, RangeOf, Rule, exactly_one
from bus.vocabulary.forms import (
    Code,
    Count,
    Decimal,
    Flag,
    Glob,
    Hash,
    Instant,
    Long,
    Name,
    Number,
    Object,
    Positive,
    RuledValue,
    Severity,
    Share,
    Text,
    Type,
    TypeRange,
    Uri,
    Value,
    Version,
    Word,
)

__all__ = [
    "AgentCard",
    "AgentInfo",
    "Budget",
    "CandidateFile",
    "ChangedFile",
    "Content",
    "Effect",
    "ErrorInfo",
    "Evidence",
    "Found",
    "Money",
    "NextTask",
    "Ref",
    "RequiredAction",
    "Resource",
    "ReturnContract",
    "ReviewItem",
    "Risk",
    "RiskAssessment",
    "Scope",
    "TestRun",
    "CalledTool",
]


class Ref(Value, frozen=True, kw_only=True):
    """A reference to content that is not in the message. With *sha256* readers can tell that it is the same content."""

    uri: Uri
    sha256: Hash | None = None
    size: Count | None = None
    """Bytes."""
    media_type: Text | None = None


class Scope(Value, frozen=True, kw_only=True):
    """What belongs to a task: *include* without *exclude*."""

    include: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()


class Money(Value, frozen=True, kw_only=True):
    """An amount of a currency (ISO 4217)."""

    amount: Decimal
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z", max_length=3)]


class Budget(RuledValue, frozen=True, kw_only=True):
    """What a task may use at most; at least one bound."""

    __rules__: ClassVar = (
        Rule(
            "a budget has at least one bound",
            "",
            Either(tuple(map(Has, ("max_tool_calls", "max_tokens", "max_wall_clock_seconds", "max_cost")))),
        ),
    )

    max_tool_calls: Count | None = None
    max_tokens: Count | None = None
    max_wall_clock_seconds: Positive | None = None
    max_cost: Money | None = None


class ReturnContract(RuledValue, frozen=True, kw_only=True):
    """The type that the answer must have, and the versions of it."""

    __rules__: ClassVar = (
        Rule(
            "schema is a range of expected_message_type",
            "/schema",
            RangeOf("schema", "expected_message_type"),
        ),
    )

    expected_message_type: Type
    schema: TypeRange | None = None


class Content(RuledValue, frozen=True, kw_only=True):
    """Text from outside, marked: it may inform and never instruct. Exactly one of *content* and *ref*."""

    __rules__: ClassVar = (Rule("has exactly one of content, ref", "", exactly_one("content", "ref")),)

    content_type: Word
    source: Uri
    trust_level: Literal["trusted_tool_result", "model_generated", "untrusted_content"]
    instructional_authority: Literal["none"] = "none"
    content: Long | None = None
    ref: Ref | None = None


class Evidence(Value, frozen=True, kw_only=True):
    """One thing that supports a claim."""

    type: Word
    ref: Ref
    excerpt: Long | None = None
    confidence: Share | None = None
    content: Content | None = None


class Found(Value, frozen=True, kw_only=True):
    """One finding."""

    type: Word = "finding"
    claim: Text
    file: Text | None = None
    line: Positive | None = None
    severity: Severity | None = None
    confidence: Share | None = None
    evidence_refs: tuple[Ref, ...] = ()


class Effect(Value, frozen=True, kw_only=True):
    """Something that was changed outside."""

    type: Word
    target: Text
    idempotency_key: Name | None = None
    ref: Ref | None = None
    reversible: Flag | None = None


class ErrorInfo(Value, frozen=True, kw_only=True):
    """Why something failed: *code* is for programs, *message* for people."""

    code: Code
    message: Text
    details: Object | None = None
    retry_after_s: Number | None = None


class CalledTool(Value, frozen=True, kw_only=True):
    """A call of a tool."""

    name: Name
    arguments: Object
    tool_call_id: Name | None = None


class ChangedFile(Value, frozen=True, kw_only=True):
    """A file that a change touches."""

    path: Text
    change_type: Literal["added", "modified", "deleted"]
    reason: Text


class TestRun(Value, frozen=True, kw_only=True):
    """One run of tests."""

    command: Text
    status: Literal["passed", "failed", "skipped", "not_run"]
    artifact_ref: Ref | None = None
    duration_ms: Count | None = None


class Risk(Value, frozen=True, kw_only=True):
    """What could go wrong, and what is done against it."""

    risk: Text
    severity: Severity
    mitigation: Text


class RiskAssessment(Value, frozen=True, kw_only=True):
    """How much harm an action could do."""

    risk_level: Severity
    blast_radius: Text | None = None
    reversibility: Text | None = None


class ReviewItem(Value, frozen=True, kw_only=True):
    """One remark of a review."""

    severity: Severity
    category: Word
    finding: Text
    file: Text | None = None
    line: Positive | None = None
    evidence_refs: tuple[Ref, ...] = ()
    required_action: Text | None = None
    blocking: Flag = False
    confidence: Share | None = None
    cwe: Text | None = None


class RequiredAction(Value, frozen=True, kw_only=True):
    """What has to be done before an approval."""

    type: Word
    reason: Text
    blocking: Flag = True


class NextTask(Value, frozen=True, kw_only=True):
    """What could be done next: a recommendation, no authorization."""

    goal: Text
    agent_role: Name | None = None


class CandidateFile(Value, frozen=True, kw_only=True):
    """A file that may matter, and why."""

    path: Text
    reason: Text
    confidence: Share | None = None


class Resource(Value, frozen=True, kw_only=True):
    """What an action would touch."""

    type: Text
    id: Text
    summary: Long | None = None


class AgentCard(Value, frozen=True, kw_only=True):
    """What an agent says of itself."""

    agent_id: Name
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    version: Version
    description: Annotated[str, Meta(max_length=500)] = ""
    capabilities: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=50)]
    supported_protocols: Annotated[tuple[Text, ...], Meta(min_length=1)] = ("sealbus/1",)
    schema_versions: tuple[Version, ...] = ()
    accepts: tuple[TypeRange, ...] = ()
    critical_fields: tuple[Text, ...] = ()
    """Pointers that it understands beyond its types."""
    roles: tuple[Name, ...] = ()
    endpoint: Uri | None = None
    metadata: Object = {}


class AgentInfo(Value, frozen=True, kw_only=True):
    """What a directory says of an agent."""

    agent_id: Name
    name: Text
    capabilities: tuple[Text, ...]
    status: Literal["healthy", "unhealthy"]
    endpoint: Uri | None = None
    last_heartbeat: Instant | None = None
    version: Version | None = None
    accepts: tuple[TypeRange, ...] = ()
