"""A request that the client library lacks: change named settings of a topic and leave all others alone (KIP-339).

The library's own request resets every setting that it does not name, so two programs that change one topic at the same
time undo each other's work. Owns the bytes on the wire; `topic_changes` decides what to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Schema, String

__all__ = ["SetTopicSettings"]

_KEY = 44
_TOPIC = 2
_SET = 0


class _Answer(Response):  # type: ignore[misc]  # the library has no types
    API_KEY = _KEY
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "resources",
            Array(
                ("error_code", Int16),
                ("error_message", String("utf-8")),
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
            ),
        ),
    )


class _Version0(RequestStruct):  # type: ignore[misc]  # the library has no types
    API_KEY = _KEY
    API_VERSION = 0
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
                ("configs", Array(("name", String("utf-8")), ("operation", Int8), ("value", String("utf-8")))),
            ),
        ),
        ("validate_only", Boolean),
    )


class SetTopicSettings(Request[_Version0]):  # type: ignore[misc]  # the library has no types
    """Set *settings* of one topic."""

    API_KEY: ClassVar[int] = _KEY

    def __init__(self, topic: str, settings: Mapping[str, str]) -> None:
        self._resources = [(_TOPIC, topic, [(name, _SET, value) for name, value in settings.items()])]

    def build(self, request_struct_class: type[_Version0]) -> Any:
        """Build the request; only one version exists."""
        return request_struct_class(self._resources, False)
