"""ClarificationService: the process of one question, from the waiting message to the requester's answer.

Owns the built-in saga `clarification`. One transaction stores the waiting message, opens its process and frees its
inbox row; then the question leaves. The answer, or the end of the time for it, sends the stored records back to the
group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from bus.clock import Clock
from bus.errors import ContractError
from bus.protocol import sealing
from bus.protocol.envelope import Authority
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.redaction import cut
from bus.telemetry.logs import get_logger
from bus.transports.base import NewRecord
from bus.vocabulary.bus import WaitDue
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.task import TaskClarification, TaskClarified
from consumers.delivery.inbox.row_encoding import decode_outputs
from consumers.delivery.settling.dispositions import refused
from consumers.delivery.settling.outcome import Done, Outcome
from consumers.delivery.settling.outputs import requester_of
from consumers.delivery.state.delivery import Accepted
from consumers.processes.clarifications.state import (
    CLARIFICATION_SAGA,
    CLARIFICATION_SHAPE,
    QUESTION_WAIT,
    ClarificationState,
    pack_clarification,
    questions_in,
    unpack_clarification,
)
from consumers.processes.sagas.asking_message import RUN_S, AskingMessage, hold_of
from consumers.processes.sagas.process import Ending, Hold, NewerCode, Process, ProcessOutcome, Wait
from consumers.processes.sagas.process_group import ProcessGroup
from consumers.processes.sagas.rules import CANCEL_WAIT
from consumers.processes.sagas.store import NewWait, ProcessChange, ProcessStore
from producers.publisher import Publisher
from producers.sealing.options import Outgoing
from producers.sealing.run_labels import RunLabels
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import SealedRecord, record_of

__all__ = ["ClarificationService"]

_MAX_REASON: Final = 400
_SKIPPED: Final = Done(ran=False)
_OUTCOMES: Final[Mapping[str, ProcessOutcome]] = MappingProxyType(
    {"answered": "completed", "timed_out": "timed_out", "cancelled": "cancelled"}
)

_log = get_logger("clarifications")


class ClarificationService:
    """Stores messages whose runs have asked their requesters, for one group."""

    hears = False

    def __init__(self, store: ProcessStore, *, group: ProcessGroup, publisher: Publisher, clock: Clock) -> None:
        self.store = store
        self.group = group
        self._publisher = publisher
        self._clock = clock

    def left_s(self, delivery: Accepted) -> float:
        """Return the seconds until *delivery* expires."""
        return (delivery.expires_ms - self._clock.now_ms()) / 1000

    def process_id(self, name: str) -> bytes:
        """Return the id of the process of the question called *name*."""
        return self.store.ids.process(CLARIFICATION_SAGA, "", name)

    def seal_question(
        self, delivery: Accepted, payload: TaskClarification, *, message_id: str, timeout_s: float, run: RunLabels
    ) -> SealedRecord:
        """Seal *payload* for the requester of *delivery*, as progress that is answered to the group's mailbox.

        It lives for *timeout_s* seconds, at most until the message has just the time for its run. Raises
        PublishRejected.
        """
        message = delivery.message
        granted = self._publisher.sealer.admission.authority(message)
        acts = bool(granted.get("can_write") or granted.get("can_execute"))
        draft = Outgoing(
            payload,
            # A question gives nothing to do.
            authority=Authority(can_write=(), can_execute=()) if acts else None,
            to=requester_of(message),
            reply_to=self.group.mailbox,
            task_id=message.metadata.task_id or message.message_id,
            message_id=message_id,
            ttl_s=int(max(1.0, min(timeout_s, self.left_s(delivery) - RUN_S))),
        )
        request = SealRequest(
            cause=message, answers=True, topic=message.routing.reply_to, progress=True, both_versions=False, run=run
        )
        return self._publisher.sealer.seal(draft, request)

    def opened(
        self, asking: AskingMessage, name: str, sealed: SealedRecord, *, wait_name: str, run: RunLabels
    ) -> tuple[ProcessChange, Sequence[NewRecord]]:
        """Return the step that stores the message until the question *sealed* is answered, and what is to be sent."""
        delivery, question = asking.delivery, sealed.message
        message = delivery.message
        identity = self.process_id(name)
        after_ms = (parse_ms(question.routing.expires_at) or 0) - self._clock.now_ms()
        wait = NewWait(
            id=question.message_id,
            name=wait_name,
            after_ms=max(0, after_ms),
            addressee=message.metadata.sender.id,
            seal=question.seal,
        )
        fresh = ClarificationState(question=question.value, expires_ms=delivery.expires_ms)
        process = Process(
            id=identity,
            namespace=self.group.namespace,
            group=self.group.name,
            saga=CLARIFICATION_SAGA,
            key=name,
            version=1,
            status="open",
            shape=CLARIFICATION_SHAPE,
            state=pack_clarification(fresh),
            opener=message.value,
            trust=run.current.level,
            owner=asking.owner,
            sender=asking.principal,
            task_id=asking.task_id,
        )
        change = ProcessChange(before=None, after=process, armed=(wait,), holds=(self._hold(delivery, identity),))
        return change, [sealed.record]

    def held_again(
        self, delivery: Accepted, process: Process, state: ClarificationState
    ) -> tuple[ProcessChange, Sequence[NewRecord]]:
        """Return the step that stores *delivery* once more: the same question leaves again."""
        question = sealing.parse(state.question)
        change = self._change(process, state, holds=(self._hold(delivery, process.id),))
        return change, [record_of(question, delivery.message.routing.reply_to or "")]

    # From the mailbox.

    async def mailed(
        self, wait: Wait, process: Process, delivery: Accepted
    ) -> tuple[ProcessChange, Sequence[NewRecord]] | Outcome:
        """Take the step of an answer, or of the end of the time for one."""
        state = unpack_clarification(process)
        if wait.name == CANCEL_WAIT:
            ended = msgspec.structs.replace(state, phase="cancelled", said=f"CANCELLED: {wait.note}")
            return await self._end(process, ended, wait)
        if isinstance(delivery.payload, WaitDue):
            if not wait.name.startswith(QUESTION_WAIT):
                raise NewerCode
            return await self._end(process, msgspec.structs.replace(state, phase="timed_out"), wait)
        if isinstance(delivery.payload, ErrorReported):
            return _SKIPPED
        if not isinstance(delivery.payload, TaskClarified):
            raise NewerCode
        try:
            self._check_answer(delivery.message, delivery.payload, wait, state)
        except ContractError as error:
            _log.warning("clarification.answer_refused", task=process.task_id, detail=error.text[:200])
            return refused(error.with_traceback(None))
        answered = msgspec.structs.replace(state, phase="answered", answer=delivery.message.value)
        return await self._end(process, answered, wait)

    def written(self, change: ProcessChange) -> None:
        """Nobody waits for it in this process."""

    async def cancelled(self, process: Process, by: str, why: str) -> tuple[ProcessChange, Sequence[NewRecord]] | None:  # noqa: ARG002
        """End a question that is open: its requester does not want the work any more."""
        state = unpack_clarification(process)
        waits = await self.store.waits_of(process.id)
        if state.phase != "open" or not waits:
            return None
        return await self._end(process, msgspec.structs.replace(state, phase="cancelled", said=why), waits[0])

    def _check_answer(self, message: Message, payload: TaskClarified, wait: Wait, state: ClarificationState) -> None:
        """Raise ContractError unless *message* is the answer of whoever was asked, to this very question."""
        if message.metadata.sender.id != wait.addressee:
            raise ContractError(
                f"{wait.addressee} was asked, but another agent answers", "/metadata/sender/id", "unauthorized"
            )
        parents = message.verification.parents
        if not parents or parents[0] != wait.seal:
            raise ContractError(
                "it answers a question, and that is not its first parent", "/verification/parents", "unauthorized"
            )
        wanted = len(questions_in(state).questions)
        if len(payload.answers) != wanted:
            raise ContractError(
                f"{len(payload.answers)} answers to {wanted} questions", "/data/answers", "semantic_violation"
            )

    async def _end(
        self, process: Process, state: ClarificationState, wait: Wait
    ) -> tuple[ProcessChange, Sequence[NewRecord]]:
        """End the wait: the stored records go back to the group, whose next run is told."""
        ending = Ending(outcome=_OUTCOMES[state.phase], reason=cut(state.said, _MAX_REASON), where=state.phase)
        state = msgspec.structs.replace(state, ending=ending)
        # A later run asks the row, which stays at least as long as the message may run.
        left_ms = max(0, state.expires_ms - self._clock.now_ms())
        change = self._change(process, state, keep_ms=self.group.keep_ms + left_ms, acted=wait.id)
        outputs = [record for hold in await self.store.holds_of(process.id) for record in decode_outputs(hold.record)]
        return change, outputs

    # Rows.

    def _change(
        self,
        process: Process,
        state: ClarificationState,
        *,
        holds: Sequence[Hold] = (),
        keep_ms: int = 0,
        acted: str | None = None,
    ) -> ProcessChange:
        is_over = state.phase != "open"
        after = msgspec.structs.replace(
            process,
            version=process.version + 1,
            status="finished" if is_over else "open",
            state=pack_clarification(state),
        )
        return ProcessChange(
            before=process, after=after, keep_ms=keep_ms, holds=holds, frees_holds=is_over, acted=acted
        )

    def _hold(self, delivery: Accepted, identity: bytes) -> Hold:
        return hold_of(delivery, self.group, identity)
