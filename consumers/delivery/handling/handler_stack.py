"""The stack of a handler that does not end, for a log line: its coroutines, or its thread."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Final

from bus.own_context import OwnContext
from consumers.delivery.handling.threads import thread_of

__all__ = ["handler_stack"]

_FRAMES: Final = 12
_DRIVE: Final = OwnContext.drive.__code__


def handler_stack(task: asyncio.Task[Any], caller: CodeType) -> str:
    """Return where the handler stands that *task* runs, the innermost line last; *caller* is what calls it.

    A suspended task knows only its outermost frame: the others are found by what each coroutine awaits.
    """
    thread = sys._current_frames().get(thread_of(task) or 0)  # noqa: SLF001 - the documented way to read its stack
    if thread is not None:
        found = traceback.extract_stack(thread)
    else:
        frames = list(_frames(task.get_coro()))
        at = next((at for at, frame in enumerate(frames) if frame.f_code is caller), -1)
        found = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames[at + 1 :])
    return "".join(traceback.format_list(found[-_FRAMES:])).rstrip()


def _frames(awaited: Any) -> Iterator[FrameType]:
    """Yield the frames of the coroutine *awaited* and of those that it awaits, the outermost first."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        yield frame
        following = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        # It sends to its coroutine, and does not await it.
        awaited = frame.f_locals.get("coroutine") if frame.f_code is _DRIVE else following
