"""The AsyncAPI 3.0 document of an application: its channels, messages and operations on Kafka.

Owns writing it from payload types. Operations are from the application's view: `receive` for types it handles, `send`
for types it publishes. The payload of a message is the sealed envelope, whose data have the type's schema. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from bus.payloads.examples import example_of
from bus.payloads.payload_types import PayloadType
from bus.protocol.envelope import Metadata, Routing, Verification
from bus.schemas.json_schema import portable, schema_of
from bus.topics.names import message_topic

__all__ = ["asyncapi_of"]

_VERSION: Final = "3.0.0"
_BINDING: Final = "0.5.0"
_LAYERS: Final = (Metadata, Routing, Verification)


def asyncapi_of(
    *,
    title: str,
    version: str,
    namespace: str,
    group: str,
    url: str,
    handled: Iterable[PayloadType],
    published: Iterable[PayloadType],
) -> dict[str, Any]:
    """Return the document of the application *title*, which reads as *group* in *namespace* at *url*."""
    receives = {kind.name: kind for kind in handled}
    sends = {kind.name: kind for kind in published}
    kinds = dict(sorted({**sends, **receives}.items()))
    operations: dict[str, Any] = {}
    for name in sorted(receives):
        operations[f"receive_{name}"] = _operation("receive", receives[name], group)
    for name in sorted(sends):
        operations[f"send_{name}"] = _operation("send", sends[name], group)
    protocol, _, host = url.partition("://")
    server = {"host": host.partition("?")[0].partition("/")[0] or "localhost", "protocol": "kafka"}
    return {
        "asyncapi": _VERSION,
        "info": {"title": title, "version": version, "description": _about(namespace)},
        "defaultContentType": "application/json",
        **({"servers": {"bus": server}} if protocol == "kafka" else {}),
        "channels": {name: _channel(kind, namespace) for name, kind in kinds.items()},
        "operations": operations,
        "components": {
            "messages": {name: _message(kind) for name, kind in kinds.items()},
            "schemas": {**_envelope(), **{name: _data(kind) for name, kind in kinds.items()}},
        },
    }


def _about(namespace: str) -> str:
    return f"Agents on sealbus, namespace {namespace}. A record is one sealed message: data, metadata, routing, proof."


def _channel(kind: PayloadType, namespace: str) -> dict[str, Any]:
    topic = message_topic(namespace, kind.name)
    return {
        "address": topic,
        "title": kind.name,
        "description": _first_line(kind),
        "messages": {kind.name: {"$ref": f"#/components/messages/{kind.name}"}},
        "bindings": {"kafka": {"topic": topic, "bindingVersion": _BINDING}},
    }


def _operation(action: str, kind: PayloadType, group: str) -> dict[str, Any]:
    channel = f"#/channels/{kind.name}"
    found: dict[str, Any] = {
        "action": action,
        "channel": {"$ref": channel},
        "summary": _first_line(kind),
        "messages": [{"$ref": f"{channel}/messages/{kind.name}"}],
    }
    if action == "receive":
        found["bindings"] = {
            "kafka": {"groupId": {"type": "string", "enum": [group]}, "bindingVersion": _BINDING},
        }
        # An answer goes where the message says, whatever its type.
        address = {"location": "$message.payload#/routing/reply_to", "description": "where answers go"}
        found["reply"] = {"address": address}
    return found


def _message(kind: PayloadType) -> dict[str, Any]:
    example = example_of(kind)
    key = {"type": "string", "description": "routing.key, else metadata.conversation_id"}
    return {
        "name": kind.name,
        "title": f"{kind.name} {kind.version}",
        "summary": _first_line(kind),
        "contentType": "application/json",
        "correlationId": {"location": "$message.payload#/metadata/correlation_id"},
        "payload": {
            "type": "object",
            "required": ["data", "metadata", "routing", "verification"],
            "properties": {
                "data": {"$ref": f"#/components/schemas/{kind.name}"},
                **{cls.__name__.lower(): {"$ref": f"#/components/schemas/{cls.__name__}"} for cls in _LAYERS},
            },
        },
        "bindings": {"kafka": {"key": key, "bindingVersion": _BINDING}},
        "tags": [{"name": f"risk:{kind.risk}"}],
        **({"x-sealbus-example": example} if example is not None else {}),
    }


def _data(kind: PayloadType) -> dict[str, Any]:
    """Return the type's schema with its parts inside, as references are those of the document here."""
    schema = schema_of(kind)
    parts = schema.pop("$defs", {})
    members = {name: value for name, value in schema.items() if name not in ("$schema", "$id", "version")}
    found: dict[str, Any] = _with_parts({**members, "x-sealbus-version": kind.version}, kind.name)
    if parts:
        found["definitions"] = {name: _with_parts(part, kind.name) for name, part in parts.items()}
    return found


def _with_parts(value: Any, name: str) -> Any:
    """Return *value* with its references to parts below the schema *name* of the document."""
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/{name}/definitions/{item.rpartition('/')[2]}"
            if key == "$ref" and isinstance(item, str)
            else _with_parts(item, name)
            for key, item in value.items()
        }
    return [_with_parts(item, name) for item in value] if isinstance(value, list) else value


def _envelope() -> dict[str, Any]:
    """Return the schemas of the layers of the envelope, by class name."""
    _, parts = msgspec.json.schema_components(_LAYERS, ref_template="#/components/schemas/{name}")
    return {name: portable(msgspec.to_builtins(part)) for name, part in parts.items()}


def _first_line(kind: PayloadType) -> str:
    return (kind.cls.__doc__ or kind.name).strip().partition("\n")[0]
