"""Names and contexts of OpenTelemetry spans, by the semantic conventions for messaging (which are in development).

Owns the attribute names in one place, and reading a trace context of an envelope. Spans are made by `producers.tracing`
and `consumers.delivery.handling.tracing`; nothing else knows of OpenTelemetry, which is an extra (`otel`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bus.errors import ConfigurationError
from bus.protocol.identifiers import is_traceparent

if TYPE_CHECKING:
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.trace import Tracer, TracerProvider

__all__ = [
    "CONVERSATION",
    "DESTINATION",
    "ERROR_TYPE",
    "GROUP",
    "MESSAGE_ID_ATTRIBUTE",
    "OPERATION_NAME",
    "OPERATION_TYPE",
    "SYSTEM",
    "SYSTEM_NAME",
    "context_of",
    "current_parent",
    "tracer_of",
]

SYSTEM: Final = "messaging.system"
SYSTEM_NAME: Final = "sealbus"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID_ATTRIBUTE: Final = "messaging.message.id"
CONVERSATION: Final = "messaging.message.conversation_id"
GROUP: Final = "messaging.consumer.group.name"
ERROR_TYPE: Final = "error.type"


def tracer_of(provider: TracerProvider | None) -> Tracer:
    """Return the tracer of *provider*, or of the process's own. Raises ConfigurationError without the extra."""
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ConfigurationError("tracing needs the extra `otel`: pip install 'sealbus[otel]'") from error
    return trace.get_tracer("sealbus", tracer_provider=provider)


def context_of(traceparent: str | None, tracestate: str | None) -> TraceContext | None:
    """Return the trace context that a message carries; None without one, or with one of another form."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if traceparent is None or not is_traceparent(traceparent):
        return None
    carrier = {"traceparent": traceparent} | ({"tracestate": tracestate} if tracestate else {})
    return TraceContextTextMapPropagator().extract(carrier)


def current_parent() -> dict[str, Any]:
    """Return `traceparent` and `tracestate` of the span that is current, for an envelope; empty without one."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, Any] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier
