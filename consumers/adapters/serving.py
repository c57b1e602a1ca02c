"""Serving: a framework's agent as the handler of a message type.

Owns the prompt that the agent gets, the answer that its output becomes, and giving back to it what the bus refuses. A
framework gives a `Dialogue`: what is said to its agent, and what comes out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from bus.errors import ConfigurationError, ContractError, Reject, text_of
from bus.payloads.kept_values import kept_type, plain_of
from bus.payloads.payload_types import payload_type
from bus.schemas.tool_schemas import plain_schema
from bus.trust.labels import INSTRUCTING
from bus.vocabulary.task import TaskRequest, TaskResult
from bus.vocabulary.usage import UsageReported
from consumers.adapters.provider_errors import provider_fault
from consumers.adapters.run import AgentRun
from consumers.app.router import Router, declared_type
from consumers.delivery.context import Context
from consumers.delivery.declaration import Lifespan
from consumers.delivery.inbox.conversation import MemoryItem
from consumers.processes.approvals.approval import Approval
from consumers.tools.answers import framed
from consumers.tools.registry import Tools

__all__ = ["BeginDialogue", "Dialogue", "ServeTerms", "needs", "served"]

_REPAIRS: Final = 2
"""How often the agent is told what the bus refuses of its answer."""
_MAX_TOLD: Final = 4000


class Dialogue(Protocol):
    """One agent at work on one message."""

    def recall(self, said: Sequence[MemoryItem]) -> None:
        """Begin after what was *said* in earlier messages of the conversation."""

    async def say(self, text: str) -> Any:
        """Return the agent's output to *text*, and to what was said before."""


BeginDialogue = Callable[[AgentRun, object], Dialogue]
"""Begins the dialogue of a run about a payload."""


class ServeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent is served. Raises ConfigurationError for what cannot be."""

    on: type[Any] = TaskRequest
    returns: type[Any] = TaskResult
    memory: str | None = None
    local: bool = False
    approval: Approval = Approval(by="human")
    prompt: Callable[[Any], str] | None = None
    idle_s: float = 600.0
    options: Mapping[str, Any] = {}
    """Further options of `app.on`."""

    def __post_init__(self) -> None:
        declared_type(self.on, "serve(on=)", "serve(agent, on={})")
        declared_type(self.returns, "serve(returns=)", "serve(agent, returns={})")
        if self.memory not in (None, "conversation"):
            raise ConfigurationError(f"memory={self.memory!r:.80}: write memory='conversation', or leave it out")
        if self.local:
            raise ConfigurationError("local=True is not there yet: leave it out, and return from steps what is needed")
        if not isinstance(self.approval, Approval):
            raise ConfigurationError(f"approval is {type(self.approval).__name__}: write approval=Approval(by='human')")
        if not self.idle_s > 0:
            raise ConfigurationError(f"idle_s {self.idle_s!r} is not more than 0")


def needs(module: str, extra: str) -> None:
    """Raise ImportError with the cure where *module* is not installed."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ImportError(f"this adapter needs {module}: pip install 'sealbus[{extra}]'")


def served(
    begin: BeginDialogue,
    terms: ServeTerms,
    *,
    agent: str,
    framework: str,
    app_tools: Mapping[str, Tools] = MappingProxyType({}),
    lifespan: Lifespan | None = None,
) -> Router:
    """Return a router whose handler lets the dialogue of *begin* answer each message."""
    router = Router(types=[UsageReported])
    if lifespan is not None:
        router.lifespan(lifespan)

    async def handle(payload: Any, context: Context) -> Any:
        run = AgentRun(context, payload, agent=agent, approval=terms.approval, idle_s=terms.idle_s, app_tools=app_tools)
        try:
            async with run.watched():
                return await _answered(run, begin(run, payload), payload, terms)
        except Exception as error:
            run.check()
            if (fault := provider_fault(error, framework)) is not None:
                raise fault from error
            raise
        finally:
            # What a framework has swallowed counts all the same.
            run.check()

    handle.__name__ = handle.__qualname__ = f"serve_{agent}"
    handle.__annotations__ = {"payload": terms.on, "context": Context, "return": terms.returns}
    options = {"asks": True, "timeout_s": None, **terms.options}
    router.on(terms.on, **options)(handle)
    return router


