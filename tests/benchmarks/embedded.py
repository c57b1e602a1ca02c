"""What the embedded log costs: throughput, and memory over a long run. Also by itself: `python
tests/benchmarks/embedded.py`.

Owns starting real publishers and workers as processes (`sealbus publish`, `sealbus run`), watching their memory in
/proc and the group's commits in the log, and drawing the plot. 1 KB payloads, every gate on, full synchronisation to
disk.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

ROOT = Path(__file__).parent.parent.parent
APP = """
import msgspec
from sealbus import App, payload

@payload("bench.job", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    steps: tuple[str, ...]
    score: float

app = App("bench@svc", group="bench")

@app.on(Job)
async def handle(job: Job) -> None:
    pass
"""
Series = list[tuple[float, float]]


def lines(count: int) -> Iterator[bytes]:
    for number in range(count):
        steps = [f"step {step} of job {number}: read the page, weigh it, note what matters" for step in range(14)]
        yield orjson.dumps({"number": number, "score": number / 7, "steps": steps}) + b"\n"


def sealbus(folder: Path, *arguments: str, **streams: object) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "consumers.cli", *arguments, "--bus", "sqlite:///log.db"]
    with (folder / f"{arguments[0]}.err").open("ab") as errors:
        return subprocess.Popen(command, cwd=folder, env=environment, stderr=errors, **streams)  # type: ignore[call-overload]


def resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def settled(log: sqlite3.Connection) -> int:
    return log.execute("SELECT coalesce(sum(committed), 0) FROM leases WHERE grp = 'agents.bench'").fetchone()[0]


def watch_settled(folder: Path, total: int) -> Series:
    """(seconds, settled) until everything is."""
    log = sqlite3.connect(folder / "log.db", timeout=10)
    points: Series = []
    while not points or points[-1][1] < total:
        points.append((time.perf_counter(), settled(log)))
        time.sleep(0.05)
    log.close()
    return points


def rate(points: Series) -> float:
    """Per second between 10 % and 90 %."""
    total = points[-1][1]
    first = next(point for point in points if point[1] >= total * 0.1)
    last = next(point for point in points if point[1] >= total * 0.9)
    return (last[1] - first[1]) / max(1e-9, last[0] - first[0])


def throughput(folder: Path, count: int) -> None:
    source = folder / "jobs.ndjson"
    source.write_bytes(b"".join(lines(count)))
    for publishers in (1, 2):
        (folder / "log.db").unlink(missing_ok=True)
        for suffix in ("-wal", "-shm"):
            (folder / f"log.db{suffix}").unlink(missing_ok=True)
        created = sealbus(folder, "topic", "apply", "bench_app:app", stdout=subprocess.DEVNULL)
        assert created.wait() == 0
        started_s = time.perf_counter()
        running = [
            sealbus(folder, "publish", "bench.job", str(source), "--app", "bench_app:app", stdout=subprocess.DEVNULL)
            for _ in range(publishers)
        ]
        assert all(process.wait() == 0 for process in running)
        print(
            f"publish, {publishers} process(es), start-up included: "
            f"{count * publishers / (time.perf_counter() - started_s):,.0f} messages/s"
        )
    for processes in (1, 2):
        log = sqlite3.connect(folder / "log.db")
        log.execute("DELETE FROM leases")
        log.commit()
        log.close()
        worker = sealbus(folder, "run", "bench_app:app", "--processes", str(processes))
        points = watch_settled(folder, count * 2)
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        print(f"verified consume, {processes} process(es): {rate(points):,.0f} messages/s")


def watch_memory(folder: Path, count: int) -> dict[str, Series]:
    """(messages, MB) of a publisher and of a worker that are at it at the same time, until everything is settled."""
    worker = sealbus(folder, "run", "bench_app:app")
    publisher = sealbus(
        folder, "publish", "bench.job", "-", "--app", "bench_app:app", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert publisher.stdin is not None
    sampled: dict[str, Series] = {"publisher": [], "worker": []}
    try:
        # A publisher that has ended says below why.
        with contextlib.suppress(BrokenPipeError), publisher.stdin:
            for number, line in enumerate(lines(count)):
                publisher.stdin.write(line)
                if number % max(1, count // 400) == 0:
                    sampled["publisher"].append((number, resident_mb(publisher.pid)))
                    sampled["worker"].append((number, resident_mb(worker.pid)))
        if code := publisher.wait():
            raise RuntimeError(
                f"the publisher ended with {code}: {(folder / 'publish.err').read_text('utf-8')[-1000:]}"
            )
        watch_settled(folder, count)
        worker.terminate()
        worker.wait()
    finally:
        # Left alive, they would keep whoever waits for the end of this process's output.
        for process in (publisher, worker):
            process.kill()
            process.wait()
    return sampled


def memory(folder: Path, count: int, plot: Path) -> None:
    sampled = watch_memory(folder, count)
    for name, points in sampled.items():
        warm = [size for number, size in points if number > count * 0.1]
        print(
            f"{name}: {warm[0]:.1f} MB after a tenth, {warm[-1]:.1f} MB at the end, peak {max(warm):.1f} MB, over "
            f"{count:,} messages"
        )
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.write_text(drawn(sampled, count), "utf-8")
    print(f"plot: {plot}")


def drawn(sampled: dict[str, Series], count: int) -> str:
    """An SVG of resident memory over messages."""
    width, height, left, bottom = 720, 320, 60, 40
    highest = max(size for points in sampled.values() for _, size in points) * 1.15
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12">'
        ),
    ]
    parts.append(f'<text x="{left}" y="16">Resident memory over {count:,} messages of 1 KB</text>')
    for step in range(5):
        size = highest * step / 4
        y = height - bottom - (height - bottom - 30) * step / 4
        parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{y + 4:.0f}">{size:.0f} MB</text>')
    for (name, points), colour in zip(sampled.items(), ("#1f77b4", "#d62728"), strict=True):
        path = " ".join(
            f"{x(number, count, width, left):.1f},{y_of(size, highest, height, bottom):.1f}" for number, size in points
        )
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>')
        parts.append(
            f'<text x="{width - 90}" y="{y_of(points[-1][1], highest, height, bottom) - 6:.0f}" '
            f'fill="{colour}">{name}</text>'
        )
    parts.append(f'<text x="{width // 2 - 40}" y="{height - 10}">messages published</text></svg>')
    return "\n".join(parts)


def x(number: float, count: int, width: int, left: int) -> float:
    return left + (width - left - 10) * number / count


def y_of(size: float, highest: float, height: int, bottom: int) -> float:
    return height - bottom - (height - bottom - 30) * size / highest


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000, help="messages of the throughput runs")
    parser.add_argument("--long", type=int, default=1_000_000, help="messages of the memory run; 0 leaves it out")
    parser.add_argument("--plot", type=Path, default=ROOT / "build" / "memory.svg")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bench_app.py").write_text(APP, "utf-8")
        throughput(folder, options.messages)
    if options.long:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "bench_app.py").write_text(APP, "utf-8")
            memory(folder, options.long, options.plot)


if __name__ == "__main__":
    main()
