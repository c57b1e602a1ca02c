"""Health of a worker's process, judged by progress: `/healthz/live`, `/healthz/ready` and `/healthz/startup`. Pure.

A probe that only checks that a socket answers keeps a stuck worker alive. Live fails if a restart would help: the
worker no longer polls the log, a handler ignores its deadline, or offsets are not committed although they could be.
Ready fails if no work gets done now, for example while a broker is unreachable; that is no reason for a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from producers.directory.hold_ups import HoldUp

__all__ = [
    "HealthAnswer",
    "HealthCheck",
    "POLL_S",
    "Probe",
    "StuckHandler",
    "WorkerSigns",
    "answer_probe",
    "answer_service",
]

Probe: TypeAlias = Literal["live", "ready", "startup"]

POLL_S: Final = 15.0
"""A worker asks its log at least once a second."""
OVERRUN_S: Final = 10.0
"""A handler that still runs so long after its deadline ignores being cancelled."""
COMMIT_READY_S: Final = 15.0
COMMIT_LIVE_S: Final = 120.0


class StuckHandler(msgspec.Struct, frozen=True, kw_only=True):
    """A handler that runs past its deadline, or while the loop stands still."""

    handler: str
    message_type: str
    over_s: float | None
    """Seconds past its deadline; None: the loop is blocked, perhaps by this handler."""


class WorkerSigns(msgspec.Struct, frozen=True, kw_only=True):
    """The signs of life of one app's worker."""

    agent: str
    group: str
    is_started: bool
    is_stopping: bool = False
    fetched_s_ago: float = 0.0
    uncommitted_s: float = 0.0
    """How long offsets could have been committed and were not."""
    log_error: str = ""
    """Why the log was not reached at the last attempt."""
    inbox_error: str = ""
    """Why the inbox did not answer."""
    running: tuple[StuckHandler, ...] = ()
    hold_ups: tuple[HoldUp, ...] = ()
    """The messages for which others wait, and what they wait for."""


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    agent: str
    check: str
    ok: bool
    detail: str


class HealthAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a probe."""

    probe: Probe
    ok: bool
    checks: tuple[HealthCheck, ...]
    hold_ups: tuple[HoldUp, ...] = ()
    """Why records are not settled, whether or not the probe fails for it."""


def answer_probe(probe: Probe, workers: Sequence[WorkerSigns]) -> HealthAnswer:
    """Return what *probe* is answered for a process with *workers*."""
    judge = {"live": _live, "ready": _ready, "startup": _started}[probe]
    checks = tuple(check for signs in workers for check in judge(signs))
    hold_ups = tuple(each for signs in workers for each in signs.hold_ups)
    return HealthAnswer(
        probe=probe, ok=bool(checks) and all(check.ok for check in checks), checks=checks, hold_ups=hold_ups
    )


def answer_service(probe: Probe, name: str, *, round_s_ago: float, limit_s: float, error: str) -> HealthAnswer:
    """Return what *probe* is answered for the service *name*, which goes round and round: live by its last round.

    It is *round_s_ago* seconds old, and *limit_s* the most. *error* is why that round did not do its work: then the
    service is not ready, and a restart would not help.
    """
    turns = HealthCheck(
        agent=name, check="round", ok=round_s_ago <= limit_s, detail=f"began its last round {round_s_ago:.1f} s ago"
    )
    checks: tuple[HealthCheck, ...] = (turns,)
    if probe == "ready":
        checks += (HealthCheck(agent=name, check="work", ok=not error, detail=error or "did its work"),)
    return HealthAnswer(probe=probe, ok=all(check.ok for check in checks), checks=checks)


def _started(signs: WorkerSigns) -> Iterable[HealthCheck]:
    yield _check(signs, "started", signs.is_started, "has joined its group" if signs.is_started else "is starting")


def _live(signs: WorkerSigns) -> Iterable[HealthCheck]:
    if not signs.is_started:
        # Nothing is known against it: the startup probe waits for it.
        yield _check(signs, "started", True, "is starting")
        return
    polls = signs.fetched_s_ago <= POLL_S
    why = "" if polls else f"; at work: {_named(signs.running) or 'no handler'}"
    yield _check(signs, "poll", polls, f"asked its log {signs.fetched_s_ago:.1f} s ago{why}")
    stuck = [each for each in signs.running if each.over_s is not None and each.over_s > OVERRUN_S]
    yield _check(signs, "handlers", not stuck, _named(stuck) or "none is past its deadline")
    commits = signs.uncommitted_s <= COMMIT_LIVE_S
    yield _check(signs, "commit", commits, f"offsets wait for {signs.uncommitted_s:.1f} s")


def _ready(signs: WorkerSigns) -> Iterable[HealthCheck]:
    if signs.is_stopping or not signs.is_started:
        yield _check(signs, "started", False, "is stopping" if signs.is_stopping else "is starting")
        return
    yield _check(signs, "log", not signs.log_error, signs.log_error or "answers")
    yield _check(signs, "inbox", not signs.inbox_error, signs.inbox_error or "answers")
    commits = signs.uncommitted_s <= COMMIT_READY_S
    yield _check(signs, "commit", commits, f"offsets wait for {signs.uncommitted_s:.1f} s")
    yield from (check for check in _live(signs) if check.check in ("poll", "handlers"))


def _named(handlers: Iterable[StuckHandler]) -> str:
    return ", ".join(
        f"{each.handler} ({each.message_type})" + ("" if each.over_s is None else f" {each.over_s:.0f} s too long")
        for each in handlers
    )


def _check(signs: WorkerSigns, name: str, ok: bool, detail: str) -> HealthCheck:
    return HealthCheck(agent=signs.agent, check=name, ok=ok, detail=detail)
