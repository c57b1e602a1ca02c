"""Explanation: what became of one message, in a paragraph. Pure.

Owns the words for every reason of the contract: what would have passed, and the command that cures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from bus.protocol.timestamps import format_ms
from bus.topics.names import read_topic
from consumers.deadletters.causes import cause_of
from consumers.deadletters.diagnosis import Diagnosis
from consumers.deadletters.letter_state import LetterState, state_of
from consumers.deadletters.letters import DeadLetter
from consumers.lineage.log_search import ORIGINALS, StoredCopy

__all__ = ["CURES", "Explanation", "explain"]

_REDRIVE: Final = "sealbus dlq redrive {place} --why ..."
_SENDER: Final = "mend the sender and let it send anew: these bytes stay refused"
CURES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "oversized": ("a record of at most publish.max_message_bytes", "put what is large under a Ref; " + _SENDER),
        "malformed": ("an envelope in canonical JSON (PROTOCOL.md 1)", _SENDER),
        "unsupported_protocol": ("an envelope of sealbus/1", _SENDER),
        "hash_mismatch": ("the bytes that were sealed", "find who writes to this topic (docs/strangers.md)"),
        "seal_mismatch": ("the bytes that were sealed", "find who writes to this topic (docs/strangers.md)"),
        "wrong_audience": ("a message of this namespace", "correct bus.namespace of the sender"),
        "type_mismatch": ("a message of the type of its topic", "find who writes to this topic (docs/strangers.md)"),
        "key_mismatch": ("a record with the key that is sealed", "find who writes to this topic (docs/strangers.md)"),
        "signature_missing": ("a signed message", "give the sender a key: sealbus keys new AGENT, trust.key_file"),
        "signature_invalid": ("a signature over this statement", "find who writes in this name"),
        "key_unknown": ("a key that is in trust.keys", "add the sender's public key to trust.keys, then " + _REDRIVE),
        "key_revoked": ("a key that was not revoked", "give the sender a new key, and let it send anew"),
        "key_expired": ("a key that was valid when it signed", "give the sender a new key, and let it send anew"),
        "sender_mismatch": ("a key of the agent that is named as sender", "give the sender a key of its own"),
        "proof_invalid": ("a chain in which every link holds", "sealbus blame {message} names the link that does not"),
        "unknown_type": ("a type that the worker handles", "deploy a worker that knows it, then " + _REDRIVE),
        "unsupported_version": ("a version that the worker reads", "upgrade the worker first, then " + _REDRIVE),
        "schema_violation": (
            "data as the type says",
            "sealbus types show {type}; where the type was wrong: " + _REDRIVE,
        ),
        "semantic_violation": ("data that its checks accept", "mend sender or check, then " + _REDRIVE),
        "critical_field": ("a critical field that is understood", "upgrade the worker, then " + _REDRIVE),
        "ttl_too_long": ("a lifetime within publish.max_ttl_s", _SENDER),
        "expired": ("handling before it expired", "sealbus dlq redrive {place} --extend 1h --why ..."),
        "too_many_hops": (
            "fewer causes behind it",
            "look for agents that answer each other: sealbus trace {conversation}",
        ),
        "clock_skew": ("clocks that agree", "sealbus doctor; set the sender's clock, and let it send anew"),
        "unauthorized": ("a rule that allows it", "sealbus policy explain; change policy.file, then " + _REDRIVE),
        "untrusted_instruction": ("an instruction that is trusted enough", "sealbus trust --help; let it be approved"),
        "approval_invalid": ("a decision that fits the action", "send it anew, and let it be decided again"),
        "approval_rejected": ("an approval", "ask again with a new message, or " + _REDRIVE),
        "approval_timeout": ("a decision in time", _REDRIVE + " asks again"),
        "idempotency_conflict": ("the same content under the same key", "give other content another idempotency key"),
        "crash_loop": ("a run that does not end the worker", "mend the handler, then " + _REDRIVE),
        "invalid_transition": ("an event that its process waits for", "sealbus processes list shows what it waits for"),
        "conversation_closed": ("an event before the process finished", "nothing: it came too late"),
        "rejected": ("data that the handler accepts", "mend what it names, then " + _REDRIVE),
        "retries_exhausted": ("a run without an error", "mend the handler or what it calls, then " + _REDRIVE),
    }
)
"""By reason, what would have passed, and what cures it."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message."""

    message_id: str
    state: str
    """sent, answered, retried, redriven, parked, purged or dead."""
    text: str
    passes: str = ""
    """What would have passed."""
    cure: str = ""
    place: str = ""
    """Of the letter that is meant; empty without one."""


