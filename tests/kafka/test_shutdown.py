"""A worker that is told to stop ends within its deadline, also while no broker answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from clusters import started

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.parametrize(("fault", "for_s"), [("kill", 1), ("freeze", 1), ("freeze", 12)])
def test_a_worker_stops_in_time_while_all_brokers_are_away(tmp_path: Path, fault: str, for_s: float) -> None:
    with started(tmp_path / "kafka") as cluster:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'kafka'}",
            "FAULT_JOURNAL": str(tmp_path / "journal"),
            "SEALBUS_BUS__URL": f"kafka://{cluster.bootstrap}",
            "SEALBUS_WORKER__DRAIN_TIMEOUT_S": "5s",
        }
        sealbus = [sys.executable, "-m", "consumers.cli"]
        subprocess.run([*sealbus, "topic", "apply", "fault_app:app"], env=environment, check=True, capture_output=True)
        with subprocess.Popen([*sealbus, "run", "fault_app:app"], env=environment, stderr=subprocess.DEVNULL) as worker:
            publish = [*sealbus, "publish", "fault.item", "--app", "fault_app:app", "--as", "a@b"]
            subprocess.run(publish, env=environment, input=b'{"number":1}\n' * 100, check=True, capture_output=True)
            journal = tmp_path / "journal"
            while len(journal.read_text().splitlines()) < 100:
                time.sleep(0.1)
            for node in cluster.brokers:
                getattr(node, fault)()
            time.sleep(for_s)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(12) == 0
        for node in cluster.brokers:
            if node.running:
                node.thaw()
