"""What one measurement is asked for, what it answers, and the meter in between.

Owns the two documents that go between the runner and a measuring process, reading time, processor time and memory, and
the choice of processor. Does not own what is measured, nor what is made of the answers.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from contextlib import suppress
from pathlib import Path

import msgspec

__all__ = ["Answer", "Meter", "Task", "pin", "settle_memory"]

_MB = 1e6


class Task(msgspec.Struct, kw_only=True):
    """One variant at one size. Messages are counted without the warm-up, which comes first and is not timed."""

    variant: str
    messages: int
    warm_up: int
    payloads: str
    """A file with one canonical payload a line."""
    folder: str
    """An empty folder for files of the measurement's own."""
    bootstrap: str = ""
    namespace: str = "agents"
    topic: str = ""
    group: str = ""
    partitions: int = 12
    compression: str = "zstd"
    cpu: int | None = None


class Answer(msgspec.Struct, kw_only=True):
    """What a measuring process prints as its only line. What does not apply is None."""

    messages: int
    seconds: float
    cpu_us: float
    """User and system time of the process, per message."""
    rss_peak_mb: float
    rss_growth_mb: float
    """Of the peak, what came after the payloads had been prepared: warm-up and measurement."""
    in_log: int = 0
    """Messages in the topic or file afterwards, the warm-up included: what the wire bytes are divided by."""
    wire_bytes: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    rss_drift_mb: dict[str, float] = {}
    """By process, for the variant that watches several."""
    note: str = ""
    pinned: bool = True

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds > 0 else 0.0


class Meter:
    """Reads the clocks at the start and at the end of the part that counts."""

    def __init__(self) -> None:
        self._started_s = self._started_cpu_s = 0.0
        self._seconds = self._cpu_s = 0.0
        self._rss_before_mb = _peak_from_here_mb()

    def start(self) -> None:
        """The part that counts begins."""
        self._started_cpu_s = time.process_time()
        self._started_s = time.perf_counter()

    def stop(self) -> None:
        """The part that counts has ended."""
        self._seconds = time.perf_counter() - self._started_s
        self._cpu_s = time.process_time() - self._started_cpu_s

    def answer(self, messages: int, *, in_log: int = 0, note: str = "") -> Answer:
        """What was measured over *messages*."""
        peak_mb = _peak_mb()
        return Answer(
            messages=messages,
            seconds=self._seconds,
            cpu_us=self._cpu_s / max(1, messages) * 1e6,
            rss_peak_mb=peak_mb,
            rss_growth_mb=peak_mb - self._rss_before_mb,
            in_log=in_log,
            note=note,
        )


def settle_memory() -> None:
    """Leave what was prepared out of the collector's sight: thousands of live payloads are the benchmark's doing,
    nobody's program has them."""
    gc.collect()
    gc.freeze()


def pin(cpu: int | None) -> bool:
    """Bind this process to *cpu*; whether that worked."""
    if cpu is None or not hasattr(os, "sched_setaffinity"):
        return False
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError:
        return False
    return True


def _peak_from_here_mb() -> float:
    """Forget the peak so far, which is the preparation's; what is resident now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_mb()


def _peak_mb() -> float:
    """Not getrusage's where there is better: that begins with what the parent of this process had."""
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _MB
    return next(int(line.split()[1]) * 1024 / _MB for line in lines if line.startswith("VmHWM"))
