"""Circuit breakers: messages wait for a dependency that is down, and one of them probes it.

Owns the rule (`Breakers`) and what follows from it (`CircuitBreakers`): which types wait, the metric and the log lines.
How few of a waiting type are fetched is in `consumers.delivery.state.assignments`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping

from bus.backoff import Backoff
from bus.clock import Clock, Timer
from bus.errors import DependencyDown, MissingSetting, text_of
from bus.protocol.sealing import Message
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics

__all__ = ["Breakers", "CircuitBreakers", "FORGOTTEN_S"]

_MAX_NAMES = 50
_OTHER = "other"

_log = get_logger("breaker")


class CircuitBreakers:
    """The breakers of one group; *throttle_waiting* receives the message types that wait now."""

    def __init__(
        self, group: str, clock: Clock, metrics: Metrics, throttle_waiting: Callable[[set[str]], None]
    ) -> None:
        self._group = group
        self._clock = clock
        self._metrics = metrics
        self._let_wait = throttle_waiting
        self._breakers = Breakers()
        self._names: set[str] = set()
        self._meters = metrics.meters(group)
        self._done: Mapping[str, float] = {}
        """The number of done messages per type at the last look."""
        self._done_s: dict[str, float] = {}
        """When a message of a type was last seen to be done."""
        self._looking: Timer | None = None
        self.any_down = False
        """Whether a dependency is down or doubted: only then are runs checked and reported."""
        self.changed: Callable[[], object] = int
        """Called when that may have changed."""

    def delay_s(self, message_type: str, message_id: str) -> float:
        """Return 0 when the message may run now; else the seconds after which to ask again."""
        return self._breakers.delay_s(message_type, message_id, self._clock.monotonic_s()) if self.any_down else 0.0

    def blame(self, error: DependencyDown, message_type: str, message_id: str) -> float | None:
        """Return the seconds to wait for the dependency in *error*; None if the failure counts as the message's own."""
        known = error.name in self._breakers.open
        lively = self._is_lively(message_type)
        certain, now_s = isinstance(error, MissingSetting), self._clock.monotonic_s()
        delay_s = self._breakers.blame(error.name, message_type, message_id, now_s, lively=lively, certain=certain)
        if delay_s is not None and not known and error.name in self._breakers.open:
            _log.error("breaker.open", dependency=error.name, type=message_type, error=text_of(error)[:300])
            self._show(error.name, is_open=True)
        self._apply()
        return delay_s

    def dependencies_of(self, message_type: str) -> list[str]:
        """Return the dependencies that messages of *message_type* wait for."""
        return self._breakers.needed_by(message_type)

    def watch(self) -> None:
        """Note which types were done since the last look. Call it about once a second."""
        now_s, before = self._clock.monotonic_s(), self._done
        self._done = {label: meter.done.count for label, meter in self._meters.items()}
        self._done_s |= {label: now_s for label, count in self._done.items() if count > before.get(label, 0)}

    def _is_lively(self, message_type: str) -> bool:
        """Return whether messages of that type were done within the last seconds."""
        if self._meters[message_type].done.count > self._done.get(message_type, 0):
            return True
        done_s = self._done_s.get(message_type)
        return done_s is not None and self._clock.monotonic_s() - done_s < _LIVELY_S

    def succeeded(self, message: Message) -> None:
        """Note that the handler of *message* succeeded."""
        if not self.any_down:
            return
        before = set(self._breakers.open)
        if not self._breakers.succeed(message.message_id, message.message_type, self._clock.monotonic_s()):
            self._look_for_any()
        else:
            for name in before - set(self._breakers.open):
                _log.info("breaker.closed", dependency=name)
                self._show(name, is_open=False)
            self._apply()

    def release(self, message: Message | None) -> None:
        """Note that *message* did not run, or that its run says nothing about a dependency.

        As long as it counts as the probe, other messages of its type have to wait.
        """
        if self.any_down and message is not None:
            self._breakers.release(message.message_id, self._clock.monotonic_s())

    def _look_for_any(self) -> None:
        self.any_down = bool(self._breakers.open) or self._breakers.doubted
        self.changed()

    def _apply(self) -> None:
        self._look_for_any()
        self._let_wait(self._breakers.waiting_types)
        if self._breakers.open and self._looking is None:
            self._looking = self._clock.call_later(FORGOTTEN_S, self._forget)

    def _forget(self) -> None:
        self._looking = None
        for name in self._breakers.forget(self._clock.monotonic_s()):
            _log.info("breaker.forgotten", dependency=name)
            self._show(name, is_open=False)
        self._apply()

    def _show(self, dependency: str, *, is_open: bool) -> None:
        # A handler chooses the name: a new name per message must not become a new series per message.
        if dependency in self._names or len(self._names) < _MAX_NAMES:
            self._names.add(dependency)
        else:
            dependency = _OTHER
        self._metrics.breaker_open.labels(self._group, dependency).set(int(is_open))


