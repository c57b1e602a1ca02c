"""What a verb returns, and how it is printed: rows or one record, as text or as JSON.

Owns the choice between text and JSON. A verb returns Structs; their fields are the members of its JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import click
import msgspec

from consumers.cli.io.printing import print_json, print_table

__all__ = ["Cell", "VerbResult", "Detail", "Listing", "member_names", "print_result"]

_T = TypeVar("_T", bound=msgspec.Struct)

Cell = str | Callable[[Any], object]
"""The field of a row, or a function of the row."""


class VerbResult:
    """What a verb returns: notes for standard error, and the exit code."""

    def __init__(self, *, notes: Iterable[str] = (), code: int = 0) -> None:
        self.notes = tuple(notes)
        self.code = code


class Listing(VerbResult, Generic[_T]):
    """A list: one line of JSON per row, or a table of *columns*, heading -> cell.

    *empty* is noted where it is empty; *below* are printable lines below the table.
    """

    def __init__(
        self,
        rows: Iterable[_T],
        columns: Mapping[str, Cell],
        *,
        empty: str = "",
        below: Iterable[str] = (),
        notes: Iterable[str] = (),
        code: int = 0,
    ) -> None:
        super().__init__(notes=notes, code=code)
        self.rows: Sequence[_T] = tuple(rows)
        self.columns = columns
        self.empty = empty
        self.below = below


class Detail(VerbResult, Generic[_T]):
    """One thing: one object of JSON, or lines of *text*, whose foreign parts are printable already."""

    def __init__(self, value: _T, text: Iterable[str], *, notes: Iterable[str] = (), code: int = 0) -> None:
        super().__init__(notes=notes, code=code)
        self.value = value
        self.text = text


def print_result(output: VerbResult, as_json: bool, note: Callable[[str], None]) -> int:
    """Print *output*, its notes by *note*, and return its exit code."""
    if as_json:
        for value in (
            output.rows if isinstance(output, Listing) else [output.value] if isinstance(output, Detail) else ()
        ):
            print_json(value)
    elif isinstance(output, Listing):
        _print_rows(output)
    elif isinstance(output, Detail):
        for line in output.text:
            click.echo(line)
    if isinstance(output, Listing) and not output.rows and output.empty:
        note(output.empty)
    for text in output.notes:
        note(text)
    return output.code


def _print_rows(output: Listing[Any]) -> None:
    if output.rows and output.columns:
        cells = output.columns.values()
        print_table(tuple(output.columns), ([_cell(row, cell) for cell in cells] for row in output.rows))
    for line in output.below:
        click.echo(line)


def _cell(row: Any, cell: Cell) -> object:
    value = getattr(row, cell) if isinstance(cell, str) else cell(row)
    if value is None or value == "":
        return "-"
    return ", ".join(map(str, value)) or "-" if isinstance(value, list | tuple | frozenset) else value


def member_names(kind: type[msgspec.Struct]) -> list[str]:
    """Return the members of the JSON of *kind*."""
    return [field.encode_name for field in msgspec.structs.fields(kind)]
