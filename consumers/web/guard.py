"""Guard: judges every request before any framework sees a byte of it (design part three 24).

Owns the order: Host, Origin, headers, credential, rate, body. Authority belongs to each request, not to a connection.
The guard answers what it refuses; what it lets through has its body read and counted.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Any, Final, Protocol

import msgspec

from bus.clock import Clock
from consumers.web.refusal import HttpRefusal

__all__ = [
    "AsgiApp",
    "Guard",
    "GuardLimits",
    "AsgiReceive",
    "AsgiScope",
    "AsgiSend",
    "framing_fault",
    "origin_fault",
    "token_in",
]

AsgiScope = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]
AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]

_FAILURES: Final = 30
_FAILURES_S: Final = 10.0
_MAX_ADDRESSES: Final = 4_096
_PAGE_HEADERS: Final = b"authorization, content-type, idempotency-key, if-match, if-none-match, last-event-id, prefer"
_SHOWN_HEADERS: Final = b"etag, location, retry-after, idempotent-replayed, x-sealbus-reset"
_SINGLE: Final = frozenset(
    {b"authorization", b"content-encoding", b"content-type", b"host", b"idempotency-key", b"if-match", b"last-event-id"}
)
"""Headers of which this server reads one value."""
_NOTHING: Final = "the token is missing, unknown, has ended, or is not one of this door"


class GuardLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large requests may be, and how long their bodies may take."""

    body_bytes: int
    header_bytes: int
    body_s: float = 30.0
    """A slow sender holds no memory for ever."""


class CredentialCheck(Protocol):
    """What knows the credentials."""

    def credential_of(self, token: str, path: str) -> object | None:
        """Return whose *token* it is, where that one may use *path*; None for everybody else."""

    def is_open(self, method: str, path: str) -> bool:
        """Return whether *path* needs no token."""

    def check_rate(self, credential: Any) -> None:
        """Raise HttpRefusal where *credential* asks too often."""


class Guard:
    """An ASGI application around *app*, which gets `scope["state"]["credential"]`."""

    def __init__(
        self,
        app: AsgiApp,
        admits: CredentialCheck,
        *,
        hosts: Callable[[], Collection[str]],
        origins: Collection[str],
        limits: GuardLimits,
        clock: Clock,
        count: Callable[[str], object] = lambda _: None,
    ) -> None:
        """*count* is told the code of each refusal."""
        self._app = app
        self._admits = admits
        self._hosts = hosts
        self._origins = origins
        self._limits = limits
        self._clock = clock
        self._count = count
        self._failed: dict[str, tuple[float, int]] = {}

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Judge one request; answer it, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            passed = await self._judged(scope, receive)
        except HttpRefusal as refusal:
            self._count(refusal.code)
            await _answer(scope, receive, send, refusal)
            return
        except ClientGone:
            return
        except _Preflight as asked:
            await _allow(send, asked.headers)
            return
        origin = _header(scope, b"origin")
        await self._app(scope, passed, send if origin is None else _shared_with(origin, send))

    async def _judged(self, scope: AsgiScope, receive: AsgiReceive) -> AsgiReceive:
        headers = _headers(scope)
        path: str = scope["path"]
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > self._limits.header_bytes:
            text = f"the address takes more than {self._limits.header_bytes} bytes"
            raise HttpRefusal("PAYLOAD_TOO_LARGE", text, status=414)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._limits.header_bytes:
            raise HttpRefusal(
                "PAYLOAD_TOO_LARGE", f"the headers take more than {self._limits.header_bytes} bytes", status=431
            )
        if fault := origin_fault(headers, self._hosts(), self._origins):
            raise HttpRefusal("FORBIDDEN", fault)
        if (framing := framing_fault(scope["headers"])) is not None:
            raise framing
        if scope["type"] == "http" and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            # A browser asks before a page of an allowed origin may ask; it shows no token yet.
            raise _Preflight(headers)
        if scope["type"] == "http" and self._admits.is_open(scope["method"], path):
            return await self._body(scope, headers, receive)
        if scope["type"] == "http":
            self._check_length(headers)
        credential = self._credential(scope, headers, path)
        if credential is not None:
            self._admits.check_rate(credential)
        scope.setdefault("state", {})["credential"] = credential
        # Whatever logs the scope must not log the token.
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"authorization"]
        if scope["type"] == "websocket":
            return receive
        return await self._body(scope, headers, receive)

    def _credential(self, scope: AsgiScope, headers: Mapping[str, str], path: str) -> object | None:
        token = token_in(headers)
        if token is None and scope["type"] == "websocket":
            # A browser's WebSocket has no headers of its own: its first frame has the token.
            return None
        address = (scope.get("client") or ("",))[0]
        now_s = self._clock.monotonic_s()
        begun_s, count = self._failed.get(address, (now_s, 0))
        if now_s - begun_s >= _FAILURES_S:
            begun_s, count = now_s, 0
        found = None if token is None else self._admits.credential_of(token, path)
        if found is not None:
            return found
        # Only failed look-ups count, so nobody locks out a proxy whose clients have good tokens.
        if len(self._failed) >= _MAX_ADDRESSES and address not in self._failed:
            self._failed.clear()
        self._failed[address] = (begun_s, count + 1)
        if count >= _FAILURES:
            raise HttpRefusal(
                "RATE_LIMIT", "too many wrong tokens from this address", retry_after_s=_FAILURES_S - (now_s - begun_s)
            )
        raise HttpRefusal("AUTHENTICATION_FAILED", _NOTHING)

    def _check_length(self, headers: Mapping[str, str]) -> None:
        length = headers.get("content-length", "")
        if length.isascii() and length.isdecimal() and int(length[:18]) > self._limits.body_bytes:
            raise self._too_large()

    def _too_large(self) -> HttpRefusal:
        return HttpRefusal("PAYLOAD_TOO_LARGE", f"the body has more than {self._limits.body_bytes} bytes")

    async def _body(self, scope: AsgiScope, headers: Mapping[str, str], receive: AsgiReceive) -> AsgiReceive:
        """Read the body, whatever Content-Length says, and return what gives it to the application."""
        if scope["method"] in ("GET", "HEAD", "DELETE") and "transfer-encoding" not in headers:
            self._check_length(headers)
            return receive
        self._check_length(headers)
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self._limits.body_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._limits.body_bytes:
                        raise self._too_large()
                    parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise HttpRefusal("TIMEOUT", f"the body took longer than {self._limits.body_s:g} s", status=408) from None
        whole: MutableMapping[str, Any] | None = {
            "type": "http.request",
            "body": b"".join(parts),
            "more_body": False,
        }

        async def passed() -> MutableMapping[str, Any]:
            nonlocal whole
            if whole is not None:
                found, whole = whole, None
                return found
            return await receive()

        return passed