FORGOTTEN_S = 600.0
"""Seconds after which a dependency is forgotten that no message asks about.

Longer than any wait here, and than the longest default retry tier, whose waiting messages are not seen.
"""


_LIVELY_S = 3.0
"""Seconds after the last success of a type during which reports about its dependencies are not accepted."""
_BASE_S = 1.0
_BACKOFF = Backoff(_BASE_S, 30.0)


_MAX_BLAMED = 10_000


_MAX_NEEDED = 64


_MAX_DOUBTS = 1_000


class _Breaker:
    """One dependency that is down."""

    __slots__ = ("asked_s", "backoff_s", "backoffs_s", "last_s", "next_probe_s", "probed", "probing", "types")

    def __init__(self, message_type: str, now_s: float) -> None:
        self.types = {message_type}
        self.backoffs_s = _BACKOFF.delays_s()
        self.backoff_s = next(self.backoffs_s)
        self.next_probe_s = now_s + _BASE_S
        self.probing: str | None = None
        self.probed: set[str] = set()
        """The messages that have probed in this round."""
        self.asked_s: dict[str, float] = {}
        """When each waiting message last asked."""
        self.last_s = now_s
        """When any message last asked about it or blamed it."""

    def wait_s(self, message_id: str, now_s: float) -> float:
        """Return the seconds to wait; 0 when it is this message's turn to probe."""
        self.asked_s[message_id] = self.last_s = now_s
        if self.probing is not None:
            return _BASE_S
        if now_s < self.next_probe_s:
            return self.next_probe_s - now_s
        if message_id in self.probed and self._others_wait(now_s):
            return _BASE_S
        return 0.0

    def begin(self, message_id: str) -> None:
        """Note that the message probes now."""
        self.probing = message_id
        self.probed.add(message_id)

    def _others_wait(self, now_s: float) -> bool:
        """Return whether a message that has not probed still waits; else begin a new round."""
        # A message that has not asked for that long was settled otherwise, or given away.
        self.asked_s = {
            name: asked_s for name, asked_s in self.asked_s.items() if now_s - asked_s <= self.backoff_s + 2 * _BASE_S
        }
        if any(name not in self.probed for name in self.asked_s):
            return True
        self.probed.clear()
        return False


class _Doubt:
    """The evidence against a dependency that is not known to be down.

    It also counts the false reports that it was down.
    """

    __slots__ = ("blamers", "contradicted", "last_s", "types")

    def __init__(self) -> None:
        self.blamers: set[str] = set()
        """The messages that have blamed it since the last success."""
        self.types: set[str] = set()
        self.contradicted = 0
        self.last_s = 0.0

    def needed(self, now_s: float) -> int:
        """Return how many messages have to blame it, without a success between them."""
        if now_s - self.last_s > FORGOTTEN_S:
            self.contradicted = 0
        return min(_MAX_NEEDED, 1 << self.contradicted)