def explain(
    message_id: str,
    copies: Sequence[StoredCopy],
    letters: Sequence[tuple[DeadLetter, LetterState | None, Diagnosis]],
) -> Explanation:
    """Return what became of *message_id*.

    *copies* are the records of it, and of what it has caused; *letters* those in which it died.
    """
    own = [copy for copy in copies if copy.message_id == message_id]
    answers = [copy for copy in copies if copy.causation_id == message_id and copy.kind in ORIGINALS]
    first = min(own, key=lambda copy: (copy.kind not in ORIGINALS, copy.record.timestamp_ms))
    sentences = [_sent(first)]
    retried = [copy for copy in own if copy.kind == "retry"]
    if retried:
        sentences.append(f"It was put off {len(retried)} times, last in {retried[-1].place}.")
    if not letters:
        state = "answered" if answers else "retried" if retried else "sent"
        sentences += [_answered(copy) for copy in answers[:3]]
        if not answers:
            sentences.append("No dead letter of it is here: it is done, or waits (sealbus groups shows who lags).")
        return Explanation(message_id=message_id, state=state, text=" ".join(sentences))
    letter, known, finding = max(letters, key=lambda each: each[0].failed_ms)
    sentences.append(_died(letter, finding))
    state = state_of(letter, known)
    sentences.append("The letter is open." if state == "open" else f"Its letter is {state}.")
    passes, cure = CURES.get(letter.reason, ("", ""))
    metadata = None if letter.message is None else letter.message.metadata
    return Explanation(
        message_id=message_id,
        state="dead" if state == "open" else state,
        text=" ".join(sentences),
        passes=finding.expected or passes,
        cure=cure.format(
            place=letter.place,
            message=message_id,
            type=letter.message_type,
            conversation="" if metadata is None else metadata.conversation_id,
        ),
        place=letter.place,
    )


def _sent(copy: StoredCopy) -> str:
    message = copy.message
    about = "It"
    if message is not None:
        metadata = message.metadata
        about = f"{metadata.message_type} {metadata.schema_version} from {metadata.sender.id or 'nobody'}"
    where = "was appended to" if copy.kind in ORIGINALS else "is only left in"
    broken = "" if copy.fault is None else f" Its bytes do not hold: {copy.fault.text}."
    return f"{about} {where} {copy.place} at {format_ms(copy.record.timestamp_ms)}.{broken}"


def _answered(copy: StoredCopy) -> str:
    name = read_topic(copy.record.topic)
    kind = copy.message.message_type if copy.message is not None else name.message_type if name else "something"
    return f"It caused {kind} in {copy.place} at {format_ms(copy.record.timestamp_ms)}."


def _died(letter: DeadLetter, finding: Diagnosis) -> str:
    error, _, frame = letter.error.partition("\n")
    told = f"Group {letter.group} buried it at {letter.failed_at} after {letter.attempts} attempts: "
    told += f"{letter.reason} (gate {letter.gate})" + (f" at {letter.pointer}" if letter.pointer else "")
    told += f", {error}" if error else ""
    told += f" ({frame.strip()})" if frame.strip().startswith("File") and "\n" not in frame.strip() else ""
    if finding.expected or finding.found:
        told += f"; expected {finding.expected or '-'}, found {finding.found or '-'}"
    told += f"; {finding.nearest}" if finding.nearest else ""
    return f"{told}. {_others(letter)}"


def _others(letter: DeadLetter) -> str:
    name = cause_of(letter).name
    return f"Its cause is {name}: sealbus dlq list --cause {name} shows what died of the same."
