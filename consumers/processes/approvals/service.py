"""ApprovalService: the process of one approval, from the waiting record to the run.

Owns the built-in saga `approval` (design part two 16.6). One transaction stores the waiting message, opens or advances
its process and frees its inbox row; then the request is sent. A decision, or the timeout, sends the stored records back
to the group. Copies, repeats and redrives of a message share one process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from bus.clock import Clock
from bus.errors import BusError, ContractError
from bus.payloads.payload_types import PayloadType, payload_type
from bus.protocol import canonical, sealing
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.redaction import cut
from bus.telemetry.logs import get_logger
from bus.topics.names import message_topic
from bus.transports.base import NewRecord
from bus.trust.admission import Admission
from bus.trust.policy.decision import NeedsApproval, admits
from bus.vocabulary.approval import Action, ApprovalDecision, ApprovalRequest, hash_of
from bus.vocabulary.bus import ApprovalClosed, WaitDue
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.parts import RiskAssessment
from consumers.delivery.approval_given import ApprovalGiven
from consumers.delivery.handler_errors import TaskCancelled
from consumers.delivery.inbox.base import Transaction, Write, principal_of
from consumers.delivery.inbox.row_encoding import decode_outputs
from consumers.delivery.settling.dispositions import cancelled_by, refusal, refused, wait_in_tiers
from consumers.delivery.settling.outcome import Done, Outcome, Withheld
from consumers.delivery.settling.outputs import seal_progress, status_of
from consumers.delivery.state.delivery import Accepted
from consumers.processes.approvals.approval import Approval, Need, need_of
from consumers.processes.approvals.decisions import check_decider, check_decision, owner_of
from consumers.processes.approvals.packet import approval_id_of, differing_members, packet_of
from consumers.processes.approvals.state import (
    APPROVAL_SAGA,
    EXPIRY_NAME,
    MESSAGE_SHAPE,
    SHAPE,
    WAIT_NAME,
    ApprovalPhase,
    ApprovalState,
    Decided,
    pack_approval,
    unpack_approval,
)
from consumers.processes.sagas.asking_message import MIN_LEFT_S, RUN_S, hold_of
from consumers.processes.sagas.process import Ending, Hold, NewerCode, Process, Wait
from consumers.processes.sagas.process_group import ProcessGroup
from consumers.processes.sagas.store import NewWait, ProcessChange, ProcessStore, WaitGuard
from producers.publisher import Publisher
from producers.sealing.options import Outgoing
from producers.sealing.run_labels import RunLabels
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import record_of

__all__ = ["ApprovalService", "Asking", "Proceed", "ending_of_approval", "is_withdrawn"]

_SEND_S: Final = 5.0
_MAX_OPEN: Final = 20
"""Open approvals of one sender."""
_MAX_REASON: Final = 400
_ENDS: Final = frozenset({"rejected", "changes_requested", "timed_out", "expired", "void"})
_SKIPPED: Final = Done(ran=False)

_log = get_logger("approvals")


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """An approval that a message asks for."""

    need: Need
    name: str
    """Its id."""
    action: dict[str, Any]
    """The packet."""
    wait_name: str
    """The name of its wait: by beginnings of it open approvals are counted."""
    run: RunLabels | None = None
    """The run that asks, for a step of it; None: the whole message waits."""
    owner: str = ""
    """Which message asks, for a step."""


class Proceed(msgspec.Struct, frozen=True):
    """The message may run: *agreed* has its approvers. Its process is consumed with the result of the run."""

    approvals: ApprovalService
    agreed: ApprovalGiven
    process: Process
    state: ApprovalState

    async def consume(self, transaction: Transaction) -> bool:
        """Use the approval up in *transaction*; False: it was used or voided meanwhile."""
        return await self.approvals.consume(transaction, self.process, self.state)

    def closed(self) -> Sequence[NewRecord]:
        """Return the message to send when the run has its result."""
        return self.approvals.closed(self.state)


class ApprovalService:
    """Stores messages that need an approval, for one group."""

    hears = False

    def __init__(
        self,
        store: ProcessStore,
        *,
        group: ProcessGroup,
        publisher: Publisher,
        admission: Admission,
        verifier: Verifier | None,
        clock: Clock,
        cancelled_now: Callable[[Message], Awaitable[TaskCancelled | None]],
    ) -> None:
        self.store = store
        self.cancelled_now = cancelled_now
        self.group = group
        self.publisher = publisher
        self._admission = admission
        self._verifier = verifier
        self._clock = clock

    def left_s(self, delivery: Accepted) -> float:
        """Return the seconds until *delivery* expires."""
        return (delivery.expires_ms - self._clock.now_ms()) / 1000

    def writes_of_use(self, proceed: Proceed) -> Sequence[Write]:
        """Return the writes that use an approval up."""
        return self.store.writes_of([self._used(proceed.process, proceed.state)])

    async def send(self, records: Sequence[NewRecord]) -> None:
        """Append *records*, and wait for the log. Raises BusError."""
        topics = {record.topic for record in records}
        waiting = await self.publisher.queue(records, topics, timeout_s=_SEND_S)
        for outcome in await waiting:
            if isinstance(outcome, BusError):
                raise outcome

    def need_of(self, delivery: Accepted) -> Need | None:
        """Return the approval that *delivery* needs before it may run; None if it needs none."""
        declared = delivery.subscription.approval
        policy_need = delivery.needs if isinstance(delivery.needs, NeedsApproval) else None
        return need_of(declared if isinstance(declared, Approval) else None, policy_need)

    async def judge(
        self, delivery: Accepted, need: Need, key: str, begin: Callable[[], Awaitable[Transaction]]
    ) -> Proceed | Outcome:
        """Decide whether *delivery*, remembered under *key*, may run now, is held, or is dead.

        *begin* opens the transaction in which its inbox row is freed where the outcome is `Withheld`.
        """
        message, kind = delivery.message, delivery.subscription.kind
        try:
            action = packet_of(
                message, kind, delivery.payload, group=self.group.name, need=need, admission=self._admission
            )
        except ContractError as error:
            return refused(error.with_traceback(None))
        name = approval_id_of(
            message, group=self.group.name, rule=need.rule, key=key, count=delivery.control.redrive_count
        )
        identity = self.store.ids.process(APPROVAL_SAGA, "", name)
        while True:
            process = await self.store.find(identity)
            try:
                state = None if process is None else unpack_approval(process)
            except NewerCode:
                return self._waits(delivery)
            if process is not None and state is not None and state.phase != "open":
                return await self._decided(delivery, need, action, process, state)
            if process is None and (cancelled := await self.cancelled_now(message)) is not None:
                return cancelled_by(cancelled)
            try:
                asking = Asking(need=need, name=name, action=action, wait_name=_wait_name(message, action))
                change, outputs = await self.hold_back(delivery, asking, process, state)
            except ContractError as error:
                return refused(error.with_traceback(None))
            transaction = await begin()
            if await self.store.write(transaction, [change]):
                too_many = "" if process is not None else await self._too_many(transaction, message, action)
                if not too_many:
                    return Withheld(outputs)
                await transaction.rollback()
                _log.info("approval.waits_for_its_turn", message_id=message.message_id, detail=too_many)
                # Its turn comes when another is decided: nothing has been said about this one.
                return self._waits(delivery)
            await transaction.rollback()

    def _waits(self, delivery: Accepted) -> Outcome:
        """Let *delivery* wait without an attempt."""
        return wait_in_tiers(delivery, self.group.tiers, self.left_s(delivery))

    async def consume(self, transaction: Transaction, process: Process, state: ApprovalState) -> bool:
        """Consume the approval in the transaction of the run's result; False: it was used or voided meanwhile."""
        return await self.store.write(transaction, [self._used(process, state)])

    def _used(self, process: Process, state: ApprovalState) -> ProcessChange:
        return self.change(process, msgspec.structs.replace(state, phase="consumed"), finished=True)

    def closed(self, state: ApprovalState) -> Sequence[NewRecord]:
        """Return the message to send when the approved run has its result."""
        return self._closing(msgspec.structs.replace(state, phase="consumed"), sealing.parse(state.request))

    # At the head of the lane.

    async def _decided(
        self, delivery: Accepted, need: Need, action: dict[str, object], process: Process, state: ApprovalState
    ) -> Proceed | Outcome:
        if state.phase == "consumed":
            # Its inbox row has been purged; it must not run a second time.
            return refusal("approval_invalid", "its approval was used before")
        if is_withdrawn(process, state):
            return cancelled_by(TaskCancelled(state.said))
        if state.phase in _ENDS:
            return refusal(*ending_of_approval(state))
        verdict = await self.agreed(delivery, need, action, process, state)
        return Proceed(self, verdict, process, state) if isinstance(verdict, ApprovalGiven) else verdict

    async def agreed(
        self, delivery: Accepted, need: Need, action: dict[str, Any], process: Process, state: ApprovalState
    ) -> ApprovalGiven | Outcome:
        """Judge an approved *action* anew, by the packet, the keys and the policy of now (S26, S28)."""
        if differing := differing_members(state.action, action):
            return await self.void(process, state, differing, "it is not what was agreed to")
        conditions = tuple(condition for each in state.decided for condition in each.conditions)
        if conditions and not need.takes_conditions:
            return refusal("approval_rejected", f"its handler takes no conditions: {'; '.join(conditions)[:200]}")
        try:
            self._check_again(delivery, state)
        except ContractError as error:
            return await self.void(process, state, (), error.text)
        return ApprovalGiven(
            approval_id=state.approval_id,
            decided_by=tuple(each.by for each in state.decided),
            conditions=conditions,
            decisions=tuple(each.value for each in state.decided),
        )

    def _check_again(self, delivery: Accepted, state: ApprovalState) -> None:
        """Judge the stored decisions by the keys and the policy of now (S28)."""
        request = sealing.parse(state.request)
        # A row is no proof: what was asked for is what the decisions name by its seal.
        sealing.check_integrity(request)
        owners = set()
        for each in state.decided:
            message = sealing.parse(each.value)
            decision = _decision_of(message)
            check_decision(message, decision, state, request)
            self._check_decider(message, delivery.message, delivery.subscription.kind, delivery.payload, state)
            owners.add(owner_of(message.metadata.sender.id or "", self._admission))
        if len(owners) < state.quorum:
            raise ContractError(f"{len(owners)} of {state.quorum} approvals are valid now", "", "approval_invalid")

    async def hold_back(
        self, delivery: Accepted, asking: Asking, process: Process | None, state: ApprovalState | None
    ) -> tuple[ProcessChange, Sequence[NewRecord]]:
        """Return the step that stores *delivery* until the decision, and the messages to send. Raises ContractError."""
        message, name, need, action = delivery.message, asking.name, asking.need, asking.action
        hold = self._hold(delivery, name)
        if process is not None and state is not None:
            # A decision that is made meanwhile is seen, or sees this hold: both move the version.
            request = self._record_of(sealing.parse(state.request))
            return self.change(process, state, holds=(hold,)), [request]
        left_s = self.left_s(delivery)
        if left_s < MIN_LEFT_S:
            raise ContractError(
                f"it lives for another {max(0, round(left_s))} s, and needs an approval: publish it with a ttl of an "
                "hour or more",
                "/routing/expires_at",
                "approval_timeout",
            )
        after_s = int(min(need.timeout_s, left_s - RUN_S))
        sealed = self.publisher.sealer.seal(
            self._request(delivery, asking, after_s), SealRequest(cause=message, run=asking.run)
        )
        now_ms = self._clock.now_ms()
        fresh = ApprovalState(
            approval_id=name,
            action=action,
            action_hash=hash_of(action),
            rule=need.rule,
            by=need.by,
            quorum=need.quorum,
            same_owner=need.same_owner,
            approvers=need.approvers,
            reason=need.reason,
            request=sealed.record.value or b"",
            expires_ms=delivery.expires_ms,
            due_ms=now_ms + after_s * 1000,
        )
        wait = NewWait(
            id=sealed.message_id,
            name=asking.wait_name,
            after_ms=after_s * 1000,
            seal=sealed.message.seal,
            many=True,
        )
        opened = Process(
            id=self.store.ids.process(APPROVAL_SAGA, "", name),
            namespace=self.group.namespace,
            group=self.group.name,
            saga=APPROVAL_SAGA,
            key=name,
            version=1,
            status="open",
            # Code that does not know approvals of steps leaves them alone.
            shape=SHAPE if asking.run is not None else MESSAGE_SHAPE,
            state=pack_approval(fresh),
            opener=message.value,
            trust=self._admission.labels(message).level if asking.run is None else asking.run.current.level,
            owner=asking.owner,
            sender=principal_of(message, has_keys=self._admission.has_keys),
            task_id=message.metadata.task_id or message.message_id,
        )
        change = ProcessChange(before=None, after=opened, armed=(wait,), holds=(hold,))
        return change, [sealed.record, *self._status(delivery, name)]

    async def _too_many(self, transaction: Transaction, message: Message, action: dict[str, object]) -> str:
        """Return the limit that the approval opened by *transaction* exceeds; "" if none (security S30)."""
        if await self.store.count_waits(transaction, _wait_name(message, {})) > _MAX_OPEN:
            return f"its sender has {_MAX_OPEN} approvals open, and no more are allowed"
        if "resource" in action and await self.store.count_waits(transaction, _wait_name(message, action)) > 1:
            return "its sender has an approval of this type open for the same resource: that is decided first"
        return ""

    def _request(self, delivery: Accepted, asking: Asking, after_s: int) -> Outgoing:
        kind, message = delivery.subscription.kind, delivery.message
        need, name, action = asking.need, asking.name, asking.action
        payload = ApprovalRequest(
            approval_id=name,
            action=msgspec.convert(action, Action),
            action_hash=hash_of(action),
            reason=need.reason,
            risk_assessment=RiskAssessment(risk_level=kind.risk),
            timeout_seconds=after_s,
            seal=message.seal,
            quorum=need.quorum,
            approvers=tuple(glob for globs in need.approvers for glob in globs),
            rule_id=need.rule,
        )
        return Outgoing(payload, reply_to=self.group.mailbox, ttl_s=after_s)

    def _status(self, delivery: Accepted, name: str) -> Sequence[NewRecord]:
        """Notify the requester that its message waits for approval: progress, where it takes that."""
        message = delivery.message
        update = status_of(
            message,
            f"{message.message_type} {message.message_id} waits for an approval",
            None,
            now_ms=self._clock.now_ms(),
            status="waiting_for_approval",
            approval_id=name,
        )
        return seal_progress(self.publisher, message, Outgoing(update)).records

    def _hold(self, delivery: Accepted, name: str) -> Hold:
        return hold_of(delivery, self.group, self.store.ids.process(APPROVAL_SAGA, "", name))

    async def void(self, process: Process, state: ApprovalState, differing: Sequence[str], why: str) -> Outcome:
        """End an approval that does not stand, and refuse the message."""
        ended = msgspec.structs.replace(state, phase="void", said=why, differing=tuple(differing))
        await self.store.change(self.change(process, ended, finished=True, frees=True))
        fields = f": {', '.join(differing)}" if differing else ""
        return refusal("approval_invalid", f"{why}{fields}", differing[0] if differing else "")

    # From the mailbox.

    async def mailed(
        self, wait: Wait, process: Process, delivery: Accepted
    ) -> tuple[ProcessChange, Sequence[NewRecord]] | Outcome:
        """Take the step of a decision, or of the end of the time for one."""
        state = unpack_approval(process)
        if isinstance(delivery.payload, WaitDue):
            if state.phase == "open" and wait.name.startswith(WAIT_NAME):
                return await self._end(process, state, "timed_out", wait)
            if state.phase == "approved" and wait.name == EXPIRY_NAME:
                return await self._end(process, state, "expired", wait)
            raise NewerCode
        if isinstance(delivery.payload, ErrorReported):
            return _SKIPPED
        if not isinstance(delivery.payload, ApprovalDecision):
            raise NewerCode
        return await self._answered(wait, process, state, delivery.message, delivery.payload)

    def written(self, change: ProcessChange) -> None:
        """Nobody waits for it in this process."""

    async def cancelled(self, process: Process, by: str, why: str) -> tuple[ProcessChange, Sequence[NewRecord]] | None:
        """End an approval that is open: its requester does not want it any more."""
        state = unpack_approval(process)
        waits = await self.store.waits_of(process.id)
        if state.phase != "open" or not waits:
            return None
        return await self._end(process, msgspec.structs.replace(state, ended_by=by, said=why), "expired", waits[0])

    async def _answered(
        self, wait: Wait, process: Process, state: ApprovalState, message: Message, decision: ApprovalDecision
    ) -> tuple[ProcessChange, Sequence[NewRecord]] | Outcome:
        try:
            if state.phase != "open":
                raise ContractError(f"the approval is {state.phase} already", "/data/decision", "approval_invalid")
            check_decision(message, decision, state, sealing.parse(state.request))
            pending = sealing.parse(process.opener)
            kind, payload = self._read(pending)
            if not admits(state.approvers, message.metadata.sender.id or ""):
                raise ContractError("is not among the approvers", "/metadata/sender/id", "approval_invalid")
            self._check_decider(message, pending, kind, payload, state)
        except ContractError as error:
            _log.warning("approval.decision_refused", approval=state.approval_id, detail=error.text[:200])
            return refused(error.with_traceback(None))
        decider = message.metadata.sender.id or ""
        if decision.decision != "approve":
            phase: ApprovalPhase = "rejected" if decision.decision == "reject" else "changes_requested"
            said = "; ".join([decision.reason or "", *decision.changes])
            ended = msgspec.structs.replace(state, ended_by=decider, said=said)
            return await self._end(process, ended, phase, wait)
        owner = owner_of(decider, self._admission)
        if any(owner == each.owner or decider == each.by for each in state.decided):
            return refusal("approval_invalid", f"{owner} has approved already", "/metadata/sender/id")
        one = Decided(by=decider, owner=owner, value=message.value, conditions=decision.conditions)
        state = msgspec.structs.replace(state, decided=(*state.decided, one))
        if len(state.decided) < state.quorum:
            return self.change(process, state, acted=wait.id), []
        return await self._end(process, state, "approved", wait)

    def _check_decider(
        self, message: Message, pending: Message, kind: PayloadType, payload: object, state: ApprovalState
    ) -> None:
        check_decider(
            message,
            pending=pending,
            kind=kind,
            payload=payload,
            state=state,
            admission=self._admission,
            verifier=self._verifier,
            agent_id=self.group.agent_id,
        )

    def _read(self, pending: Message) -> tuple[PayloadType, object]:
        kind = self.group.registry.get(pending.message_type)
        if kind is None:
            raise ContractError(
                f"{pending.message_type} is not known here", "/metadata/message_type", "approval_invalid"
            )
        return kind, kind.open(pending)

    async def _end(
        self, process: Process, state: ApprovalState, phase: ApprovalPhase, wait: Wait
    ) -> tuple[ProcessChange, Sequence[NewRecord]]:
        """End the wait for a decision: the stored records go back to the group, which acts on it."""
        state = msgspec.structs.replace(state, phase=phase)
        is_over = phase != "approved"
        armed: tuple[NewWait, ...] = ()
        if not is_over:
            # Until the message is gone; then nobody uses the approval any more.
            left_ms = max(0, state.expires_ms - self._clock.now_ms()) + round(MIN_LEFT_S * 1000)
            identity = self.store.ids.timer(process.id, EXPIRY_NAME, process.version + 1)
            armed = (NewWait(id=identity, name=EXPIRY_NAME, after_ms=left_ms),)
        outputs: list[NewRecord] = []
        change = self.change(process, state, finished=is_over, frees=True, acted=wait.id, ended=(wait.name,))
        guard = None
        if process.owner:
            # The last decision about a message sends it back: two that are made at once must not both leave it.
            beginning = siblings_of(wait.name)
            guard = WaitGuard(beginning=beginning, count=await self.store.count_open_waits(beginning))
        if guard is None or guard.count <= 1:
            for hold in await self.store.holds_of(process.id):
                outputs += decode_outputs(hold.record)
        outputs += self._closing(state, sealing.parse(state.request))
        return msgspec.structs.replace(change, armed=armed, guard=guard), outputs

    def _closing(self, state: ApprovalState, request: Message) -> Sequence[NewRecord]:
        """Return the message that tells how the approval has ended."""
        # Who said no has decided, whoever had agreed before. Whoever has cancelled has decided nothing.
        ended_by = (state.ended_by,) if state.phase != "expired" else ()
        decided_by = ended_by if state.ended_by else tuple(each.by for each in state.decided)
        assert state.phase != "open"  # noqa: S101 - it has ended
        payload = ApprovalClosed(
            approval_id=state.approval_id, state=state.phase, decided_by=decided_by, differing=state.differing
        )
        return self.publisher.sealer.seal(Outgoing(payload), SealRequest(cause=request)).records

    # Rows.

    def change(
        self,
        process: Process,
        state: ApprovalState,
        *,
        finished: bool = False,
        holds: Sequence[Hold] = (),
        frees: bool = False,
        acted: str | None = None,
        ended: Sequence[str] = (),
    ) -> ProcessChange:
        """Return the change of *process* to *state*."""
        if finished:
            state = msgspec.structs.replace(state, ending=_ended_as(process, state))
        after = msgspec.structs.replace(
            process,
            version=process.version + 1,
            status="finished" if finished else "open",
            state=pack_approval(state),
        )
        return ProcessChange(
            before=process,
            after=after,
            keep_ms=self.group.keep_ms,
            holds=holds,
            frees_holds=frees,
            acted=acted,
            ended=ended,
        )

    def _record_of(self, request: Message) -> NewRecord:
        return record_of(request, message_topic(self.group.namespace, request.message_type))


