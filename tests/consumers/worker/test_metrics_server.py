"""The metrics port: one path, few connections, nobody who stays."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator

import pytest

from bus.errors import ConfigurationError
from bus.telemetry.metrics import Metrics
from consumers.worker import metrics_server as metricsserver
from consumers.worker.metrics_server import MetricsServer

pytestmark = pytest.mark.medium  # servers, processes or real waits

HOST = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    metrics = Metrics()
    metrics.in_flight.labels("group").set(3)
    with MetricsServer(metrics.registry, HOST, 0) as server:
        assert server.port is not None
        yield server.port


def answer(port: int, method: str, path: str, **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read()
    finally:
        connection.close()


def test_metrics_are_served_in_both_text_formats(port: int) -> None:
    status, kind, body = answer(port, "GET", "/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert b'sealbus_in_flight{group="group"} 3.0' in body
    status, kind, body = answer(port, "GET", "/metrics?x=1", Accept="application/openmetrics-text; version=1.0.0")
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert answer(port, "HEAD", "/metrics")[2] == b""


@pytest.mark.parametrize("path", ["/", "/metricsx", "/metrics/", "/../metrics", "/%6detrics"])
def test_there_is_no_other_path(port: int, path: str) -> None:
    status, _, body = answer(port, "GET", path)
    assert (status, body) == (404, b"not here: metrics are at /metrics\n")


@pytest.mark.slow  # connections that idle for seconds
def test_more_than_a_few_connections_are_closed_at_once_and_idle_ones_soon(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metricsserver._Handler, "timeout", 1.0)
    idle = [socket.create_connection((HOST, port), timeout=5) for _ in range(40)]
    try:
        deadline_s = time.monotonic() + 10
        for each in idle:
            each.settimeout(max(0.1, deadline_s - time.monotonic()))
            assert each.recv(1) == b""
        assert answer(port, "GET", "/metrics")[0] == 200
    finally:
        for each in idle:
            each.close()


@pytest.mark.medium
def test_a_request_that_comes_a_byte_at_a_time_is_ended(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metricsserver, "_ANSWER_S", 0.5)
    with socket.create_connection((HOST, port), timeout=5) as slow:
        started_s = time.monotonic()
        slow.settimeout(0.05)
        ended = False
        while not ended and time.monotonic() - started_s < 30:
            slow.send(b"G")
            with contextlib.suppress(TimeoutError):
                ended = slow.recv(1) == b""
        assert ended


@pytest.mark.parametrize("host", ["192.0.2.1", "no host at all"])
def test_an_unavailable_address_names_the_option_to_change(host: str) -> None:
    with pytest.raises(ConfigurationError, match="--metrics-host"), MetricsServer(Metrics().registry, host, 0):
        pass
