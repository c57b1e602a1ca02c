"""Every verb of the command line, on Kafka as on the embedded log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Shell:
    """The command line on one log, in a namespace of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'kafka'}",
            "FAULT_JOURNAL": str(folder / "journal"),
            "SEALBUS_BUS__URL": url,
            "SEALBUS_BUS__NAMESPACE": f"c{uuid.uuid4().hex[:8]}",
            "SEALBUS_TOPICS__CREATE": "false",
            "SEALBUS_LOG__LEVEL": "error",
        }
        self.command = [sys.executable, "-m", "consumers.cli"]

    def run(self, *arguments: str, code: int = 0, given: bytes = b"") -> str:
        done = subprocess.run(
            [*self.command, *arguments],
            env=self.environment,
            cwd=self.folder,
            input=given,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout.decode() + done.stderr.decode()
        return done.stdout.decode()

    def objects(self, *arguments: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.run(*arguments, "-o", "json").splitlines()]

    def worker(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.command, "run", "fault_app:app"], env=self.environment, cwd=self.folder, stderr=subprocess.PIPE
        )


@pytest.mark.parametrize("transport", ["sqlite", "kafka"])
def test_every_verb_works(transport: str, kafka: str, tmp_path: Path) -> None:
    shell = Shell(f"kafka://{kafka}" if transport == "kafka" else "sqlite:///verbs.db", tmp_path)
    (tmp_path / "journal").touch()
    if transport == "sqlite":
        # The embedded log is made by whoever writes first.
        shell.environment["SEALBUS_TOPICS__CREATE"] = "auto"
    shell.run("topic", "apply", "fault_app:app")
    assert shell.run("topic", "apply", "fault_app:app") is not None
    namespace = shell.environment["SEALBUS_BUS__NAMESPACE"]
    assert f"{namespace}.fault.item" in {row["topic"] for row in shell.objects("topic", "list")}
    with shell.worker() as worker:
        lines = b"".join(b'{"number":%d}\n' % number for number in range(300)) + b'{"number":"no number"}\n'
        shell.run("publish", "fault.item", "--app", "fault_app:app", "--as", "me@here", code=1, given=lines)
        untyped = ("publish", "fault.item", "--type-version", "1.0.0", "--as", "me@here")
        shell.run(*untyped, given=b'{"nombre":1}\n')
        journal, give_up_s = tmp_path / "journal", time.monotonic() + 30
        while len(set(journal.read_text().splitlines())) < 300 or not shell.objects("dlq", "list"):
            assert time.monotonic() < give_up_s
            time.sleep(0.2)
        groups = shell.run("group", "list")
        assert "fault-test" in groups
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(45) == 0
    (letter,) = shell.objects("dlq", "list")
    assert letter["reason"] == "schema_violation"
    records = shell.run("tail", "fault.item", "--from", "start", "-o", "json").splitlines()
    assert len(records) == 301
    verified = subprocess.run(
        [*shell.command, "tail", "fault.item", "--from", "start", "--verify"],
        env=shell.environment,
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert b"301 records, 301 valid, 0 invalid" in verified.stdout + verified.stderr
    assert all(int(str(row.get("lag", 0))) == 0 for row in shell.objects("group", "list"))
    shell.run("type", "list", "--app", "fault_app:app")
    assert "nothing listens" not in shell.run("config")
