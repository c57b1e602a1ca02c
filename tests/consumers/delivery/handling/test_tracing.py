"""Spans by the messaging conventions: publish and handler in one trace, with the context in the envelope."""

from __future__ import annotations

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind, StatusCode

from bus.telemetry import tracing
from sealbus import App, Reject, connect, payload
from sealbus.telemetry import trace_handlers, trace_publishes


@payload("traced.job", version="1.0.0")
class TracedJob(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    is_bad: bool = False


@pytest.fixture
def spans() -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


async def run(provider: TracerProvider, job: TracedJob, url: str) -> None:
    app = App("traced@svc", middleware=[trace_handlers(provider)])

    @app.on(TracedJob)
    async def handle(job: TracedJob) -> None:
        if job.is_bad:
            raise Reject("password=hunter2")

    async with app.running(url), connect(url, agent="a@svc", middleware=[trace_publishes(provider)]) as bus:
        await bus.publish(job)


def only(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in spans.get_finished_spans() if span.name == name]
    return found


@pytest.mark.medium
async def test_a_handler_s_span_is_in_the_trace_of_its_publish_and_linked_to_it(
    spans: tuple[TracerProvider, InMemorySpanExporter], tmp_path: object
) -> None:
    provider, exporter = spans
    await run(provider, TracedJob(number=1), f"sqlite:///{tmp_path}/t.db")
    sent, handled = only(exporter, "send traced.job"), only(exporter, "process traced.job")
    assert (sent.kind, handled.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert handled.context.trace_id == sent.context.trace_id
    assert handled.parent is not None
    assert handled.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in handled.links] == [sent.context.span_id]
    assert sent.attributes is not None
    assert handled.attributes is not None
    assert sent.attributes[tracing.MESSAGE_ID_ATTRIBUTE] == handled.attributes[tracing.MESSAGE_ID_ATTRIBUTE]


@pytest.mark.medium
async def test_an_error_is_named_by_its_kind_alone(
    spans: tuple[TracerProvider, InMemorySpanExporter], tmp_path: object
) -> None:
    provider, exporter = spans
    await run(provider, TracedJob(number=1, is_bad=True), f"sqlite:///{tmp_path}/t.db")
    handled = only(exporter, "process traced.job")
    assert handled.status.status_code is StatusCode.ERROR
    assert handled.attributes is not None
    assert handled.attributes[tracing.ERROR_TYPE] == "Reject"
    assert "hunter2" not in handled.to_json()


def test_the_names_are_those_of_the_conventions_registry() -> None:
    registry = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
    registry.add(error_attributes.ERROR_TYPE)
    ours = (
        tracing.SYSTEM,
        tracing.OPERATION_NAME,
        tracing.OPERATION_TYPE,
        tracing.DESTINATION,
        tracing.MESSAGE_ID_ATTRIBUTE,
    )
    assert {*ours, tracing.CONVERSATION, tracing.GROUP, tracing.ERROR_TYPE} <= registry


@pytest.mark.parametrize("text", ["", "x", "00-0-0-0", "00-" + "g" * 32 + "-" + "1" * 16 + "-01"])
def test_a_context_of_another_form_is_none(text: str) -> None:
    assert tracing.context_of(text, None) is None
