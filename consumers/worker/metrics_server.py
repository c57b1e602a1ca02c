"""MetricsServer: `/metrics` in the Prometheus text format, and `/healthz/live|ready|startup`, for few connections.

Owns the socket and its bounds: connections, idle time, and the time of one answer. A client learns types, groups and
lag, so the default address is this machine alone.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from bus.errors import ConfigurationError
from bus.telemetry.logs import get_logger
from bus.telemetry.own_process import register_own_process
from consumers.worker.health import HealthAnswer, Probe

__all__ = ["MetricsServer"]

_MAX_CONNECTIONS = 16
_IDLE_S = 5.0
_ANSWER_S = 10.0
_PATH = "/metrics"
_PROBES: dict[str, Probe] = {
    "/healthz/live": "live",
    "/healthz/ready": "ready",
    "/healthz/startup": "startup",
}

_log = get_logger("metrics")


class MetricsServer:
    """`with MetricsServer(registry, host, port):` serves metrics; port 0 picks a free one, None serves nothing."""

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str,
        port: int | None,
        health: Callable[[Probe], HealthAnswer] | None = None,
    ) -> None:
        self._registry = registry
        self._health = health
        self._address = host, port
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int | None:
        """The port it serves on; None where it serves nothing."""
        return None if self._server is None else self._server.server_port

    def __enter__(self) -> MetricsServer:
        host, port = self._address
        if port is None:
            return self
        register_own_process(self._registry)
        # When a counter was made doubles the series, and no alert or board asks for it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        try:
            self._server = _Server(host, port, self._registry, self._health)
        except OSError as error:
            location = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            why = (
                f"metrics cannot be served on {location}: {error.strerror or error}; "
                "choose another --metrics-port or --metrics-host"
            )
            raise ConfigurationError(why) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="sealbus-metrics", daemon=True
        )
        self._thread.start()
        _log.info("metrics.served", host=host, port=self._server.server_port, path=_PATH)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        health: Callable[[Probe], HealthAnswer] | None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.registry = registry
        self.health = health
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._ends_s: dict[Any, float] = {}
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; close the connection at once where there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._ends_s[request] = time.monotonic() + _ANSWER_S
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread could be started.
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def service_actions(self) -> None:
        """End connections that take too long, such as a request sent byte by byte. Called some times a second."""
        now_s = time.monotonic()
        for request, end_s in list(self._ends_s.items()):
            if now_s > end_s:
                self._ends_s.pop(request, None)
                # Its thread closes the socket once the read in it has ended.
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a client has gone, or was sent away."""

    def _forget(self, request: Any) -> None:
        self._ends_s.pop(request, None)
        self._free.release()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _IDLE_S
    server_version = "sealbus"
    sys_version = ""

    def do_GET(self) -> None:
        """Send the metrics, the answer of a probe, or 404 for another path."""
        path = self.path.partition("?")[0]
        probe = _PROBES.get(path)
        if probe is not None and self.server.health is not None:
            answer = self.server.health(probe)
            status = HTTPStatus.OK if answer.ok else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, "application/json", msgspec.json.encode(answer))
            return
        if path != _PATH:
            self._send(
                HTTPStatus.NOT_FOUND,
                "text/plain; charset=utf-8",
                f"not here: metrics are at {_PATH}\n".encode(),
            )
            return
        encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
        self._send(HTTPStatus.OK, content_type, encoder(self.server.registry))

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parameter's name in http.server
        """Log nothing per request."""
