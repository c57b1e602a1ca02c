"""How far a stored message can be trusted, and what lowered its level.

`bus.gates` judges the message, `bus.trust.admission` reads its labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bus import gates
from bus.clock import Clock
from bus.errors import ContractError
from bus.payloads.payload_types import Registry, raised_risk
from bus.protocol.sealing import Message
from bus.protocol.signatures import parse_signature
from bus.settings.schema import Settings
from bus.topics.names import read_topic
from bus.trust.admission import Admission, Party
from bus.trust.labels import LEAST_TRUSTED
from bus.trust.opening import Trust
from consumers.operations.lineage.log_search import ORIGINALS, StoredCopy

__all__ = ["TrustView", "TrustViewer", "distinct_copies"]


class TrustView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a stored message is valid, and how far it is trusted."""

    valid: bool
    sender: str | None
    signed_by: str | None
    """The id of the key."""
    location: str
    signatures_checked: bool
    policy: str | None
    level: str = ""
    classification: str = ""
    tags: tuple[str, ...] = ()
    authority: dict[str, Any] = {}
    lowered_by: tuple[str, ...] = ()
    """The steps that lowered its level."""
    reason: str = ""
    detail: str = ""
    pointer: str = ""


class TrustViewer:
    """Judges the copies of a message by the keys and the policy of one reader."""

    def __init__(self, settings: Settings, registry: Registry, trusted: Trust, clock: Clock) -> None:
        self._settings = settings
        self._registry = registry
        self._trusted = trusted
        party = Party(agent_id="", namespace=settings.bus.namespace, group="")
        self._admission = Admission(party, verifier=trusted.verifier, policy=trusted.policy, now_ms=clock.now_ms)
        # Nobody handles it here: what a reader may is not asked.
        self._without_rules = Admission(party, verifier=trusted.verifier, now_ms=clock.now_ms)

    def view(self, copy: StoredCopy) -> TrustView:
        """Return how *copy* is to be trusted."""
        message = copy.message
        text = None if message is None else message.verification.signature
        signature = None if text is None else parse_signature(text)
        view = TrustView(
            valid=False,
            sender=None if message is None else message.metadata.sender.id,
            signed_by=None if signature is None else signature.kid,
            location=copy.place,
            signatures_checked=self._admission.has_keys,
            policy=self._settings.policy.file or None,
        )
        try:
            message = self._judge(copy)
            kind = self._registry.get(message.message_type)
            self._without_rules.admit(message, kind, None, instructions_from=LEAST_TRUSTED)
        except ContractError as error:
            return msgspec.structs.replace(view, reason=error.reason, detail=error.text, pointer=error.pointer)
        labels = self._admission.labels(message)
        return msgspec.structs.replace(
            view,
            valid=True,
            level=labels.level,
            classification=labels.classification,
            tags=tuple(sorted(labels.tags)),
            authority=dict(self._admission.authority(message)),
            lowered_by=tuple(labels.path),
        )

    def _judge(self, copy: StoredCopy) -> Message:
        """Return the message in *copy*. Raises ContractError for one that no reader would accept."""
        if copy.fault is not None or copy.message is None:
            raise copy.fault or ContractError("is not a message")
        topic = read_topic(copy.record.topic)
        typed = topic is not None and topic.kind == "message"
        case = gates.Case(
            record=copy.record,
            expected_type=topic.message_type if topic is not None and typed else msgspec.UNSET,
            key=copy.record.key,
            append_ms=copy.record.timestamp_ms,
            message=copy.message,
        )
        checks = gates.Checks(
            max_message_bytes=self._settings.publish.max_message_bytes,
            namespace=self._settings.bus.namespace,
            risk_of=lambda found: raised_risk(self._registry.get(found.message_type), self._settings.trust.high_risk),
            verifier=self._trusted.verifier,
        )
        verdict = gates.judge(case, checks, first="integrity", until="schema")
        if isinstance(verdict, gates.Failed):
            raise verdict.error
        return copy.message


def distinct_copies(copies: Sequence[StoredCopy]) -> list[StoredCopy]:
    """Return one copy of each value, the topics of publishers first: there the append time is the message's own."""
    ordered = sorted(copies, key=lambda copy: copy.kind not in ORIGINALS)
    return list({copy.record.value: copy for copy in reversed(ordered)}.values())[::-1]
