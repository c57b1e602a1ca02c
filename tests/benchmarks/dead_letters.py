"""What a million dead letters cost those who look at them: `python tests/benchmarks/dead_letters.py`.

Owns measuring `sealbus doctor`, `status`, `dlq`, `serve metrics` and `serve console` as processes: their largest
memory, the time of the first look, and of the console's pages while it reads and afterwards. `tests/letters.py` writes
the letters.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bus.transports import open_transport  # noqa: E402
from tests.letters import TOPIC, write_letters  # noqa: E402


def _start(folder: Path, url: str, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "consumers.cli", *words, "--bus", url]
    output = (folder / "out").open("w")
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output, text=True)


def _largest_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def measure_command(folder: Path, url: str, *words: str) -> None:
    """Print the time and the largest memory of a command that ends."""
    began_s = time.perf_counter()
    process = _start(folder, url, *words)
    _, _, usage = os.wait4(process.pid, 0)
    took_s = time.perf_counter() - began_s
    print(f"{' '.join(words):<28} {took_s:7.1f} s   {usage.ru_maxrss / 1024:6.0f} MB", flush=True)


def _get(url: str) -> tuple[float, str]:
    began_s = time.perf_counter()
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        text = error.read().decode()
    return time.perf_counter() - began_s, text


def _served(folder: Path, process: subprocess.Popen[str]) -> str:
    while process.poll() is None:
        if found := re.search(r"http://[0-9.]+:\d+", (folder / "out").read_text()):
            return found[0]
        time.sleep(0.05)
    raise SystemExit((folder / "out").read_text())


def measure_exporter(folder: Path, url: str) -> None:
    """Print when the exporter has its first survey, how often it looks then, and its largest memory."""
    process = _start(folder, url, "serve", "metrics", "--port", "0", "--every", "1s")
    began_s, slowest_s = time.perf_counter(), 0.0
    at = _served(folder, process)
    while True:
        took_s, text = _get(f"{at}/metrics")
        slowest_s = max(slowest_s, took_s)
        if re.search(r"(?m)^sealbus_survey_up(?:\{.*\})? 1\.0$", text):
            break
        time.sleep(0.2)
    first_s = time.perf_counter() - began_s
    used_s = _cpu_s(process.pid)
    time.sleep(10)
    later_s = (_cpu_s(process.pid) - used_s) / 10
    print(
        f"{'serve metrics':<28} {first_s:7.1f} s   {_largest_mb(process.pid):6.0f} MB   "
        f"scrape at most {slowest_s * 1000:.0f} ms; then {later_s * 100:.0f} % of a core with a look each second",
        flush=True,
    )
    process.terminate()
    process.wait()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_console(folder: Path, url: str) -> None:
    """Print the slowest answer of each page while the console reads, and afterwards."""
    process = _start(folder, url, "serve", "console", "--port", "0", "--read-only")
    began_s = time.perf_counter()
    at = _served(folder, process)
    paths = ["/", "/letters", "/letters?page=2", "/letters?state=", "/letters?sender=shop-3@svc&page=3"]
    slowest: dict[str, float] = {}
    while "Still reading" in (text := _get(f"{at}/letters")[1]) or 'class="figure' not in _get(f"{at}/")[1]:
        for path in paths:
            slowest[path] = max(slowest.get(path, 0.0), _get(at + path)[0])
        time.sleep(1)
    first_s = time.perf_counter() - began_s
    print(f"{'serve console':<28} {first_s:7.1f} s   {_largest_mb(process.pid):6.0f} MB", flush=True)
    _print_pages("while it reads", slowest)
    pages = int(((re.search(r"Page 1 of ([\d,]+)", text) or ["", "1"])[1]).replace(",", ""))
    cause = (re.search(r"cause=([0-9a-f]{8})", text) or [""] * 2)[1]
    paths += [f"/letters?page={pages // 2}", f"/letters?page={pages}", f"/letters?cause={cause}&page={pages // 4}"]
    paths += [f"/letters/show?place={TOPIC}.dlq/0/5", "/healthz/live"]
    _print_pages("afterwards", {path: max(_get(at + path)[0] for _ in range(5)) for path in paths})
    print(f"{'':<28} {'':>9}   {_largest_mb(process.pid):6.0f} MB in the end", flush=True)
    process.terminate()
    process.wait()


def _print_pages(when: str, slowest: dict[str, float]) -> None:
    for path, took_s in slowest.items():
        print(f"    {when}: {path:<44} {took_s * 1000:6.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1_000, help="of each payload")
    parser.add_argument("--redriven", type=int, default=0, help="of the letters, the first")
    parser.add_argument("--folder", type=Path, help="kept, and used again if it has a log")
    parser.add_argument("--only", choices=["write", "doctor", "status", "dlq", "metrics", "console"])
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        url = f"sqlite:///{folder.resolve()}/log.db"

        async def write() -> None:
            transport = open_transport(url)
            await write_letters(transport, options.letters, options.bytes, redriven=options.redriven)
            await transport.close()

        wanted = options.only
        if wanted == "write":
            asyncio.run(write())
            return
        if not (folder / "log.db").exists():
            # In a process of its own: a child's largest memory is at least that of its parent.
            counts = ("--letters", options.letters, "--bytes", options.bytes, "--redriven", options.redriven)
            words = [sys.executable, __file__, "--folder", folder, "--only", "write", *counts]
            subprocess.run([str(word) for word in words], check=True)
        for name, words in (
            ("doctor", ("doctor",)),
            ("status", ("status", "-o", "json")),
            ("dlq", ("dlq", "list", "--by", "cause")),
            ("dlq", ("dlq", "redrive", "--dry-run")),
        ):
            if wanted in (None, name):
                measure_command(folder, url, *words)
        if wanted in (None, "metrics"):
            measure_exporter(folder, url)
        if wanted in (None, "console"):
            measure_console(folder, url)


if __name__ == "__main__":
    main()
