"""`sealbus serve gateway --metrics-port`: what a scrape and a probe get from the process itself."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.medium


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_the_metrics_port_serves_series_of_gateway_and_worker_and_probes(folder: Any) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    assert folder.call("door", "add", "ci", "--agent", "ci@acme", "--to", "worker@svc").exit_code == 0
    worker = folder.worker()
    process = folder.start("serve", "gateway", "--port", "0", "--metrics-port", str(port))
    folder.wait_until(lambda: answer(port, "/healthz/ready")[0] == 200)
    assert answer(port, "/healthz/live")[0] == 200
    names = (
        "sealbus_gateway_streams",
        "sealbus_gateway_credentials_fault",
        "sealbus_waits_overdue",
        "sealbus_build_info",
    )
    folder.wait_until(
        lambda: all(re.search(rf"^{name}[ {{]", answer(port, "/metrics")[1], re.MULTILINE) for name in names)
    )
    assert 'sealbus_waits_overdue{group="doors"} 0.0' in answer(port, "/metrics")[1]
    (folder.path / "doors.toml").write_text("[[credentials]\n")
    folder.wait_until(lambda: "sealbus_gateway_credentials_fault 1.0" in answer(port, "/metrics")[1])
    assert answer(port, "/healthz/ready")[0] == 200
    folder.end(process)
    folder.end(worker)


def test_a_gateway_that_stops_ends_its_streams_and_says_nothing_of_them(folder: Any) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    folder.call("door", "add", "ci", "--agent", "ci@acme", "--to", "absent@svc", "--token-file", "ci.token")
    token = (folder.path / "ci.token").read_text().strip()
    # It comes before any worker, and makes the embedded log as a worker does.
    process = folder.start("serve", "gateway", "--port", str(port))
    folder.wait_until(lambda: answer(port, "/healthz/ready")[0] == 200)
    worker = folder.worker()
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False, timeout=60) as client:
        task = client.post("/tasks", json={"to": "absent@svc", "goal": "compare"}).json()
        with client.stream("GET", f"/tasks/{task['id']}/events") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("id: ")
            process.terminate()
            assert "event: task" in list(lines)
    said = process.communicate(timeout=60)
    assert "Traceback" not in f"{said}"
    folder.end(worker)
