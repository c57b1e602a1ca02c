"""EventStream: the states of a task as server-sent events, the newest one each time.

Owns the end of a stream: with its task, with its credential, with this process, or with a client that does not read.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from litestar.response.base import ASGIResponse

from consumers.gateway.credentials import Credential
from consumers.gateway.gateway import Gateway
from consumers.processes.sagas.process import Process
from consumers.processes.tasks.snapshot import TaskSnapshot, cursor_fits, unpack_task
from consumers.web.guard import AsgiReceive, AsgiSend

__all__ = ["EventStream", "event_of"]

_PING_S: Final = 15.0
_CHECK_S: Final = 30.0
"""So often a stream looks its credential up again."""
_PING: Final = b": still here\n\n"
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


class EventStream(ASGIResponse):
    """The events of one task after *cursor*."""

    def __init__(
        self, gateway: Gateway, credential: Credential, task_id: str, process: Process, cursor: str | None
    ) -> None:
        super().__init__(body=b"", status_code=200)
        self._gateway = gateway
        self._credential = credential
        self._task_id = task_id
        self._process = process
        self._cursor = None if cursor is None else cursor.strip()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002 - the form of ASGI
        """Stream until the task ends, the client goes, or its credential is no more."""
        shown = unpack_task(self._process).shown
        if shown.is_over and self._cursor == shown.cursor:
            await _start(send, 204)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        with self._gateway.quotas.stream(self._credential):
            await _start(send, 200)
            gone = asyncio.ensure_future(_until_gone(receive))
            telling = asyncio.ensure_future(self._tell(send))
            try:
                await asyncio.wait((gone, telling), return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                telling.cancel()
                await asyncio.wait((gone, telling))
            if not telling.cancelled():
                telling.result()
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, send: AsgiSend) -> None:
        clock = asyncio.get_running_loop().time
        with self._gateway.follow(self._credential, self._task_id) as following:
            # Read again: what was written since the first look was told to nobody here.
            process = await self._gateway.process_of(self._credential, self._task_id)
            following.tell(process)
            shown = unpack_task(process).shown
            if self._cursor is None or self._cursor != shown.cursor:
                is_known = self._cursor is None or cursor_fits(self._cursor, shown)
                await _write(send, (b"" if is_known else event_of("reset", shown)) + event_of("task", shown))
            checked_s = clock()
            while not shown.is_over:
                newer = await following.newer(process.version, _PING_S)
                if clock() - checked_s >= _CHECK_S:
                    checked_s = clock()
                    if self._gateway.still(self._credential) is None:
                        return
                if following.is_closed:
                    return
                if newer is None:
                    await _write(send, _PING)
                    continue
                process, before = newer, shown.cursor
                shown = unpack_task(process).shown
                if shown.cursor != before:
                    await _write(send, event_of("task", shown))


def event_of(name: str, shown: TaskSnapshot) -> bytes:
    """Return one event: its id is the cursor, its data one line."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (shown.cursor.encode(), name.encode(), msgspec.json.encode(shown))


async def _start(send: AsgiSend, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(_HEADERS)})


async def _write(send: AsgiSend, part: bytes) -> None:
    # Waits for a client that does not read; its connection ends, and its cursor says where it was.
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def _until_gone(receive: AsgiReceive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