class _Preflight(Exception):  # noqa: N818 - a verdict
    """A browser asks whether a page may send a request."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__()
        self.headers = headers


class ClientGone(Exception):  # noqa: N818 - a verdict
    """The client went before its request was whole."""


def origin_fault(headers: Mapping[str, str], hosts: Collection[str], origins: Collection[str]) -> str:
    """Return why a request is not answered at all, or "". Pure.

    *hosts* are the names under which the server is reached: another name that resolves to this machine is refused (DNS
    rebinding). A page elsewhere sends its origin, which must be one of *origins*.
    """
    host = headers.get("host", "").lower()
    if host not in hosts:
        return f"the gateway is not reached as {host[:80]!r}: sealbus serve gateway --allow-host"
    origin = headers.get("origin")
    if origin is not None and origin not in origins:
        return f"pages of {origin[:80]!r} may not ask: sealbus serve gateway --allow-origin"
    return ""


def framing_fault(headers: Iterable[tuple[bytes, bytes]]) -> HttpRefusal | None:
    """Return the refusal of *headers* that two readers may understand differently; None where there is but one way.

    A proxy that takes the one length where this server takes the other lets a request hide in a body. Pure.
    """
    seen: dict[bytes, bytes] = {}
    for name, value in headers:
        if seen.setdefault(name, value) != value and name in _SINGLE:
            where = f"/headers/{name.decode()}"
            return HttpRefusal("INVALID_MESSAGE", "this header comes twice, with two values", pointer=where)
    if b"content-length" in seen and b"transfer-encoding" in seen:
        text = "Content-Length and Transfer-Encoding: a body has one of them"
        return HttpRefusal("INVALID_MESSAGE", text, pointer="/headers/transfer-encoding")
    if seen.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
        text = "a body comes as it is, without an encoding"
        return HttpRefusal("INVALID_MESSAGE", text, pointer="/headers/content-encoding", status=415)
    return None


def token_in(headers: Mapping[str, str]) -> str | None:
    """Return the token of a request: of `Authorization: Bearer`, or the password of Basic; None without one. Pure."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and rest:
        return rest
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(rest, validate=True).decode("utf-8", "surrogateescape")
        except (binascii.Error, ValueError):
            return None
        return decoded.partition(":")[2] or None
    return None


def _headers(scope: AsgiScope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _header(scope: AsgiScope, wanted: bytes) -> bytes | None:
    return next((value for name, value in scope.get("headers", ()) if name == wanted), None)


def _shared_with(origin: bytes, send: AsgiSend) -> AsgiSend:
    """Return a *send* whose answers a page of *origin*, which is allowed, may read."""

    async def shared(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message.get("headers", ()),
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", _SHOWN_HEADERS),
                (b"vary", b"origin"),
            ]
        await send(message)

    return shared


async def _allow(send: AsgiSend, headers: Mapping[str, str]) -> None:
    answer = [
        (b"access-control-allow-origin", headers.get("origin", "").encode("latin-1")),
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", _PAGE_HEADERS),
        (b"access-control-max-age", b"600"),
        (b"vary", b"origin"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})


async def _answer(scope: AsgiScope, receive: AsgiReceive, send: AsgiSend, refusal: HttpRefusal) -> None:
    body = refusal.encoded()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        *((name.encode(), value.encode()) for name, value in refusal.headers().items()),
    ]
    if scope["type"] == "websocket":
        if "websocket.http.response" in (scope.get("extensions") or {}):
            await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": body})
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})
        return
    # What is left of the body is not read: the connection ends.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
