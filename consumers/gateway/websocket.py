"""The WebSocket door: task frames, and messages of the dialect `frameworks`, over one socket.

Owns the two kinds of frames (design part three 25), and that a socket has no authority of its own: its credential is
looked up again, and each frame counts as a request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from litestar import WebSocket, websocket
from litestar.exceptions import WebSocketDisconnect

from consumers.gateway.credentials import Credential
from consumers.gateway.foreign_status import status_frame
from consumers.gateway.gateway import Gateway, TaskAnswers, TaskOrder
from consumers.gateway.http import generation_of
from consumers.gateway.ingest import Ingest, foreign_answer
from consumers.processes.sagas.process import Process
from consumers.processes.tasks.snapshot import TaskRow, cursor_fits, unpack_task
from consumers.web.refusal import HttpRefusal

__all__ = ["SOCKET_ROUTES"]

_PROTOCOL: Final = "sealbus.v1"
_AUTH_S: Final = 10.0
_CHECK_S: Final = 30.0
_SLOW_S: Final = 60.0
_MAX_FOLLOWED: Final = 100
_POLICY, _LATER, _TOO_BIG = 1008, 1013, 1009


class Frame(msgspec.Struct, kw_only=True):
    """A task frame: *op* is auth, task, get, input, cancel, follow or stop; *re* comes back with its answer."""

    op: str
    re: Any = None
    id: str | None = None
    key: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"{}")


class _Auth(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class _Follow(msgspec.Struct, forbid_unknown_fields=True):
    after: str | None = None


@websocket("/ws")
async def task_socket(socket: WebSocket[Any, Any, Any]) -> None:
    """Take frames until the client goes."""
    offered = socket.scope.get("subprotocols") or []
    await socket.accept(subprotocols=_PROTOCOL if _PROTOCOL in offered else None)
    state = socket.app.state
    await _Socket(socket, state.gateway, state.ingest).run(socket.scope["state"].get("credential"))


class _Closed(Exception):  # noqa: N818 - a verdict
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class _Socket:
    """One socket and what it follows."""

    def __init__(self, socket: WebSocket[Any, Any, Any], gateway: Gateway, taking: Ingest) -> None:
        self._socket = socket
        self._gateway = gateway
        self._taking = taking
        self._following: dict[str, asyncio.Task[None]] = {}
        self._writing = asyncio.Lock()
        self._failure: asyncio.Future[_Closed] = asyncio.get_running_loop().create_future()

    async def run(self, credential: Credential | None) -> None:
        """Answer frames until the client goes, or its credential ends."""
        try:
            if credential is None:
                credential = await self._authenticated()
            with self._gateway.quotas.stream(credential):
                await self._serve(credential)
        except HttpRefusal as refusal:
            await self._end(_LATER if refusal.status in (429, 503) else _POLICY, refusal.code)
        except _Closed as closed:
            await self._end(closed.code, closed.reason)
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            for task in self._following.values():
                task.cancel()
            if self._following:
                await asyncio.wait(self._following.values())

    async def _serve(self, credential: Credential) -> None:
        loop = asyncio.get_running_loop()
        checked_s = loop.time()
        reading = asyncio.ensure_future(self._socket.receive_data("text"))
        try:
            while True:
                done, _ = await asyncio.wait(
                    (reading, self._failure), timeout=_CHECK_S, return_when=asyncio.FIRST_COMPLETED
                )
                if self._failure in done:
                    raise self._failure.result()
                if loop.time() - checked_s >= _CHECK_S or not done:
                    checked_s = loop.time()
                    if (found := self._gateway.still(credential)) is None:
                        raise _Closed(_POLICY, "AUTHENTICATION_FAILED")
                    credential = found
                if reading in done:
                    text = reading.result()
                    await self._answer(credential, text)
                    reading = asyncio.ensure_future(self._socket.receive_data("text"))
        finally:
            reading.cancel()

    async def _authenticated(self) -> Credential:
        try:
            text = await asyncio.wait_for(self._socket.receive_data("text"), _AUTH_S)
            frame = msgspec.json.decode(text, type=Frame)
            token = msgspec.json.decode(frame.body, type=_Auth).token
        except (TimeoutError, msgspec.DecodeError, msgspec.ValidationError):
            raise _Closed(_POLICY, "AUTHENTICATION_FAILED") from None
        found = None if frame.op != "auth" else self._gateway.credential_of(token, "/ws")
        if found is None:
            raise _Closed(_POLICY, "AUTHENTICATION_FAILED")
        await self._send({"re": frame.re, "ok": {}})
        return found

    async def _answer(self, credential: Credential, text: str) -> None:
        """Answer one frame."""
        if len(text) > self._gateway.settings.gateway.body_bytes:
            raise _Closed(_TOO_BIG, "PAYLOAD_TOO_LARGE")
        number: Any = None
        if self._gateway.still(credential) is None:
            raise _Closed(_POLICY, "AUTHENTICATION_FAILED")
        try:
            self._gateway.check_rate(credential)
            if not _is_task_frame(text):
                await self._take(credential, text)
                return
            frame = _decoded(text)
            number = frame.re
            await self._do(credential, frame)
        except HttpRefusal as refusal:
            self._gateway.metrics.refused(refusal.code)
            await self._send({"re": number, "error": refusal.body()})

    async def _do(self, credential: Credential, frame: Frame) -> None:
        gateway = self._gateway
        if frame.op == "task":
            opened = await gateway.open(credential, _body(frame, TaskOrder), key=frame.key)
            await self._send({"re": frame.re, "ok": opened.snapshot})
            return
        if frame.op == "auth":
            raise HttpRefusal("INVALID_MESSAGE", "this socket has its token", pointer="/op")
        if frame.op not in ("get", "input", "cancel", "follow", "stop"):
            raise HttpRefusal("INVALID_MESSAGE", "one of auth, task, get, input, cancel, follow, stop", pointer="/op")
        if frame.id is None:
            raise HttpRefusal("INVALID_MESSAGE", "the id of the task is missing", pointer="/id")
        if frame.op == "get":
            await self._send({"re": frame.re, "ok": await gateway.find(credential, frame.id)})
        elif frame.op == "input":
            done = await gateway.answer(credential, frame.id, _body(frame, TaskAnswers), key=frame.key)
            await self._send({"re": frame.re, "ok": done.snapshot})
        elif frame.op == "cancel":
            await self._send({"re": frame.re, "ok": await gateway.cancel(credential, frame.id)})
        elif frame.op == "follow":
            after = _body(frame, _Follow).after
            await gateway.process_of(credential, frame.id)
            await self._send({"re": frame.re, "ok": {}})
            self._follow(credential, frame.id, after, frame.re, is_foreign=False)
        elif (task := self._following.pop(frame.id, None)) is not None:
            task.cancel()
            await self._send({"re": frame.re, "ok": {}})
        else:
            raise HttpRefusal("NOT_FOUND", "that task is not followed here", pointer="/id")

    async def _take(self, credential: Credential, text: str) -> None:
        """Take a message of the dialect `frameworks`; what happens to its task comes back in that form."""
        said = await self._taking.take(credential, text.encode(), dialect=None)
        if said.snapshot is None:
            return
        self._follow(credential, said.snapshot.id, None, None, is_foreign=True)

    def _follow(
        self, credential: Credential, task_id: str, after: str | None, number: Any, *, is_foreign: bool
    ) -> None:
        for done in [name for name, task in self._following.items() if task.done()]:
            del self._following[done]
        if task_id in self._following:
            self._following.pop(task_id).cancel()
        if len(self._following) >= _MAX_FOLLOWED:
            raise HttpRefusal("RATE_LIMIT", f"a socket follows {_MAX_FOLLOWED} tasks at a time", retry_after_s=1)
        following = self._tell(credential, task_id, after, number, is_foreign=is_foreign)
        self._following[task_id] = asyncio.get_running_loop().create_task(following)

    async def _tell(
        self, credential: Credential, task_id: str, after: str | None, number: Any, *, is_foreign: bool
    ) -> None:
        try:
            with self._gateway.follow(credential, task_id) as following:
                process = await self._gateway.process_of(credential, task_id)
                following.tell(process)
                await self._tell_reset(after, process, number)
                seen, cursor = generation_of(after or "") or 0, after
                while True:
                    row = unpack_task(process)
                    if row.shown.generation > seen or (cursor is not None and cursor != row.shown.cursor):
                        await self._tell_one(credential, row, number, is_foreign=is_foreign)
                    seen, cursor = row.shown.generation, None
                    if row.shown.is_over:
                        return
                    newer = None
                    while newer is None:
                        newer = await following.newer(process.version, _CHECK_S)
                        if following.is_closed:
                            return
                    process = newer
        except HttpRefusal as refusal:
            await self._send({"re": number, "error": refusal.body()})
        except (WebSocketDisconnect, RuntimeError):
            pass
        except TimeoutError:
            if not self._failure.done():
                self._failure.set_result(_Closed(_LATER, "it takes nothing: come again with the cursor"))

    async def _tell_reset(self, cursor: str | None, process: Process, number: Any) -> None:
        if cursor is not None and not cursor_fits(cursor, unpack_task(process).shown):
            await self._send({"re": number, "reset": True})

    async def _tell_one(self, credential: Credential, row: TaskRow, number: Any, *, is_foreign: bool) -> None:
        shown = row.shown
        if not is_foreign:
            await self._send({"re": number, "task": shown})
            return
        answer = foreign_answer(row, self._gateway.types) if shown.is_over else None
        await self._send(
            answer
            if answer is not None
            else status_frame(shown, row.names, to=credential.agent, now_ms=self._gateway.clock.now_ms())
        )

    async def _send(self, value: Any) -> None:
        async with self._writing:
            await asyncio.wait_for(self._socket.send_data(msgspec.json.encode(value).decode(), mode="text"), _SLOW_S)

    async def _end(self, code: int, reason: str) -> None:
        try:
            await self._socket.close(code=code, reason=reason[:120])
        except (RuntimeError, WebSocketDisconnect):
            return


def _is_task_frame(text: str) -> bool:
    """Tell a task frame from a message of another system: those have no `op`."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise HttpRefusal("INVALID_MESSAGE", "a frame is one JSON object") from None
    if not isinstance(value, dict):
        raise HttpRefusal("INVALID_MESSAGE", "a frame is one JSON object")
    return "op" in value


def _decoded(text: str) -> Frame:
    try:
        return msgspec.json.decode(text, type=Frame)
    except msgspec.ValidationError as error:
        raise HttpRefusal("INVALID_MESSAGE", str(error)) from None


def _body(frame: Frame, kind: Any) -> Any:
    try:
        return msgspec.json.decode(frame.body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise HttpRefusal("INVALID_MESSAGE", str(error), pointer="/body") from None


SOCKET_ROUTES: Final = (task_socket,)
