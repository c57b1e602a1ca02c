"""RunDesk: the approvals of the steps of one run: whether a step may begin, and storing the run until it may.

Owns design part three 22.2 and 22.3: which approval a step needs, its id and its packet, what a decision lets run, and
the one transaction that stores the held message with all that its run has asked for, questions to its requester too.
The steps themselves are in `consumers.delivery.inbox.remembered_steps`, processes of approvals in
`consumers.processes.approvals.service`, those of questions in `consumers.processes.clarifications.service`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from bus import failpoints
from bus.artifacts.store import has_artifacts
from bus.errors import ApprovalRefused, BusError, ContractError, MissingSetting
from bus.protocol import canonical
from bus.telemetry.logs import get_logger
from bus.transports.base import NewRecord
from bus.trust.policy.decision import Deny, NeedsApproval
from bus.vocabulary.task import TaskClarification
from consumers.delivery.approval_given import ApprovalGiven
from consumers.delivery.handler_errors import RunHeld, TaskCancelled
from consumers.delivery.handling.runner import BeginTransaction, RunPermit
from consumers.delivery.inbox.base import Transaction
from consumers.delivery.inbox.remembered_steps import StepPermit
from consumers.delivery.inbox.step_call import StepCall
from consumers.delivery.settling.dispositions import wait_in_tiers
from consumers.delivery.settling.outcome import Dead, Outcome, RetryInLane, Withheld
from consumers.delivery.state.delivery import Accepted
from consumers.processes.approvals.approval import Approval, Need, need_of_step
from consumers.processes.approvals.packet import Within, approval_id_of, packet_of
from consumers.processes.approvals.service import (
    ApprovalService,
    Asking,
    Proceed,
    ending_of_approval,
    is_withdrawn,
)
from consumers.processes.approvals.state import APPROVAL_SAGA, STEP_WAIT_NAME, ApprovalState, unpack_approval
from consumers.processes.clarifications.question_desk import QuestionDesk
from consumers.processes.clarifications.service import ClarificationService
from consumers.processes.sagas.asking_message import MIN_LEFT_S, AskingMessage, HeldFor, beginnings_of
from consumers.processes.sagas.process import NewerCode, Process
from consumers.processes.sagas.store import ProcessChange
from producers.sealing.run_labels import RunLabels

__all__ = ["MAX_ARGUMENT_BYTES", "RunDesk"]

MAX_ARGUMENT_BYTES: Final = 8_192
"""Of the arguments in a packet; larger ones are an artifact."""
_PER_MESSAGE: Final = 16
"""Approvals that one message may open in its life."""
_PER_CONVERSATION: Final = 16
"""Open approvals of steps of one group in one conversation."""
_PER_GROUP: Final = 1_000
_AT_ONCE_S: Final = 0.05
_REFUSALS: Final = frozenset({"approval_rejected", "approval_timeout", "approval_invalid", "unauthorized"})

_log = get_logger("approvals")


class OpenApproval(msgspec.Struct, frozen=True, kw_only=True):
    """An approval of a step that is not decided yet."""

    service: ApprovalService
    delivery: Accepted
    asking: Asking

    @property
    def wait_name(self) -> str:
        """The name of its wait."""
        return self.asking.wait_name

    async def held_back(self) -> tuple[ProcessChange, Sequence[NewRecord]] | None:
        """Return the step that stores the message until the decision; None where the run may go on with one."""
        process = await _approval_of(self.service, self.asking.name)
        state = None if process is None else unpack_approval(process)
        if state is not None and state.phase != "open":
            return None
        try:
            return await self.service.hold_back(self.delivery, self.asking, process, state)
        except ContractError:
            # The time has become too short: the next run tells the handler.
            return None


class RunDesk:
    """The desk of the run *run* of *delivery*, whose inbox row has the key *row_key*."""

    def __init__(
        self,
        service: ApprovalService,
        clarifications: ClarificationService,
        delivery: Accepted,
        run: RunLabels,
        row_key: str,
    ) -> None:
        self._service = service
        self._delivery = delivery
        self._run = run
        self._row_key = row_key
        self._admission = run.admission
        self._message = AskingMessage(delivery, row_key, has_keys=run.admission.has_keys)
        self._questions = QuestionDesk(clarifications, self._message, run)
        self._asked: dict[str, HeldFor] = {}
        self.is_held = False
        """Whether the run has asked for a decision, and ends as held whatever it does from now on."""
        self.granted: list[RunPermit] = []
        """Approvals that are used up with the result of the run."""

    async def permit(self, call: StepCall, step: str, arguments: Mapping[str, Any]) -> StepPermit | None:
        """Return the permit for a step that has not begun; None if it needs no approval.

        Raises ApprovalRefused. Raises RunHeld where the approval is not decided yet.
        """
        need = await self._need_of(call, step)
        if need is None:
            return None
        proceed = await self._agreed(call.name, step, arguments, need)
        if proceed is None:
            self.is_held = True
            raise RunHeld
        return StepPermit(self._service.writes_of_use(proceed), lambda: self._tell(proceed))

    async def begun_before(self, step: str) -> None:
        """Tell again that the approval of *step* is used up: the run that began it may have ended before it told."""
        for process in await self._opened():
            try:
                state = unpack_approval(process)
            except NewerCode:
                continue
            if state.phase == "consumed" and _step_of(state) == step:
                await self._send(state.approval_id, self._service.closed(state))

    async def approve(self, name: str, step: str, arguments: Mapping[str, Any], approval: Approval) -> ApprovalGiven:
        """Return the approval of an effect that is no function. It is used up with the result of the run.

        Raises ApprovalRefused, RunHeld.
        """
        need = await self._need_of(StepCall(name=name, function=self.approve, approve=approval), step)
        assert need is not None  # noqa: S101 - one was given
        proceed = await self._agreed(name, step, arguments, need)
        if proceed is None:
            self.is_held = True
            raise RunHeld
        if all(each.agreed.approval_id != proceed.agreed.approval_id for each in self.granted):
            self.granted.append(proceed)
        return proceed.agreed

    async def ask(self, call: StepCall, step: str, arguments: Mapping[str, Any]) -> bool:
        """Ask for the approval of a step that has not begun, without an end of the run; return whether it waits.

        A refusal is told by `permit`.
        """
        try:
            need = await self._need_of(call, step)
            return need is not None and await self._agreed(call.name, step, arguments, need) is None
        except ApprovalRefused:
            return False

    async def clarify(self, question: TaskClarification, step: str, timeout_s: float | None) -> bytes:
        """Return the sealed answer of the requester to *question*, the step of that id.

        Raises ClarificationMissing, ContractError. Raises RunHeld where there is no answer yet.
        """
        try:
            found = await self._questions.ask(question, step, timeout_s, at_most=_PER_MESSAGE)
        except NewerCode:
            self.hold_run()
        if not isinstance(found, bytes):
            self._asked[found.name] = found
            self.hold_run()
        return found

    def hold_run(self) -> NoReturn:
        """End the run as held. Raises RunHeld."""
        self.is_held = True
        raise RunHeld

    async def hold(self, begin: BeginTransaction) -> Outcome:
        """Store the message with all that its run has asked for, or return why it does not wait for that.

        *begin* opens the transaction in which its inbox row is freed where the outcome is `Withheld`.
        """
        service, delivery = self._service, self._delivery
        if await service.cancelled_now(delivery.message) is not None:
            # The next run is skipped for that reason, and nobody is asked.
            return RetryInLane(_AT_ONCE_S)
        while True:
            changes: list[ProcessChange] = []
            outputs: list[NewRecord] = []
            for asked in self._asked.values():
                try:
                    held = await asked.held_back()
                except NewerCode:
                    return self._put_back()
                if held is None:
                    # It was decided meanwhile, or the time has become too short: the run goes on with that.
                    return RetryInLane(_AT_ONCE_S)
                changes.append(held[0])
                outputs += held[1]
            if not changes:
                return self._put_back()
            transaction = await begin()
            if await service.store.write(transaction, changes):
                is_new = any(change.before is None for change in changes)
                if not is_new or not await self._exceeds(transaction):
                    return Withheld(outputs)
                await transaction.rollback()
                # Its turn comes when others are decided: nothing has been said about this one.
                return self._put_back()
            await transaction.rollback()

    # Its parts.

    async def _need_of(self, call: StepCall, step: str) -> Need | None:
        """Return the approval that a step needs, by its declaration and the policy of now."""
        delivery, declared = self._delivery, call.approve
        if declared is None and not call.is_tool:
            return None
        kind = delivery.subscription.kind
        decision = self._admission.decide_use(call.name, delivery.message, kind, delivery.payload, self._run.current)
        if isinstance(decision, Deny):
            await self._end_denied(step, decision.rule)
            raise ApprovalRefused(f"rule {decision.rule} of the policy does not allow {call.name} here", "unauthorized")
        wanted = decision if isinstance(decision, NeedsApproval) else None
        need = need_of_step(declared if isinstance(declared, Approval) else None, wanted, call.name)
        if need is not None:
            self._check_deciders(need)
        return need

    def _check_deciders(self, need: Need) -> None:
        """Raise MissingSetting where nobody could decide: the message waits with its steps until somebody can."""
        if not self._admission.has_keys:
            raise MissingSetting("trust.keys", "a step needs an approval, and without keys no decision can be verified")
        if not self._admission.has_rules and not self._admission.counts_as_human:
            who = "who is human" if need.by == "human" else "who may approve"
            raise MissingSetting("policy.file", f"a step needs an approval, and only a policy decides {who}")

    async def _agreed(self, name: str, step: str, arguments: Mapping[str, Any], need: Need) -> Proceed | None:
        """Return the approval of the step; None where it has to be waited for."""
        asking = self._asking(name, step, arguments, need, await self._shown(name, arguments))
        process = await self._find(asking.name)
        if process is None:
            self._check_room(name)
            opened = {each.key for each in await self._opened()} | {*self._asked} | {asking.name}
            if len(opened) > _PER_MESSAGE:
                raise ApprovalRefused(f"one message may ask for {_PER_MESSAGE} approvals, and has", "too_many")
            self._asked[asking.name] = self._open(asking)
            return None
        try:
            state = unpack_approval(process)
        except NewerCode:
            # A later version of this program has decided what this one does not understand: another worker goes on.
            self.is_held = True
            raise RunHeld from None
        if state.phase == "open":
            self._asked[asking.name] = self._open(asking)
            return None
        return await self._decided(asking, process, state)

    async def _decided(self, asking: Asking, process: Process, state: ApprovalState) -> Proceed:
        if is_withdrawn(process, state):
            raise TaskCancelled(state.said)
        if state.phase != "approved":
            used = ("approval_invalid", "its approval was used before")
            reason, text = used if state.phase == "consumed" else ending_of_approval(state)
            raise ApprovalRefused(text, reason)
        verdict = await self._service.agreed(self._delivery, asking.need, asking.action, process, state)
        if isinstance(verdict, ApprovalGiven):
            return Proceed(self._service, verdict, process, state)
        failure = verdict.failure if isinstance(verdict, Dead) else None
        reason = failure.reason if failure is not None and failure.reason in _REFUSALS else "approval_invalid"
        raise ApprovalRefused(failure.text if failure is not None else "its approval does not stand", reason)

    async def _shown(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return *arguments* as people are shown them: large ones as an artifact, by a reference with their hash."""
        data = canonical.encode(dict(arguments))
        if len(data) <= MAX_ARGUMENT_BYTES:
            return arguments
        publisher = self._service.publisher
        if not has_artifacts(publisher.settings):
            raise ApprovalRefused(
                f"the arguments of {name} take {len(data)} bytes, and a request carries {MAX_ARGUMENT_BYTES} at most: "
                "set artifacts.url, or pass a Ref with its sha256",
                "too_large",
            )
        ref = await publisher.artifacts.put(data, media_type="application/json")
        return {"artifact": msgspec.to_builtins(ref)}

    def _asking(
        self, name: str, step: str, arguments: Mapping[str, Any], need: Need, shown: Mapping[str, Any]
    ) -> Asking:
        delivery = self._delivery
        message = delivery.message
        within = Within(step=step, tool=name, arguments=shown, labels=self._run.current)
        try:
            action = packet_of(
                message,
                delivery.subscription.kind,
                delivery.payload,
                group=self._service.group.name,
                need=need,
                admission=self._admission,
                within=within,
            )
        except ContractError as error:
            raise ApprovalRefused(error.text, error.reason) from error
        digest = hashlib.sha256(canonical.encode(dict(arguments))).hexdigest()[:32]
        identity = approval_id_of(
            message,
            group=self._service.group.name,
            rule=f"{need.rule}/{step}/{digest}",
            key=self._row_key,
            count=delivery.control.redrive_count,
        )
        return Asking(
            need=need,
            name=identity,
            action=action,
            wait_name=self._message.wait_name(STEP_WAIT_NAME, identity),
            run=self._run,
            owner=self._message.owner,
        )

    def _check_room(self, name: str) -> None:
        left_s = self._service.left_s(self._delivery)
        if left_s < MIN_LEFT_S:
            raise ApprovalRefused(
                f"its message lives for another {max(0, round(left_s))} s, too short for a decision about {name}: "
                "publish it with a ttl of an hour or more",
                "approval_timeout",
            )

    async def _exceeds(self, transaction: Transaction) -> bool:
        """Return whether what *transaction* opens is too much for the conversation or the group."""
        beginnings = beginnings_of(next(iter(self._asked.values())).wait_name)
        for beginning, most in zip(beginnings, (_PER_CONVERSATION, _PER_GROUP), strict=True):
            if (count := await self._service.store.count_waits(transaction, beginning)) > most:
                message_id = self._delivery.message.message_id
                _log.info("approval.waits_for_its_turn", message_id=message_id, open=count - 1, at_most=most)
                return True
        return False

    async def _opened(self) -> list[Process]:
        """Return the approvals that this message has opened so far."""
        return await self._message.opened(self._service.store, APPROVAL_SAGA)

    async def _end_denied(self, step: str, rule: str) -> None:
        """End an approval that a rule does not let be used any more."""
        for process in await self._opened():
            try:
                state = unpack_approval(process)
            except NewerCode:
                continue
            if state.phase == "approved" and _step_of(state) == step:
                await self._service.void(process, state, (), f"rule {rule} of the policy denies it now")
                raise ApprovalRefused(f"rule {rule} of the policy denies it now", "approval_invalid")

    async def _find(self, name: str) -> Process | None:
        return await _approval_of(self._service, name)

    def _open(self, asking: Asking) -> OpenApproval:
        return OpenApproval(service=self._service, delivery=self._delivery, asking=asking)

    def _put_back(self) -> Outcome:
        return wait_in_tiers(self._delivery, self._service.group.tiers, self._service.left_s(self._delivery))

    async def _tell(self, proceed: Proceed) -> None:
        """Tell that the approval is used up. A run that begins again tells it again."""
        failpoints.reach("begun")
        await self._send(proceed.agreed.approval_id, proceed.closed())

    async def _send(self, approval: str, records: Sequence[NewRecord]) -> None:
        try:
            await self._service.send(records)
        except BusError as error:
            _log.warning("approval.closing_not_sent", approval=approval, error=str(error))


async def _approval_of(service: ApprovalService, name: str) -> Process | None:
    return await service.store.find(service.store.ids.process(APPROVAL_SAGA, "", name))


def _step_of(state: ApprovalState) -> object:
    within = state.action.get("within")
    return within.get("step") if isinstance(within, dict) else None
