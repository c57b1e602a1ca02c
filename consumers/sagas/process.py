"""Processes, waits and holds as values, and how their ids and their state are made. Pure.

Owns the names in the tables: all are derived from what they stand for, so that a repeated step finds its own rows.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal, TypeAlias

import msgspec

from bus.errors import ContractError, RetryLater, text_of
from bus.payloads.kept_values import plain_from
from bus.protocol import canonical
from consumers.sagas.rules import SagaRules

__all__ = [
    "KeptAsk",
    "Hold",
    "Memory",
    "Process",
    "Status",
    "Wait",
    "ask_key",
    "nudge_id",
    "pack",
    "process_id",
    "timer_id",
    "unpack",
]

Status: TypeAlias = Literal["open", "finished"]

_DIGITS: Final = 40


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a saga, as it is stored."""

    id: bytes
    namespace: str
    group: str
    saga: str
    key: str
    version: int
    """1 when it was opened, one more with each step: the compare-and-swap."""
    status: Status
    shape: str
    """The version of its state's form."""
    state: bytes
    opener: bytes
    """The sealed message that opened it: the cause of all that it sends."""
    trust: str
    """The least trusted level that ever went into the state."""
    opened_ms: int = 0
    changed_ms: int = 0
    keep_until_ms: int = 0


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """What a process waits for: an answer, where *seal* is set, or a time."""

    id: str
    """Of an ask the request's message id."""
    process: bytes
    name: str
    addressee: str | None
    """Who may answer; None: whom the policy lets."""
    seal: str | None
    many: bool
    due_ms: int
    nudge_ms: int = 0


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A record that is kept until its process has decided."""

    process: bytes
    seal: str
    record: bytes


class KeptAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An ask that has further addressees: what they will be sent when those before them have failed."""

    message_type: str
    version: str
    data: dict[str, Any]
    to: tuple[str, ...]
    """Those not asked yet."""
    share_s: float
    options: dict[str, Any] = {}
    apart: bool = False
    """Whether nothing of any answer is in it."""


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the bus remembers beside the state of a saga, in the same cell."""

    data: dict[str, Any] = {}
    """The state itself."""
    asks: dict[str, KeptAsk] = {}
    rounds: dict[str, int] = {}
    """How often each name was asked: a repeat of one step asks under the same idempotency key."""
    parties: tuple[str, ...] = ()
    """Whom the process has asked or answered, and who opened it."""
    classification: str = "internal"
    tags: tuple[str, ...] = ()


def process_id(namespace: str, group: str, saga: str, key: str) -> bytes:
    """Return SHA-256 of JCS([namespace, group, saga, key])."""
    return hashlib.sha256(canonical.encode([namespace, group, saga, key])).digest()


def timer_id(process: bytes, name: str, version: int) -> str:
    """Return the id of the timer *name* that the step to *version* arms."""
    return "t-" + _digits(canonical.encode([process.hex(), name, version]))


def nudge_id(wait: str) -> str:
    """Return the id of every `wait.due` of *wait*: to the inbox they are one message."""
    return "due-" + _digits(wait.encode())


def ask_key(process: bytes, name: str, count: int) -> str:
    """Return the idempotency key of the *count*-th ask of *name*."""
    return "ask-" + _digits(canonical.encode([process.hex(), name, count]))


def pack(memory: Memory) -> bytes:
    """Return the canonical bytes of *memory*. Raises ContractError for what JSON cannot hold."""
    return canonical.encode(msgspec.to_builtins(memory))


def unpack(rules: SagaRules, process: Process) -> tuple[Memory, Any] | None:
    """Return what is remembered, and the state as the class of *rules*; None where newer code has written it.

    Writing such a state back would drop what the newer code knows. Raises RetryLater where it cannot be read.
    """
    if _parts(process.shape) > _parts(rules.version):
        return None
    try:
        memory = msgspec.convert(plain_from(process.state or b"{}"), Memory)
        data: dict[str, Any] = memory.data
        shape = process.shape
        while shape != rules.version and (following := rules.upcasts.get(shape)) is not None:
            shape, method = following
            data = getattr(rules.cls, method)(dict(data))
        return memory, rules.kept_state.read(data)
    except (ContractError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise RetryLater(f"the state of {rules.name} {process.key!r:.80} cannot be read: {text_of(error)}") from error


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _digits(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:_DIGITS]
