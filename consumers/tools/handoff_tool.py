"""HandoffTool: a request to another agent, as a tool that a model can choose (seed 001 7.5, tool-mediated).

Owns turning the model's call into a request. The model supplies only arguments; receiver and message type are fixed in
code. The policy decides whether the request is allowed, the receiver whether it accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bus.errors import ConfigurationError, ContractError
from bus.payloads.class_forms import Payload
from bus.payloads.kept_values import kept_type, plain_of
from bus.payloads.payload_types import payload_type
from consumers.delivery.context import Context
from consumers.tools.tool import Tool, ToolTerms

__all__ = ["HandoffTool"]


class HandoffTool(Tool):
    """A tool named *name*: its call asks agent *to* for a *reply*, and waits *timeout_s* for it."""

    def __init__(
        self, name: str, request: type[Payload], reply: type[Payload], *, to: str, description: str, timeout_s: float
    ) -> None:
        self.to = to
        self._request = payload_type(request)
        self.sends = (self._request.cls,)
        self._reply = payload_type(reply).cls
        try:
            kept = kept_type(self._request.cls)
        except ContractError as error:
            raise ConfigurationError(f"the tool {name!r}: {error}") from error
        self._timeout_s = timeout_s
        told = description or (request.__doc__ or "").strip().partition("\n")[0] or f"ask {to}"
        super().__init__(name, told, self._request.described, ToolTerms(output=None), kept)

    def function(self, context: Context) -> Callable[..., Any]:
        async def call(**plain: Any) -> Any:
            payload = self._arguments.read(plain)
            return plain_of(await context.request(payload, self._reply, to=self.to, timeout_s=self._timeout_s))

        return call
