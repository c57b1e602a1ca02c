"""Spans around handlers, as a middleware: `App(..., middleware=[trace_handlers()])` (extra `otel`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bus.telemetry import tracing
from consumers.delivery.context import Context
from consumers.delivery.declaration import Handling, Middleware

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["trace_handlers"]


def trace_handlers(provider: TracerProvider | None = None) -> Middleware:
    """Return a middleware that makes a span of each run of a handler, linked to the span that sent the message.

        app = App("shop@svc", middleware=[trace_handlers()])

    The sender's span is its parent, too, so one trace contains a whole conversation. A failure sets `error.type` and
    the status, never the text of the error. Raises ConfigurationError without the extra `otel`.
    """
    tracer = tracing.tracer_of(provider)

    def around(run: Handling) -> Handling:
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode, get_current_span

        async def traced(payload: object, context: Context) -> object:
            metadata = context.message.metadata
            sent = tracing.context_of(metadata.traceparent, metadata.tracestate)
            about: dict[str, Any] = {
                tracing.SYSTEM: tracing.SYSTEM_NAME,
                tracing.OPERATION_NAME: "process",
                tracing.OPERATION_TYPE: "process",
                tracing.DESTINATION: metadata.message_type,
                tracing.MESSAGE_ID_ATTRIBUTE: metadata.message_id,
                tracing.CONVERSATION: metadata.conversation_id,
                "sealbus.attempt": context.attempt,
            }
            links = [] if sent is None else [Link(get_current_span(sent).get_span_context())]
            with tracer.start_as_current_span(
                f"process {metadata.message_type}",
                context=sent,
                kind=SpanKind.CONSUMER,
                attributes=about,
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    return await run(payload, context)
                except BaseException as error:
                    # Texts of errors hold what they should not: the kind is enough to find the log line.
                    span.set_attribute(tracing.ERROR_TYPE, type(error).__name__)
                    span.set_status(Status(StatusCode.ERROR))
                    raise

        return traced

    return around
