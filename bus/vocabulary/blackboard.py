"""The blackboard: shared values with versions."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta

from bus.payloads.payload_types import payload
from bus.payloads.rules import Bytes, Every, Has, Is, Rule, exactly_one
from bus.vocabulary.forms import Any_, Count, Flag, Hash, Instant, Level, Name, Object, Path, Positive, Value
from bus.vocabulary.parts import Ref

MAX_VALUE_BYTES = 262_144


@payload(
    "blackboard.write",
    version="1.0.0",
    performative="request",
    required_options=("idempotency_key",),
    ttl_s=600,
    side_effect="write",
    resource="/key",
    rules=(
        Rule(
            "has exactly one of value, ref, delete",
            "/value",
            exactly_one(Has("value", null=True), "ref", Is("delete", (True,))),
        ),
        Rule(
            "value takes at most 256 KiB: larger ones travel by ref",
            "/value",
            Bytes("value", MAX_VALUE_BYTES),
        ),
        Rule("ref needs its sha256", "/ref/sha256", Every("ref", Has("sha256"))),
    ),
)
class BlackboardWrite(Value, frozen=True, kw_only=True):
    """An owner of the key's prefix to the blackboard.

    Provenance is the message itself: sender, cause, level.
    """

    key: Path
    expected_version: Count
    """0: must not exist."""
    value: Any_ = UNSET
    """At most 256 KiB; exactly one of value, ref, delete."""
    ref: Ref | None = None
    """With sha256."""
    delete: Flag = False
    keep_s: Positive | None = None
    """Absent: no limit."""
    evidence_refs: tuple[Ref, ...] = ()


@payload("blackboard.written", version="1.0.0", performative="confirm", ttl_s=600, side_effect="none")
class BlackboardWritten(Value, frozen=True, kw_only=True):
    """Blackboard to the writer."""

    key: Path
    version: Positive


@payload("blackboard.conflict", version="1.0.0", performative="reject", ttl_s=600, side_effect="none")
class BlackboardConflict(Value, frozen=True, kw_only=True):
    """Blackboard to the writer."""

    key: Path
    expected_version: Count
    current_version: Count
    written_by: Name | None = None


@payload("blackboard.read", version="1.0.0", performative="query", ttl_s=60, side_effect="read", resource="/key")
class BlackboardRead(Value, frozen=True, kw_only=True):
    """Any reader the policy allows."""

    key: Path
    version: Positive | None = None
    """Absent: the newest."""
    history: Annotated[int, Meta(ge=0, le=100)] = 0
    """So many older versions too, at most 100."""


@payload("blackboard.value", version="1.0.0", performative="inform", ttl_s=600, side_effect="none")
class BlackboardValue(Value, frozen=True, kw_only=True):
    """Blackboard to the reader.

    Rests on the message that wrote it (parents), so that its level counts.
    """

    key: Path
    version: Count
    """0: there is none."""
    value: Any_ = UNSET
    ref: Ref | None = None
    written_by: Name | None = None
    written_at: Instant | None = None
    written: Hash | None = None
    """Seal of the write."""
    trust_level: Level | None = None
    """The level it had when written."""
    history: tuple[Object, ...] = ()
    """Older versions in this form, newest first."""
