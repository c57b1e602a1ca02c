"""Processes, waits and holds as values, and how their ids and their state are made. Pure.

Owns the names in the tables: all are derived from what they stand for, so that a repeated step finds its own rows.
"""

from __future__ import annotations

import hmac
from typing import Any, Final, Literal, TypeAlias

import msgspec

from bus.errors import ContractError, RetryLater, text_of
from bus.payloads.kept_values import plain_from
from bus.protocol import canonical
from consumers.processes.sagas.rules import SagaRules

__all__ = [
    "Ending",
    "Hold",
    "Ids",
    "KeptAsk",
    "Memory",
    "NewerCode",
    "ProcessOutcome",
    "Process",
    "Status",
    "Wait",
    "ending_of",
    "is_newer",
    "pack",
    "unpack",
]

Status: TypeAlias = Literal["open", "finished"]
ProcessOutcome: TypeAlias = Literal["completed", "failed", "cancelled", "timed_out"]
"""How a process has ended."""

_DIGITS: Final = 40
_MAX_REASON: Final = 400


class NewerCode(Exception):  # noqa: N818 - a verdict
    """Only newer code than this knows what to do: another worker of the group may have it, and its rows stay as they
    are."""


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
    owner: str = ""
    """Whose it is: the opener's proven principal, or without keys its sender; empty where a key is shared by all."""
    sender: str = ""
    """The sender of the opener."""
    task_id: str = ""
    """The task of the opener: that which it names, else itself."""
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
    note: str = ""
    """Of the wait by which an operator ends a process: who does, and why."""


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


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a process has ended: kept as long as its row, under its classification."""

    outcome: ProcessOutcome
    reason: str = ""
    where: str = ""
    """The method or phase in which it ended."""


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
    ending: Ending | None = None
    """How it ended, where it has."""


class Ids:
    """The ids that the bus derives for one group: from what they stand for, and from a *secret* of the store.

    A repeated step finds its own rows, and nobody else can say beforehand what they will be called.
    """

    __slots__ = ("_group", "_namespace", "_secret")

    def __init__(self, secret: bytes, *, namespace: str, group: str) -> None:
        self._secret = secret
        self._namespace = namespace
        self._group = group

    def process(self, saga: str, owner: str, key: str) -> bytes:
        """Return the id of the process of *saga* that *owner* knows by *key*."""
        return self._digest("process", self._namespace, self._group, saga, owner, key)

    def timer(self, process: bytes, name: str, version: int) -> str:
        """Return the id of the timer *name* that the step to *version* arms."""
        return f"t-{self._digits('timer', process.hex(), name, version)}"

    def nudge(self, wait: str, number: int) -> str:
        """Return the id of the *number*-th `wait.due` of *wait*: each is a message of its own."""
        return f"due-{self._digits('due', wait, number)}"

    def ask_key(self, process: bytes, name: str, count: int) -> str:
        """Return the idempotency key of the *count*-th ask of *name*."""
        return f"ask-{self._digits('ask', process.hex(), name, count)}"

    def _digits(self, *parts: str | int) -> str:
        return self._digest(*parts).hex()[:_DIGITS]

    def _digest(self, *parts: str | int) -> bytes:
        return hmac.digest(self._secret, canonical.encode(list(parts)), "sha256")


def pack(memory: Memory) -> bytes:
    """Return the canonical bytes of *memory*. Raises ContractError for what JSON cannot hold."""
    return canonical.encode(msgspec.to_builtins(memory))


def unpack(rules: SagaRules, process: Process) -> tuple[Memory, Any] | None:
    """Return what is remembered, and the state as the class of *rules*; None where newer code has written it.

    Writing such a state back would drop what the newer code knows. Raises RetryLater where it cannot be read.
    """
    if is_newer(process.shape, rules.version):
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


def is_newer(shape: str, known: str) -> bool:
    """Return whether a state of *shape* is of a later version than the one that is *known*."""
    return _parts(shape) > _parts(known)


def ending_of(process: Process) -> Ending | None:
    """Return how *process* has ended; None where it is open, or where nothing of that is kept."""
    if process.status == "open" or not process.state:
        return None
    try:
        return msgspec.json.decode(process.state, type=_Ended).ending
    except msgspec.DecodeError:
        return None


class _Ended(msgspec.Struct):
    """What tells how a process has ended, in whatever is kept of it."""

    ending: Ending | None = None


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
