"""The workflow engine: one process per run, whose state is the definition, its hash, the variables, and where it is.

Owns carrying out what `advance` decides: a message is an ask, a wait is a timer. It runs with the authority and the
level of the message that started it, never with its own (W1); an emit that uses no answer has the level of the start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from bus.errors import ContractError, Reject
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol import canonical
from bus.vocabulary import BUILT_IN
from bus.vocabulary.act import ActAccept, ActConfirm, ActError, ActInform, ActPropose, ActQuery, ActReject, ActRequest
from bus.vocabulary.bus import WorkflowStart
from bus.vocabulary.evidence import EvidenceObserved
from bus.vocabulary.method import MethodResponse
from bus.vocabulary.parts import ErrorInfo
from bus.vocabulary.review import ReviewOutput, ReviewResult
from bus.vocabulary.task import StatusUpdate, TaskRejected, TaskResult
from consumers.agents.workflows.advance import (
    Answered,
    Dropping,
    FailedNode,
    Finished,
    Sending,
    Started,
    TimeOver,
    Waiting,
    WorkflowDecision,
    WorkflowEvent,
    WorkflowState,
    advance,
)
from consumers.agents.workflows.check import check_workflow
from consumers.agents.workflows.definition import Workflow, parse_workflow, sent_by, sha256_of, type_of
from consumers.agents.workflows.variables import initial_variables
from consumers.app.app import App
from consumers.processes.sagas.context import SagaContext
from consumers.processes.sagas.rules import EVERY_NAME, Saga, on_answer, on_failure, on_start, on_timer

__all__ = ["ENGINE", "RunState", "WorkflowRun", "workflow_engine"]

ENGINE: Final = "workflow@sealbus"
_ENTROPY_BYTES: Final = 4
_ACT: Final = "act."


class RunState(msgspec.Struct, kw_only=True):
    """The stored state of one workflow run."""

    definition: dict[str, Any] = {}
    sha256: str = ""
    run: WorkflowState = WorkflowState()


class WorkflowRun(Saga[RunState], version="1.0.0", name="workflow"):
    """Runs workflow definitions; see `workflow_engine`."""

    keeps = ("definition", "sha256", "run")
    definitions: ClassVar[Mapping[str, Workflow]] = {}
    """Definitions by hash, so that a start may name one instead of carrying it."""
    types: ClassVar[Registry] = BUILT_IN

    @on_start(WorkflowStart)
    async def started(self, start: WorkflowStart, context: SagaContext) -> None:
        definition = self._definition(start)
        if faults := [finding for finding in check_workflow(definition) if finding.severity == "error"]:
            raise Reject(f"{faults[0].pointer}: {faults[0].text}; {faults[0].cure}")
        try:
            variables = initial_variables(
                definition.variables,
                start.variables,
                now_ms=context.now_ms,
                entropy=os.urandom(_ENTROPY_BYTES),
                workflow_id=context.message.message_id,
            )
        except ContractError as error:
            raise Reject(f"{error.pointer}: {error.text}") from error
        self.state.definition = msgspec.to_builtins(definition)
        self.state.sha256 = sha256_of(definition)
        self.state.run = WorkflowState(variables=variables)
        self._go_on(context, Started())

    @on_answer(
        EVERY_NAME,
        ActInform,
        ActConfirm,
        ActAccept,
        ActPropose,
        ActReject,
        ActQuery,
        ActError,
        TaskResult,
        TaskRejected,
        ReviewResult,
        ReviewOutput,
        MethodResponse,
        EvidenceObserved,
    )
    async def answered(self, _: object, context: SagaContext) -> None:
        message = context.message
        kind = self.types.get(message.message_type)
        spoken = message.metadata.performative or (None if kind is None else kind.terms.spoken(kind.open(message)))
        data = msgspec.json.decode(message.data)
        content = data.get("content", data) if message.message_type.startswith(_ACT) else data
        if message.message_type == "task.result" and data.get("status") != "completed":
            spoken = "error"
        self._go_on(context, Answered(context.wait_name, spoken or "inform", content))

    @on_failure(EVERY_NAME)
    async def not_answered(self, context: SagaContext) -> None:
        failure = context.failure
        if failure is None or failure.kind == "silent" or failure.kind == "cancelled":  # noqa: PLR1714 - mypy narrows it
            self._go_on(context, FailedNode(context.wait_name, "silent"))
        else:
            self._go_on(context, FailedNode(context.wait_name, failure.kind, failure.reason))

    @on_timer(EVERY_NAME)
    async def time_over(self, context: SagaContext) -> None:
        self._go_on(context, TimeOver(context.wait_name))

    def _go_on(self, context: SagaContext, event: WorkflowEvent) -> None:
        definition = parse_workflow(self.state.definition)
        before = self.state.run.at
        self.state.run, decisions = advance(definition, self.state.run, event)
        if self.state.run.at != before:
            context.progress(f"{definition.name}: {self.state.run.at}")
        for decision in decisions:
            self._carry_out(context, decision, definition)

    def _carry_out(self, context: SagaContext, decision: WorkflowDecision, definition: Workflow) -> None:
        match decision:
            case Sending():
                self._send(context, decision)
            case Waiting(wait=wait, after_s=after_s):
                context.timer(wait, after_s)
            case Dropping(wait=wait):
                context.cancel(wait)
            case Finished():
                self._finish(context, decision, definition)

    def _send(self, context: SagaContext, sending: Sending) -> None:
        message = sending.message
        name = type_of(message)
        kind = self.types.get(name)
        if kind is None:
            raise Reject(f"{sending.wait}: no message type {name!r}")
        data = {"content": sending.content} if name.startswith(_ACT) else sending.content
        payload = _payload(kind, data, sending.wait)
        context.ask(
            sending.wait,
            payload,
            to=message.receiver,
            answer_by_s=sending.timeout_s,
            task_id=context.task_id,
            uses=() if sending.apart else None,
        )

    def _finish(self, context: SagaContext, end: Finished, definition: Workflow) -> None:
        if end.status == "completed":
            result = TaskResult(status="completed", summary=f"{definition.name} is done", output=end.result)
        else:
            error = ErrorInfo(code="WORKFLOW_FAILED", message=end.why or definition.name)
            result = TaskResult(status="failed", summary=end.why, error=error)
        context.answer(result, task_id=context.task_id)
        context.finish("completed" if end.status == "completed" else "failed", end.why or "")

    def _definition(self, start: WorkflowStart) -> Workflow:
        if start.definition is not None:
            try:
                return parse_workflow(start.definition)
            except ContractError as error:
                raise Reject(f"/definition{error.pointer}: {error.text}") from error
        wanted = "" if start.ref is None else start.ref.sha256 or ""
        found = self.definitions.get(wanted)
        if found is None:
            # No program opens a reference because a message names it.
            raise Reject("the engine does not know the definition that the reference names: send it along")
        return found


def workflow_engine(definitions: Iterable[Workflow] = (), types: Sequence[type[Any]] = ()) -> App:
    """Return the app of the workflow engine, `workflow@sealbus`.

        sealbus serve workflows                      # or, in a program: workflow_engine().running(url)

    *definitions* may be started by their hash, *types* are message types that workflows send besides the built-in ones.
    """
    app = App(ENGINE, types=[StatusUpdate, TaskResult, *types])

    class Engine(WorkflowRun, version="1.0.0", name="workflow"):
        """This engine's own."""

    Engine.definitions = {sha256_of(each): each for each in definitions}
    Engine.types = Registry(types, below=BUILT_IN)
    names = {name for each in Engine.definitions.values() for name in sent_by(each)}
    Engine.sends = (ActRequest, *(kind.cls for name in sorted(names) if (kind := Engine.types.get(name)) is not None))
    app.add(Engine)
    return app


def _payload(kind: PayloadType, data: dict[str, Any], wait: str) -> Any:
    try:
        return kind.decode(canonical.encode(data))
    except ContractError as error:
        raise Reject(f"{wait}: {error.pointer}: {error.text}") from error
