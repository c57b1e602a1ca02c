"""The OpenAPI document: what the routes say, with every refusal that may come instead. Pure.

Litestar writes the document from the code of the routes. It does not know the guard before them, nor the one form of
all errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.vocabulary.error_codes import CLASSES
from consumers.gateway.gateway import TaskAnswers, TaskOrder

__all__ = ["with_refusals"]

_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Refusal",
    "description": "Why a request was not answered as asked.",
    "required": ["status", "code", "class", "pointer", "message"],
    "properties": {
        "status": {"enum": ["error", "unknown"], "description": "unknown: it may have been done; repeat it."},
        "code": {"type": "string", "description": "For programs: a code of the vocabulary, or a reason of the bus."},
        "class": {"type": "string", "pattern": f"^({'|'.join(each.replace('.', '[.]') for each in CLASSES)})"},
        "pointer": {"type": "string", "description": "Where in the request the fault is."},
        "message": {"type": "string", "description": "For people."},
        "id": {"type": "string", "description": "Of the task, where it is unknown whether its request was sent."},
        "task": {"description": "The task as it is, where it is in another state."},
        "found": {"type": "string"},
        "expected": {"type": "string"},
    },
}
_REFUSALS: Final[Mapping[str, str]] = {
    "400": "It cannot be read, or a member has another form",
    "401": "The token is missing, unknown, has ended, or is not one of this door",
    "403": "The credential, the policy, or the origin of the page does not allow it",
    "404": "This credential has none of that id",
    "405": "The message type is not known, or the method is not one of this path",
    "408": "The body took too long",
    "409": "It is in another state, or its key was used for other content",
    "412": "It has changed since the state of If-Match",
    "413": "The body is too large",
    "422": "The data of the message is not of its type",
    "429": "Too often, too many open tasks, or too many streams: see Retry-After",
    "431": "The headers are too long",
    "503": "The log or the store is away: see Retry-After",
    "504": "The lifetime of the message is over",
}
_FOREIGN: Final = {
    "description": "One message in the form of its dialect",
    "required": True,
    "content": {"application/json": {"schema": {"type": "object"}}},
}
_EITHER: Final = [
    {"required": ["goal"], "properties": {"goal": {"type": "string"}}},
    {"required": ["message_type"], "properties": {"message_type": {"type": "string"}}},
]


def _body(kind: type[msgspec.Struct], **more: Any) -> dict[str, Any]:
    """Return a body of *kind*, which the routes read by themselves: more strictly than a framework does."""
    (schema,), parts = msgspec.json.schema_components([kind])
    name = str(schema["$ref"]).rpartition("/")[2]
    return {"required": True, "content": {"application/json": {"schema": {**parts[name], **more}}}}


_BODIES: Final[Mapping[str, Any]] = {
    "OpenTask": _body(TaskOrder, anyOf=_EITHER),
    "GiveInput": _body(TaskAnswers),
    "Ingest": _FOREIGN,
}


def with_refusals(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return *document* with the refusals of every operation, and with what its schemas cannot say."""
    paths = {
        path: {name: _operation(each) for name, each in found.items()} for path, found in document["paths"].items()
    }
    components = dict(document.get("components", {}))
    schemas = {**components.get("schemas", {}), "Refusal": _ERROR}
    return {**document, "paths": paths, "components": {**components, "schemas": schemas}}


def _operation(found: Any) -> Any:
    if not isinstance(found, Mapping) or "responses" not in found:
        return found
    answers = {status: each for status, each in found["responses"].items() if status < "400"}
    name = str(found.get("operationId", ""))
    if "202" in answers and name.endswith(("OpenTask", "Ingest")):
        answers["200"] = answers["202"] | {"description": "It was there before, or has ended"}
    if name.endswith(("GetTask", "GetType")):
        answers["304"] = {"description": "It is still the one of If-None-Match"}
    if name.endswith("TaskEvents"):
        answers["204"] = {"description": "The task has ended, and its last state was seen"}
    if (body := next((each for end, each in _BODIES.items() if name.endswith(end)), None)) is not None:
        found = {**found, "requestBody": body}
    refusals = {
        status: {
            "description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
        }
        for status, text in _REFUSALS.items()
    }
    return {**found, "responses": {**answers, **refusals}}
