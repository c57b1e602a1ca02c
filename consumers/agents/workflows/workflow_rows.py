"""Workflows as rows: Saga classes and workflow files, and what each waits for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from bus.errors import ContractError
from bus.protocol import sealing
from bus.protocol.timestamps import format_ms
from consumers.agents.workflows.advance import progress_of
from consumers.agents.workflows.definition import parse_workflow
from consumers.agents.workflows.engine import RunState
from consumers.processes.sagas.history import history_in
from consumers.processes.sagas.process import Memory, Process, Wait, ending_of

__all__ = [
    "PartRow",
    "WaitRow",
    "WorkflowDetails",
    "WorkflowRow",
    "run_of",
    "wait_row",
    "workflow_details",
    "workflow_row",
]


_NOT_DATA: Final = frozenset({"request", "history"})
_FILES: Final = "workflow"
"""The saga that runs workflow files."""


class WorkflowRow(msgspec.Struct, frozen=True, kw_only=True):
    """One workflow."""

    id: str
    name: str
    """The class of the Saga, or the name in the workflow file."""
    key: str
    group: str
    state: str
    """open, or how it has ended."""
    reason: str
    at: str
    """Of a workflow file: the node it is at."""
    sender: str | None
    steps: int
    started_at: str
    changed_at: str


class WaitRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a workflow waits for: an answer, or a time."""

    id: str
    """The workflow."""
    name: str
    key: str
    group: str
    wait: str
    answer_of: str | None
    """The agent that is to answer; None waits for a time."""
    due_at: str
    overdue_s: float


class PartRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step or a wait of a workflow; *end_ms* None: it is under way."""

    name: str
    kind: str
    """step, request or timer."""
    start_ms: int
    end_ms: int | None
    outcome: str
    """done, answered, due, refused, died, silent, cancelled, dropped, replaced, ended; empty: it is under way."""
    agent: str
    """The agent that was asked."""


class WorkflowDetails(WorkflowRow, frozen=True, kw_only=True):
    """One workflow with its stored state."""

    trust: str
    started_by: str
    waits: tuple[WaitRow, ...]
    held: int
    """Messages that are sent when its step is done."""
    data: object
    """The stored state."""
    nodes: dict[str, str]
    """Of a workflow file: the state of each node."""
    history: tuple[PartRow, ...]
    """Its steps and waits over time, at most 48; of a workflow file a wait is a node."""
    forgotten: int
    """Older steps and waits that are not kept."""


def workflow_row(process: Process) -> WorkflowRow:
    ending, run = ending_of(process), run_of(process)
    return WorkflowRow(
        id=process.id.hex(),
        name=process.saga if run is None else str(run.definition.get("name", process.saga)),
        key=process.key,
        group=process.group,
        state=process.status if ending is None else ending.outcome,
        reason="" if ending is None else ending.reason or "",
        at="" if run is None else str(run.run.at),
        sender=process.sender,
        steps=process.version,
        started_at=format_ms(process.opened_ms),
        changed_at=format_ms(process.changed_ms),
    )


def wait_row(wait: Wait, process: Process, now_ms: int) -> WaitRow:
    return WaitRow(
        id=process.id.hex(),
        name=process.saga,
        key=process.key,
        group=process.group,
        wait=wait.name,
        answer_of=(wait.addressee or "any agent") if wait.seal is not None else None,
        due_at=format_ms(wait.due_ms),
        overdue_s=max(0.0, (now_ms - wait.due_ms) / 1000),
    )


def run_of(process: Process) -> RunState | None:
    """Return the state of a workflow file; None for other workflows."""
    if process.saga != _FILES or not process.state:
        return None
    try:
        return msgspec.convert(msgspec.json.decode(process.state, type=Memory).data, RunState)
    except msgspec.MsgspecError:
        return None


def workflow_details(process: Process, waits: Sequence[Wait], held: int, now_ms: int) -> WorkflowDetails:
    """Return *process* with what it waits for and its stored state; *held* counts its messages that wait."""
    run, history = run_of(process), history_in(process.state)
    return WorkflowDetails(
        **msgspec.structs.asdict(workflow_row(process)),
        trust=process.trust,
        started_by=_started_by(process),
        waits=tuple(wait_row(wait, process, now_ms) for wait in waits),
        held=held,
        data=_data_of(process),
        nodes={} if run is None else _nodes_of(run),
        history=tuple(PartRow(**msgspec.structs.asdict(each)) for each in history.parts),
        forgotten=history.forgotten,
    )


def _started_by(process: Process) -> str:
    """Return which message has opened *process*; empty where none did, as for a schedule."""
    try:
        opener = sealing.parse(process.opener)
    except ContractError:
        return ""
    return f"{opener.message_type} {opener.message_id} of {opener.metadata.sender.id or '?'}"


def _nodes_of(run: RunState) -> dict[str, str]:
    definition = parse_workflow(run.definition)
    progress = progress_of(definition, run.run)
    return {node.id: progress.get(node.id, "-") for node in definition.nodes}


def _data_of(process: Process) -> object:
    if not process.state:
        return {}
    state = msgspec.json.decode(process.state)
    if not isinstance(state, dict):
        return state
    # Sealed bytes mean nothing to people, and the history is shown on its own.
    return {name: value for name, value in state.items() if name not in _NOT_DATA}
