"""Where the time goes: flame graphs of publishing and consuming on both logs, and the five largest costs of each, by
py-spy.

Owns the command line and what is recorded. Not named after what it does, for `profile` is a module of the standard
library. Each is recorded twice, once as a drawing and once as text. Works where py-spy may look into a process it has
started: on Linux everybody may, on macOS root.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from curves.catalog import Log
from curves.runner import Runner
from curves.stacks import Cost, costs
from curves.task import Job, window
from run import terminable
from speed import machine
from speed.broker import started
from speed.folders import add_out
from speed.tables import number

from deploy.kafka.errors import KafkaFailedError, KafkaUnavailableError

ROOT = Path(__file__).resolve().parents[2]
_SECONDS, _QUICK_SECONDS, _PER_SECOND, _MOST = 20.0, 3.0, 250, 5
_TITLES = {
    "publish-kafka": "publish_many to Kafka",
    "consume-kafka": "a worker on Kafka",
    "publish-embedded": "publish_many to the embedded log",
    "consume-embedded": "a worker on the embedded log",
}


class Profile(msgspec.Struct, kw_only=True):
    """One of the four."""

    name: str
    rate: float
    """Messages a second while it was recorded, which slows it down."""
    costs: list[Cost]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(_TITLES),
        choices=list(_TITLES),
        metavar="NAME",
        help=f"some of: {', '.join(_TITLES)}",
    )
    parser.add_argument(
        "--seconds-each", type=float, metavar="S", help=f"how long each is recorded, twice (default {_SECONDS:g})"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"{_QUICK_SECONDS:g} seconds each: proves only that it works"
    )
    parser.add_argument("--native", action="store_true", help="look into compiled code too (py-spy --native)")
    add_out(parser)
    options = parser.parse_args(arguments)
    options.seconds_each = options.seconds_each or (_QUICK_SECONDS if options.quick else _SECONDS)
    return options


def spy() -> str | None:
    """Where py-spy is: beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def profiled(runner: Runner, name: str, program: str, options: argparse.Namespace) -> Profile:
    """Record one of the four, as drawing and as text."""
    verb, _, log = name.partition("-")
    place: Log = "kafka" if log == "kafka" else "embedded"
    raw, drawing = options.out / f"profile-{name}.txt", options.out / f"profile-{name}.svg"
    rate = 0.0
    for file, form in ((drawing, "flamegraph"), (raw, "raw")):
        job = runner.job(place)
        runner.prepare(job)
        if verb == "consume":
            # Under py-spy it reads slower than it was written.
            runner.run([job])
        what: Job = job if verb == "publish" else runner.reading(job)
        under = [program, "record", "--rate", str(_PER_SECOND), "--function", "--format", form, "--output", str(file)]
        run = runner.run([what], [*under, *(["--native"] if options.native else []), "--"])
        rate = window(run.told).rate
        runner.clean(job)
    return Profile(name=name, rate=rate, costs=costs(raw.read_text("utf-8", "replace"), _MOST))


def listed(profiles: Sequence[Profile]) -> Iterator[str]:
    """As Markdown."""
    for each in profiles:
        rate = f"{number(each.rate)} messages/s under the profiler"
        yield f"### {_TITLES[each.name]}, {rate}: [flame graph](profile-{each.name}.svg)"
        yield ""
        yield from (f"{place}. {cost.share:.1%} `{cost.name}`" for place, cost in enumerate(each.costs, start=1))
        yield ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    options = parsed(arguments)
    program = spy()
    if program is None:
        print("there is no py-spy: install the extra `bench`", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    profiles: list[Profile] = []
    code = 0
    try:
        with terminable(), ExitStack() as stack:
            folder = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="work-", dir=options.out, ignore_cleanup_errors=True)
                )
            )
            broker = None
            if any(name.endswith("kafka") for name in options.only):
                print("starting Kafka", file=sys.stderr)
                broker = stack.enter_context(started(folder / "kafka", None))
            runner = Runner(broker, folder, options.seconds_each)
            for name in options.only:
                print(f"{_TITLES[name]}: twice {options.seconds_each:g} s", file=sys.stderr, flush=True)
                try:
                    profiles.append(profiled(runner, name, program, options))
                except (RuntimeError, ValueError, OSError, subprocess.SubprocessError) as error:
                    print(f"FAILED: {error}", file=sys.stderr)
                    code = 1
    except KeyboardInterrupt:
        print("interrupted; what was recorded so far is written", file=sys.stderr)
        code = 130
    except (KafkaUnavailableError, KafkaFailedError) as error:
        print(f"no Kafka: {error}", file=sys.stderr)
        return 69
    record = {"machine": machine.described(), "quick": options.quick, "profiles": profiles}
    (options.out / "profiles.json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
    text = "\n".join(listed(profiles))
    (options.out / "profiles.md").write_text(text, "utf-8")
    print(text)
    print(f"written: profiles.json, profiles.md, profile-*.svg in {options.out}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
