"""Tools: the registry of an app's tools: what a model is told of them, and the door through which it calls them.

Owns finding a tool by its name, and the forms in which providers take lists of tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, get_args

from bus.errors import ConfigurationError
from bus.nearest import nearest
from bus.schemas.tool_rules import MAX_TOOLS, strict_budget
from consumers.delivery.context import Context
from consumers.delivery.inbox.step_call import StepCall
from consumers.tools.answers import ToolAnswer, ToolFault
from consumers.tools.tool import Tool
from consumers.tools.tool_call import called, planned

__all__ = ["ToolProvider", "Tools"]

ToolProvider = Literal["anthropic", "openai", "openai-chat"]
_STRICT_TOOLS: Final = 20
"""Strict tools in one request (Anthropic)."""
_STRICT_UNIONS: Final = 16
"""Arguments with several types in all strict tools of one request (Anthropic)."""


class Tools(Mapping[str, Tool]):
    """The tools of an app by name.

    answer = await model(messages, tools=app.tools.schemas("openai"))
    result = await app.tools.call(answer.name, answer.arguments, context, key=answer.call_id)
    messages.append({"role": "tool", "tool_call_id": answer.call_id, "content": result.text})
    """

    def __init__(self, found: Mapping[str, Tool]) -> None:
        self._tools = dict(found)

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def schemas(self, provider: ToolProvider = "anthropic", *, strict: bool | None = None) -> list[dict[str, Any]]:
        """Return the tools as *provider* takes them: `anthropic`, `openai` (Responses) or `openai-chat`.

        *strict*: None gives each tool its strict form where it has one, True refuses the others, False gives none.
        Raises ConfigurationError for more tools than the provider takes, and for a tool without a strict form.
        """
        if provider not in get_args(ToolProvider):
            choices = get_args(ToolProvider)
            raise ConfigurationError(
                f"provider {provider!r:.80} is none of {', '.join(choices)}{nearest(str(provider), choices)}"
            )
        if provider != "anthropic" and len(self) > MAX_TOOLS:
            raise ConfigurationError(f"{len(self)} tools, and OpenAI takes at most {MAX_TOOLS}")
        loose = [each for each in self.values() if each.why_not_strict] if strict else []
        if loose:
            raise ConfigurationError(
                "; ".join(f"{each.name} has no strict form: {each.why_not_strict}" for each in loose)
            )
        budget = _Budget(provider, must=bool(strict))
        return [_FORMS[provider](tool, budget.takes(tool) if strict is not False else None) for tool in self.values()]

    async def call(self, name: str, arguments: object, context: Context, *, key: object = None) -> ToolAnswer:
        """Call the tool *name* with *arguments*, a mapping or JSON text, as a model wrote them.

        The result is a step of the run: a later run of the message gets it without a call. *key*, such as the model's
        id of the call, tells equal calls apart; without it they are one.

        A wrong call is an answer with a `fault`, which tells the model what is wrong and where: an unknown tool, wrong
        arguments, a use that authority or policy forbids. An error of the tool is an answer, too.

        Raises HandlerError, errors that a repetition can cure, and those of `context.step`.
        """
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            there = f"tools: {', '.join(self._tools)}" if self._tools else "the app has none"
            message = f"unknown tool {name!r:.80}; {there}{nearest(str(name), self._tools)}"
            return ToolAnswer(str(name)[:80], fault=ToolFault("unknown_tool", message))
        return await called(tool, arguments, context, key)

    def planned(self, name: str, arguments: object, context: Context, *, key: object) -> StepCall | None:
        """Return the step that `call` would take; None where it would answer without one. For adapters."""
        step = planned(self._tools[name], arguments, context, key)
        return step if isinstance(step, StepCall) else None


class _Budget:
    """What one request has left for strict tools."""

    def __init__(self, provider: ToolProvider, *, must: bool) -> None:
        is_limited = provider == "anthropic"
        self._must = must
        self._tools = _STRICT_TOOLS if is_limited else MAX_TOOLS
        self._unions = _STRICT_UNIONS if is_limited else None

    def takes(self, tool: Tool) -> dict[str, Any] | None:
        """Return the strict schema of *tool*; None if it has none, or if the request has no room for it."""
        schema = tool.strict_schema
        if schema is None:
            return None
        unions = strict_budget(schema) if self._unions is not None else 0
        if not self._tools or unions > (self._unions or 0):
            if self._must:
                raise ConfigurationError(
                    f"the tool {tool.name!r} is one too many: Anthropic takes {_STRICT_TOOLS} strict tools, and "
                    f"{_STRICT_UNIONS} arguments with several types (optional ones, too) in all of them"
                )
            return None
        self._tools -= 1
        if self._unions is not None:
            self._unions -= unions
        return schema


def _anthropic(tool: Tool, strict: dict[str, Any] | None) -> dict[str, Any]:
    found = {"name": tool.name, "description": tool.description, "input_schema": strict or tool.schema}
    return found if strict is None else {**found, "strict": True}


def _openai(tool: Tool, strict: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": "function", **_function(tool, strict)}


def _openai_chat(tool: Tool, strict: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": "function", "function": _function(tool, strict)}


def _function(tool: Tool, strict: dict[str, Any] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": tool.name, "description": tool.description}
    return {**found, "parameters": strict or tool.schema, "strict": strict is not None}


_FORMS: Final[Mapping[str, Callable[[Tool, dict[str, Any] | None], dict[str, Any]]]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "openai-chat": _openai_chat,
}
