"""Resident memory of `sealbus publish` and `sealbus run` over many messages, as `tests/benchmarks/embedded.py`
watches them.

Owns what is read off that watch: drift after the first tenth, and the worker's peak.
"""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path

import embedded
from speed.measurement import Answer, Task

__all__ = ["drift", "processes"]

_SHARE = 0.05


def processes(task: Task) -> Answer:
    """Both at work at the same time on one file."""
    folder = Path(task.folder)
    (folder / "bench_app.py").write_text(embedded.APP, "utf-8")
    started_s = time.perf_counter()
    sampled = embedded.watch_memory(folder, task.messages)
    seconds = time.perf_counter() - started_s
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peaks = {name: max(size for _, size in points) for name, points in sampled.items()}
    return Answer(
        messages=task.messages,
        seconds=seconds,
        cpu_us=(used.ru_utime + used.ru_stime) / task.messages * 1e6,
        rss_peak_mb=peaks["worker"],
        rss_growth_mb=0.0,
        rss_drift_mb={name: drift(points, task.messages) for name, points in sampled.items()},
        in_log=task.messages,
        note=f"peak of the publisher {peaks['publisher']:.1f} MB",
    )


def drift(points: embedded.Series, count: int) -> float:
    """How much more memory at the end than after a tenth; means over a twentieth of all, for a sample here and there is
    a moment's."""
    first = [size for number, size in points if count * 0.1 < number <= count * (0.1 + _SHARE)]
    last = [size for number, size in points if number > count * (1 - _SHARE)]
    return statistics.fmean(last) - statistics.fmean(first)
