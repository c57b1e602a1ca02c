"""A real Prometheus beside worker, exporter and audit: alerts begin and end with their faults."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

RULES = Path(__file__).resolve().parents[3] / "deploy" / "prometheus" / "rules.yaml"
PROMETHEUS = shutil.which("prometheus")
MISSING = "there is no prometheus: apt-get install prometheus"
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: sealbus-worker
    static_configs: [{{targets: ["127.0.0.1:{worker}"]}}]
  - job_name: sealbus-exporter
    static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]
  - job_name: sealbus-audit
    static_configs: [{{targets: ["127.0.0.1:{audit}"]}}]
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Watching:
    """A real Prometheus with the rules of this repository."""

    def __init__(self, folder: Any, **ports: int) -> None:
        self.port = free_port()
        config = folder.path / "prometheus.yaml"
        config.write_text(CONFIG.format(rules=RULES, **ports))
        if PROMETHEUS is None:
            pytest.fail(MISSING) if os.environ.get("REQUIRE_PROMETHEUS") else pytest.skip(MISSING)
        command = [str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={folder.path / 'tsdb'}"]
        log = (folder.path / "prometheus.log").open("w")
        self.process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log
        )
        log.close()

    def firing(self) -> set[str]:
        query = urllib.parse.quote('ALERTS{alertstate="firing"}')
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/api/v1/query?query={query}", timeout=5
            ) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return set()
        return {each["metric"]["alertname"] for each in found}

    def up(self) -> int:
        """How many targets were reached at the last scrape."""
        try:
            found = self._asked("query?query=sum(up)")["result"]
        except OSError:
            return 0
        return int(found[0]["value"][1]) if found else 0

    def series(self) -> int:
        return len([name for name in self._asked("label/__name__/values") if name.startswith("sealbus_")])

    def _asked(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=5) as answer:
            return json.load(answer)["data"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_real_prometheus_sees_faults_begin_and_end(folder: Any) -> None:
    ports = {name: free_port() for name in ("worker", "exporter", "audit")}
    worker = folder.worker("--metrics-port", str(ports["worker"]))
    folder.start("exporter", "--port", str(ports["exporter"]), "--every", "1s", stderr=subprocess.DEVNULL)
    folder.start("audit", "run", "--metrics-port", str(ports["audit"]), stderr=subprocess.DEVNULL)
    watching = Watching(folder, **ports)
    try:
        folder.wait_until(lambda: watching.up() == 3, within_s=60)
        folder.wait_until(lambda: watching.firing() == set(), within_s=60)
        job = '{"number": 1, "label": "reject"}'
        assert folder.call("publish", "job.run", "--app", "agents:app", stdin=job).exit_code == 0
        folder.wait_until(lambda: watching.firing() == {"SealbusDeadLetters"}, within_s=30)
        folder.wait_until(lambda: watching.series() > 40)
        assert folder.call("dlq", "purge", "--yes").exit_code == 0
        folder.wait_until(lambda: watching.firing() == set(), within_s=30)
        folder.end(worker)
        assert folder.call("publish", "job.run", "--app", "agents:app", stdin='{"number": 2}').exit_code == 0
        folder.wait_until(lambda: {"SealbusNoWorker", "SealbusTargetDown"} <= watching.firing(), within_s=60)
        worker = folder.worker("--metrics-port", str(ports["worker"]))
        folder.wait_until(lambda: watching.firing() == set(), within_s=60)
    finally:
        watching.process.send_signal(signal.SIGTERM)
        watching.process.wait(20)
