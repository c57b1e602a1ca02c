"""Measuring the points of a curve: processes that produce, and workers that read what these have written.

Owns what each point starts, with which topics, and cleaning up behind it. Does not own what the processes do
(`curves.child`), nor what their answers come to (`curves.task`).
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from curves.catalog import Curve, Log, Point
from curves.child import REPORTS, TEXTS_BYTES
from curves.task import Job, Told, Window, window
from curves.watching import CpuNotes, cpu_watched
from speed.broker import Broker
from speed.payloads import TYPE, write_payloads

from bus.topics.names import dead_letter_topic

__all__ = ["Run", "Runner"]

_LOGS = {"kafka": "Kafka", "embedded": "embedded log"}
_PARTITIONS = {"kafka": 12, "embedded": 4}
_SPARE_S, _LAST_LINES = 240.0, 12
_OPENING_S, _OPENING_EACH_S = 0.5, 0.5
_MIN_TOGETHER_S = 4.0


class Run(NamedTuple):
    """What the processes of one measurement answered, and what the broker used meanwhile."""

    told: list[Told]
    broker: CpuNotes


class Runner:
    """Measures on one broker and in one folder."""

    def __init__(self, broker: Broker | None, folder: Path, seconds: float) -> None:
        self._broker = broker
        self._folder = folder
        self._seconds = seconds
        self._count = 0
        self._payloads = folder / "payloads"
        self._children: list[subprocess.Popen[str]] = []
        self._filled: dict[str, Job] = {}
        write_payloads(self._payloads, REPORTS)
        _write_text(Path(f"{self._payloads}.text"))

    def points(self, curve: Curve, log: Log, x: int) -> Iterator[Point]:
        """Measure at *x*."""
        on = _LOGS[log]
        if curve.how == "both":
            job = self.job(log, **_shape(curve, log, x))
            self.prepare(job)
            run = self.run([job])
            yield self._point(curve, f"publish_many, {on}", x, run, self._log_bytes(job, run.told))
            # Never more than there is; what comes within the time is measured.
            run = self.run([self.reading(job, total=run.told[0].written)])
            yield self._point(curve, f"worker, {on}", x, run)
            self.clean(job)
        elif curve.how == "producers":
            job = self.job(log)
            self.prepare(job)
            run = self.run([job] * x)
            yield self._point(curve, f"publish_many, {on}", x, run, self._log_bytes(job, run.told))
            self.clean(job)
        elif curve.how == "workers":
            # Those that join late must find something to do.
            seconds = max(_MIN_TOGETHER_S, self._seconds)
            run = self.run([self.reading(self._source(log, 2 * seconds), seconds=seconds)] * x)
            yield self._point(curve, f"worker, {on}", x, run)
        else:
            for handler in ("yield", "wait"):
                run = self.run([self.reading(self._source(log, self._seconds), handler=handler, concurrency=x)])
                yield self._point(curve, f"{'yields' if handler == 'yield' else 'waits 1 ms'}, {on}", x, run)

    def forget(self) -> None:
        """The curve is through: remove what its points shared."""
        for job in self._filled.values():
            self.clean(job)
        self._filled = {}

    def end(self) -> None:
        """End what still runs."""
        for child in self._children:
            child.kill()
            child.wait()

    def job(self, log: Log, **shape: int) -> Job:
        """What a producer is told, with a log or a namespace of its own."""
        self._count += 1
        folder = self._folder / f"log-{self._count}"
        folder.mkdir()
        url = f"sqlite:///{folder}/log.db"
        if log == "kafka":
            if self._broker is None:
                raise RuntimeError("no Kafka was started")
            url = f"kafka://{self._broker.bootstrap}"
        job = Job(
            verb="produce", url=url, namespace=f"n{self._count}", seconds=self._seconds, payloads=str(self._payloads)
        )
        return msgspec.structs.replace(job, **({"partitions": _PARTITIONS[log]} | shape))

    def reading(self, job: Job, **changes: object) -> Job:
        """What a worker is told that reads what *job* wrote, in a new group."""
        self._count += 1
        return msgspec.structs.replace(job, verb="consume", group=f"group-{self._count}", **changes)

    def _source(self, log: Log, seconds: float) -> Job:
        """A log that all points of the curve read, each with a group of its own."""
        if log not in self._filled:
            job = self.job(log)
            self.prepare(job)
            self.run([msgspec.structs.replace(job, seconds=seconds)])
            self._filled[log] = job
        return self._filled[log]

    def prepare(self, job: Job) -> None:
        """Make the topic that the curve is about; what a group has besides (tiers, dead letters) keeps the usual number
        of partitions."""
        if self._broker is None or not job.url.startswith("kafka"):
            return
        if job.topics > 1:
            names = [f"{job.namespace}.bench.text{number:04d}" for number in range(job.topics)]
            self._broker.make_topics([*names, *map(dead_letter_topic, names)], job.partitions)
            return
        name = TYPE if not job.size else "bench.text0000"
        self._broker.make_topic(f"{job.namespace}.{name}", job.partitions)
        job.partitions = min(job.partitions, _PARTITIONS["kafka"])

    def clean(self, job: Job) -> None:
        """Remove what *job* wrote."""
        if job.url.startswith("kafka"):
            assert self._broker is not None
            mine = f"{job.namespace}."
            self._broker.keep_only({name for name in self._broker.topics() if not name.startswith(mine)})
        else:
            shutil.rmtree(Path(job.url.removeprefix("sqlite:///")).parent, ignore_errors=True)

    def run(self, jobs: Sequence[Job], under: Sequence[str] = ()) -> Run:
        """Start a process for each job, *under* another program if given, and wait for all of them."""
        start_at_s = time.time() + _OPENING_S + _OPENING_EACH_S * len(jobs)
        with cpu_watched(
            self._broker.pid if self._broker is not None and jobs[0].url.startswith("kafka") else None
        ) as notes:
            self._children = [
                _started(msgspec.structs.replace(job, start_at_s=start_at_s), self._folder, under) for job in jobs
            ]
            try:
                return Run([_told(child, jobs[0].seconds + _SPARE_S) for child in self._children], notes)
            finally:
                self.end()

    def _log_bytes(self, job: Job, told: Sequence[Told]) -> float:
        count = sum(each.written for each in told)
        if not job.url.startswith("kafka"):
            folder = Path(job.url.removeprefix("sqlite:///")).parent
            return sum(file.stat().st_size for file in folder.iterdir()) / count
        assert self._broker is not None
        return self._broker.bytes_in(f"{job.namespace}.bench.*") / count

    def _point(self, curve: Curve, line: str, x: int, run: Run, log_bytes: float | None = None) -> Point:
        seen = window(run.told)
        idle = len(run.told) - seen.at_work
        return Point(
            curve=curve.name,
            line=line,
            x=x,
            rate=seen.rate,
            cpu_us=seen.cpu_us,
            broker_cpu_us=_broker_us(run.broker, seen),
            log_bytes=log_bytes,
            seconds=seen.seconds,
            messages=seen.messages,
            note=f"{idle} of {len(run.told)} processes had nothing to do" if idle else "",
        )


def _shape(curve: Curve, log: Log, x: int) -> dict[str, int]:
    match curve.name:
        case "partitions":
            return {"partitions": x}
        case "topics":
            return {"topics": x, "partitions": 1, "size": 1_000}
        case "keys":
            return {"keys": x}
        case _:
            return {"size": x, "partitions": _PARTITIONS[log]}


def _broker_us(notes: CpuNotes, seen: Window) -> float | None:
    within = [note for note in notes if seen.from_s <= note[0] <= seen.to_s]
    return (
        (within[-1][1] - within[0][1]) / max(1.0, seen.rate * (within[-1][0] - within[0][0])) * 1e6
        if len(within) > 1
        else None
    )


def _started(job: Job, folder: Path, under: Sequence[str]) -> subprocess.Popen[str]:
    command = [*under, sys.executable, str(Path(__file__).with_name("child.py")), msgspec.json.encode(job).decode()]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _told(child: subprocess.Popen[str], timeout_s: float) -> Told:
    output, errors = child.communicate(timeout=timeout_s)
    if child.returncode:
        raise RuntimeError(f"ended with {child.returncode}: " + "\n".join(errors.strip().splitlines()[-_LAST_LINES:]))
    # Whoever it runs under may have something to say as well.
    answer = next(line for line in reversed(output.splitlines()) if line.startswith("{"))
    return msgspec.json.decode(answer, type=Told)


def _write_text(path: Path) -> None:
    chance = random.Random(11)
    words = ["".join(chance.choices("aaabcdeeeefghiiklmnnooprsttuvw", k=chance.randint(2, 11))) for _ in range(4_000)]
    with path.open("w", encoding="ascii") as file:
        for _ in range(TEXTS_BYTES // 100_000):
            file.write(" ".join(chance.choices(words, k=20_000))[:100_000].ljust(100_000))
