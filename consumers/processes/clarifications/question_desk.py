"""QuestionDesk: the questions of one run to its requester: the kept answer, or what has to be asked.

Owns which question a call means, its id, and what the end of its time means for the run.
`consumers.processes.clarifications.service` has the process, `consumers.processes.approvals.step_desk` ends the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from bus.errors import ClarificationMissing, ContractError
from bus.protocol import canonical
from bus.protocol.identifiers import uuid7
from bus.transports.base import NewRecord
from bus.vocabulary.task import TaskClarification
from consumers.delivery.handler_errors import TaskCancelled
from consumers.processes.clarifications.service import ClarificationService
from consumers.processes.clarifications.state import (
    CLARIFICATION_SAGA,
    QUESTION_WAIT,
    ClarificationState,
    unpack_clarification,
)
from consumers.processes.sagas.asking_message import MIN_LEFT_S, AskingMessage
from consumers.processes.sagas.store import ProcessChange
from producers.outcomes import PublishRejected
from producers.sealing.run_labels import RunLabels
from producers.sealing.sealed_record import SealedRecord

__all__ = ["OpenQuestion", "QuestionDesk"]

_ENTROPY_BYTES = 10


class OpenQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question that has no answer yet."""

    service: ClarificationService
    asking: AskingMessage
    run: RunLabels
    name: str
    wait_name: str
    sealed: SealedRecord | None
    """The question, where it is new."""

    async def held_back(self) -> tuple[ProcessChange, Sequence[NewRecord]] | None:
        """Return the step that stores the message until the answer; None where the run may go on with one."""
        service, delivery = self.service, self.asking.delivery
        process = await service.store.find(service.process_id(self.name))
        if process is not None:
            state = unpack_clarification(process)
            # An answer that comes meanwhile is seen, or sees this hold: both move the version.
            return service.held_again(delivery, process, state) if state.phase == "open" else None
        if self.sealed is None or service.left_s(delivery) < MIN_LEFT_S:
            return None
        return service.opened(self.asking, self.name, self.sealed, wait_name=self.wait_name, run=self.run)


class QuestionDesk:
    """The questions of *run*, which handles the message of *asking*."""

    def __init__(self, service: ClarificationService, asking: AskingMessage, run: RunLabels) -> None:
        self._service = service
        self._asking = asking
        self._run = run

    async def ask(
        self, payload: TaskClarification, step: str, timeout_s: float | None, *, at_most: int
    ) -> bytes | OpenQuestion:
        """Return the sealed answer to *payload*, the step of that id; without one the question to wait for.

        *at_most*: how many a message may ask in its life. Raises ClarificationMissing, ContractError, TaskCancelled,
        NewerCode.
        """
        name = self._name_of(step)
        process = await self._service.store.find(self._service.process_id(name))
        if process is None:
            sealed = await self._sealed(payload, name, timeout_s, at_most)
            return self._open(name, sealed)
        state = unpack_clarification(process)
        if state.phase == "answered":
            return state.answer
        return self._undecided(name, state)

    def _undecided(self, name: str, state: ClarificationState) -> OpenQuestion:
        if state.phase == "cancelled":
            raise TaskCancelled(state.said)
        if state.phase == "timed_out":
            asked = self._asking.delivery.message.metadata.sender.id or "its requester"
            raise ClarificationMissing(f"{asked} was asked, and gave no answer in time")
        return self._open(name, None)

    def _open(self, name: str, sealed: SealedRecord | None) -> OpenQuestion:
        return OpenQuestion(
            service=self._service,
            asking=self._asking,
            run=self._run,
            name=name,
            wait_name=self._asking.wait_name(QUESTION_WAIT, name),
            sealed=sealed,
        )

    async def _sealed(
        self, payload: TaskClarification, name: str, timeout_s: float | None, at_most: int
    ) -> SealedRecord:
        """Return a question that was not asked before, sealed: the run is told at once what the bus would refuse."""
        service, delivery = self._service, self._asking.delivery
        left_s = service.left_s(delivery)
        if left_s < MIN_LEFT_S:
            raise ClarificationMissing(
                f"its message lives for another {max(0, round(left_s))} s, too short for an answer of its requester: "
                "publish it with a ttl of an hour or more"
            )
        if len(await self._asking.opened(service.store, CLARIFICATION_SAGA)) >= at_most:
            raise ClarificationMissing(f"one message may ask its requester {at_most} times, and has", "too_many")
        entropy = service.process_id(name)[:_ENTROPY_BYTES]
        try:
            return service.seal_question(
                delivery,
                payload,
                message_id=uuid7(delivery.sealed_ms, entropy),
                timeout_s=math.inf if timeout_s is None else timeout_s,
                run=self._run,
            )
        except PublishRejected as error:
            raise (error.__cause__ if isinstance(error.__cause__, ContractError) else error) from None

    def _name_of(self, step: str) -> str:
        """Return the name of the question: that of every repeat of its message, until that is redriven."""
        delivery, group = self._asking.delivery, self._service.group
        message = delivery.message
        named = {
            "content_hash": message.verification.content_hash,
            "group": group.name,
            "key": self._asking.row_key,
            "message_type": message.message_type,
            "namespace": message.metadata.namespace,
            "round": delivery.control.redrive_count,
            "sender": message.metadata.sender.id or "",
            "step": step,
        }
        return canonical.digest(canonical.encode(named))
