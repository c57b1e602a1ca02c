"""Keys that change while everything runs: a rotation loses and refuses nothing, a revocation holds everywhere at once,
and a file that breaks changes nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HERE, ROOT, Workers, wait_until

from bus.protocol.sealing import parse
from bus.protocol.signatures import parse_signature
from bus.transports import open_transport
from bus.transports.read_all import scan_topic
from consumers.deadletters.letters import list_dead_letters

TOPIC = "agents.ledger.entry"
REVOKED_WITHIN_S = 10.0
REVOKED_AIM_S = 2.0

# Real processes on real clocks: files are looked at once a second.
pytestmark = pytest.mark.slow


class Signed:
    """Workers that believe a key folder, and a process that publishes with a key of it."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.folder = workers.folder / "keys"
        self.jwks = self.folder / "jwks.json"
        self.private = self.folder / "planner-svc.pem"
        self._accepted, self._stop = workers.folder / "accepted.txt", workers.folder / "stop"
        self._publisher: subprocess.Popen[bytes] | None = None
        self.keys("new", "planner@svc")
        (self.private,) = self.folder.glob("*.pem")
        workers.env = {"SEALBUS_TRUST__KEYS": str(self.jwks), "SEALBUS_POLICY__FILE": "allow-all"}

    def keys(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "consumers.cli", "key", *arguments, "--dir", str(self.folder)],
            cwd=self.workers.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, count: int) -> None:
        """Start *count* workers, then the publisher; return when each worker has handled something."""
        for _ in range(count):
            self.workers.start()
        wait_until((self.workers.folder / "log.db").exists, 45, "the log is there")
        path = os.pathsep.join([str(ROOT), str(HERE)])
        self._publisher = subprocess.Popen(
            [
                sys.executable,
                str(HERE / "signing_publisher.py"),
                self.workers.url,
                str(self._accepted),
                str(self._stop),
            ],
            env=os.environ | {"PYTHONPATH": path, "SEALBUS_TRUST__KEY_FILE": str(self.private)},
            stdin=subprocess.DEVNULL,
        )
        wait_until(lambda: len(self.pids()) == count, 30, "every worker has handled something")

    def end(self) -> None:
        """Stop the publisher in order."""
        self._stop.touch()
        assert self._publisher is not None
        assert self._publisher.wait(45) == 0

    def close(self) -> None:
        if self._publisher is not None and self._publisher.poll() is None:
            self._publisher.kill()
            self._publisher.wait()

    def accepted(self) -> list[int]:
        return [int(line) for line in self._accepted.read_text().splitlines()] if self._accepted.exists() else []

    def pids(self) -> set[str]:
        ledger = self.workers.ledger
        return {line.split()[1] for line in ledger.read_text().splitlines()} if ledger.exists() else set()

    def replace(self, path: Path, text: bytes) -> None:
        part = path.with_suffix(".part")
        part.write_bytes(text)
        part.chmod(0o600)
        part.replace(path)

    def dead(self) -> Counter[str]:
        return asyncio.run(_dead(self.workers.url))

    def kids(self) -> list[str]:
        return asyncio.run(_kids(self.workers.url))

    def wait_until_all_are_handled(self) -> None:
        wait_until(lambda: set(self.workers.handled()) >= set(self.accepted()), 30, self.workers.logs())
        assert sorted(self.workers.handled()) == sorted(self.accepted())
        assert self.dead() == {}


async def _dead(url: str) -> Counter[str]:
    transport = open_transport(url)
    try:
        return Counter([letter.reason async for letter in list_dead_letters(transport, "agents")])
    finally:
        await transport.close()


async def _kids(url: str) -> list[str]:
    transport = open_transport(url)
    try:
        messages = [parse(record.value) async for record in scan_topic(transport, TOPIC)]
    finally:
        await transport.close()
    found = [parse_signature(message.verification.signature or "") for message in messages]
    return [signature.kid for signature in found if signature is not None]


@pytest.fixture
def signed(workers: Workers) -> Iterator[Signed]:
    made = Signed(workers)
    yield made
    made.close()


def test_a_key_rotation_under_load_loses_and_refuses_no_message(signed: Signed) -> None:
    signed.start(2)
    for overlap in ("2s", "1500ms"):
        before = len(signed.accepted())
        signed.keys("rotate", "planner@svc", "--overlap", overlap)
        switched = len(signed.accepted())
        assert switched > before + 100
        wait_until(lambda last=switched: len(signed.accepted()) > last + 300, 45, "it goes on")  # type: ignore[misc]
    signed.end()
    signed.wait_until_all_are_handled()
    kids = Counter(signed.kids())
    assert len(kids) == 3
    assert sum(kids.values()) == len(signed.accepted())
    assert min(kids.values()) > 100


def test_a_revocation_holds_in_every_running_worker(signed: Signed) -> None:
    signed.start(3)
    signed.keys("revoke", "planner@svc", "--why", "leaked", "--yes")
    revoked_s = time.monotonic()
    # Who has handled nothing for three seconds under this load refuses.
    handled, last_s = len(signed.workers.handled()), revoked_s
    while time.monotonic() - last_s < 3.0 and time.monotonic() - revoked_s < 3 * REVOKED_WITHIN_S:
        time.sleep(0.02)
        if (now := len(signed.workers.handled())) != handled:
            handled, last_s = now, time.monotonic()
    assert last_s - revoked_s < REVOKED_AIM_S < REVOKED_WITHIN_S
    signed.end()
    accepted = signed.accepted()
    assert len(accepted) > handled + 100
    wait_until(lambda: sum(signed.dead().values()) + handled == len(accepted), 30, signed.workers.logs())
    assert signed.dead() == {"key_revoked": len(accepted) - handled}
    assert len(set(signed.workers.handled())) == len(signed.workers.handled()) == handled


def test_broken_key_files_are_ignored_until_they_are_fixed(signed: Signed) -> None:
    signed.start(2)
    good, private = signed.jwks.read_bytes(), signed.private.read_bytes()
    signed.replace(signed.jwks, b'{"keys": [')
    signed.replace(signed.private, b"-----BEGIN nothing")
    time.sleep(2.5)
    before = len(signed.accepted())
    wait_until(lambda: len(signed.accepted()) > before + 200, 45, "it goes on")
    # A folder that others may write decides nothing either.
    signed.replace(signed.jwks, good.replace(b"planner@svc", b"mallory@svc"))
    signed.jwks.chmod(0o666)
    time.sleep(2.5)
    before = len(signed.accepted())
    wait_until(lambda: len(signed.accepted()) > before + 200, 45, "it goes on")
    signed.replace(signed.jwks, good)
    signed.replace(signed.private, private)
    time.sleep(1.5)
    signed.end()
    signed.wait_until_all_are_handled()
    logs = signed.workers.logs()
    assert "trust.keys_unusable" in logs
    assert "trust.keys_good_again" in logs
