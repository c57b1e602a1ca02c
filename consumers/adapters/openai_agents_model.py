"""StepModel: a model of the OpenAI Agents SDK each call of which is a step.

Owns the identity of a call (agent, model, conversation, tools), its kept form, and what it has used.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from agents import ModelResponse
from agents.models.interface import Model
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from bus.errors import ConfigurationError
from consumers.adapters.run import ModelUsage, current_run

__all__ = ["StepModel", "arguments_of"]

_RESPONSE: Final = TypeAdapter(ModelResponse)
_IDS: Final = frozenset({"id", "status", "provider_data"})
"""Members of items that a provider makes anew."""
_OWN: Final = frozenset(
    {"apply_patch_call", "computer_call", "custom_tool_call", "function_call", "local_shell_call", "message"}
    | {"reasoning", "shell_call", "compaction", "mcp_approval_request", "mcp_list_tools", "program"}
)
"""Types of output items that are no tool which the provider has run."""


def arguments_of(given: Any) -> dict[str, Any]:
    """Return the arguments of a call, as a model wrote them; what is no JSON object is one named `input`."""
    found = given or "{}"
    try:
        found = json.loads(found) if isinstance(found, str) else found
        if isinstance(found, str) and _has_surrogate(found):
            # They were quoted, see below.
            found = json.loads(found)
    except (ValueError, RecursionError):
        pass
    return found if isinstance(found, dict) else {"input": given}


def _without_surrogates(plain: Any) -> Any:
    """Return a model's response without lone surrogates, which neither the SDK nor the step could take.

    Arguments that have one are quoted: the call of the tool finds them, and tells the model.
    """
    if isinstance(plain, str):
        return plain if plain.isascii() else plain.encode(errors="backslashreplace").decode()
    if isinstance(plain, list):
        return [_without_surrogates(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    found = {name: _without_surrogates(each) for name, each in plain.items()}
    if found.get("type") == "function_call" and _has_surrogate(found.get("arguments")):
        found["arguments"] = json.dumps(found["arguments"])
    return found


def _has_surrogate(arguments: Any) -> bool:
    try:
        json.dumps(json.loads(arguments), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (TypeError, ValueError, RecursionError):
        return False
    return False


class StepModel(Model):  # type: ignore[misc]
    """The model *inner* of the agent *agent*, or the one that *models* gives for *name* when it is first called."""

    def __init__(
        self, agent: str, inner: Model | None, name: str | None, models: Callable[[str | None], Model]
    ) -> None:
        self._agent = agent
        self._inner = inner
        self._name = name
        self._models = models

    @property
    def inner(self) -> Model:
        """The model itself. It is made when it is first needed: an app starts without a provider's key."""
        if self._inner is None:
            self._inner = self._models(self._name)
        return self._inner

    async def get_response(  # noqa: PLR0917 - the SDK's form
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002 - the SDK's word
        model_settings: Any,
        tools: Any,
        output_schema: Any,
        handoffs: Any,
        tracing: Any,
        **options: Any,
    ) -> Any:
        """Return the model's response, from this run or an earlier one of the message."""
        run = current_run()

        async def call() -> Any:
            response = await self.inner.get_response(
                system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **options
            )
            plain = _RESPONSE.dump_python(response, mode="json", by_alias=True, exclude_unset=True, warnings=False)
            return _without_surrogates(plain)

        given = [self._agent, self._model_name(), _items(input), _tools(tools), [each.tool_name for each in handoffs]]
        answer = await run.model(given, call, self._usage)
        for item in answer.get("output", ()):
            if item.get("type") not in _OWN:
                run.taint_hosted(str(item.get("type")))
        return _RESPONSE.validate_python(answer)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Refuse a stream, of which nothing could be kept."""
        raise ConfigurationError(f"the agent {self._agent!r} is asked for a stream, and a step keeps whole responses")

    def get_retry_advice(self, request: Any) -> Any:
        """Return the model's own advice."""
        return self.inner.get_retry_advice(request)

    async def close(self) -> None:
        """Close the model."""
        if self._inner is not None:
            await self._inner.close()

    def _model_name(self) -> str:
        named = self._name or getattr(self._inner, "model", None) or type(self._inner).__name__
        return str(named)

    def _usage(self, response: Any) -> ModelUsage | None:
        used = response.get("usage") if isinstance(response, Mapping) else None
        if not isinstance(used, Mapping):
            return None
        details = used.get("input_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
        return ModelUsage(
            model=self._model_name(),
            input_tokens=int(used.get("input_tokens") or 0),
            output_tokens=int(used.get("output_tokens") or 0),
            cached_input_tokens=int(cached or 0),
            tool_calls=sum(str(item.get("type")).endswith("_call") for item in response.get("output", ())),
        )


def _items(given: Any) -> Any:
    if isinstance(given, str):
        return given
    return [_timeless(item) for item in to_jsonable_python(given, fallback=str)]


def _timeless(item: Any) -> Any:
    return {name: value for name, value in item.items() if name not in _IDS} if isinstance(item, dict) else item


def _tools(tools: Any) -> list[Any]:
    return [
        [type(tool).__name__, getattr(tool, "name", ""), getattr(tool, "params_json_schema", None)] for tool in tools
    ]
