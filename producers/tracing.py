"""Spans around publishes, as a middleware: `connect(..., middleware=[trace_publishes()])` (extra `otel`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bus.payloads.payload_types import payload_type
from bus.telemetry import tracing
from producers.middleware import Publishing, PublishMiddleware
from producers.outcomes import Receipt
from producers.sealing.options import Outgoing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["trace_publishes"]


def trace_publishes(provider: TracerProvider | None = None) -> PublishMiddleware:
    """Return a middleware that makes a span of each publish, and puts its context into the envelope.

        async with connect(url, agent="shop@svc", middleware=[trace_publishes()]) as bus: ...

    The span is of *provider*, by default the process's own. Raises ConfigurationError without the extra `otel`.
    """
    tracer = tracing.tracer_of(provider)

    def around(publish: Publishing) -> Publishing:
        from opentelemetry.trace import SpanKind

        async def traced(draft: Outgoing) -> Receipt:
            name = payload_type(type(draft.payload)).name
            about = {
                tracing.SYSTEM: tracing.SYSTEM_NAME,
                tracing.OPERATION_NAME: "send",
                tracing.OPERATION_TYPE: "send",
                tracing.DESTINATION: name,
            }
            with tracer.start_as_current_span(
                f"send {name}", kind=SpanKind.PRODUCER, attributes=about, record_exception=False
            ) as span:
                try:
                    # A context that the caller has given stands.
                    own = tracing.current_parent() if draft.traceparent is None else {}
                    receipt = await publish(msgspec.structs.replace(draft, **own))
                except Exception as error:
                    span.set_attribute(tracing.ERROR_TYPE, type(error).__name__)
                    raise
                span.set_attribute(tracing.MESSAGE_ID_ATTRIBUTE, receipt.message_id)
                return receipt

        return traced

    return around
