"""HandoffTool: a request to another agent, as a tool that a model can choose (seed 001 7.5, tool-mediated).

Owns the tool's description for a model, and turning the model's call into a request. The model supplies only arguments;
receiver and message type are fixed in code. The policy decides whether the request is allowed, the receiver whether it
accepts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from bus.errors import ConfigurationError, ContractError, Reject
from bus.payloads.class_forms import Payload
from bus.payloads.kept_values import kept_type, plain_of
from bus.payloads.payload_types import payload_type
from consumers.delivery.context import Context

__all__ = ["HandoffTool"]

_Reply = TypeVar("_Reply", bound=Payload)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class HandoffTool(Generic[_Reply]):
    """A tool named *name*: its call asks agent *to* for a *reply*, and waits *timeout_s* for it."""

    def __init__(
        self, name: str, request: type[Payload], reply: type[_Reply], *, to: str, description: str, timeout_s: float
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{name!r} is not a valid tool name: 1 to 64 of a-z, A-Z, 0-9, _ and -")
        self.name = name
        self.to = to
        self._request = payload_type(request)
        self._reply = payload_type(reply).cls
        try:
            kept_type(self._request.cls)
        except ContractError as error:
            # A class further down, perhaps: the worker sees it when it starts.
            if not isinstance(error.__cause__, NameError):
                raise ConfigurationError(f"the tool {name!r}: {error}") from error
        self._description = description or (request.__doc__ or "").strip().partition("\n")[0] or f"ask {to}"
        self._timeout_s = timeout_s

    @property
    def schema(self) -> dict[str, Any]:
        """Return the tool's description for a model: name, description, and the JSON Schema of its arguments."""
        return {
            "name": self.name,
            "description": self._description,
            "input_schema": msgspec.json.schema(self._request.described),
        }

    async def call(self, arguments: Mapping[str, Any], context: Context) -> _Reply:
        """Ask the agent behind it, with *arguments* as a model wrote them.

        Raises Reject where they are not of the request's form, and what `context.request` raises.
        """
        try:
            # Arguments of a model are checked like any stranger's.
            payload = kept_type(self._request.cls).read(plain_of(dict(arguments)))
        except ContractError as error:
            raise Reject(f"the tool {self.name} was called with wrong arguments: {error}") from error
        return await context.request(payload, self._reply, to=self.to, timeout_s=self._timeout_s)
