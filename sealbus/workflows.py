"""Workflow files: work among agents that is described in JSON, and the agent that runs it.

    from sealbus.workflows import check_workflow, parse_workflow, workflow_engine

Page: `docs/how-to/long-work.md`.
"""

from __future__ import annotations

from consumers.agents.workflows.check import WorkflowFinding, check_workflow
from consumers.agents.workflows.definition import Workflow, parse_workflow
from consumers.agents.workflows.engine import workflow_engine

__all__ = [
    "Workflow",
    "WorkflowFinding",
    "check_workflow",
    "parse_workflow",
    "workflow_engine",
]
