"""Run labels: the messages that one run of a handler has read, and the labels that follow for everything it sends.

Owns rules T2 and S12 of design part two section 14. A run has the least trusted level, the highest classification and
all tags of its message, of every answer it received, and of content it declared as read. Its outputs name these
messages among their parents, are sealed with that level, and give no more authority than the message gave.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final, Protocol, cast

import msgspec

from bus.errors import ContractError
from bus.payloads.payload_types import is_payload, payload_type
from bus.protocol.envelope import Authority, Security
from bus.protocol.envelope_rules import MAX_PARENTS
from bus.protocol.sealing import Message
from bus.telemetry import logs
from bus.trust.admission import Admission
from bus.trust.authority import Granted, narrowed
from bus.trust.effective_labels import EffectiveLabels, comes_from_outside, joined, says_nothing
from bus.trust.labels import (
    DEFAULT_CLASSIFICATION,
    INSTRUCTING,
    LEAST_TRUSTED,
    LEVELS,
    rank_of_classification,
    rank_of_level,
)
from producers.sealing.options import Outgoing, check_struct

__all__ = ["CURRENT_RUN", "RunLabels", "labelled", "labelled_first", "log_ids", "type_name"]

_LIFTING: Final = "trust.lifted"
_LOWEST: Final = EffectiveLabels(level=LEVELS[-1])


class RunPlace(Protocol):
    """The place of a run among those at work, which it gives to another while it waits for an answer."""

    def begin_wait(self) -> None:
        """Note that the run waits for one more answer."""

    async def end_wait(self) -> None:
        """Note that one answer has come, and wait until the run may go on."""

    def abandon_wait(self) -> None:
        """Note that the run no longer waits for an answer, and goes on at once."""


class RunLabels(msgspec.Struct, eq=False):
    """The labels of one run, which handles *message*."""

    message: Message
    admission: Admission
    attempt: int = 1
    place: RunPlace | None = None
    over: bool = False
    """Whether the run has ended: messages published afterwards do not have its message as cause."""
    read: tuple[Message, ...] = ()
    """The answers that the run has received, oldest first."""
    labels: EffectiveLabels | None = None
    """The labels of all that it has taken in so far; None: those of its message, not looked at yet."""

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None]:
        """Wait for an answer in the body of the `async with`: the run is not at work meanwhile."""
        location = self.place
        if location is None or self.over:
            yield
            return
        location.begin_wait()
        try:
            yield
        except asyncio.CancelledError:
            if not self.over:
                location.abandon_wait()
            raise
        except BaseException:
            if not self.over:
                await location.end_wait()
            raise
        if not self.over:
            await location.end_wait()

    def log_ids(self) -> Mapping[str, object]:
        """Return the fields that identify the run's message in log lines."""
        return log_ids(self.message, self.attempt)

    @property
    def agent_id(self) -> str:
        """The agent whose handler runs."""
        return self.admission.agent_id

    @property
    def current(self) -> EffectiveLabels:
        """The labels of all that the run has taken in so far."""
        if self.labels is None:
            self.labels = self.admission.labels(self.message)
        return self.labels

    @property
    def adds_nothing(self) -> bool:
        """Whether nothing was taken in but the message itself."""
        return not self.read and self.labels is None

    def take_in(self, answer: Message) -> None:
        """Add *answer*, which passed the gates, to the messages that the run has read."""
        if any(answer.seal == known.seal for known in self.read):
            # The log of a task can be read again; a message names each of its parents once.
            return
        self.labels = joined([self.current, self.admission.labels(answer)])
        self.read = (*self.read, answer)

    def hear(self, progress: Message) -> None:
        """Count *progress*, which passed the gates, as read: its level applies.

        It is no parent of what the run sends: a message has room for few, and they are for its answers.
        """
        if not self.over:
            self.labels = joined([self.current, self.admission.labels(progress)])

    def read_at(self, labels: EffectiveLabels) -> None:
        """Count something read from a store, which was written there with *labels*."""
        self.labels = joined([self.current, labels])

    def taint(self, level: str, source: str) -> None:
        """Count something read by other means at *level*. Raises ContractError for a level that there is not."""
        if level not in LEVELS:
            raise ContractError(f"{level!r} is none of {', '.join(LEVELS)}", "level")
        stated = f"the handler has read {source[:200]} at {level}"
        self.labels = joined([self.current, EffectiveLabels(level=level, classification="public", path=(stated,))])


