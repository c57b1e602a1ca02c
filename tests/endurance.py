"""A run outlives its tests: whatever one of them does, the others run, and what it did is its own failure.

Owns three ways in which one test has ended all of them. A failure whose text can't be encoded could not be sent to the
controller. A time limit that ran out while a failure was being written down raised where nobody expects it. A worker
that died was not replaced, because xdist 3.8 gives the new one a single test and waits for ever.

Owns also what a busy machine must not decide: how long an example of hypothesis takes, and a server's start.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("sealbus", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sealbus")

_AGAIN_S = 0.1
_SESSION_FIXTURE_S = 300.0
_is_interruptible = False


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """What is sent to the controller is encoded as UTF-8, which has no lone surrogates."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(name): _encodable(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_encodable(item) for item in value)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, Any, Any]:
    """Let the time limit interrupt nothing but setup, test and teardown; between them it waits for the next."""
    result = yield
    if settings.method == "signal":
        interrupt = signal.getsignal(signal.SIGALRM)

        def ring(number: int, frame: Any) -> None:
            if _is_interruptible:
                interrupt(number, frame)  # type: ignore[operator, misc]
            else:
                signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)

        signal.signal(signal.SIGALRM, ring)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    """A server that is started once for all has a time limit of its own; that of its first test stands still."""
    left_s = signal.getitimer(signal.ITIMER_REAL)[0]
    if fixturedef.scope != "session" or not left_s:
        return (yield)
    signal.setitimer(signal.ITIMER_REAL, _SESSION_FIXTURE_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s)


# Innermost: what is raised there is a result of the phase for every hook around it.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _interruptible())


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _interruptible())


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    return (yield from _interruptible())


def _interruptible() -> Generator[None, Any, Any]:
    global _is_interruptible  # noqa: PLW0603 - one main thread, one timer
    _is_interruptible = True
    try:
        return (yield)
    finally:
        _is_interruptible = False


class EnduringScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Goes on with a new worker where one has died: its test has failed, and is not run again."""

    def remove_node(self, node: Any) -> str | None:
        units = self.assigned_work.pop(node)
        unfinished = [(unit, name) for unit in units.values() for name, is_done in unit.items() if not is_done]
        if not unfinished:
            return None
        unit, died_of = unfinished[0]
        unit[died_of] = True
        self.workqueue.update({scope: unit for scope, unit in units.items() if self._pending_of({scope: unit})})
        for other in self.assigned_work:
            self._reschedule(other)
        return died_of

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        # A worker runs a test when it knows the next one, too.
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
