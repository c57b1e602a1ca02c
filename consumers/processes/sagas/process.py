"""Processes, waits and holds as values, and how their ids and their state are made. Pure.

Owns the names in the tables: all are derived from what they stand for, so that a repeated step finds its own rows.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from bus.errors import ContractError, RetryLater, text_of
from bus.payloads.kept_values import plain_from
from bus.protocol import canonical
from consumers.processes.sagas.history import ProcessHistory
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
    "ProcessPlace",
    "Status",
    "Wait",
    "ending_of",
    "failure_of",
    "is_newer",
    "pack",
    "place_after",
    "place_in",
    "unpack_plain",
    "unpack",
]

Status: TypeAlias = Literal["open", "finished"]
ProcessOutcome: TypeAlias = Literal["completed", "failed", "cancelled", "timed_out"]
"""How a process has ended."""

PlainT = TypeVar("PlainT", bound=msgspec.Struct)

_DIGITS: Final = 40
_PLACE: Final = re.compile(r"[0-9]{1,15}\.(?:[0-9a-f]{2}){1,64}")


class NewerCode(Exception):  # noqa: N818 - a verdict
    """The state was written by newer code: another worker of the group may understand it, and its rows stay
    unchanged."""


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
    """The owner: the opener's verified agent, or without keys its sender; empty if all senders share the key."""
    sender: str = ""
    """The sender of the opener."""
    task_id: str = ""
    """The task of the opener: that which it names, else itself."""
    opened_ms: int = 0
    changed_ms: int = 0
    keep_until_ms: int = 0


class ProcessPlace(msgspec.Struct, frozen=True):
    """Where a page of processes begins: behind the last one of the page before, by the time of its change and its id.

    Many change within one millisecond: the id tells which of them a page has had.
    """

    changed_ms: int
    id: bytes

    @property
    def text(self) -> str:
        """The place as a client keeps it."""
        return f"{self.changed_ms}.{self.id.hex()}"


def place_in(text: str) -> ProcessPlace | None:
    """Return the place that *text* names; None for anything else."""
    if _PLACE.fullmatch(text) is None:
        return None
    at_ms, _, identity = text.partition(".")
    return ProcessPlace(int(at_ms), bytes.fromhex(identity))


def place_after(page: Sequence[Process], max_rows: int) -> ProcessPlace | None:
    """Return where the page behind *page* begins; None where it has fewer than *max_rows*, and so is the last."""
    return ProcessPlace(page[-1].changed_ms, page[-1].id) if len(page) == max_rows else None


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One wait of a process: for an answer, if *seal* is set, or for a time."""

    id: str
    """For a request, its message id."""
    process: bytes
    name: str
    addressee: str | None
    """The agent that may answer; None: any agent that the policy allows."""
    seal: str | None
    many: bool
    due_ms: int
    nudge_ms: int = 0
    note: str = ""
    """For the wait by which an operator ends a process: the operator and the reason."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A record that is stored until its process has decided."""

    process: bytes
    seal: str
    record: bytes


class KeptAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request with further addressees: the messages for them if earlier ones fail."""

    message_type: str
    version: str
    data: dict[str, Any]
    to: tuple[str, ...]
    """Those not asked yet."""
    share_s: float
    options: dict[str, Any] = {}
    apart: bool = False
    """Whether it contains nothing from any answer."""


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a process, stored as long as its row, under its classification."""

    outcome: ProcessOutcome
    reason: str = ""
    where: str = ""
    """The method or phase in which it ended."""


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The bus's own data beside the state of a saga, in the same column."""

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
    history: ProcessHistory = ProcessHistory()
    """Its steps and waits over time; it stays after the end."""


class Ids:
    """The ids that the bus derives for one group, from the object they identify and a *secret* of the store.

    A repeated step finds its own rows, and other programs cannot predict the ids.
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
    """Return the bus's own data, and the state as the class of *rules*; None if newer code has written it.

    Writing such a state back would lose data of the newer code. Raises RetryLater if it cannot be read.
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


def unpack_plain(process: Process, shape: str, kind: type[PlainT]) -> PlainT:
    """Return the state of *process* as *kind*, whose form has the version *shape*.

    Raises NewerCode where a later version has written it, or it has a value that is not known here.
    """
    if is_newer(process.shape, shape):
        raise NewerCode
    try:
        return msgspec.json.decode(process.state, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise NewerCode from error


def is_newer(shape: str, known: str) -> bool:
    """Return whether a state of *shape* is of a later version than the one that is *known*."""
    return _parts(shape) > _parts(known)


def ending_of(process: Process) -> Ending | None:
    """Return the end of *process*; None if it is open, or if no end is stored."""
    if process.status == "open" or not process.state:
        return None
    try:
        return msgspec.json.decode(process.state, type=_Ended).ending
    except msgspec.DecodeError:
        return None


def failure_of(process: Process) -> Ending | None:
    """Return the end of *process* where it has failed or timed out; else None."""
    ending = ending_of(process)
    return ending if ending is not None and ending.outcome in ("failed", "timed_out") else None


class _Ended(msgspec.Struct):
    """The part of the stored data that has the end of a process."""

    ending: Ending | None = None


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
