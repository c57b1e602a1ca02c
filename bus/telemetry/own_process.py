"""What this process uses of its machine: memory and processors, and how much memory it may have."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

__all__ = ["ProcessorShare", "memory_limit_mb", "memory_mb", "register_own_process"]

_MB: Final = 1e6
_STATM: Final = Path("/proc/self/statm")
_CGROUPS: Final = Path("/proc/self/cgroup")
_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60


def memory_mb() -> float | None:
    """Return the resident memory of this process in megabytes; None where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MB
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / _MB if sys.platform == "darwin" else peak * 1024 / _MB


def memory_limit_mb() -> float | None:
    """Return how much memory this process may have by its control group, in megabytes; None without a limit."""
    for file in _limit_files():
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) < _UNLIMITED:
            return int(text) / _MB
    return None


def _limit_files() -> Iterator[Path]:
    """Yield the files that may hold a limit, the nearest group first; in a container the root is its own group."""
    try:
        lines = _CGROUPS.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        group = path.lstrip("/")
        if not controllers:
            yield from (parent / "memory.max" for parent in _up(_CGROUP_ROOT / group))
        elif "memory" in controllers.split(","):
            yield from (parent / "memory.limit_in_bytes" for parent in _up(_CGROUP_ROOT / "memory" / group))
    yield _CGROUP_ROOT / "memory.max"
    yield _CGROUP_ROOT / "memory" / "memory.limit_in_bytes"


def _up(folder: Path) -> Iterable[Path]:
    return [each for each in (folder, *folder.parents) if each.is_relative_to(_CGROUP_ROOT)]


class ProcessorShare:
    """How much of the processors this process uses between two looks."""

    def __init__(self) -> None:
        self._seen = time.monotonic(), time.process_time()

    def look(self) -> float:
        """Return the share since the last look; 1 is all processors."""
        (before_s, used_s), self._seen = self._seen, (time.monotonic(), time.process_time())
        passed_s = self._seen[0] - before_s
        return (self._seen[1] - used_s) / passed_s / (os.cpu_count() or 1) if passed_s > 0 else 0.0


def register_own_process(registry: CollectorRegistry) -> None:
    """Add the usual `process_*` series of this process, and its memory limit, to *registry*, once."""
    from prometheus_client import ProcessCollector
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector

    class Limit(Collector):
        def collect(self) -> Iterator[Metric]:
            limit = memory_limit_mb()
            family = GaugeMetricFamily(
                "sealbus_memory_limit_bytes",
                "How much memory the process may have; +Inf: no limit is known.",
            )
            family.add_metric([], float("inf") if limit is None else limit * _MB)
            yield family

    try:
        ProcessCollector(registry=registry)
        registry.register(Limit())
    except ValueError:
        # The registry is the program's own, which has them already.
        return
