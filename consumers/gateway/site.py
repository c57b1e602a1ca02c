"""Site: the gateway as one ASGI application: its routes, its OpenAPI document, and the guard before all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec
from litestar import Litestar, MediaType, Request, Response, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

from bus.clock import Clock
from bus.telemetry.logs import get_logger
from consumers.gateway.gateway import Gateway, door_of
from consumers.gateway.http import TASK_ROUTES
from consumers.gateway.http_ingest import DIRECTORY_ROUTES
from consumers.gateway.ingest import Ingest
from consumers.gateway.metrics import MeasuredSite
from consumers.gateway.openapi import with_refusals
from consumers.gateway.websocket import SOCKET_ROUTES
from consumers.web.guard import AsgiApp, Guard, GuardLimits
from consumers.web.refusal import HttpRefusal

__all__ = ["make_gateway_site"]

_log = get_logger("gateway")
_PROBES: Final = "/healthz/"
_CODES: Final = {
    400: "INVALID_MESSAGE",
    401: "AUTHENTICATION_FAILED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "PAYLOAD_TOO_LARGE",
    415: "INVALID_MESSAGE",
}


@get("/healthz/live", include_in_schema=False)
async def is_live() -> dict[str, str]:
    return {"status": "ok"}


@get("/healthz/ready", include_in_schema=False)
async def ready(request: Request[Any, Any, Any]) -> Response[dict[str, str]]:
    gateway: Gateway = request.app.state.gateway
    try:
        await gateway.tasks.store.next_nudge_s()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not ready
        text = error.text if isinstance(error, HttpRefusal) else "the store of the tasks is away"
        return Response({"status": "unavailable", "why": text}, status_code=503)
    if gateway.metrics.error:
        # What the last round found, of the log too: a probe must not wait for a log that is away.
        text = "the gateway is starting, or the log takes no tasks now: see the log of the gateway"
        return Response({"status": "unavailable", "why": text}, status_code=503)
    if gateway.source.fault is not None:
        # The last good credentials count, so it still answers: the fault is for the person on call.
        return Response({"status": "ok", "fault": "the credentials in doors.toml cannot be read: see the log"})
    return Response({"status": "ok"})


@get("/openapi.json", include_in_schema=False)
async def document(request: Request[Any, Any, Any]) -> Response[bytes]:
    # Encoded once: it needs no token, and whoever asks for it often takes the time of others.
    return Response(request.app.state.document, media_type=MediaType.JSON)


def make_gateway_site(
    gateway: Gateway,
    *,
    hosts: Callable[[], Collection[str]],
    origins: Collection[str],
    clock: Clock,
    routes: Sequence[Any] = (),
    lifespans: Sequence[Callable[[], AbstractAsyncContextManager[None]]] = (),
) -> AsgiApp:
    """Return the application; *routes* are those of further doors."""

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for opening in lifespans:
                await stack.enter_async_context(opening())
            yield

    site = Litestar(
        route_handlers=[*TASK_ROUTES, *DIRECTORY_ROUTES, *SOCKET_ROUTES, *routes, is_live, ready, document],
        state=State(
            {"gateway": gateway, "ingest": Ingest(gateway, clock), "document": msgspec.json.encode(_document())}
        ),
        lifespan=[lifespan],
        exception_handlers={Exception: _failed},
        # Its pages would load scripts from elsewhere: the document is served alone.
        openapi_config=None,
        debug=False,
        logging_config=None,
        request_max_body_size=None,
    )
    limits = GuardLimits(
        body_bytes=gateway.settings.gateway.body_bytes, header_bytes=gateway.settings.gateway.header_bytes
    )
    guard = Guard(
        site,  # type: ignore[arg-type]
        gateway,
        hosts=hosts,
        origins=origins,
        limits=limits,
        clock=clock,
        count=gateway.metrics.refused,
    )
    return MeasuredSite(guard, gateway.metrics, door_of=door_of, is_probe=lambda path: path.startswith(_PROBES))


def _document() -> dict[str, Any]:
    """Return the OpenAPI document of the routes that everybody has."""
    shown = Litestar(
        route_handlers=[*TASK_ROUTES, *DIRECTORY_ROUTES],
        openapi_config=OpenAPIConfig(
            title="sealbus gateway",
            version="1.0.0",
            description="Give work to agents, and follow it, from any language.",
            components=Components(
                security_schemes={
                    "token": SecurityScheme(type="http", scheme="bearer", description="Printed by `sealbus door add`."),
                    "password": SecurityScheme(type="http", scheme="basic", description="The token as password."),
                }
            ),
            security=[{"token": []}, {"password": []}],
        ),
        logging_config=None,
    )
    return with_refusals(shown.openapi_schema.to_schema())


def _failed(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """Answer what went wrong in the one form of all doors, without a trace."""
    refusal = refusal_of(error)
    request.app.state.gateway.metrics.refused(refusal.code)
    if refusal.status >= 500 and not isinstance(error, HttpRefusal):  # noqa: PLR2004
        _log.error("gateway.failed", path=request.url.path[:200], error=type(error).__name__, exc_info=error)
    return Response(refusal.body(), status_code=refusal.status, headers=refusal.headers())


def _pointer_of(key: str) -> str:
    """Return the JSON pointer of what Litestar calls *key*: `answers[0]` is `/answers/0`."""
    return "/" + key.replace("].", "/").replace("[", "/").replace("]", "").replace(".", "/") if key else ""


def refusal_of(error: Exception) -> HttpRefusal:
    """Return the refusal that *error* comes to."""
    if isinstance(error, HttpRefusal):
        return error
    if isinstance(error, ValidationException):
        extra = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
        key = str(extra.get("key", "")) if isinstance(extra, dict) else ""
        text = str(extra.get("message", error.detail)) if isinstance(extra, dict) else error.detail
        return HttpRefusal("INVALID_MESSAGE", text, pointer=_pointer_of(key))
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code, "INTERNAL_ERROR" if error.status_code >= 500 else "INVALID_MESSAGE")  # noqa: PLR2004
        return HttpRefusal(code, error.detail, status=error.status_code, headers=error.headers)
    return HttpRefusal("INTERNAL_ERROR", "the gateway has failed here: see its log")
