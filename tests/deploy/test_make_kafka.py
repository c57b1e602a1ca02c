"""`make kafka`: what it says and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.kafka.jars import cache_folder
from deploy.kafka.ports import Ports

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "deploy.kafka"]


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = subprocess.run([*COMMAND, "--port", str(port)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"Error: port {port} is taken; end what listens there, or choose another: --port {port + 100}"
    ]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_make_kafka_prints_the_next_command_and_ends_cleanly(tmp_path: Path, number: signal.Signals, code: int) -> None:
    ports = Ports(cache_folder() / "ports")
    port = ports.take()
    ports.release()
    command = [*COMMAND, "--port", str(port), "--folder", str(tmp_path / "kept")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"--bus kafka://127.0.0.1:{port}\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in said
    assert (tmp_path / "kept" / "node-1" / "kafka.log").exists()
