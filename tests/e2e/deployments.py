"""One namespace on one log, as a stranger deploys it: topics made by `topic apply` alone, keys, a policy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, ROOT


class Deployment:
    """One namespace on one log, used by the command line and by processes of it alone."""

    def __init__(self, url: str, inbox: str, folder: Path) -> None:
        self.folder = folder
        self.namespace = f"p{uuid.uuid4().hex[:8]}"
        self.settings = {
            "SEALBUS_BUS__URL": url,
            "SEALBUS_BUS__NAMESPACE": self.namespace,
            "SEALBUS_INBOX__URL": inbox,
            "SEALBUS_TOPICS__CREATE": "false",
            "SEALBUS_TRUST__KEYS": str(folder / "keys" / "jwks.json"),
            "SEALBUS_TRUST__KEY_FILE": str(folder / "keys"),
            "SEALBUS_POLICY__FILE": str(folder / "policy.toml"),
            "SEALBUS_AUDIT__URL": f"sqlite:///{folder}/audit.db",
            "SEALBUS_LOG__LEVEL": "warning",
        }
        self.running: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"} | self.settings

    def run(self, *arguments: str, given: bytes = b"", codes: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "consumers.cli", *arguments],
            env=self.environment,
            cwd=self.folder,
            input=given,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in codes, (arguments, done.stdout.decode(), done.stderr.decode(), self.logs())
        return done.stdout.decode()

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*arguments, "-o", "json").splitlines()]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"process-{len(self.running)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "consumers.cli", *arguments],
                env=self.environment | environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self.running.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace")[-4000:] for path in sorted(self.folder.glob("process-*")))

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        path = self.folder / f"process-{self.running.index(process)}.log"
        return path.read_text("utf-8", "replace")[-20_000:]

    def lag(self) -> int:
        return sum(row["lag"] for row in self.objects("group", "list"))

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def stores_of(request: pytest.FixtureRequest, folder: Path) -> tuple[str, str]:
    """Return the addresses of log and inbox for a fixture with the parameters "sqlite" and "kafka"."""
    if request.param == "kafka":
        return (
            f"kafka://{request.getfixturevalue('kafka')}",
            asyncio.run(request.getfixturevalue("postgres").create_database()),
        )
    return f"sqlite:///{folder}/log.db", f"sqlite:///{folder}/inbox.db"
