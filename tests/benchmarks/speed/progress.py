"""Telling people how far it is: a bar on a terminal, a line per measurement elsewhere.

Owns what is shown on standard error while measuring. Results are not its business.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from speed.catalog import Variant
from speed.results import Failure, Measured
from speed.tables import number

__all__ = ["Display"]


class Display:
    """Shows *total* measurements as they begin and end."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._started_s = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._row = self._bar.add_task("starting", total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """A line of its own."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def begin(self, variant: Variant, number: int) -> None:
        """*variant* begins in round *number*."""
        if self._bar is not None:
            self._bar.update(self._row, description=f"round {number + 1}: {variant.id}")

    def end(self, result: Measured | Failure) -> None:
        """What came of it."""
        self._done += 1
        if isinstance(result, Failure):
            self.say(f"{result.variant}, round {result.round + 1}: FAILED: {result.text}")
        elif self._bar is None:
            answer = result.answer
            speed = f"{number(answer.p50_ms)} ms" if answer.p50_ms is not None else f"{number(answer.rate)}/s"
            passed_s = time.monotonic() - self._started_s
            self.say(
                f"[{self._done}/{self._total}, {passed_s:.0f} s] {result.variant}, round {result.round + 1}: {speed}"
            )
        if self._bar is not None:
            self._bar.advance(self._row)
