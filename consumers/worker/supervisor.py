"""Keep several worker processes alive, and end them together.

Owns starting and restarting children, and passing signals on to them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from bus.backoff import Backoff
from bus.clock import SystemClock
from bus.telemetry.logs import get_logger
from consumers.delivery.crashes.crash_guard import describe_death
from consumers.worker.signals import RepeatedSignal, ending_signals

if TYPE_CHECKING:
    from consumers.delivery.crashes.process_files import ProcessFiles

__all__ = ["drain_when_orphaned", "start", "supervise"]

_FAILED: Final = 1
_NOT_STARTED: Final = 256
"""No exit code that a child could have."""
_PROVEN_S: Final = 10.0
_BACKOFF: Final = Backoff(0.5, 30.0)
_MAX_TRIES_AT_WORK: Final = 3
"""The step of the back-off at which a child that died of what it was running stays.

Each of its deaths brings the message that is to blame nearer to its end.
"""

_log = get_logger("supervisor")


async def start(command: Sequence[str]) -> Process:
    """Start a child that gets only our signals, not the terminal's; its standard input ends when we do."""
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, start_new_session=True)


async def supervise(
    commands: Sequence[Sequence[str]], rolls: Sequence[ProcessFiles] = (), *, hopeless: Collection[int] = ()
) -> int:
    """Keep one child per command alive until a signal; return 0 if all of them ended with 0.

    *rolls*, one per app, record what was running in a child that died. A child that ends with a code of *hopeless*
    before it ever worked would do so again: then all end with this code.
    """
    return await _Supervisor(commands, rolls, hopeless).run()


class _Supervisor:
    def __init__(
        self, commands: Sequence[Sequence[str]], rolls: Sequence[ProcessFiles], hopeless: Collection[int]
    ) -> None:
        self._commands = commands
        self._hopeless = hopeless
        self._rolls = rolls
        self._clock = SystemClock()
        self._pids: dict[int, int] = {}
        """The last child of each slot."""
        self._children: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._killed = 0
        self._insistence = RepeatedSignal()

    async def run(self) -> int:
        loop, ending = asyncio.get_running_loop(), ending_signals()
        for number in ending:
            loop.add_signal_handler(number, self._received, number)
        try:
            codes = await asyncio.gather(*(self._keep(slot) for slot in range(len(self._commands))))
        finally:
            for number in ending:
                loop.remove_signal_handler(number)
        if self._killed:
            return 128 + self._killed
        hopeless = [code for code in codes if code in self._hopeless]
        return hopeless[0] if hopeless else _FAILED if any(codes) else 0

    async def _keep(self, slot: int) -> int:
        tries, begun, proven = 0, False, False
        while True:
            started_s, started_ms = time.monotonic(), self._clock.now_ms()
            code = await self._live(slot)
            lived_s = time.monotonic() - started_s
            running = self._running_in(slot, started_ms) if code else []
            begun = begun or code != _NOT_STARTED
            proven = proven or lived_s > _PROVEN_S
            if self._stopping.is_set():
                return code
            if not begun or (code in self._hopeless and not proven):
                _log.error("supervisor.child_hopeless", slot=slot, code=code)
                self._stop(signal.SIGTERM)
                return code
            tries = 1 if lived_s > _PROVEN_S else tries + 1
            tries = min(tries, _MAX_TRIES_AT_WORK) if running else tries
            pause_s = _BACKOFF.delay_s(tries)
            _log.warning(
                "supervisor.child_died",
                slot=slot,
                code=code,
                lived_s=round(lived_s, 1),
                restart_in_s=pause_s,
                running=running or None,
            )
            if await self._stopped_within(pause_s):
                return 0

    async def _live(self, slot: int) -> int:
        try:
            child = await start(self._commands[slot])
        except OSError as error:
            # No memory or no process id is left, usually for a while: the other children continue.
            _log.error("supervisor.child_not_started", slot=slot, error=str(error))
            return _NOT_STARTED
        self._children[slot], self._pids[slot] = child, child.pid
        _log.info("supervisor.child_started", slot=slot, pid=child.pid)
        if self._stopping.is_set():
            _signal(child, signal.SIGTERM)
        code = await child.wait()
        del self._children[slot]
        # Our signal ended the child before it had set up its signal handlers: it had not started to work.
        return 0 if self._stopping.is_set() and code == -signal.SIGTERM else code

    def _running_in(self, slot: int, since_ms: int) -> list[str]:
        """Count the death of the last child of *slot*, and return what was running in it.

        The death of a child that we killed is not counted.
        """
        pid = self._pids.pop(slot, None)
        if pid is None:
            return []
        running: list[str] = []
        for roll in self._rolls:
            try:
                roll.count(self._clock.now_ms(), excused=pid if self._stopping.is_set() else None)
                death = roll.death_of(pid, since_ms)
            except OSError as error:
                _log.error("supervisor.death_not_counted", slot=slot, error=str(error))
                continue
            running += describe_death(death) if death is not None else []
        return running

    def _received(self, number: int) -> None:
        name = signal.Signals(number).name
        insists = self._insistence.grows()
        if insists:
            self._killed = number
            _log.warning("supervisor.killed", signal=name)
            self._stop(signal.SIGKILL)
        if insists is not None:
            return
        _log.info("supervisor.stopping", signal=name, children=len(self._children))
        self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        self._stopping.set()
        for child in self._children.values():
            _signal(child, number)

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True


def _signal(child: Process, number: int) -> None:
    if child.returncode is None:
        try:
            os.kill(child.pid, number)
        except ProcessLookupError:
            return


def drain_when_orphaned() -> None:
    """Drain when standard input ends: it is a pipe from the supervisor."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="sealbus-orphan", daemon=True).start()
