"""Metrics, traces and log entries of your own process.

    from sealbus.telemetry import Metrics, trace_handlers, trace_publishes

Page: `docs/how-to/operate.md`.
"""

from __future__ import annotations

from bus.telemetry.logs import with_run_ids
from bus.telemetry.metrics import Metrics
from consumers.delivery.handling.tracing import trace_handlers
from producers.tracing import trace_publishes

__all__ = [
    "Metrics",
    "trace_handlers",
    "trace_publishes",
    "with_run_ids",
]
