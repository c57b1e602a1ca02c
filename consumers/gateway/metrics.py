"""GatewayMetrics: the series of a gateway process beside those of its worker, and what counts its requests.

Every label is of a closed set: doors, classes of HTTP statuses, codes of refusals, and ends of tasks. No text of a
client becomes one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bus.clock import Clock
from bus.vocabulary.error_codes import ERROR_CODES
from consumers.gateway.credentials import DOORS
from consumers.web.guard import AsgiApp, AsgiReceive, AsgiScope, AsgiSend

__all__ = ["GatewayMetrics", "MeasuredSite", "waits"]

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STATUSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")
_OTHER: Final = "other"
TASK_EVENTS: Final = ("opened", "repeated", "completed", "failed", "rejected", "cancelled")

_waits: ContextVar[list[bool] | None] = ContextVar("sealbus_request_waits", default=None)


def waits() -> None:
    """Note that the request under way waits for a task: its time says nothing about the gateway."""
    if (seen := _waits.get()) is not None:
        seen[0] = True


class GatewayMetrics:
    """The series of one gateway; every one of them exists from the start."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.requests = Counter(
            "sealbus_gateway_requests",
            "Requests to the gateway but probes, by door and class of the HTTP status.",
            ["door", "code"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "sealbus_gateway_request_seconds",
            "Time of a request, without streams and calls that wait for a task.",
            ["door"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.refusals = Counter(
            "sealbus_gateway_refusals",
            "Requests and frames that were refused, by code.",
            ["code"],
            registry=self.registry,
        )
        self.streams = Gauge(
            "sealbus_gateway_streams", "Streams, sockets and waiting calls that are open.", registry=self.registry
        )
        self.tasks = Counter(
            "sealbus_gateway_tasks",
            "Tasks, by what became of them here: " + ", ".join(TASK_EVENTS) + ".",
            ["event"],
            registry=self.registry,
        )
        self.unconfirmed = Counter(
            "sealbus_gateway_unconfirmed",
            "Appends that the log did not acknowledge in time; they are repeated.",
            registry=self.registry,
        )
        self.credentials_fault = Gauge(
            "sealbus_gateway_credentials_fault",
            "1 while the file of the credentials cannot be used; the last good ones count.",
            registry=self.registry,
        )
        self.round_s = math.inf
        """When the last round began, on the monotonic clock; infinite before the first."""
        self.error = "it is starting"
        """Why the last round did not do its work."""
        for door in DOORS:
            self.seconds.labels(door)
            for code in _STATUSES:
                self.requests.labels(door, code)
        for event in TASK_EVENTS:
            self.tasks.labels(event)

    def begin_round(self, now_s: float) -> None:
        """Note that a round begins, at *now_s* of the monotonic clock."""
        self.round_s = now_s

    def round_s_ago(self, clock: Clock) -> float:
        """Return how long ago the last round began; 0 before the first, which waits for the worker."""
        return max(0.0, clock.monotonic_s() - self.round_s)

    def refused(self, code: str) -> None:
        """Count a refusal."""
        self.refusals.labels(code if code in ERROR_CODES else _OTHER).inc()

    def task(self, event: str) -> None:
        """Count what became of a task."""
        self.tasks.labels(event).inc()


class MeasuredSite:
    """An ASGI application around *site* that counts its requests and their seconds."""

    def __init__(
        self, site: AsgiApp, metrics: GatewayMetrics, *, door_of: Callable[[str], str], is_probe: Callable[[str], bool]
    ) -> None:
        self._site = site
        self._metrics = metrics
        self._door_of = door_of
        self._is_probe = is_probe

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Pass a request on, and count it."""
        if scope["type"] == "lifespan" or self._is_probe(scope["path"]):
            await self._site(scope, receive, send)
            return
        begun_s, seen, status = time.monotonic(), [False], 0
        token = _waits.set(seen)

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = status or _status_of(message)
            await send(message)

        try:
            await self._site(scope, receive, counted)
        finally:
            _waits.reset(token)
            if status:
                door = self._door_of(scope["path"])
                self._metrics.requests.labels(door, f"{status // 100}xx").inc()
                if scope["type"] == "http" and not seen[0]:
                    self._metrics.seconds.labels(door).observe(time.monotonic() - begun_s)


def _status_of(message: MutableMapping[str, Any]) -> int:
    """Return the HTTP status that an ASGI *message* begins to answer with; 0 where it is another part. Pure."""
    kind = message["type"]
    if kind in ("http.response.start", "websocket.http.response.start"):
        return int(message["status"])
    return {"websocket.accept": 101, "websocket.close": 403}.get(kind, 0)
