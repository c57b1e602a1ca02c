"""The agent `permits@svc`: asks a person about the tool calls of another program, such as Claude Code.

It runs no tool: its answer says what the person decided, and nothing binds the other program to it. The gateway runs it
beside its own worker (`consumers.gateway.hook`); `sealbus topic apply permits@svc` makes its topics.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from bus.errors import ApprovalRefused, ContractError
from bus.protocol.signatures import Signer
from bus.redaction import cut, masked
from bus.telemetry.terminal import printable
from bus.vocabulary.tool import ToolCall, ToolResult
from consumers.app.app import App
from consumers.delivery.context import Context
from consumers.processes.approvals.approval import Approval

__all__ = ["PERMITS_AGENT", "PERMITS_POLICY", "permits_app"]

PERMITS_AGENT: Final = "permits@svc"
PERMITS_POLICY: Final = """
[[agents]]
id = "permits@svc"
kind = "service"
owner = "permits"
model = false

[[rules]]
id = "permits"
effect = "allow"
action = ["publish", "handle"]
agents = "permits@svc"
types = ["tool.*", "approval.*", "status.update", "task.cancel", "error.reported"]
"""
"""What a policy lacks for it, besides a person who may approve `tool.call`."""
_MAX_TEXT: Final = 1_000
_MAX_LINE: Final = 160
_REASON: Final = "another program asks before it calls the tool; sealbus does not run it"


def permits_app(*, signer: Signer | None = None) -> App:
    """Return the app of `permits@svc`, which signs with *signer*; by default with the key in the settings."""
    app = App(PERMITS_AGENT, signer=signer)

    @app.on(ToolCall, asks=True)
    async def permit(call: ToolCall, context: Context) -> ToolResult:
        try:
            given = await context.approve(
                call.tool_name,
                call.arguments,
                Approval(by="human", reason=_REASON, describe=partial(_described, call.tool_name)),
                key=call.tool_call_id,
            )
        except ApprovalRefused as refused:
            return _result(
                call, {"decision": "rejected", "code": refused.reason, "reason": cut(str(refused), _MAX_TEXT)}
            )
        except ContractError as error:
            return _result(call, {"decision": "rejected", "code": "invalid", "reason": cut(error.text, _MAX_TEXT)})
        return _result(
            call,
            {"decision": "approved", "approval_id": given.approval_id, "decided_by": list(given.decided_by)},
        )

    return app


def _described(tool_name: str, arguments: Any) -> str:
    """Return one line for lists of approvals: the tool, and how what it is given begins. Pure."""
    given = msgspec.json.encode(masked(arguments)).decode()
    return f"call {tool_name}: {cut(printable(given), _MAX_LINE)}"


def _result(call: ToolCall, output: dict[str, Any]) -> ToolResult:
    return ToolResult(tool_call_id=call.tool_call_id, tool_name=call.tool_name, output=output)