class Breakers:
    """All breakers of one worker. Messages are named by their ids."""

    def __init__(self) -> None:
        self._open: dict[str, _Breaker] = {}
        self._closings: dict[str, int] = {}
        self._blamed: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._doubts: OrderedDict[str, _Doubt] = OrderedDict()

    @property
    def open(self) -> Collection[str]:
        """The dependencies that are down."""
        return self._open.keys()

    @property
    def doubted(self) -> bool:
        """Whether a success now would count for a dependency that is not down."""
        return any(doubt.blamers for doubt in self._doubts.values())

    @property
    def waiting_types(self) -> set[str]:
        """The message types that wait for a dependency."""
        return {name for breaker in self._open.values() for name in breaker.types}

    def needed_by(self, message_type: str) -> list[str]:
        """Return the dependencies that are down and that messages of *message_type* wait for."""
        return sorted(name for name, breaker in self._open.items() if message_type in breaker.types)

    def delay_s(self, message_type: str, message_id: str, now_s: float) -> float:
        """Return 0 when the message may run now, perhaps as a probe; else the seconds after which to ask again."""
        needed = [
            breaker
            for breaker in self._open.values()
            if message_type in breaker.types and breaker.probing != message_id
        ]
        wait_s = max((breaker.wait_s(message_id, now_s) for breaker in needed), default=0.0)
        if not wait_s:
            for breaker in needed:
                breaker.begin(message_id)
        return wait_s

    def blame(
        self,
        dependency: str,
        message_type: str,
        message_id: str,
        now_s: float,
        *,
        lively: bool = False,
        certain: bool = False,
    ) -> float | None:
        """Record a handler's report that *dependency* is down; return the seconds its message waits.

        None means that the failure counts as the message's own.

        *lively*: messages of that type succeeded within the last seconds, so the report is not accepted. *certain*: a
        success of another message cannot contradict the report.
        """
        self.release(message_id, now_s, failed=True)
        key, closings = (dependency, message_id), self._closings.get(dependency, 0)
        breaker = self._open.get(dependency)
        if breaker is None and not certain and self._blamed.get(key, closings) < closings:
            return None
        self._blamed[key] = closings
        self._blamed.move_to_end(key)
        if len(self._blamed) > _MAX_BLAMED:
            self._blamed.popitem(last=False)
        if breaker is None:
            doubt = self._doubt(dependency, message_type, message_id)
            # While others of its type succeed, each blaming message waits by itself, however many there are: they must
            # not stop the rest.
            if not certain and (lively or len(doubt.blamers) < doubt.needed(now_s)):
                return _BASE_S
            doubt.blamers.clear()
            breaker = self._open[dependency] = _Breaker(message_type, now_s)
        breaker.types.add(message_type)
        breaker.last_s = now_s
        return max(0.0, breaker.next_probe_s - now_s)

    def _doubt(self, dependency: str, message_type: str, message_id: str) -> _Doubt:
        doubt = self._doubts.setdefault(dependency, _Doubt())
        self._doubts.move_to_end(dependency)
        if len(self._doubts) > _MAX_DOUBTS:
            self._doubts.popitem(last=False)
        doubt.blamers.add(message_id)
        doubt.types.add(message_type)
        return doubt

    def _contradict(self, dependency: str, doubt: _Doubt) -> None:
        doubt.blamers.clear()
        self._closings[dependency] = self._closings.get(dependency, 0) + 1

    def succeed(self, message_id: str, message_type: str | None = None, now_s: float = 0.0) -> bool:
        """Note that a handler succeeded; return True when its message was a probe, so a dependency is up again.

        Without *message_type* the message may be of any type.
        """
        for name, doubt in self._doubts.items():
            if (
                doubt.blamers
                and (message_type is None or message_type in doubt.types)
                and doubt.blamers != {message_id}
            ):
                self._contradict(name, doubt)
        for name in self._closings:
            self._blamed.pop((name, message_id), None)
        closed = [name for name, breaker in self._open.items() if breaker.probing == message_id]
        for name in closed:
            del self._open[name]
            self._closings[name] = self._closings.get(name, 0) + 1
            self._blamed.pop((name, message_id), None)
            doubt = self._doubts.setdefault(name, _Doubt())
            doubt.contradicted, doubt.last_s = min(doubt.contradicted + 1, 16), now_s
        return bool(closed)

    def release(self, message_id: str, now_s: float, *, failed: bool = False) -> None:
        """Record that a message is no longer the probe.

        *failed*: the probe failed. Otherwise the run was cancelled or its partition was revoked, which gives no
        evidence.
        """
        for breaker in self._open.values():
            if breaker.probing == message_id:
                breaker.probing = None
                if failed:
                    breaker.backoff_s = next(breaker.backoffs_s)
                    breaker.next_probe_s = now_s + breaker.backoff_s

    def forget(self, now_s: float) -> list[str]:
        """Forget dependencies that no message has asked about for long; return their names.

        This says nothing about whether they are up.
        """
        forgotten = [
            name
            for name, breaker in self._open.items()
            if breaker.probing is None and now_s - breaker.last_s >= FORGOTTEN_S
        ]
        for name in forgotten:
            del self._open[name]
        return forgotten
