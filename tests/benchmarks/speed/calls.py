"""How many calls one message makes, on its way through one figure. Exact, on every machine with the same Python.

Owns the count: functions of this project, and those of C, of other libraries and generated ones that they call. Time
needs a quiet machine and a base beside it; a call that is added shows itself at once, anywhere.
"""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from speed.figures import COUNTED, FIGURES, Figure
from speed.payloads import Report, reports, write_payloads

from consumers.delivery.handling import slots
from consumers.delivery.receiving import receiver

__all__ = ["calls_of"]

_ROOT = Path(__file__).resolve().parents[3]
_OURS = tuple(f"{_ROOT / package}/" for package in ("bus", "producers", "consumers"))
_MESSAGES, _WARM_UPS, _REPEATS = 1_000, 3, 8


def calls_of(name: str) -> float:
    """Calls per message of the figure *name*, on average."""
    (figure,) = (figure for figure in (*FIGURES, *COUNTED) if figure.name == name)
    # By the clock, a busy machine gives other coroutines more turns, and each turn takes some calls.
    receiver._SLICE_S = slots._SLICE_S = math.inf
    with tempfile.TemporaryDirectory(prefix="calls-") as folder:
        path = Path(folder)
        write_payloads(path / "payloads", _MESSAGES)
        return asyncio.run(_counted(figure, reports(str(path / "payloads"), _MESSAGES), path))


async def _counted(figure: Figure, payloads: Sequence[Report], folder: Path) -> float:
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if event == "call":
            caller = frame.f_back
            count += _is_ours(frame) or (caller is not None and _is_ours(caller))
        elif event == "c_call":
            count += _is_ours(frame)

    async with figure.opened(payloads, folder) as repeat:
        for _ in range(_WARM_UPS):
            async with repeat() as work:
                await work()
        counts = []
        for _ in range(_REPEATS):
            count = 0
            async with repeat() as work:
                before = sys.getprofile()
                sys.setprofile(note)
                try:
                    await work()
                finally:
                    sys.setprofile(before)
            counts.append(count)
    return min(counts) / len(payloads)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)
