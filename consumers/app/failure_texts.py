"""Texts about failures in a test of apps: where the user's code failed, what time the test's clock shows, and what of
production is off.

Owns these texts; `consumers.app.testing` says when they are told. Pure.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, TypeVar

from bus.clock import ManualClock
from bus.errors import DeadlineError, text_of
from bus.protocol.timestamps import format_ms
from bus.retry import PROGRAM_ERRORS
from bus.settings.schema import Settings
from bus.trust.policy.policy import NO_POLICY
from consumers.deadletters.letters import DeadLetter
from consumers.delivery.declaration import Declaration
from consumers.worker.startup_checks import start_faults
from producers.outcomes import RequestTimedOut

__all__ = [
    "ALWAYS_OFF",
    "failure_line",
    "is_of_time",
    "is_programming_error",
    "name_clock",
    "place_of",
    "switched_off",
    "time_told",
]

_Error = TypeVar("_Error", bound=BaseException)
_OURS: Final = str(Path(__file__).parents[2])
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_REASONS: Final = frozenset({"expired", "ttl_too_long", "clock_skew", "approval_timeout"})
_OUTLIVES: Final = "would outlive the message"
_POINTERS: Final = frozenset(
    {"at", "ttl_s", "delay_s", "timeout_s", "/routing/expires_at", "/routing/not_before", "/metadata/timestamp"}
)
ALWAYS_OFF: Final = (
    "log and inbox are in memory, so sizes and retention of a broker are not tested",
    "one worker for each app: no rebalance, no lease of another worker ends",
    "crash notes, park orders and heartbeats are off, so bus.directory finds no agents",
    "dead letters have the text of the error, whatever deadletter.details is",
)
"""What differs from a worker in every test."""


def is_programming_error(error: BaseException) -> bool:
    """Return whether *error* shows a mistake in the program: another attempt ends alike."""
    return isinstance(error, PROGRAM_ERRORS)


def place_of(error: BaseException) -> str:
    """Return file, line and function of the user's code in which *error* was raised; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)] or list(frames)
    if not own:
        return ""
    path = os.path.relpath(own[-1].filename) if _is_below_here(own[-1].filename) else own[-1].filename
    return f"{path}:{own[-1].lineno} in {own[-1].name}"


def _is_users(filename: str) -> bool:
    if filename.startswith(_OURS):
        # In a checkout the tests are beside the packages.
        return Path(filename).relative_to(_OURS).parts[0] not in ("bus", "producers", "consumers", "sealbus.py")
    return not filename.startswith(("<", *_LIBRARIES))


def _is_below_here(filename: str) -> bool:
    return filename.startswith(str(Path.cwd()) + os.sep)


def failure_line(error: BaseException) -> str:
    """Return one line about *error*: its class, its text and the place in the user's code."""
    return f"{type(error).__name__}: {text_of(error)} ({place_of(error)})"


def time_told(clock: ManualClock) -> str:
    """Return what time it is in a test."""
    return f"the test's clock shows {format_ms(clock.now_ms())}, and only `await bus.advance(seconds)` moves it"


def is_of_time(letters: Collection[DeadLetter]) -> bool:
    """Return whether one of *letters* died because of the time."""
    return any(
        letter.reason in _REASONS or letter.pointer in _POINTERS or _OUTLIVES in letter.error for letter in letters
    )


def name_clock(error: _Error, clock: ManualClock) -> _Error:
    """Return *error*, whose text also says the time of *clock* if it is about a time."""
    is_timed = isinstance(error, RequestTimedOut | DeadlineError)
    is_timed = is_timed or getattr(error, "reason", "") in _REASONS or getattr(error, "pointer", "") in _POINTERS
    if is_timed and error.args and "test's clock" not in str(error.args[0]):
        error.args = (f"{error.args[0]}; {time_told(clock)}", *error.args[1:])
    return error


def switched_off(apps: Sequence[Declaration], settings: Settings, *, has_inbox: Sequence[bool]) -> tuple[str, ...]:
    """Return what of the protection that *apps* can have is off in a test with *settings*, one line for each."""
    found = []
    if any(app.verifier is None for app in apps):
        found.append("signatures are off: no keys (app.test(keys=True) gives each agent one)")
    if any(app.policy is NO_POLICY for app in apps):
        found.append("the policy is off: policy.file is not set")
    for app, has_one in zip(apps, has_inbox, strict=True):
        faults = start_faults(app, has_inbox=has_one, high_risk=settings.trust.high_risk)
        found += [f"a worker with these settings does not start: {fault}" for fault in faults]
    return tuple(found)
