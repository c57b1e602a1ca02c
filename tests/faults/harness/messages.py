"""The message types of the fault tests, and the words by which a message says how its handler shall behave.

Owns the payloads and reading their behaviour. Does not own what a handler does with it (`app`) or what must become of
it (`checker`).
"""

from __future__ import annotations

import msgspec

from sealbus import payload

__all__ = [
    "AGENT",
    "GROUP",
    "KINDS",
    "NAMESPACE",
    "PUBLISHER",
    "Answer",
    "Behaviour",
    "Free",
    "Item",
    "Need",
    "Strict",
    "Task",
    "behaviour_of",
]

AGENT = "fault@test"
PUBLISHER = "publisher@test"
GROUP = "fault-test"
NAMESPACE = "faults"


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """What every type carries. *number* is the content's own: repetitions of one message have the same."""

    number: int
    behaviour: str = "ok"


@payload("fault.task", version="1.0.0")
class Task(Item, frozen=True, kw_only=True):
    """Handled in order per key, as is the default."""


@payload("fault.strict", version="1.0.0")
class Strict(Item, frozen=True, kw_only=True):
    """Handled in order per key, through retries as well."""


@payload("fault.free", version="1.0.0")
class Free(Item, frozen=True, kw_only=True):
    """Handled in any order."""


@payload("fault.need", version="1.0.0")
class Need(Item, frozen=True, kw_only=True):
    """Needs a dependency that may be down."""


@payload("fault.answer", version="1.0.0")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler returns where it was asked to. *worker* and *nonce* differ at every run: equal bytes were stored,
    not made again."""

    number: int
    worker: str
    nonce: str


KINDS: dict[str, type[Item]] = {"fault.task": Task, "fault.strict": Strict, "fault.free": Free, "fault.need": Need}


class Behaviour(msgspec.Struct, frozen=True):
    """`ok`, `answer`, `lane:2` (fails twice, waits in its lane), `tier:1`, `reject`, `crash`, `slow:0.5`, `block:30`,
    `late`, `until`, `never`, `pay`, `slowpay:0.5`, `deafpay:4`."""

    word: str
    amount: float = 0.0


def behaviour_of(text: str) -> Behaviour:
    """What *text* asks for."""
    word, _, amount = text.partition(":")
    return Behaviour(word, float(amount or 0))
