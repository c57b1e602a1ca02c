"""A gateway for the official conformance suite of MCP, which sends no token and calls tools of its own.

    python -m tests.consumers.gateway.conformance_site 18931

`/mcp` is ours behind our guard; only the token is added. The suite's tools are calls of `ask` under other names, so its
`tasks-*` scenarios judge our extension and our rows. What passes is in `mcp_conformance.md`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import uuid
from collections.abc import Callable
from typing import Any

import mcp_types as types

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.vocabulary import BUILT_IN
from bus.vocabulary.parts import ErrorInfo
from bus.vocabulary.task import TaskClarification, TaskClarified, TaskRequest, TaskResult
from consumers.gateway.credentials import Credential, Credentials, FixedCredentials, make_token
from consumers.gateway.mcp import server, tasks_extension
from consumers.gateway.mcp.door import mcp_parts
from consumers.gateway.serving import directory_of, gateway_declaration, make_gateway, served_gateway
from consumers.web import guard
from consumers.worker.embedded import running
from sealbus import App, Context

AGENT = "suite@svc"
GOALS: dict[str, Callable[[dict[str, Any]], str]] = {
    "slow_compute": lambda given: f"slow {given.get('seconds', 0)}",
    "failing_job": lambda _: "fail",
    "confirm_delete": lambda _: "question",
}

app = App(AGENT)
answered: asyncio.Queue[TaskClarified] = asyncio.Queue()


@app.on(TaskRequest)
async def work(request: TaskRequest, context: Context) -> TaskResult:
    kind, _, rest = request.goal.partition(" ")
    if kind == "fail":
        await asyncio.sleep(1)
        return TaskResult(status="failed", error=ErrorInfo(code="FAILED", message="as asked"))
    if kind == "question":
        await context.send_now(TaskClarification(questions=("sure?",)), to_requester=True)
        await answered.get()
        return TaskResult(status="completed", summary="answered")
    for _number in range(int(float(rest) * 20)):
        if context.cancelled:
            return TaskResult(status="cancelled", summary="stopped")
        await asyncio.sleep(0.05)
    return TaskResult(status="completed", summary="computed")


@app.on(TaskClarified)
async def hear(said: TaskClarified) -> None:
    await answered.put(said)


def with_the_tools_of_the_suite(made: Any) -> Any:
    call = made.get_request_handler("tools/call").handler
    listed = made.get_request_handler("tools/list").handler

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        own = (await listed(ctx, params)).tools
        schema: dict[str, Any] = {"type": "object"}
        return types.ListToolsResult(
            tools=[*own, *(types.Tool(name=name, description=name, input_schema=schema) for name in ("greet", *GOALS))]
        )

    async def call_tool(ctx: Any, params: Any) -> Any:
        given = params.arguments or {}
        if params.name == "greet":
            return types.CallToolResult(content=[types.TextContent(text=f"Hello, {given.get('name')}!")])
        if params.name in GOALS:
            asked = {"agent": AGENT, "text": GOALS[params.name](given), "key": str(uuid.uuid4())}
            params = params.model_copy(update={"name": "ask", "arguments": asked})
        return await call(ctx, params)

    made.get_tool_input_schema = None
    made.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    made.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    return made


async def main(port: int) -> None:
    token, known = make_token()
    given = guard.token_in
    guard.token_in = lambda headers: given(headers) or token
    make = server.make_mcp_server
    server.make_mcp_server = lambda *args, **named: with_the_tools_of_the_suite(make(*args, **named))
    # The suite wants a task of what takes a second.
    tasks_extension._DIRECT_S = 0.3  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        settings = load(flags={"bus.url": f"sqlite:///{folder}/bus.db"}, env={}, file=None).settings
        one = Credential(
            name="suite", agent="suite@laptop", to=(AGENT,), tokens=(known,), doors=("mcp",), rate=10_000, burst=10_000
        )
        clock = SystemClock()
        gateway = make_gateway(settings, FixedCredentials(Credentials([one])), BUILT_IN, clock)
        parts = mcp_parts(gateway, clock)
        apps = [gateway_declaration(gateway), app.declaration]
        origins = {f"http://localhost:{port}", f"http://127.0.0.1:{port}"}
        async with (
            running(apps, None, config=None, settings=settings, metrics=None, on_failure=None) as bus,
            directory_of(gateway, bus),
            served_gateway(
                gateway,
                host="127.0.0.1",
                port=port,
                origins=origins,
                routes=parts.routes,
                lifespans=parts.lifespans,
            ) as url,
        ):
            print(f"{url}/mcp", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
