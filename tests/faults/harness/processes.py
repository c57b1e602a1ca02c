"""Workers and publishers as processes that can be killed, halted, asked to stop, and started again.

Owns their command lines and environments, seats (a seat is always taken while it is wanted), and the lives that were
ended violently. Does not own when any of this happens (`deeds`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from harness.history import Life
from harness.publisher import Config

__all__ = ["ROOT", "Crew", "Seat", "run_publisher"]

ROOT = Path(__file__).resolve().parents[3]
_HERE = Path(__file__).resolve().parents[1]
_KEEP_S = 0.05
_AGAIN_S = 0.2


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SEALBUS_", "FAULT_"))}
    return kept | {"PYTHONPATH": f"{ROOT}{os.pathsep}{_HERE}", "PYTHONUNBUFFERED": "1"} | dict(extra)


class Seat:
    """One worker that shall be running; whoever sits here may die and is replaced."""

    def __init__(self, name: str, crew: Crew) -> None:
        self.name = name
        self.wanted = False
        self.process: asyncio.subprocess.Process | None = None
        self.once: dict[str, str] = {}
        """Environment of the next process only."""
        self._crew = crew
        self._rest_until_s = 0.0
        self._asked_ms: float | None = None
        self._killed: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        """Whether somebody sits here."""
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Take the seat."""
        self.wanted, self._asked_ms = True, None
        extra, self.once = self.once, {}
        with (self._crew.folder / f"{self.name}.log").open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *self._crew.command,
                cwd=self._crew.folder,
                env=_environment(self._crew.environment | {"FAULT_WORKER": self.name} | extra),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if there is anybody."""
        if self.process is not None and self.running:
            self.process.send_signal(number)

    async def kill(self, rest_s: float = 0.0) -> None:
        """End it as a power cut does; nobody sits here for *rest_s*."""
        self._rest_until_s, self._killed = time.monotonic() + rest_s, self.process
        self.signal(signal.SIGKILL)
        await self.ended()

    async def freeze(self, for_s: float) -> None:
        """Halt it for a while: it notices nothing."""
        process = self.process
        if process is None or not self.running:
            return
        self.signal(signal.SIGSTOP)
        self._crew.note(self.name, process.pid, violent=True)
        await asyncio.sleep(for_s)
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            self._crew.note(self.name, process.pid, violent=True)

    async def stop(self, within_s: float = 45.0) -> int:
        """Ask it to stop (SIGTERM); its exit code, -9 when it had to be killed."""
        self.wanted = False
        self.ask()
        try:
            return await asyncio.wait_for(self.ended(), within_s)
        except TimeoutError:
            await self.kill()
            return await self.ended()

    def ask(self) -> None:
        """SIGTERM, and the seat is taken by somebody else afterwards."""
        self._asked_ms = time.time() * 1000
        self.signal(signal.SIGTERM)

    async def ended(self) -> int:
        """Wait until nobody sits here."""
        return await self.process.wait() if self.process is not None else 0

    async def keep(self) -> None:
        """Whoever dies here is noted and replaced, for as long as the seat is wanted."""
        noted = None
        while True:
            await asyncio.sleep(_KEEP_S)
            process = self.process
            if process is None or process.returncode is None or process is noted:
                continue
            noted = process
            violent = process.returncode not in (0, 1) or self._asked_ms is None
            self._crew.note(self.name, process.pid, violent=violent, code=process.returncode, asked_ms=self._asked_ms)
            if process.returncode == -signal.SIGKILL and process is not self._killed:
                self._crew.fallen += 1
            if self.wanted:
                await asyncio.sleep(max(_AGAIN_S, self._rest_until_s - time.monotonic()))
                if self.wanted and not self.running:
                    await self.start()


class Crew:
    """All workers of one run."""

    def __init__(self, folder: Path, url: str, namespace: str, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.command = [
            sys.executable,
            "-m",
            "consumers.cli",
            "run",
            "harness.app:app",
            "--bus",
            url,
            "--namespace",
            namespace,
        ]
        self.environment = dict(environment)
        self.seats: dict[str, Seat] = {}
        self.lives: list[Life] = []
        self.fallen = 0
        """How many died by a SIGKILL that nobody here sent: at a failpoint."""
        self._keepers: list[asyncio.Task[None]] = []

    def seat(self, name: str) -> Seat:
        """The seat *name*, new or not."""
        if name not in self.seats:
            seat = self.seats[name] = Seat(name, self)
            self._keepers.append(asyncio.create_task(seat.keep()))
        return self.seats[name]

    def note(
        self, worker: str, pid: int, *, violent: bool, code: int | None = None, asked_ms: float | None = None
    ) -> None:
        """A life ended, or stood still."""
        self.lives.append(
            Life(worker=worker, pid=pid, ended_ms=time.time() * 1000, violent=violent, code=code, asked_ms=asked_ms)
        )

    def note_all(self) -> None:
        """All lives stand still."""
        for seat in self.seats.values():
            if seat.process is not None and seat.running:
                self.note(seat.name, seat.process.pid, violent=True)

    async def stop(self) -> list[int]:
        """All stop in order; their exit codes."""
        codes = await asyncio.gather(*(seat.stop() for seat in self.seats.values() if seat.running))
        await asyncio.sleep(_KEEP_S * 2)
        return list(codes)

    async def end(self) -> None:
        """Nothing of this run goes on."""
        for keeper in self._keepers:
            keeper.cancel()
        for seat in self.seats.values():
            seat.wanted = False
            await seat.kill()


async def run_publisher(folder: Path, config: Config, name: str = "publisher") -> asyncio.subprocess.Process:
    """Start a publisher; a second one of the same name goes on where the first was killed."""
    path = folder / f"{name}.json"
    path.write_bytes(msgspec.json.encode(config))
    with (folder / f"{name}.log").open("ab") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "harness.publisher",
            str(path),
            cwd=folder,
            env=_environment({}),
            stdout=output,
            stderr=output,
        )