def log_ids(message: Message, attempt: int) -> dict[str, object]:
    """Return the fields that identify the handled *message* in log lines."""
    return {
        "message_id": message.message_id,
        "conversation_id": message.metadata.conversation_id,
        "type": message.message_type,
        "sender": message.metadata.sender.id,
        "attempt": attempt,
    }


CURRENT_RUN: Final = cast("ContextVar[RunLabels | None]", logs.RUN)
"""The run of the current task: it is the cause of messages that the task publishes through a `Bus`."""


def labelled_first(draft: Outgoing, admission: Admission, run: RunLabels) -> Outgoing:
    """Return *draft*, which begins a conversation although *run* publishes it, with the labels of the run."""
    if run.adds_nothing and admission.is_open and says_nothing(run.message):
        return draft
    return msgspec.structs.replace(draft, security=_security(draft.security, run.current, admission))


def type_name(draft: Outgoing) -> str:
    """Return the message type of *draft*; empty for an object that is not a payload, which sealing refuses."""
    return payload_type(draft.payload).name if is_payload(draft.payload) else ""


def labelled(draft: Outgoing, cause: Message, admission: Admission, run: RunLabels | None = None) -> Outgoing:
    """Return *draft*, caused by *cause*, with the labels, the parents and the authority that go out with it.

    Raises ContractError (`unauthorized`) for a level, a classification or an authority that the run does not have.
    """
    if (run is None or run.adds_nothing) and admission.is_open and says_nothing(cause):
        return draft
    if draft.authority is not None:
        check_struct(draft.authority, Authority, "authority")
    labels, granted = _received(cause, admission, run)
    rests_on = draft.rests_on
    if run is not None and run.read:
        seen = {message.seal for message in rests_on} | {cause.seal}
        rests_on = (*rests_on, *(message for message in run.read if message.seal not in seen))[: MAX_PARENTS - 1]
    return msgspec.structs.replace(
        draft,
        authority=narrowed(draft.authority, granted),
        security=_security(draft.security, labels, admission, type_name(draft)),
        rests_on=rests_on,
    )


def _received(cause: Message, admission: Admission, run: RunLabels | None) -> tuple[EffectiveLabels, Granted]:
    try:
        return (admission.labels(cause) if run is None else run.current), admission.authority(cause)
    except ContractError:
        # The report on a message that exceeds its own cause: it gives nothing on.
        return _LOWEST, {}


def _security(
    requested: Security | None, labels: EffectiveLabels, admission: Admission, message_type: str = ""
) -> Security | None:
    provided = requested or Security()
    claim, level = provided.trust_level, labels.level
    if claim is None and admission.writes_labels and comes_from_outside(message_type):
        claim = LEAST_TRUSTED
    if claim is not None and message_type != _LIFTING and rank_of_level(claim) < rank_of_level(level):
        because = f": {labels.path[-1]}" if labels.path else ""
        raise ContractError(
            f"claims {claim}, and what it rests on is {level}{because}",
            "/metadata/security/trust_level",
            "unauthorized",
        )
    if claim is None and (admission.writes_labels or level != INSTRUCTING):
        claim = level
    classification = provided.data_classification
    if classification is None:
        classification = None if labels.classification == DEFAULT_CLASSIFICATION else labels.classification
    elif rank_of_classification(classification) < rank_of_classification(labels.classification):
        raise ContractError(
            f"claims {classification}, and rests on what is {labels.classification}",
            "/metadata/security/data_classification",
            "unauthorized",
        )
    tags = tuple(dict.fromkeys([*(provided.policy_tags or ()), *sorted(labels.tags)])) or None
    found = msgspec.structs.replace(provided, trust_level=claim, data_classification=classification, policy_tags=tags)
    return found if found != Security() else None
