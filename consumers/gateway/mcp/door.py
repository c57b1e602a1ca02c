"""The MCP door of a gateway: `/mcp`, as stateless streamable HTTP, behind the guard like every other path."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from bus.clock import Clock
from bus.telemetry.logs import get_logger
from consumers.gateway.gateway import Gateway
from consumers.gateway.mcp.task_client import GatewayTasks, TaskClient
from consumers.web.refusal import HttpRefusal

__all__ = ["McpParts", "mcp_parts"]

_log = get_logger("gateway")
_PATH: Final = "/mcp"


class McpParts(NamedTuple):
    """What the site of a gateway mounts."""

    routes: Sequence[Any] = ()
    lifespans: Sequence[Callable[[], AbstractAsyncContextManager[None]]] = ()


def mcp_parts(gateway: Gateway, clock: Clock) -> McpParts:
    """Return the door of *gateway*; nothing, and a warning, where the extra `mcp` is missing."""
    if find_spec("mcp") is None:
        _log.warning("gateway.mcp_left_out", why="the extra mcp is missing: pip install 'sealbus[mcp]'")
        return McpParts()
    from litestar import asgi
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from consumers.gateway.mcp.server import make_mcp_server

    # Its lines for each request would be most of the log.
    logging.getLogger("mcp").setLevel(logging.WARNING)
    limits = gateway.settings.gateway
    server = make_mcp_server(
        lambda ctx: _tasks_of(gateway, ctx), clock, wait_s=limits.wait_s, keep_s=gateway.settings.tasks.keep_s
    )
    # The guard has judged Host, Origin and size already: the manager's own check of hosts is off.
    manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=limits.body_bytes)

    @asgi(_PATH, copy_scope=True)
    async def serve_mcp(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise HttpRefusal("NOT_FOUND", "no WebSocket here")
        if scope["method"] != "POST":
            # No session: there is nothing to stream, and none to end.
            raise HttpRefusal("METHOD_NOT_ALLOWED", "POST only: the server keeps no session", status=405)
        await manager.handle_request(scope, receive, send)

    @asynccontextmanager
    async def running() -> AsyncGenerator[None]:
        async with manager.run():
            yield

    return McpParts(routes=(serve_mcp,), lifespans=(running,))


def _tasks_of(gateway: Gateway, ctx: Any) -> TaskClient:
    """Return the tasks of the credential that the guard has found for this very request."""
    return GatewayTasks(gateway, ctx.request.scope["state"]["credential"])
