"""How fast sealbus is, beside other libraries, on this machine: `make bench`, `make bench-quick`.

Owns the command line, starting one real Kafka, and writing results.json, results.md and results.svg. What is measured
is in `speed.catalog`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from speed import chart, filling, goals, machine, tables
from speed.broker import started
from speed.catalog import FAMILIES, Variant, chosen, of_family
from speed.folders import add_out
from speed.payloads import write_payloads
from speed.progress import Display
from speed.results import Failure, Measured
from speed.runner import Runner

from bus.native import core
from deploy.kafka.errors import KafkaFailedError, KafkaUnavailableError

ROOT = Path(__file__).resolve().parents[2]
_CLIENT_CPU, _BROKER_CPU = 0, 1
_ROUNDS, _QUICK_ROUNDS = 5, 1
_METHOD = (
    "{rounds} round(s); the variants of a family take turns within each round, in rotated order, "
    "each in a new process with a warm-up; {where}. "
    "Median [least..most]. The machine drifts: trust ratios of one round, which is what the goals are, not absolutes."
)
_SETTINGS = (
    "Kafka: one real node, 12 partitions, one replica, acks=all, idempotent producers, "
    "rivals with 1 MB batches and 5 ms linger (none where each message or batch is awaited). "
    "Payloads: 1,036 bytes of canonical JSON, no two alike, 1,000 keys. "
    "sealbus is given Structs and checks, encodes and seals them within the time; "
    "the rivals' producers are given ready bytes. "
    "All consumers of a family read the same sealed records, "
    "timed after the first tenth of them. Bytes are those of the broker's log, or of the file, per message."
)
_EXAMPLES = """examples:
  run.py --list                                    what there is
  run.py --quick                                   nearly everything, once, with few messages: minutes
  run.py                                           everything, five rounds
  run.py --only publish consume/sealbus-worker     some families, some variants
  run.py --results                                 what run.py, scale.py and profiles.py left in build/bench,
                                                   into RESULTS.md
exit codes: 0 measured; 1 something failed; 2 wrong use; 69 no Kafka; 130 interrupted.
Goals that are not met change no exit code.
"""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few messages, compressed Kafka only, one round: proves only that it works"
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"rounds per family (default {_ROUNDS}, with --quick {_QUICK_ROUNDS})"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="families, or variants such as publish/sealbus-many"
    )
    add_out(parser)
    parser.add_argument(
        "--results",
        action="store_true",
        help="measure nothing: write what is in DIR into tests/benchmarks/RESULTS.md, and end",
    )
    parser.add_argument("--list", action="store_true", help="list families and variants, and end")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds takes 1 or more")
    try:
        options.variants = chosen(options.only, quick=options.quick)
    except ValueError as error:
        parser.error(str(error))
    options.rounds = options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS)
    return options


def listed() -> None:
    """Print what can be measured."""
    for family in FAMILIES:
        print(f"{family.name}: {family.title}")
        for variant in of_family(family.name):
            print(f"  {variant.id:42} {variant.label}")


def bound() -> tuple[int | None, int | None]:
    """The processors for clients and broker; None where there are not two to bind to."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    return (_CLIENT_CPU, _BROKER_CPU) if {_CLIENT_CPU, _BROKER_CPU} <= allowed else (None, None)


def conditions(options: argparse.Namespace, cpu: int | None) -> list[str]:
    """What a reader has to know."""
    where = (
        f"clients on processor {_CLIENT_CPU}, broker on processor {_BROKER_CPU}"
        if cpu is not None
        else "processes NOT BOUND to processors"
    )
    lines = [_METHOD.format(rounds=options.rounds, where=where), _SETTINGS]
    if options.quick:
        lines.append(
            "**Quick run**: few messages, few rounds. It shows that everything works; its numbers prove nothing."
        )
    return lines


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: with what it started."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def write(options: argparse.Namespace, cpu: int | None, measured: list[Measured], failures: list[Failure]) -> str:
    """Write the three files; the text of the second."""
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    head, verdicts = machine.described(), goals.judge(measured)
    text = tables.document(head, conditions(options, cpu), measured, failures, verdicts)
    rates = [
        {"variant": each.variant, "round": each.round, "per_second": each.answer.rate, "answer": each.answer}
        for each in measured
    ]
    record = {
        "machine": head,
        "quick": options.quick,
        "rounds": options.rounds,
        "measured": rates,
        "failures": failures,
        "goals": verdicts,
    }
    (out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
    (out / "results.md").write_text(text, "utf-8")
    (out / "results.svg").write_text(chart.drawn(measured), "utf-8")
    return text


def measure(
    options: argparse.Namespace, cpus: tuple[int | None, int | None], measured: list[Measured], failures: list[Failure]
) -> None:
    """Start what is needed, and run all rounds."""
    variants: list[Variant] = options.variants
    logs = {family.name: family for family in FAMILIES}
    total = sum(min(options.rounds, logs[variant.family].rounds) for variant in variants)
    options.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="work-", dir=options.out)))
        display = stack.enter_context(Display(total))
        broker = None
        if any(logs[variant.family].log == "kafka" for variant in variants):
            display.say("starting Kafka")
            broker = stack.enter_context(started(folder / "kafka", cpus[1]))
        runner = Runner(broker, folder, quick=options.quick, cpu=cpus[0])
        display.say("preparing payloads")
        write_payloads(runner.payloads, runner.most_payloads(variants))
        for result in runner.run(variants, options.rounds, display.begin):
            display.end(result)
            (measured if isinstance(result, Measured) else failures).append(result)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    options = parsed(arguments)
    if options.list:
        listed()
        return 0
    if options.results:
        places = filling.fill(Path(__file__).resolve().with_name("RESULTS.md"), options.out)
        print(f"written into tests/benchmarks/RESULTS.md: {', '.join(places)}", file=sys.stderr)
        return 0
    if core is None and any(variant.native == "require" for variant in options.variants):
        print("the compiled hot path is not built here (make native): what needs it is left out", file=sys.stderr)
        options.variants = [variant for variant in options.variants if variant.native != "require"]
    cpus = bound()
    if cpus[0] is None:
        print(
            "fewer than two processors to bind to, or no way to bind: clients and broker share all of them",
            file=sys.stderr,
        )
    measured: list[Measured] = []
    failures: list[Failure] = []
    code = 0
    try:
        with terminable():
            measure(options, cpus, measured, failures)
    except KeyboardInterrupt:
        print("interrupted; what was measured so far is written", file=sys.stderr)
        code = 130
    except (KafkaUnavailableError, KafkaFailedError) as error:
        print(f"no Kafka: {error}", file=sys.stderr)
        return 69
    if measured or failures:
        print(write(options, cpus[0], measured, failures))
        print(f"written: results.json, results.md, results.svg in {options.out}", file=sys.stderr)
    return code or int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
