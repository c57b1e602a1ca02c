"""The state of one clarification, as its process row has it. Pure."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from bus.payloads.payload_types import payload_type
from bus.protocol import canonical, sealing
from bus.vocabulary.task import TaskClarification
from consumers.processes.sagas.process import Ending, Process, unpack_plain

__all__ = [
    "CLARIFICATION_SAGA",
    "CLARIFICATION_SHAPE",
    "ClarificationState",
    "QUESTION_WAIT",
    "pack_clarification",
    "questions_in",
    "unpack_clarification",
]

CLARIFICATION_SAGA: Final = "clarification"
QUESTION_WAIT: Final = "question"
"""How the waits for an answer begin."""
CLARIFICATION_SHAPE: Final = "1.0.0"

ClarificationPhase: TypeAlias = Literal["open", "answered", "timed_out", "cancelled"]


class ClarificationState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question to a requester."""

    phase: ClarificationPhase = "open"
    question: bytes = b""
    """The sealed `task.clarification`."""
    answer: bytes = b""
    """The sealed `task.clarified`."""
    expires_ms: int = 0
    """When the waiting message expires."""
    said: str = ""
    """Why it was cancelled."""
    ending: Ending | None = None
    """How its process has ended, where it has."""


def pack_clarification(state: ClarificationState) -> bytes:
    """Return the canonical bytes of *state*."""
    return canonical.encode(msgspec.to_builtins(state))


def unpack_clarification(process: Process) -> ClarificationState:
    """Return the state of *process*.

    Raises NewerCode where a later version has written it, or it is in a phase that is not known here.
    """
    return unpack_plain(process, CLARIFICATION_SHAPE, ClarificationState)


def questions_in(state: ClarificationState) -> TaskClarification:
    """Return what was asked."""
    opened = payload_type(TaskClarification).open(sealing.parse(state.question))
    assert isinstance(opened, TaskClarification)  # noqa: S101 - of that very type
    return opened
