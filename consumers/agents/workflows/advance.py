"""The state machine of a workflow: `advance(definition, state, event)` returns the next state and the decisions. Pure.

An outdated event (an answer to an earlier round, a repeat) changes nothing. After every event the run has ended or
waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from bus.errors import ContractError
from consumers.agents.workflows.definition import (
    MAX_WORKFLOW_STEPS,
    Emit,
    EndNode,
    Parallel,
    WaitRetry,
    Workflow,
    WorkflowBranch,
    WorkflowMessage,
    edges_of,
)
from consumers.agents.workflows.variables import filled, uses_answers

__all__ = [
    "Answered",
    "WorkflowDecision",
    "FailedNode",
    "Finished",
    "Sending",
    "Started",
    "TimeOver",
    "Waiting",
    "WorkflowState",
    "advance",
]


class WorkflowState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a run, as JSON values."""

    variables: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    """By node or branch, the data of its last answer."""
    at: str = ""
    """The node that the run waits in."""
    pending: tuple[str, ...] = ()
    """The ids of the node, or of its branches, that the run waits for."""
    retries: dict[str, int] = {}
    steps: int = 0
    ended: Literal["", "completed", "failed", "cancelled"] = ""


class Started(msgspec.Struct, frozen=True):
    """The run begins."""


class Answered(msgspec.Struct, frozen=True):
    """*wait* was answered with *data*, spoken as *performative*."""

    wait: str
    performative: str
    data: dict[str, Any]


class FailedNode(msgspec.Struct, frozen=True):
    """*wait* was refused, died, or was answered by silence."""

    wait: str
    kind: Literal["refused", "died", "silent"]
    reason: str = ""


class TimeOver(msgspec.Struct, frozen=True):
    """The wait of the node *wait* is over."""

    wait: str


WorkflowEvent: TypeAlias = Started | Answered | FailedNode | TimeOver


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """Ask, and wait for the answer under the name *wait*. *apart*: nothing of any answer is in it."""

    wait: str
    message: WorkflowMessage
    content: dict[str, Any]
    timeout_s: float
    apart: bool


class Waiting(msgspec.Struct, frozen=True):
    """Arm the timer *wait*."""

    wait: str
    after_s: float


class Finished(msgspec.Struct, frozen=True):
    """The run has ended."""

    status: Literal["completed", "failed"]
    result: dict[str, Any]
    why: str = ""


class Dropping(msgspec.Struct, frozen=True):
    """Wait for *wait* no longer."""

    wait: str


WorkflowDecision: TypeAlias = Sending | Waiting | Finished | Dropping


def advance(
    definition: Workflow, state: WorkflowState, event: WorkflowEvent
) -> tuple[WorkflowState, Sequence[WorkflowDecision]]:
    """Return the state after *event* and the decisions to carry out. Never raises."""
    if state.ended:
        return state, ()
    try:
        if isinstance(event, Started):
            return (state, ()) if state.at else _enter(definition, state, definition.nodes[0].id)
        if event.wait not in state.pending:
            return state, ()
        if isinstance(event, TimeOver):
            node = definition.node(state.at)
            return _enter(definition, _done(state, event.wait), _first_target(node))
        return _answered(definition, state, event)
    except ContractError as error:
        return _failed(state, f"{error.pointer}: {error.text}" if error.pointer else error.text)


def _answered(
    definition: Workflow, state: WorkflowState, event: Answered | FailedNode
) -> tuple[WorkflowState, Sequence[WorkflowDecision]]:
    node = definition.node(state.at)
    if isinstance(event, Answered):
        state = msgspec.structs.replace(state, answers={**state.answers, event.wait: event.data})
        spoken = event.performative
    else:
        spoken = "timeout" if event.kind == "silent" else "error"
    rest = tuple(each for each in state.pending if each != event.wait)
    is_error = spoken in ("error", "timeout", "reject")
    if isinstance(node, Parallel) and rest:
        ends = is_error if node.join == "all" else not is_error
        if not ends:
            return msgspec.structs.replace(state, pending=rest), ()
        dropped = [Dropping(each) for each in rest]
    else:
        dropped = []
    state = msgspec.structs.replace(state, pending=())
    target = _target(node, spoken)
    if target is None:
        failure_text = f"{event.wait}: {spoken}" + (
            f" ({event.reason})" if isinstance(event, FailedNode) and event.reason else ""
        )
        state, decisions = _failed(state, failure_text)
    else:
        state, decisions = _enter(definition, state, target)
    return state, [*dropped, *decisions]