async def _answered(run: AgentRun, dialogue: Dialogue, payload: Any, terms: ServeTerms) -> Any:
    said = asked = prompt_of(payload, run.context, terms.prompt)
    memory = None if terms.memory is None else await run.context.conversation()
    if memory is not None and memory.items:
        dialogue.recall(memory.items)
    for _ in range(_REPAIRS + 1):
        output = await dialogue.say(said)
        run.check()
        run.take_in()
        try:
            answer = payload_of(output, terms.returns)
            run.context.check(answer)
        except ContractError as error:
            fault = error
            said = repair_of(fault, terms.returns)
        else:
            if memory is not None:
                memory.add("user", asked)
                memory.add("assistant", output if isinstance(output, str) else _json(answer))
            return answer
    raise Reject(f"the agent's answer is refused, also after {_REPAIRS} repairs: {fault}")


def prompt_of(payload: Any, context: Context, make: Callable[[Any], str] | None) -> str:
    """Return what an agent is told of *payload*. What is below a user's level is framed as data."""
    text = make(payload) if make is not None else _told(payload)
    if not isinstance(text, str):
        raise ConfigurationError(f"prompt= returned {type(text).__name__}: a function of the payload returns a text")
    labels = context.labels
    if not labels.is_below(INSTRUCTING):
        return text
    sender = context.message.metadata.sender.id or ""
    return framed(text, labels.level, sender, seed=context.message.message_id)


def _told(payload: Any) -> str:
    if isinstance(payload, TaskRequest):
        parts = [("Inputs", payload.inputs), ("Context", payload.context), ("Constraints", payload.constraints)]
        told = [f"{name}: {_json(part)}" for name, part in parts if part]
        if payload.acceptance_criteria:
            told.append("Acceptance criteria:\n" + "\n".join(f"- {each}" for each in payload.acceptance_criteria))
        return "\n\n".join([payload.goal, *told])
    plain = plain_of(payload)
    texts = list(plain.values())
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else _json(plain)


def payload_of(output: Any, returns: type[Any]) -> Any:
    """Return *output* of an agent as a payload of class *returns*. Raises ContractError with the pointer."""
    if isinstance(output, returns):
        return output
    if returns is TaskResult:
        return _result(output)
    if isinstance(output, str):
        return _of_text(output, returns)
    return _without_base(kept_type(returns).read, plain_of(output))


def _result(output: Any) -> TaskResult:
    if isinstance(output, str):
        return TaskResult(status="completed", summary=output)
    plain = plain_of(output)
    return TaskResult(status="completed", output=plain if isinstance(plain, dict) else {"value": plain})


def _of_text(output: str, returns: type[Any]) -> Any:
    """Return the JSON text *output*, or a text for the one member that takes it, as a *returns*."""
    members = payload_type(returns).described
    try:
        plain = msgspec.json.decode(_without_fence(output))
    except (msgspec.DecodeError, RecursionError):
        plain = None
    if isinstance(plain, dict):
        return _without_base(kept_type(returns).read, plain)
    texts = [name for name, part in plain_schema(members)["properties"].items() if part.get("type") == "string"]
    if len(texts) == 1:
        return _without_base(kept_type(returns).read, {texts[0]: output})
    raise ContractError("the answer is not a JSON object", "", "schema_violation")


def _without_fence(text: str) -> str:
    """Return the JSON in *text*, which models like to put into a block of Markdown."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```"):
        return stripped[3:-3].removeprefix("json").strip()
    return stripped


def _without_base(read: Callable[[Any], Any], plain: Any) -> Any:
    try:
        return read(plain)
    except ContractError:
        raise
    except Exception as error:
        raise ContractError(text_of(error), "", "schema_violation") from error


def repair_of(fault: ContractError, returns: type[Any]) -> str:
    """Return what an agent is told of an answer that the bus refuses."""
    where = f" at {fault.pointer.removeprefix('/data') or '/'}" if fault.pointer else ""
    schema = _json(plain_schema(payload_type(returns).described))
    return (
        f"Your answer was refused{where}: {fault.text}. Answer again, with one JSON object of this schema and nothing "
        f"else: {schema}"
    )[:_MAX_TOLD]


def _json(value: Any) -> str:
    return json.dumps(plain_of(value), ensure_ascii=False, sort_keys=True)
