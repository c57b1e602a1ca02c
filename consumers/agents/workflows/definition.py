"""The form of a workflow: JSON as in seed 003 section D, with what it leaves open stated.

Owns reading it, with errors that name the location. Unknown members are refused. Defaults: a node may take 600 seconds;
the workflow fails on an answer without an edge, an error without a fallback, or exhausted retries.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from bus.errors import BusError, ContractError
from bus.protocol import canonical
from bus.protocol.validation_errors import translate

__all__ = [
    "WorkflowBranch",
    "Workflow",
    "Edge",
    "Emit",
    "EndNode",
    "MAX_WORKFLOW_STEPS",
    "NextNodes",
    "Node",
    "Parallel",
    "WaitRetry",
    "WorkflowMessage",
    "edges_of",
    "parse_workflow",
    "read_workflow",
    "schema_of_definition",
    "sent_by",
    "sha256_of",
    "type_of",
]

DEFAULT_TIMEOUT_S: Final = 600.0
MAX_WORKFLOW_STEPS: Final = 10_000
_MAX_BYTES: Final = 262_144

Id: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}\Z", max_length=64)]
StepPerformative: TypeAlias = Literal[
    "request", "query", "propose", "inform", "accept", "reject", "confirm", "call_for_proposal", "subscribe", "cancel"
]
On: TypeAlias = Literal["inform", "confirm", "accept", "propose", "reject", "query", "error", "timeout", "any"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a definition: unknown members are refused."""


class WorkflowMessage(_Part, frozen=True, kw_only=True):
    """The message that a node sends. *type* is the message type; by default the speech act of *performative*
    (`act.request`)."""

    performative: StepPerformative = "request"
    receiver: Annotated[str, Meta(min_length=1, max_length=256)]
    content: dict[str, Any] = {}
    type: Annotated[str, Meta(min_length=1, max_length=120)] | None = None


class Edge(_Part, frozen=True, kw_only=True):
    """The node after an answer: *on* is its performative, `error` for a refusal or a death, `timeout` for no answer."""

    on: On = "any"
    to: Id


class NextNodes(_Part, frozen=True, kw_only=True):
    """The nodes after a node; *fallback* has the edges for answers that *on* does not list."""

    on: On = "any"
    to: Id
    fallback: Edge | tuple[Edge, ...] | None = None


class BackoffPolicy(_Part, frozen=True, kw_only=True):
    """How often and how late a wait_retry leads on; each wait is *factor* times the one before."""

    max_retries: Annotated[int, Meta(ge=0, le=1000)] = 3
    backoff_sec: Annotated[float, Meta(ge=0, le=86_400)] = 10.0
    factor: Annotated[float, Meta(ge=1, le=10)] = 1.0


class Emit(_Part, frozen=True, kw_only=True, tag="emit", tag_field="type"):
    """Send a message and wait for an answer."""

    id: Id
    message: WorkflowMessage
    out: NextNodes
    timeout_s: Annotated[float, Meta(gt=0, le=604_800)] = DEFAULT_TIMEOUT_S


class WaitRetry(_Part, frozen=True, kw_only=True, tag="wait_retry", tag_field="type"):
    """Wait, and lead back; when the retries are used up, to the fallback, or the workflow fails."""

    id: Id
    policy: BackoffPolicy = BackoffPolicy()
    out: NextNodes


class WorkflowBranch(_Part, frozen=True, kw_only=True):
    """One of several messages that are sent side by side."""

    id: Id
    message: WorkflowMessage
    timeout_s: Annotated[float, Meta(gt=0, le=604_800)] = DEFAULT_TIMEOUT_S


class Parallel(_Part, frozen=True, kw_only=True, tag="parallel", tag_field="type"):
    """Send several messages, and go on when all are answered, or any is.

    With `all` the first error ends it, with `any` the last one.
    """

    id: Id
    branches: Annotated[tuple[WorkflowBranch, ...], Meta(min_length=1, max_length=64)]
    join: Literal["all", "any"] = "all"
    out: NextNodes


class EndNode(_Part, frozen=True, kw_only=True, tag="end", tag_field="type"):
    """End the workflow, with a result for the agent that started it."""

    id: Id
    result: dict[str, Any] = {}
    status: Literal["completed", "failed"] = "completed"


Node: TypeAlias = Emit | WaitRetry | Parallel | EndNode


class Workflow(_Part, frozen=True, kw_only=True):
    """A workflow. It begins at its first node."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+\Z", max_length=64)] = "1.0.0"
    assumptions: tuple[str, ...] = ()
    variables: dict[str, Any] = {}
    nodes: Annotated[tuple[Node, ...], Meta(min_length=1, max_length=1000)]

    def node(self, identity: str) -> Node:
        """Return the node *identity*. Raises KeyError."""
        return self.by_id()[identity]

    def by_id(self) -> Mapping[str, Node]:
        """Return the nodes by their ids."""
        return MappingProxyType({node.id: node for node in self.nodes})


def type_of(message: WorkflowMessage) -> str:
    """Return the message type of *message*."""
    return message.type or f"act.{message.performative.replace('_', '-')}"


def sent_by(definition: Workflow) -> Iterator[str]:
    """Yield the message types that the nodes of *definition* send."""
    for node in definition.nodes:
        if isinstance(node, Emit):
            yield type_of(node.message)
        elif isinstance(node, Parallel):
            yield from (type_of(branch.message) for branch in node.branches)


def read_workflow(file: Path) -> Workflow:
    """Return the workflow in *file*. Raises BusError, which names the file."""
    try:
        return parse_workflow(file.read_bytes().removeprefix(BOM_UTF8))
    except ContractError as error:
        raise BusError(f"{file}: {error}") from error


def parse_workflow(data: bytes | str | Mapping[str, Any]) -> Workflow:
    """Read a workflow from JSON, or from what JSON has become. Raises ContractError, whose pointer names the place."""
    try:
        if isinstance(data, bytes | str):
            if len(data) > _MAX_BYTES:
                raise ContractError(f"a definition takes at most {_MAX_BYTES} bytes", "", "oversized")
            return msgspec.json.decode(data, type=Workflow)
        return msgspec.convert(data, Workflow)
    except msgspec.ValidationError as error:
        raise translate(error, reason="schema_violation") from error
    except msgspec.DecodeError as error:
        raise ContractError(f"is not JSON: {error}", "", "malformed") from error


def edges_of(node: Node) -> Iterator[tuple[str, str, str]]:
    """Yield where *node* leads: on what, to which node, and the pointer below it."""
    if isinstance(node, EndNode):
        return
    out = node.out
    yield out.on, out.to, "/out/to"
    fallback = out.fallback
    if isinstance(fallback, Edge):
        yield fallback.on, fallback.to, "/out/fallback/to"
    elif fallback is not None:
        for at, edge in enumerate(fallback):
            yield edge.on, edge.to, f"/out/fallback/{at}/to"


def sha256_of(definition: Workflow) -> str:
    """Return the hash by which a definition is known."""
    return canonical.digest(canonical.encode(msgspec.to_builtins(definition)))


def schema_of_definition() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a definition."""
    schema = msgspec.json.schema(Workflow)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "sealbus workflow", **schema}
