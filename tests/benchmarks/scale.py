"""How speed changes with size, on this machine: partitions, topics, keys, payloads, handlers, processes; start-up; and
a long steady load.

Owns the command line, starting one real Kafka, and writing scale.json, scale.md and an SVG per curve, after every
measurement. What is measured is in `curves`. Results are added to those of the folder: what is measured again replaces
what was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from curves import plot, startup, steady
from curves.catalog import CURVES, chosen_xs
from curves.document import Measured, document, lines_of
from curves.runner import Runner
from curves.task import Job
from run import terminable
from speed import machine
from speed.broker import Broker, started
from speed.folders import add_out
from speed.payloads import write_payloads
from speed.tables import number

from deploy.kafka.errors import KafkaFailedError, KafkaUnavailableError

ROOT = Path(__file__).resolve().parents[2]
_SECONDS, _QUICK_SECONDS, _OVERHEAD_S = 6.0, 1.0, 5.0
_MINUTES, _PER_SECOND, _STARTS = 60.0, 500.0, 10
_STEADY = {"steady-kafka": "Kafka", "steady-embedded": "embedded log"}
_NAMES = [*(curve.name for curve in CURVES), "startup", *_STEADY]
_EXAMPLES = """examples:
  scale.py                                  all curves and start-up: about half an hour; not the steady load
  scale.py --quick                          two points of each, short: minutes; proves only that it works
  scale.py --only payload handlers          some of it
  scale.py --within 20                      whatever can be begun in twenty minutes
  scale.py --only steady --minutes 60       an hour on Kafka, then an hour on the embedded log; some 4 GB of disk each
