"""Measuring the figures in turns, each between two calibrations.

Owns the turns and what is made of them: of the ratios of a figure's time to the calibrations around it, the one that a
quarter of the rounds undercut. A neighbour who disturbs for a moment is then in some rounds and in no result; one who
disturbs throughout slows both down alike.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from speed.calibration import calibration_us
from speed.figures import FIGURES, Figure
from speed.payloads import Report, reports, write_payloads
from speed.ratios import quantile

__all__ = ["MESSAGES", "ROUNDS", "Gauged", "gauge"]

MESSAGES, ROUNDS = 2_000, 12
_SHARE = 0.25


class Gauged(msgspec.Struct, frozen=True, kw_only=True):
    """What one figure came to."""

    calibrations: float
    us: float
    """As measured, on this machine and in its present mood."""


def gauge(names: Sequence[str] = (), *, rounds: int = ROUNDS, messages: int = MESSAGES) -> dict[str, Gauged]:
    """Measure the figures named, or all."""
    chosen = [figure for figure in FIGURES if not names or figure.name in names]
    with tempfile.TemporaryDirectory(prefix="budget-") as name:
        folder = Path(name)
        write_payloads(folder / "payloads", messages)
        return asyncio.run(_gauged(chosen, reports(str(folder / "payloads"), messages), folder, rounds))


async def _gauged(
    figures: Sequence[Figure], payloads: Sequence[Report], folder: Path, rounds: int
) -> dict[str, Gauged]:
    found: dict[str, list[tuple[float, float]]] = {figure.name: [] for figure in figures}
    gc.collect()
    async with AsyncExitStack() as stack:
        opened = []
        for figure in figures:
            place = folder / figure.name
            place.mkdir()
            taken = payloads[: max(1, round(figure.share * len(payloads)))]
            opened.append((figure.name, len(taken), await stack.enter_async_context(figure.opened(taken, place))))
        for number in range(rounds + 1):
            for name, count, repeat in opened:
                async with repeat() as work:
                    gc.collect()
                    before_us = calibration_us()
                    started_s = time.process_time()
                    await work()
                    us = (time.process_time() - started_s) / count * 1e6
                    after_us = calibration_us()
                if number:
                    # The first is the warm-up.
                    found[name].append((us * 2 / (before_us + after_us), us))
    return {
        name: Gauged(
            calibrations=quantile([ratio for ratio, _ in pairs], _SHARE), us=quantile([us for _, us in pairs], _SHARE)
        )
        for name, pairs in found.items()
    }