def _decision_of(message: Message) -> ApprovalDecision:
    opened = payload_type(ApprovalDecision).open(message)
    assert isinstance(opened, ApprovalDecision)  # noqa: S101 - of that very type
    return opened


def _ended_as(process: Process, state: ApprovalState) -> Ending:
    """Return how the process of an approval has ended, by its phase."""
    if state.phase == "consumed":
        return Ending(outcome="completed", where=state.phase)
    reason = cut(state.said, _MAX_REASON)
    if is_withdrawn(process, state):
        return Ending(outcome="cancelled", reason=reason, where=state.phase)
    if state.phase in ("timed_out", "expired"):
        return Ending(outcome="timed_out", where=state.phase)
    return Ending(outcome="failed", reason=reason, where=state.phase)


def is_withdrawn(process: Process, state: ApprovalState) -> bool:
    """Return whether the requester has taken its message back.

    It has no part in the decision: where it has ended the approval, that is what it did.
    """
    return bool(state.ended_by) and state.ended_by == sealing.parse(process.opener).metadata.sender.id


def ending_of_approval(state: ApprovalState) -> tuple[str, str]:
    """Return the reason and the text with which the waiting message is dead-lettered."""
    if state.phase in ("timed_out", "expired"):
        return "approval_timeout", "no decision in time"
    if state.phase == "void":
        return "approval_invalid", state.said or "its approval is not valid any more"
    policy_need = "changes are asked for" if state.phase == "changes_requested" else "it was rejected"
    return "approval_rejected", f"{policy_need} by {state.ended_by}: {state.said}"[:400]


def siblings_of(wait_name: str) -> str:
    """Return how the names of the waits of all steps of one message begin, of which *wait_name* is one."""
    return wait_name.rpartition("-")[0] + "-"


def _wait_name(message: Message, action: dict[str, object]) -> str:
    """Return the name of the wait: by its beginning the open approvals of one sender are counted, and of a resource."""
    sender = (message.metadata.sender.id or "").encode()
    name = f"{WAIT_NAME}-{hashlib.sha256(sender).hexdigest()[:16]}"
    if "resource" not in action:
        return name
    about = canonical.encode([message.message_type, action["resource"]])
    return f"{name}-{hashlib.sha256(about).hexdigest()[:16]}"
