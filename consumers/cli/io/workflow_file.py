"""A workflow in a file of the caller's."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

from bus.errors import BusError, ContractError
from consumers.agents.workflows.definition import Definition, parse_definition

__all__ = ["read_workflow"]


def read_workflow(file: Path) -> Definition:
    """Return the workflow in *file*. Raises BusError, which names the file."""
    try:
        return parse_definition(file.read_bytes().removeprefix(BOM_UTF8))
    except ContractError as error:
        raise BusError(f"{file}: {error}") from error
