"""Sessions: logging in with a token, and out."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Response, get, post
from litestar.response import Redirect

from consumers.operations.console.pages.frame import (
    COOKIE,
    PageRequest,
    console_of,
    page_of,
    parameter,
    posted_form,
    sessions_of,
)

__all__ = ["SESSIONS_ROUTES"]


@get("/login")
async def login_page(request: PageRequest) -> Response[str]:
    """Ask for a token."""
    return page_of(request, "login.html", next=_local(parameter(request, "next", "/")), failed=False)


@post("/login")
async def login(request: PageRequest) -> Response[Any]:
    """Begin a session for the holder of a token."""
    fields = {name: str(value) for name, value in (await request.form()).items()}
    identity = sessions_of(request).begin(fields.get("token", ""), console_of(request).clock.monotonic_s())
    if identity is None:
        await asyncio.sleep(1.0)
        return page_of(request, "login.html", next=_local(fields.get("next", "/")), failed=True, code=403)
    answer = Redirect(_local(fields.get("next", "/")), status_code=303)
    is_tls = bool(request.app.state.is_tls)
    answer.set_cookie(COOKIE, identity, httponly=True, samesite="strict", secure=is_tls, path="/")
    return answer


@post("/logout")
async def logout(request: PageRequest) -> Response[Any]:
    """End the session."""
    _, refused = await posted_form(request, "read")
    if refused is not None:
        return refused
    sessions_of(request).end(request.cookies.get(COOKIE))
    return Redirect("/", status_code=303)


def _local(path: str) -> str:
    """Return *path* where it is one of the console's own."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and "\n" not in path else "/"


SESSIONS_ROUTES = (login_page, login, logout)