exit codes: 0 measured; 1 something failed; 2 wrong use; 69 no Kafka; 130 interrupted.
"""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"some of: {', '.join(_NAMES)}; steady is both of its kind",
    )
    parser.add_argument("--log", choices=["kafka", "embedded"], help="one log alone, where a curve has both")
    parser.add_argument(
        "--seconds-each", type=float, metavar="S", help=f"how long each point is measured (default {_SECONDS:g})"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=_MINUTES,
        metavar="M",
        help=f"how long a steady load lasts (default {_MINUTES:g})",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=_PER_SECOND,
        metavar="N",
        help=f"messages/s of the steady load (default {_PER_SECOND:g})",
    )
    parser.add_argument(
        "--within", type=float, metavar="M", help="begin nothing more after so many minutes (a steady load aside)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="two points of each curve, a second each: proves only that it works"
    )
    add_out(parser)
    options = parser.parse_args(arguments)
    names = [name for given in options.only for name in (list(_STEADY) if given == "steady" else [given])]
    unknown = sorted(set(names) - set(_NAMES))
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(_NAMES)}")
    options.only = names or [name for name in _NAMES if name not in _STEADY]
    options.seconds_each = options.seconds_each or (_QUICK_SECONDS if options.quick else _SECONDS)
    return options


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


class Scale:
    """One run of this command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._out: Path = options.out
        self._out.mkdir(parents=True, exist_ok=True)
        file = self._out / "scale.json"
        self.measured = msgspec.json.decode(file.read_bytes(), type=Measured) if file.exists() else Measured()
        self.measured.machine, self.measured.quick = dict(machine.described()), options.quick
        self.measured.seconds_each, self.measured.failures = options.seconds_each, []
        self._begun_s = time.monotonic()

    def run(self, folder: Path, broker: Broker | None) -> None:
        """Measure all that is asked for."""
        self._curves(Runner(broker, folder, self._options.seconds_each))
        if "startup" in self._options.only and not self._late():
            say("startup")
            urls = [*([f"kafka://{broker.bootstrap}"] if broker else []), "sqlite://"]
            self.measured.starts = startup.started(folder, urls, 2 if self._options.quick else _STARTS)
            self.write()
        for name, log in _STEADY.items():
            if name in self._options.only:
                self._steady(log, folder, broker)

    def _curves(self, runner: Runner) -> None:
        curves = [curve for curve in CURVES if curve.name in self._options.only]
        todo = [
            (curve, log, x)
            for curve in curves
            for log in curve.logs
            if self._options.log in (None, log)
            for x in chosen_xs(curve, quick=self._options.quick)
        ]
        say(f"{len(todo)} values, about {len(todo) * 2 * (self._options.seconds_each + _OVERHEAD_S) / 60:.0f} minutes")
        try:
            for number_, (curve, log, x) in enumerate(todo):
                if self._late():
                    say("no time for more: --within")
                    return
                passed_s = time.monotonic() - self._begun_s
                say(f"[{number_ + 1}/{len(todo)}, {passed_s:.0f} s] {curve.name} {x:,} on {log}")
                try:
                    for point in runner.points(curve, log, x):
                        self.measured.put(point)
                        say(f"    {point.line}: {number(point.rate)}/s, {number(point.cpu_us)} us {point.note}")
                except (RuntimeError, ValueError, OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
                    say(f"    FAILED: {error}")
                    self.measured.failures.append(
                        f"{curve.name} {x:,} on {log}: `{' '.join(str(error).split())[-300:]}`"
                    )
                self.write()
                if number_ + 1 == len(todo) or todo[number_ + 1][0] is not curve:
                    runner.forget()
        finally:
            runner.end()

    def _steady(self, log: str, folder: Path, broker: Broker | None) -> None:
        place = folder / f"steady-{len(log)}"
        place.mkdir()
        payloads = folder / "payloads"
        write_payloads(payloads, 20_000)
        on_kafka = log == "Kafka" and broker is not None
        url = f"kafka://{broker.bootstrap}" if on_kafka and broker else f"sqlite:///{place}/log.db"
        job = Job(
            verb="produce",
            url=url,
            namespace="steady",
            seconds=0,
            payloads=str(payloads),
            keys=1_000,
            per_second=self._options.rate,
        )
        minutes = min(self._options.minutes, 0.5) if self._options.quick else self._options.minutes
        run = steady.watched(job, log, minutes, place, broker=broker.pid if on_kafka and broker else None, say=say)
        self.measured.put_steady(run)
        self.write()

    def _late(self) -> bool:
        return self._options.within is not None and time.monotonic() - self._begun_s > self._options.within * 60

    def write(self) -> None:
        """All files, anew."""
        measured = self.measured
        (self._out / "scale.json").write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=1))
        (self._out / "scale.md").write_text(document(measured), "utf-8")
        for curve in CURVES:
            lines = {
                name: [(each.x, each.rate) for each in points]
                for name, points in lines_of(curve, measured.points).items()
            }
            if lines:
                drawing = plot.drawn(curve.title, curve.of, "messages/s", lines, log_y=curve.log_y)
                (self._out / f"scale-{curve.name}.svg").write_text(drawing, "utf-8")
        for run in measured.steady:
            sizes = {name: course.rss_mb for name, course in run.courses.items() if name != "broker"}
            files = {name: course.files for name, course in run.courses.items()}
            stem = f"scale-steady-{run.log.partition(' ')[0].lower()}"
            title = f"Steady load of {run.per_second:,.0f} messages/s on {run.log}"
            (self._out / f"{stem}.svg").write_text(
                plot.drawn(title, "minutes", "resident MB", sizes, log_x=False), "utf-8"
            )
            (self._out / f"{stem}-files.svg").write_text(
                plot.drawn(title, "minutes", "open files", files, log_x=False), "utf-8"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    options = parsed(arguments)
    scale = Scale(options)
    needs_kafka = options.log != "embedded" and set(options.only) != {"steady-embedded"}
    code = 0
    try:
        with terminable(), ExitStack() as stack:
            folder = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="work-", dir=options.out, ignore_cleanup_errors=True)
                )
            )
            broker = None
            if needs_kafka:
                say("starting Kafka")
                broker = stack.enter_context(started(folder / "kafka", None))
            scale.run(folder, broker)
    except KeyboardInterrupt:
        say("interrupted; what was measured so far is written")
        code = 130
    except (KafkaUnavailableError, KafkaFailedError) as error:
        say(f"no Kafka: {error}")
        return 69
    print(document(scale.measured))
    say(f"written: scale.json, scale.md, scale-*.svg in {options.out}")
    return code or int(bool(scale.measured.failures))


if __name__ == "__main__":
    sys.exit(main())
