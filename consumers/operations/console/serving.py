"""Serve the console: its socket, its tokens, and the server. The extra `console` is imported only here."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bus.clock import Clock
from bus.payloads.payload_types import Registry
from bus.settings.schema import Settings
from bus.transports.base import Transport
from consumers.operations.console.access import SCOPES, Token, read_tokens, token_of
from consumers.web.extras import need_extra
from consumers.web.listening import is_loopback, open_socket

__all__ = ["ServedSite", "new_token", "serve_console", "tokens_of"]

_TOKEN_BYTES: Final = 18


class ServedSite(NamedTuple):
    """Where and to whom the console is served.

    *names* are further names of this host; *person* decides about approvals, with the key of *person_settings*.
    """

    host: str
    port: int
    tokens: Sequence[Token]
    names: Collection[str]
    is_tls: bool
    person: str
    person_settings: Settings | None
    types: Callable[[], Awaitable[Registry]] | None = None
    """Reads the message types that are known."""


async def serve_console(
    transport: Transport,
    settings: Settings,
    clock: Clock,
    *,
    site: ServedSite,
    on_ready: Callable[[str, Callable[[], None]], object],
) -> None:
    """Serve until stopped; *on_ready* gets the URL and what stops it. Raises ConfigurationError."""
    need_extra("console", "jinja2", "litestar", "uvicorn")
    import uvicorn

    from consumers.operations.console.model import Console
    from consumers.operations.console.site import make_site
    from consumers.web.connection import connection_class

    host = site.host
    model = Console(
        transport, settings, clock, person=site.person, person_settings=site.person_settings, types=site.types
    )
    sock = open_socket(host, site.port, "the console")
    bound = sock.getsockname()[1]
    known = {f"{name}:{bound}" for name in ("127.0.0.1", "localhost", "[::1]")} | {name.lower() for name in site.names}
    config = uvicorn.Config(
        make_site(model, site.tokens, known, is_private=is_loopback(host), is_tls=site.is_tls),
        log_config=None,
        # Its warnings are of what a client sends.
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=64 << 10,
        http=connection_class(max_connections=200),
        ws="none",
    )
    server = uvicorn.Server(config)

    def stop() -> None:
        model.stop()
        server.should_exit = True

    shown = f"[{host}]" if ":" in host else host
    on_ready(f"http://{shown}:{bound}/", stop)
    # Its own handlers of signals are not installed: Ctrl-C ends it as it ends every verb.
    await server._serve([sock])  # noqa: SLF001


def new_token(name: str) -> tuple[Token, str]:
    """Return a new token with every right, and its text, which is stored nowhere."""
    text = secrets.token_urlsafe(_TOKEN_BYTES)
    return token_of(name, text, SCOPES), text


def tokens_of(path: Path | None, *, read_only: bool, person: str) -> tuple[list[Token], str]:
    """Return the tokens that count, and the text of one that was made for this run, if any.

    That one is of *person*, who decides here; without one it is the operator's.
    """
    if read_only:
        found = [] if path is None else read_tokens(path)
        return [Token(each.name, each.sha256, each.scopes & {"read"}) for each in found], ""
    if path is not None:
        return read_tokens(path), ""
    text = secrets.token_urlsafe(_TOKEN_BYTES)
    return [token_of(person or "operator", text, SCOPES if person else ("read", "redrive"))], text
