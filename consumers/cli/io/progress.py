"""A progress bar on standard error.

Owns when to show one: only on a terminal that does not receive the data too.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["Progress"]

_INTERVAL_S: Final = 0.1


class Progress:
    """Use as `with Progress(size) as progress`, then call `show`; *size* is None if unknown.

    *unit* names the counted things. With *alone*, the command writes and reads nothing else while the bar is shown, so
    it may share the terminal with standard output.
    """

    def __init__(self, size: int | None, *, unit: str = "lines", alone: bool = False) -> None:
        self._size = size
        self._unit = unit
        self._alone = alone
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._shown_s = 0.0

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and (self._alone or (not sys.stdout.isatty() and not sys.stdin.isatty())):
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(), TextColumn("{task.fields[count]} " + self._unit), TimeElapsedColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=self._size, count=0)
            self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, consumed: int, count: int) -> None:
        """Show *consumed* of the size, and *count* units, as done."""
        if self._bar is None or self._task is None:
            return
        now_s = time.monotonic()
        if now_s - self._shown_s >= _INTERVAL_S:
            self._shown_s = now_s
            self._bar.update(self._task, completed=consumed if self._size is not None else 0, count=count)
