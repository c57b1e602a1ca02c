"""Waiting for dependencies: the breakers of a worker, with everything that has to follow when one opens or closes.

Owns telling which types wait, of which only a few are fetched then, the series that says so, and the log lines. The rules are
`consumers.breaker`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bus.clock import Clock, Timer
from bus.errors import DependencyDown, SettingMissing, text_of
from bus.logs import get_logger
from bus.metrics import Metrics
from bus.sealing import Message
from consumers.breaker import FORGOTTEN_S, Breakers

__all__ = ["Dependencies"]

_MOST_NAMES = 50
_OTHER = "other"

_log = get_logger("breaker")


class Dependencies:
    """What one group waits for. *let_wait* is told which message types wait now."""

    def __init__(self, group: str, clock: Clock, metrics: Metrics, let_wait: Callable[[set[str]], None]) -> None:
        self._group = group
        self._clock = clock
        self._metrics = metrics
        self._let_wait = let_wait
        self._breakers = Breakers()
        self._names: set[str] = set()
        self._meters = metrics.meters(group)
        self._done: Mapping[str, float] = {}
        self._done_before: Mapping[str, float] = {}
        """How much of each type was done at the last look, and at the one before."""
        self._looking: Timer | None = None
        self.any_down = False
        """Whether there is anything to ask, or to tell of a success."""

    def delay_s(self, message_type: str, message_id: str) -> float:
        """0 when the message may run now; else seconds after which to ask again."""
        return self._breakers.delay_s(message_type, message_id, self._clock.monotonic_s()) if self.any_down else 0.0

    def blame(self, error: DependencyDown, message_type: str, message_id: str) -> float | None:
        """Seconds to wait for what *error* names; None when this failure counts as the message's own."""
        known = error.name in self._breakers.open
        lively = self._is_lively(message_type)
        certain, now_s = isinstance(error, SettingMissing), self._clock.monotonic_s()
        delay_s = self._breakers.blame(error.name, message_type, message_id, now_s, lively=lively, certain=certain)
        if delay_s is not None and not known and error.name in self._breakers.open:
            _log.error("breaker.open", dependency=error.name, type=message_type, error=text_of(error)[:300])
            self._show(error.name, is_open=True)
        self._follow()
        return delay_s

    def watch(self) -> None:
        """Look what was done since the last look; to be called every second or so."""
        self._done_before, self._done = self._done, {label: meter.done.count for label, meter in self._meters.items()}

    def _is_lively(self, message_type: str) -> bool:
        """Whether messages of that type were done since the last look but one."""
        before = self._done_before.get(message_type)
        return before is not None and self._meters[message_type].done.count > before

    def succeeded(self, message: Message) -> None:
        """A handler went through."""
        if not self.any_down:
            return
        before = set(self._breakers.open)
        if not self._breakers.succeed(message.message_id, message.message_type, self._clock.monotonic_s()):
            self.any_down = bool(self._breakers.open) or self._breakers.doubted
        else:
            for name in before - set(self._breakers.open):
                _log.info("breaker.closed", dependency=name)
                self._show(name, is_open=False)
            self._follow()

    def release(self, message: Message | None) -> None:
        """A run ended in a way that says nothing about any dependency, or there was none: were the message still to count as the probe, no
        other of its type would be let through."""
        if self.any_down and message is not None:
            self._breakers.release(message.message_id, self._clock.monotonic_s())

    def _follow(self) -> None:
        self.any_down = bool(self._breakers.open) or self._breakers.doubted
        self._let_wait(self._breakers.waiting_types)
        if self._breakers.open and self._looking is None:
            self._looking = self._clock.call_later(FORGOTTEN_S, self._forget)

    def _forget(self) -> None:
        self._looking = None
        for name in self._breakers.forget(self._clock.monotonic_s()):
            _log.info("breaker.forgotten", dependency=name)
            self._show(name, is_open=False)
        self._follow()

    def _show(self, dependency: str, *, is_open: bool) -> None:
        # A name comes from a handler: one that is made up anew each time must not become a series each time.
        if dependency in self._names or len(self._names) < _MOST_NAMES:
            self._names.add(dependency)
        else:
            dependency = _OTHER
        self._metrics.breaker_open.labels(self._group, dependency).set(int(is_open))
