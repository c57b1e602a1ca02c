"""Site: the console as an ASGI application: routes, files, and the guard before all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from litestar import Litestar, Request, Response
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.static_files import create_static_files_router
from litestar.types import ASGIApp, Message, Receive, Send

from bus.errors import BusError, ConfigurationError
from bus.telemetry.logs import get_logger
from consumers.operations.console.access import BrowserSessions, Token, access_refusal
from consumers.operations.console.model import Console
from consumers.operations.console.pages import COOKIE, ROUTES
from consumers.operations.console.pages.frame import problem
from consumers.operations.console.rendering import FOLDER

__all__ = ["make_site"]

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_OWN: Final = frozenset(name for name, _ in _HEADERS)
_OPEN: Final = ("/login", "/static/", "/healthz/live")
_log = get_logger("console")


def make_site(
    console: Console, tokens: Iterable[Token], hosts: Iterable[str], *, is_private: bool, is_tls: bool = False
) -> ASGIApp:
    """Return the application. *hosts* are the names it answers to; unless *is_private* every page needs a session."""
    sessions = BrowserSessions(tokens)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncGenerator[None]:
        async with console.opened():
            yield

    files = create_static_files_router(path="/static", directories=[FOLDER / "static"])
    site = Litestar(
        route_handlers=[*ROUTES, files],
        state=State({"console": console, "sessions": sessions, "is_tls": is_tls}),
        lifespan=[lifespan],
        exception_handlers={Exception: _failed},
        openapi_config=None,
        debug=False,
        logging_config=None,
    )
    return _Guard(site, console, sessions, frozenset(hosts), is_private=is_private, is_tls=is_tls)


def _failed(request: Request[Any, Any, Any], error: Exception) -> Response[str]:
    """Answer what went wrong, without a trace."""
    status = getattr(error, "status_code", 500)
    if isinstance(error, BusError | ConfigurationError):
        text, status = str(error), 503
    elif status == 500:  # noqa: PLR2004 - anything unforeseen
        _log.error("console.failed", path=request.url.path, error=type(error).__name__)
        text = f"the console has failed here ({type(error).__name__})"
    else:
        text = {404: "page not found", 405: "that cannot be done here"}.get(status, "that cannot be read")
    return problem(request, text, code=status)


class _Guard:
    """Refuses requests that are not the console's own, before anything reads them, and seals every answer's headers."""

    def __init__(
        self,
        site: ASGIApp,
        console: Console,
        sessions: BrowserSessions,
        hosts: frozenset[str],
        *,
        is_private: bool,
        is_tls: bool,
    ) -> None:
        self._site = site
        self._console = console
        self._sessions = sessions
        self._hosts = hosts
        self._is_private = is_private
        self._scheme = "https" if is_tls else "http"

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [pair for pair in message.get("headers", ()) if bytes(pair[0]).lower() not in _OWN]
                message["headers"] = [*others, *_HEADERS]
            await send(message)

        if scope["type"] != "http":
            await self._site(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        why = access_refusal(scope["method"], headers, self._hosts, self._scheme)
        if why:
            await _answer(sealed, 403, why)
        elif self._is_private or scope["path"].startswith(_OPEN) or self._reads(scope):
            await self._site(scope, receive, sealed)
        elif scope["method"] == "GET" and headers.get("sec-fetch-mode", "navigate") == "navigate":
            await _answer(sealed, 303, "", (b"location", b"/login"))
        else:
            await _answer(sealed, 401, "show a token first: /login")

    def _reads(self, scope: Any) -> bool:
        session = self._sessions.find(ASGIConnection(scope).cookies.get(COOKIE), self._console.clock.monotonic_s())
        return session is not None and "read" in session.scopes


async def _answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    plain = [(b"content-type", b"text/plain; charset=utf-8"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": plain})
    await send({"type": "http.response.body", "body": text.encode(), "more_body": False})
