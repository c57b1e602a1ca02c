"""Connection: what a server of HTTP does below its requests: it ends whoever holds a socket and asks or takes nothing.

The server's own limits begin with the first answer. Before it, while the head of a request comes, and once an answer
waits for a reader, nothing would end a connection. What cannot be read as HTTP is refused in the form of all doors.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from consumers.web.refusal import HttpRefusal

__all__ = ["connection_class"]

_LOOK_S: Final = 15.0
_TOO_LARGE: Final = 431
_VERSION: Final = "13"
_OTHER_VERSION: Final = 426
_RESET: Final = struct.pack("ii", 1, 0)
_ASKED: Final = object()
"""In place of the answer after which nothing whole was asked."""


def connection_class(
    *, max_connections: int, look_s: float = _LOOK_S, count: Callable[[str], object] = lambda _: None
) -> Any:
    """Return what `uvicorn.Config(http=...)` makes of each connection.

    The head of a request has one to two *look_s*, and so has a client that reads nothing. *count* is told the code of
    each refusal.
    """
    return partial(_Connection, max_connections=max_connections, look_s=look_s, count=count)


class _Connection(H11Protocol):
    """One connection, looked at every few seconds until it is closed."""

    def __init__(
        self, *given: Any, max_connections: int, look_s: float, count: Callable[[str], object], **named: Any
    ) -> None:
        super().__init__(*given, **named)
        self._max_connections = max_connections
        self._look_s = look_s
        self._count = count
        self._unsent = 0
        self._has_taken = False
        self._unasked: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            self._refuse(HttpRefusal("SERVICE_UNAVAILABLE", "there are too many connections", retry_after_s=1))
        self.loop.call_later(self._look_s, self._look)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._has_taken = True

    def _look(self) -> None:
        """End the connection where nothing has moved since the last look; look again later."""
        transport = self.transport
        unsent, is_closing = transport.get_write_buffer_size(), transport.is_closing()
        if is_closing and not unsent:
            return
        is_http = transport.get_protocol() is self
        is_busy = self.cycle is not None and not self.cycle.response_complete
        # Nobody adds to what waits for the reader while this is so: it shrinks, or nothing is taken.
        is_written = is_closing or (is_http and (not is_busy or self.flow.write_paused))
        if is_written and unsent >= self._unsent > 0 and not self._has_taken:
            # Closing would wait for the reader for ever, and hold socket and answer: here, and in the kernel.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
            return
        self._unsent, self._has_taken = unsent, False
        # The server's own timer runs between an answer and the next byte.
        is_unasked = is_http and not (is_busy or is_closing or unsent or self.timeout_keep_alive_task is not None)
        if is_unasked and self._unasked is self.cycle:
            self._end_unasked()
        self._unasked = self.cycle if is_unasked else _ASKED
        self.loop.call_later(self._look_s, self._look)

    def _end_unasked(self) -> None:
        if self.conn.trailing_data[0]:
            self._refuse(HttpRefusal("TIMEOUT", "the head of the request took too long", status=408))
        else:
            self.transport.close()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Pass on what begins a WebSocket; the library would refuse the rest without a word."""
        headers = dict(self.headers)
        if event.method != b"GET" or b"sec-websocket-key" not in headers:
            self._refuse(HttpRefusal("INVALID_MESSAGE", "a WebSocket begins with GET and has a key"))
        elif headers.get(b"sec-websocket-version") != _VERSION.encode():
            named = {"sec-websocket-version": _VERSION}
            text = f"a WebSocket has version {_VERSION}"
            self._refuse(HttpRefusal("INVALID_MESSAGE", text, status=_OTHER_VERSION, headers=named))
        else:
            super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, with the reason that the parser gave."""
        error = sys.exc_info()[1]
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == _TOO_LARGE:
            self._refuse(HttpRefusal("PAYLOAD_TOO_LARGE", "the head of the request is too large", status=_TOO_LARGE))
        else:
            self._refuse(HttpRefusal("INVALID_MESSAGE", msg))

    def _refuse(self, refusal: HttpRefusal) -> None:
        """Answer *refusal*, where an answer may begin, and close."""
        self._count(refusal.code)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = refusal.encoded()
            headers = {
                **refusal.headers(),
                "content-type": "application/json",
                "content-length": str(len(body)),
                "x-content-type-options": "nosniff",
                "connection": "close",
            }
            head = h11.Response(status_code=refusal.status, headers=list(headers.items()))
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
