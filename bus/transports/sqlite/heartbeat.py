"""The heartbeat: one small write per second for all members of a transport.

Owns when members are renewed, and the fallback for lost wake-ups. `membership` computes what a heartbeat finds,
`subscription` acts on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bus.clock import Clock
from bus.transports.sqlite.background_task import Background
from bus.transports.sqlite.group_commit import LogWriter
from bus.transports.sqlite.membership import HeartbeatResult, Member, beat, listen
from bus.transports.sqlite.wakeups import Hub, Signal
from bus.transports.sqlite.write_transaction import LogFile

__all__ = ["Heartbeat", "MemberSession"]


class MemberSession(Protocol):
    """A subscription as the heartbeat sees it."""

    def member(self) -> Member:
        """Return the member in its present state."""

    def apply(self, pulse: HeartbeatResult) -> None:
        """Act on the result of a heartbeat."""

    def fail(self, error: Exception) -> None:
        """Report a failed heartbeat to the owner."""


class Heartbeat:
    """Beats at an interval while there are members or waiting readers."""

    def __init__(self, clock: Clock, writer: LogWriter, heartbeat_s: float) -> None:
        self.hub = Hub(self.beat_now)
        self._clock = clock
        self._writer = writer
        self._heartbeat_s = heartbeat_s
        self._sessions: list[MemberSession] = []
        self._signal = Signal()
        self._background = Background("sealbus-heart", self._live)

    def beat_now(self) -> None:
        """Beat now: a member came or went."""
        self._signal.set()

    def add(self, session: MemberSession) -> None:
        self._sessions.append(session)
        self.start()

    def discard(self, session: MemberSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)

    def start(self) -> None:
        """Start beating, at once."""
        self._background.start()
        self.beat_now()

    async def stop(self) -> None:
        await self._background.stop()

    async def _live(self) -> None:
        while True:
            self._signal.clear()
            if self._sessions or self.hub.busy:
                await self._beat()
            await self._signal.wait(self._clock, self._heartbeat_s)

    async def _beat(self) -> None:
        sessions = list(self._sessions)
        members = [session.member() for session in sessions]
        try:
            pulses = await self._writer.run(lambda log: self._written(log, members))
        except Exception as error:  # noqa: BLE001 - the next poll of each member raises it
            for session in sessions:
                session.fail(error)
            return
        for session, pulse in zip(sessions, pulses, strict=True):
            if session in self._sessions:
                _apply(session, pulse)
        # Datagrams may be lost or impossible, so every waiting task looks once per heartbeat.
        self.hub.wake_all()

    def _written(self, log: LogFile, members: Sequence[Member]) -> list[HeartbeatResult]:
        now_s = self._clock.monotonic_s()
        if self.hub.port is not None:
            listen(log, self.hub.port, now_s, 10 * self._heartbeat_s)
        return beat(log, members, now_s)


def _apply(session: MemberSession, pulse: HeartbeatResult) -> None:
    try:
        session.apply(pulse)
    # One member's fault must not stop the heartbeat of the others; its next poll raises it.
    except Exception as error:  # noqa: BLE001
        session.fail(error)
