"""The MCP door over standard input and output: a client of a gateway, without key, store or group."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from bus.clock import Clock
from bus.errors import ConfigurationError

__all__ = ["check_mcp_extra", "serve_stdio"]

NextLine = Callable[[], Awaitable[str | None]]


def check_mcp_extra() -> None:
    """Raise ConfigurationError where the extra `mcp` is missing."""
    try:
        import httpx2  # noqa: F401
        import mcp  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"MCP needs the extra `mcp` ({error.name} is missing): pip install 'sealbus[mcp]'"
        ) from error


async def serve_stdio(
    url: str, token_file: Path, clock: Clock, next_line: NextLine, *, wait_s: float, keep_s: float
) -> None:
    """Serve the tools of the gateway at *url* until *next_line* has no line left. Raises ConfigurationError."""
    check_mcp_extra()
    from mcp.server.stdio import stdio_server

    from consumers.gateway.mcp.http_tasks import HttpTasks, read_token
    from consumers.gateway.mcp.server import make_mcp_server

    read_token(token_file)
    # Their lines for each request would be most of the log, and have the ids of tasks.
    for name in ("httpx2", "httpcore2", "mcp"):
        logging.getLogger(name).setLevel(logging.WARNING)
    async with HttpTasks(url, token_file) as tasks:
        server = make_mcp_server(lambda _: tasks, clock, wait_s=wait_s, keep_s=keep_s)
        # Its own reader would hold a signal back until the next line comes.
        lines = cast("Any", _lines(next_line))
        async with stdio_server(stdin=lines) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())


async def _lines(next_line: NextLine) -> AsyncIterator[str]:
    while (line := await next_line()) is not None:
        if line.strip():
            yield line
