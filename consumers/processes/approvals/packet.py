"""The action packet: the exact action that is approved. Pure.

It has everything that the handler will see: upcast data, recipient, effective level and authority, idempotency key,
resource. Before the run it is built again and compared member by member (security S26).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.errors import ContractError, text_of
from bus.payloads.payload_types import PayloadType
from bus.protocol import canonical
from bus.protocol.sealing import Message
from bus.redaction import cut
from bus.trust.admission import Admission
from bus.trust.effective_labels import EffectiveLabels
from bus.vocabulary.approval import has_unbound_ref, hash_of
from consumers.processes.approvals.approval import Need

__all__ = ["Within", "approval_id_of", "differing_members", "packet_of"]

_MAX_SAID: Final = 400
_MAX_WORD: Final = 64


class Within(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run that waits for an approval."""

    step: str
    """The id of the step."""
    tool: str
    arguments: Mapping[str, Any]
    """By parameter name, as plain JSON values."""
    labels: EffectiveLabels
    """Of all that the run has read."""


def packet_of(
    message: Message,
    kind: PayloadType,
    payload: object,
    *,
    group: str,
    need: Need,
    admission: Admission,
    within: Within | None = None,
) -> dict[str, Any]:
    """Return the packet of *message*, or of the step *within* the run that handles it.

    Raises ContractError (`approval_invalid`) for a reference without its hash.
    """
    metadata = message.metadata
    labels = admission.labels(message) if within is None else within.labels
    data = msgspec.json.decode(kind.encode(payload))
    action: dict[str, Any] = {
        "type": _word(kind.name),
        "description": _described(need, kind, payload, within),
        "namespace": metadata.namespace,
        "group": group,
        "sender": metadata.sender.id or "",
        "message_type": message.message_type,
        "schema_version": metadata.schema_version,
        "data": data,
        "trust_level": labels.level,
    }
    if resource := kind.resource_of(payload):
        action["resource"] = {"type": kind.name, "id": resource}
    if metadata.recipient is not None:
        action["recipient"] = msgspec.to_builtins(metadata.recipient)
    if granted := admission.authority(message):
        action["authority"] = msgspec.to_builtins(granted)
    if message.routing.idempotency_key is not None:
        action["idempotency_key"] = message.routing.idempotency_key
    if within is not None:
        action["within"] = {"step": within.step, "tool": within.tool, "arguments": dict(within.arguments)}
    if has_unbound_ref(action):
        raise ContractError(
            "a reference in it has no sha256: its content could change after the approval",
            "/data" if within is None else "arguments",
            "approval_invalid",
        )
    return action


def approval_id_of(message: Message, *, group: str, rule: str, key: str, count: int) -> str:
    """Return the id of the approval of *message*: that of every repeat under one key, until it is redriven."""
    named = {
        "content_hash": message.verification.content_hash,
        "group": group,
        "key": key,
        "message_type": message.message_type,
        "namespace": message.metadata.namespace,
        "round": count,
        "rule": rule,
        "sender": message.metadata.sender.id or "",
    }
    return canonical.digest(canonical.encode(named))


def differing_members(agreed: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """Return pointers to the members in which the packet *now* differs from the approved one, *agreed*."""
    if hash_of(agreed) == hash_of(now):
        return ()
    return tuple(f"/action/{name}" for name in sorted({*agreed, *now}) if agreed.get(name) != now.get(name))


def _described(need: Need, kind: PayloadType, payload: object, within: Within | None) -> str:
    usual = f"handle {kind.name}" if within is None else f"call {within.tool}"
    if need.describe is None:
        return usual
    try:
        text = need.describe(payload if within is None else dict(within.arguments))
    except Exception as error:
        raise ContractError(
            f"Approval(describe=...) failed: {type(error).__name__}: {text_of(error)}", "/data", "approval_invalid"
        ) from error
    return cut(text, _MAX_SAID) if isinstance(text, str) and text else usual


def _word(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")[:_MAX_WORD]