def _target(node: Any, spoken: str) -> str | None:
    """Return the node that follows *node* after *spoken*; None without such an edge."""
    edges = list(edges_of(node))
    names = [spoken, "error"] if spoken in ("timeout", "reject") else [spoken]
    for name in names:
        for on, to, _ in edges:
            if on == name:
                return to
    if spoken in ("error", "timeout", "reject"):
        return None
    return next((to for on, to, _ in edges if on == "any"), None)


def _first_target(node: Any) -> str:
    return next(to for _, to, _ in edges_of(node))


def _enter(
    definition: Workflow, state: WorkflowState, identity: str
) -> tuple[WorkflowState, Sequence[WorkflowDecision]]:
    nodes = definition.by_id()
    while True:
        node = nodes.get(identity)
        if node is None:
            return _failed(state, f"no node {identity!r}")
        if state.steps >= MAX_WORKFLOW_STEPS:
            return _failed(state, f"it has taken {MAX_WORKFLOW_STEPS} steps")
        state = msgspec.structs.replace(state, steps=state.steps + 1, at=identity, pending=())
        if not isinstance(node, WaitRetry) or (count := state.retries.get(identity, 0)) < node.policy.max_retries:
            break
        # Its fallback may be another that is used up, or itself.
        rest = [to for _, to, _ in edges_of(node)][1:]
        if not rest:
            return _failed(state, f"{identity}: {count} retries are used up")
        identity = rest[0]
    match node:
        case Emit():
            sending = _sending(node.id, node, state)
            return msgspec.structs.replace(state, pending=(node.id,)), [sending]
        case Parallel():
            sendings = [_sending(f"{node.id}.{branch.id}", branch, state) for branch in node.branches]
            return msgspec.structs.replace(state, pending=tuple(each.wait for each in sendings)), sendings
        case WaitRetry():
            return _retrying(node, state)
        case EndNode():
            result = filled(node.result, state.variables, state.answers, f"/nodes/{node.id}/result")
            state = msgspec.structs.replace(state, ended=node.status)
            return state, [Finished(node.status, result, "" if node.status == "completed" else node.id)]


def _retrying(node: WaitRetry, state: WorkflowState) -> tuple[WorkflowState, Sequence[WorkflowDecision]]:
    count = state.retries.get(node.id, 0)
    state = msgspec.structs.replace(state, retries={**state.retries, node.id: count + 1}, pending=(node.id,))
    return state, [Waiting(node.id, node.policy.backoff_sec * node.policy.factor**count)]


def _sending(wait: str, node: Emit | WorkflowBranch, state: WorkflowState) -> Sending:
    message = node.message
    content = filled(message.content, state.variables, state.answers, f"/nodes/{wait}/message/content")
    return Sending(
        wait=wait,
        message=message,
        content=content,
        timeout_s=node.timeout_s,
        apart=not uses_answers(message.content),
    )


def _done(state: WorkflowState, wait: str) -> WorkflowState:
    return msgspec.structs.replace(state, pending=tuple(each for each in state.pending if each != wait))


def _failed(state: WorkflowState, why: str) -> tuple[WorkflowState, Sequence[WorkflowDecision]]:
    state = msgspec.structs.replace(state, ended="failed", pending=())
    return state, [Finished("failed", {}, why)]


def progress_of(definition: Workflow, state: WorkflowState) -> Mapping[str, str]:
    """Return what has become of each node that was reached: done, here, or waiting."""
    reached = {name.partition(".")[0]: "done" for name in state.answers}
    reached |= dict.fromkeys(state.retries, "done")
    if state.at:
        reached[state.at] = "here" if not state.ended else "done"
    return {node.id: reached[node.id] for node in definition.nodes if node.id in reached}
