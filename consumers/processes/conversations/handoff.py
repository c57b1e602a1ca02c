"""Handoff: responsibility moves to another agent, under a contract about what comes back.

    phase       event                                     then
    requested   handoff.accepted                          accepted
    requested   handoff.rejected                          ended: refused
    requested   handoff.completed                         as accepted
    accepted    the promised message (return_contract)    accepted, and kept
    accepted    handoff.completed, completed              done where the promised message came; else ended: unkept
    accepted    handoff.completed, failed                 ended: failed
    any         death of the request, or silence          ended: died, silent

The delegator's side. The delegatee is an ordinary handler of `handoff.request`, or a saga.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from bus.payloads.class_forms import Payload
from bus.payloads.kept_values import plain_from
from bus.payloads.payload_types import payload_type
from bus.vocabulary.handoff import HandoffAccepted, HandoffCompleted, HandoffRejected, HandoffRequest
from consumers.processes.sagas.context import SagaContext
from consumers.processes.sagas.rules import Saga, on_answer, on_failure, on_progress

__all__ = ["Handoff", "HandoffState"]


class HandoffState(msgspec.Struct, kw_only=True):
    """One handoff."""

    phase: str = ""
    expected: str = ""
    """The message type that the contract promises."""
    promised: dict[str, Any] | None = None
    """The promised message's data."""
    delegatee: str = ""


class Handoff(Saga[HandoffState], abstract=True):
    """Hands a task over, and checks that the other agent fulfils the contract.

    A subclass starts it, and handles its result.

    class Fixing(Handoff, version="1.0.0"):
        @on_start(BugReported)
        async def reported(self, bug, context):
            self.hand_over(context, HandoffRequest(...), to="fixer@svc", within_s=3600)

        @on_progress("handoff", PatchProposal)
        async def patched(self, patch, context): self.keep(patch)

        async def handed_back(self, completed, context): context.answer(...)
        async def not_handed_back(self, why, context): context.answer(...)
    """

    sends = (HandoffRequest,)
    phases = MappingProxyType({"requested": ("accepted", "done", "ended"), "accepted": ("done", "ended")})

    async def handed_back(self, completed: HandoffCompleted, context: SagaContext) -> None:
        """Act on a handoff whose contract was fulfilled; `self.state.promised` is the promised message."""
        raise NotImplementedError

    async def not_handed_back(self, why: str, context: SagaContext) -> None:
        """Act on a handoff that was refused, failed, died, or was completed without the promised result."""
        raise NotImplementedError

    def hand_over(
        self, context: SagaContext, request: HandoffRequest, *, to: str | Sequence[str], within_s: float
    ) -> None:
        """Ask *to*, or several in turn, to take over."""
        self.state.phase, self.state.expected = "requested", request.return_contract.expected_message_type
        context.ask("handoff", request, to=to, answer_by_s=within_s, task_id=context.task_id)

    def keep(self, promised: Payload) -> None:
        """Keep *promised* where it is of the type that the contract names."""
        kind = payload_type(promised)
        if kind.name == self.state.expected:
            self.state.promised = plain_from(kind.encode(promised))

    @on_progress("handoff", HandoffAccepted)
    async def accepted(self, _: HandoffAccepted, context: SagaContext) -> None:
        self.state.phase, self.state.delegatee = "accepted", context.message.metadata.sender.id or ""

    @on_answer("handoff", HandoffRejected)
    async def rejected(self, rejected: HandoffRejected, context: SagaContext) -> None:
        await self._end(f"refused {rejected.reason_code}", context)

    @on_answer("handoff", HandoffCompleted)
    async def completed(self, completed: HandoffCompleted, context: SagaContext) -> None:
        if completed.status == "failed":
            await self._end(f"failed {completed.summary}", context)
        elif self.state.promised is None:
            await self._end(f"unkept: no {self.state.expected} came", context)
        else:
            self.state.phase = "done"
            await self.handed_back(completed, context)
            context.finish("completed")

    @on_failure("handoff")
    async def lost(self, context: SagaContext) -> None:
        failure = context.failure
        await self._end("silent" if failure is None else f"{failure.kind} {failure.reason}".strip(), context)

    async def _end(self, why: str, context: SagaContext) -> None:
        self.state.phase = "ended"
        await self.not_handed_back(why, context)
        context.finish("failed", why)
