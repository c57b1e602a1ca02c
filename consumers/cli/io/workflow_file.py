"""A workflow in a file of the caller's."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

from bus.errors import BusError, ContractError
from consumers.agents.workflows.definition import Workflow, parse_workflow

__all__ = ["read_workflow"]


def read_workflow(file: Path) -> Workflow:
    """Return the workflow in *file*. Raises BusError, which names the file."""
    try:
        return parse_workflow(file.read_bytes().removeprefix(BOM_UTF8))
    except ContractError as error:
        raise BusError(f"{file}: {error}") from error
