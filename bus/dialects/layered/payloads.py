"""The data of dialect `layered`: eight types by the names of their fields, and a task or its result in layers. Pure.

Owns which types there are, and the data layer. `bus.dialects.layered.codec` owns the messages,
`bus.dialects.layered.layers` the other layers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from bus.dialects.data_check import Locations
from bus.dialects.faults import MISSING, kind_shown, shown
from bus.dialects.forms import OBJECT, TEXT, VALUE, Form, same
from bus.dialects.keeping import MARK, Source, Target
from bus.dialects.layered.layers import PRIORITY
from bus.dialects.member_table import KEPT, Kept, MemberTable, MessageFacts, Optional, Required
from bus.dialects.message_facts import OpenedMessage
from bus.dialects.payload_shapes import PayloadShape, payload_shape_of, read_members, write_members
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType

TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "task_handoff": "task.handoff",
        "tool_result": "tool.result",
        "approval_request": "approval.request",
        "status_update": "status.update",
        "error_report": "error.reported",
    }
)
"""The five kinds of messages -> types here."""
PIPELINE: Final[Mapping[str, str]] = MappingProxyType(
    {"research_output": "research.output", "draft_output": "draft.output", "review_output": "review.output"}
)
"""The three kinds of messages of the pipeline -> types here."""
KINDS: Final[Mapping[str, str]] = MappingProxyType({name: kind for kind, name in {**TYPES, **PIPELINE}.items()})
VERSIONS: Final[Mapping[str, str]] = MappingProxyType({"approval.request": "1.0.0"})
"""Types of which the format has an older version."""
FIELD_OF_SENDER: Final[Mapping[str, str]] = MappingProxyType(
    {"task.handoff": "from_agent", "error.reported": "source_agent"}
)
_BOUNDS: Final = ("max_duration_seconds", "required_confidence")
_PRIORITY: Final = "priority"


def _is_reference(value: Any) -> bool:
    """Return whether *value* is a reference. Other values are inline content, which no message field can hold."""
    return value.__class__ is str or (value.__class__ is dict and value.get("uri").__class__ is str)


_RESULTS: Final = Form[Any](
    VALUE.expected, lambda value: value if value.__class__ is dict else {"value": value}, same, fits=VALUE.accepts
)
_ARTIFACTS: Final = Form(
    "a list of references: texts, or objects with a uri",
    lambda value: [{"uri": item} if item.__class__ is str else item for item in value],
    lambda references: [reference["uri"] if reference.keys() == {"uri"} else reference for reference in references],
    fits=lambda value: value.__class__ is list and all(map(_is_reference, value)),
)
_ANYTHING: Final = Form[Any]("a JSON value")
_NOTHING: Final = Form[Any]("null", fits=lambda _value: False)


@lru_cache(maxsize=64)
def _shape(kind: PayloadType) -> PayloadShape:
    return payload_shape_of(kind.described)


def hashed_fields(kind: PayloadType, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return those *members* that are fields of a model: what its content hash is of."""
    return {name: members[name] for name in _shape(kind).there if name in members}


# --- by the names of fields -------------------------------------------------------------------------------------------


def read_fields(kind: PayloadType, members: Mapping[str, Any], base: str, kept: dict[str, Any]) -> dict[str, Any]:
    """Return the data in *members*, which stand at *base* under the names of the fields."""
    provided = dict(members)
    if MARK in provided:
        kept[f"{base}/{MARK}"] = provided.pop(MARK)
    spec = provided.get("task_spec")
    if kind.name == "task.handoff" and spec.__class__ is dict and _PRIORITY in spec:
        provided["task_spec"] = {name: value for name, value in spec.items() if name != _PRIORITY}
        kept[f"{base}/task_spec/{_PRIORITY}"] = spec[_PRIORITY]
    return read_members(_shape(kind), provided, base, kept)


def priority_of(data: Mapping[str, Any], base: str, kept: Mapping[str, Any]) -> int | None:
    """Return the priority that *data* and the specification of their task give; raise DialectError if they differ."""
    location = f"{base}/task_spec/{_PRIORITY}"
    inner, outer = kept.get(location), data.get(_PRIORITY)
    found = None if inner is None else PRIORITY.demand(inner, location)
    if outer is None:
        return found
    facts = PRIORITY.demand(outer, f"{base}/{_PRIORITY}")
    if found not in (None, facts):
        raise DialectError(location, shown(inner), f"{outer}, as in {base}/{_PRIORITY}")
    return facts


