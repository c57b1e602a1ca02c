"""A real Prometheus beside worker, exporter and audit: alerts begin and end with their faults."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.prometheus import Prometheus


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_real_prometheus_sees_faults_begin_and_end(folder: Any) -> None:
    ports = {name: folder.free_port() for name in ("worker", "exporter", "audit")}
    worker = folder.worker("--metrics-port", str(ports["worker"]))
    folder.start("serve", "metrics", "--port", str(ports["exporter"]), "--every", "1s", stderr=subprocess.DEVNULL)
    folder.start("serve", "audit", "--metrics-port", str(ports["audit"]), stderr=subprocess.DEVNULL)
    jobs = {f"sealbus-{name}": [port] for name, port in ports.items()}
    watching = Prometheus(folder.path, folder.free_port(), jobs)
    try:
        folder.wait_until(lambda: watching.value("sum(up)") == 3, within_s=60)
        folder.wait_until(lambda: watching.firing() == set(), within_s=60)
        job = '{"number": 1, "label": "reject"}'
        assert folder.call("publish", "job.run", "--app", "agents:app", stdin=job).exit_code == 0
        folder.wait_until(lambda: watching.firing() == {"SealbusDeadLetters"}, within_s=30)
        folder.wait_until(lambda: watching.series() > 40)
        assert folder.call("dlq", "dismiss", "--yes").exit_code == 0
        folder.wait_until(lambda: watching.firing() == set(), within_s=30)
        folder.end(worker)
        assert folder.call("publish", "job.run", "--app", "agents:app", stdin='{"number": 2}').exit_code == 0
        folder.wait_until(lambda: {"SealbusNoWorker", "SealbusTargetDown"} <= watching.firing(), within_s=60)
        worker = folder.worker("--metrics-port", str(ports["worker"]))
        folder.wait_until(lambda: watching.firing() == set(), within_s=60)
    finally:
        watching.close()
