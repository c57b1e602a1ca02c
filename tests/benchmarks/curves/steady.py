"""The same load for a long time: whether memory or open files grow.

Owns a publisher at a given rate and a worker beside it, the samples of both and of the broker, and the drift. Does not
own the drawing.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from curves.task import Job, Told
from curves.watching import files_open, resident_mb

__all__ = ["Course", "Steady", "watched"]

_SAMPLES, _MIN_EVERY_S = 600, 0.5
_WARM, _SHARE = 0.1, 0.05
_END_S, _BEHIND_S = 60.0, 2.0


class Course(msgspec.Struct, kw_only=True):
    """Of one process over time: minutes since the start, and values."""

    rss_mb: list[tuple[float, float]] = []
    files: list[tuple[float, float]] = []


class Steady(msgspec.Struct, kw_only=True):
    """A whole run."""

    log: str
    minutes: float
    per_second: float
    published: int = 0
    handled: int = 0
    courses: dict[str, Course] = {}

    def drifts(self, of: Callable[[Course], list[tuple[float, float]]]) -> dict[str, float]:
        """By process: the mean of the last twentieth less that of the twentieth after the first tenth."""
        found = {}
        for name, course in self.courses.items():
            points = of(course)
            first = [value for at, value in points if self.minutes * _WARM < at <= self.minutes * (_WARM + _SHARE)]
            last = [value for at, value in points if at > self.minutes * (1 - _SHARE)]
            if first and last:
                found[name] = statistics.fmean(last) - statistics.fmean(first)
        return found


def watched(
    job: Job, log: str, minutes: float, folder: Path, *, broker: int | None, say: Callable[[str], None]
) -> Steady:
    """Run for *minutes* at the job's rate; *say* is told now and then."""
    steady = Steady(log=log, minutes=minutes, per_second=job.per_second, courses={})
    seconds = minutes * 60
    # The worker goes on a little longer than the publisher, so that it gets everything.
    worker = _child(msgspec.structs.replace(job, verb="consume", group="steady", seconds=seconds + _BEHIND_S), folder)
    publisher = _child(msgspec.structs.replace(job, seconds=seconds), folder)
    pids: Mapping[str, int | None] = {"publisher": publisher.pid, "worker": worker.pid} | (
        {"broker": broker} if broker else {}
    )
    try:
        _sample(steady, pids, publisher, seconds, say)
        steady.published, steady.handled = (_counted(child) for child in (publisher, worker))
    finally:
        for child in (publisher, worker):
            child.kill()
            child.wait()
    return steady


def _sample(
    steady: Steady,
    pids: Mapping[str, int | None],
    publisher: subprocess.Popen[str],
    seconds: float,
    say: Callable[[str], None],
) -> None:
    begun_s, said_s = time.monotonic(), 0.0
    while publisher.poll() is None and (passed_s := time.monotonic() - begun_s) < seconds:
        for name, pid in pids.items():
            course = steady.courses.setdefault(name, Course(rss_mb=[], files=[]))
            size, files = resident_mb(pid), files_open(pid)
            if size is not None and files is not None:
                course.rss_mb.append((passed_s / 60, size))
                course.files.append((passed_s / 60, files))
        if passed_s - said_s > max(10.0, seconds / 60):
            said_s = passed_s
            sizes = ", ".join(
                f"{name} {course.rss_mb[-1][1]:.1f} MB" for name, course in steady.courses.items() if course.rss_mb
            )
            say(f"steady on {steady.log}, {passed_s / 60:.1f} of {steady.minutes:g} minutes: {sizes}")
        time.sleep(max(_MIN_EVERY_S, seconds / _SAMPLES))


def _child(job: Job, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("child.py")), msgspec.json.encode(job).decode()]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _counted(child: subprocess.Popen[str]) -> int:
    output, errors = child.communicate(timeout=_END_S)
    if child.returncode:
        raise RuntimeError(f"ended with {child.returncode}: {errors.strip()[-1000:]}")
    return msgspec.json.decode(output.strip().splitlines()[-1], type=Told).samples[-1].count