def write_fields(
    opened: OpenedMessage, base: str, reserved: Collection[str], stated_as: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the members that express the data of *opened*, for the object at *base*.

    *reserved* are names with another meaning there. *stated_as* maps the fields for sender and recipient to their
    foreign names.
    """
    data, kept, kind = opened.data, opened.kept, opened.kind
    for name in data.keys() & set(reserved):
        raise DialectError(f"/data/{name}", kind_shown(data[name]), "no member that means another there")
    if kind is None:
        raise DialectError("/metadata/message_type", opened.metadata.message_type, "a type that is known here")
    facts = write_members(_shape(kind), {**data, **stated_as}, base, kept)
    if kind.name == "task.handoff":
        facts["task_spec"] = _with_priority(opened, base, facts["task_spec"])
    if (mark := kept.get(f"{base}/{MARK}", MISSING)) is not MISSING:
        facts[MARK] = mark
    return facts


def _with_priority(opened: OpenedMessage, base: str, spec: dict[str, Any]) -> dict[str, Any]:
    if _PRIORITY in spec:
        pointer = f"/data/task_spec/{_PRIORITY}"
        raise DialectError(pointer, kind_shown(spec[_PRIORITY]), "no member that means another there")
    provided = opened.kept.get(f"{base}/task_spec/{_PRIORITY}", MISSING)
    if provided is None:
        return {**spec, _PRIORITY: None}
    if provided is MISSING or provided.__class__ is not str:
        return spec
    try:
        is_same = priority_of(opened.data, base, opened.kept) == opened.routing.priority
    except DialectError:
        is_same = False
    return {**spec, _PRIORITY: provided} if is_same else spec


# --- the data layer ---------------------------------------------------------------------------------------------------

LAYERED_LOCATIONS: Final[Locations] = {
    "": "/data",
    "/task_id": "/metadata/task_id",
    "/from_agent": "/metadata/sender_agent_id",
    "/to_agent": "/metadata/receiver_agent_id",
    "/task_spec/action": "/data/content/action",
    "/task_spec/input": "/data/content",
    "/task_spec/context/parameters": "/data/parameters",
    "/task_spec/constraints": "/data/parameters",
}
RESULT_LOCATIONS: Final[Locations] = {"": "/data", "/output": "/data/results", "/artifacts": "/data/artifacts"}


def read_layer(layer: Source) -> tuple[dict[str, Any], bool]:
    """Read the data layer; return its data, and whether it is a task's result (else it is a task's specification)."""
    is_result = layer.peek("results") not in (MISSING, None)
    if is_result:
        return _RESULT.read(layer, {"status": "completed"}, {}), True
    found = _read_spec(layer)
    layer.keep_rest()
    return found, False


def _read_spec(layer: Source) -> dict[str, Any]:
    content = layer.inside("content")
    spec: dict[str, Any] = {"action": content.required("action", TEXT), "input": content.rest()}
    for name in ("results", "parameters", "artifacts"):
        layer.note_absent(name)
    layer.keep("results", _ANYTHING)
    if parameters := layer.optional("parameters", OBJECT):
        spec["context"] = {"parameters": parameters}
        if bounds := _bounds_in(parameters):
            spec["constraints"] = bounds
    layer.keep("artifacts", _ARTIFACTS)
    return spec


class _Artifacts(Optional):
    """A list of artifacts. A missing list is noted, because it would be written as an empty one."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        source.note_absent(self.name)
        super().read(source, data, facts)
        if not data[self.name]:
            del data[self.name]


_RESULT: Final = MemberTable(
    Required("results", _RESULTS, "output"),
    Kept("content", _ANYTHING, otherwise={}, noted=True),
    Kept("parameters", _ANYTHING, otherwise={}, noted=True),
    _Artifacts("artifacts", _ARTIFACTS, absent=[]),
    KEPT,
)


def _bounds_in(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: parameters[name] for name in _BOUNDS if parameters.get(name) is not None}


def fits_layers(opened: OpenedMessage) -> bool:
    """Return whether the data layer expresses all data."""
    data, metadata = opened.data, opened.metadata
    if metadata.message_type == "task.result":
        return (
            data.keys() <= {"status", "output", "artifacts"}
            and data["status"] == "completed"
            and data.get("output") is not None
            and data.get("artifacts") != []
        )
    if data.keys() != {"task_id", "from_agent", "to_agent", "task_spec"}:
        return False
    spec = data["task_spec"]
    context = spec.get("context", {})
    parameters = context.get("parameters", {}) if context.__class__ is dict else None
    return (
        parameters.__class__ is dict
        and spec.keys() <= {"action", "input", "context", "constraints"}
        and (("context" in spec) == bool(context) == bool(parameters))
        and context.keys() <= {"parameters"}
        and spec.get("constraints", {}) == _bounds_in(parameters)
        and (("constraints" in spec) == bool(_bounds_in(parameters)))
        and "action" not in spec["input"]
        and data["task_id"] == metadata.task_id
    )


def write_layer(opened: OpenedMessage, layer: Target) -> None:
    """Write the data layer."""
    data = opened.data
    if opened.metadata.message_type == "task.result":
        _RESULT.write(layer, {"artifacts": [], **data}, {})
        return
    spec = data["task_spec"]
    layer.put_plain("content", {"action": spec["action"], **spec["input"]})
    layer.put("parameters", OBJECT, spec.get("context", {}).get("parameters", {}), absent={})
    layer.put_kept("results", _NOTHING, None)
    layer.put_kept("artifacts", _ARTIFACTS, [])
