"""`sealbus simulate FILE.toml`: the load of a day in an hour, so that people can size before they deploy.

Owns the verb, reading the file, and the report; `consumers.operations.survey.simulation` makes the load.
"""

from __future__ import annotations

import asyncio
import tempfile
import tomllib
from pathlib import Path
from typing import Final

import click
import msgspec

from bus.errors import ConfigurationError, text_of
from bus.settings.schema import Settings
from bus.telemetry import logs
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import Interrupts, execute
from consumers.cli.io.printing import print_json
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, with_session
from consumers.operations.survey.charts import line_chart
from consumers.operations.survey.simulation import SimulationPlan, SimulationResult, simulate

__all__ = ["simulate_"]

_DAY_S: Final = 86_400.0


@click.command("simulate")
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path), metavar="FILE.toml")
@click.option("--minutes", type=click.FloatRange(0.01, 1_440), help="Take so long, whatever the file says.")
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default="simulation",
    show_default=True,
    help="Where to write it.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Which messages fail and are slow.")
@with_session
def simulate_(session: CommandSession, *, file: Path, minutes: float | None, report: Path, seed: int) -> int:
    """Run the load of a day in less time through a real worker, and write a report with plots.

    Without --bus the log is a new file that is deleted afterwards. What is measured is this machine, with publisher and
    worker in one process.

    \b
    Example of FILE.toml:
      hours = 24            # of a day
      minutes = 60          # in so long
      concurrency = 16
      [[types]]
      name = "order"
      per_day = 200_000
      peak_hour = 14        # the rate swings between 25 % and 175 % of the mean
      bytes = 800
      fail_share = 0.01     # become dead letters
      flaky_share = 0.02    # fail once, and are tried again
      handle_ms = 5
      slow_share = 0.01
      slow_ms = 2000

    \b
    Examples:
      sealbus simulate load.toml
      sealbus simulate load.toml --minutes 2 --bus kafka://127.0.0.1:9092

    \b
    Exit codes: 0 all was handled, 1 the worker did not keep up or publishes were refused, 78 a file that is wrong.
    """
    plan = _plan(file, minutes)
    loaded = session.load()
    if click.get_current_context().params["log_level"] is None:
        # Failures are part of the load.
        logs.configure("error", loaded.settings.log.format)
    given = click.get_current_context().params["bus"] is not None

    async def body(interrupts: Interrupts) -> int:
        stop = asyncio.Event()
        interrupts.soften = stop.set
        with tempfile.TemporaryDirectory(prefix="sealbus-simulate-") as folder:
            settings = _settings(loaded.settings, plan, None if given else Path(folder))
            with Progress(1_000, unit="messages", alone=True) as progress:
                result = await simulate(
                    plan,
                    settings,
                    stop=stop,
                    seed=seed,
                    told=lambda share, so_far: progress.show(round(share * 1_000), so_far.published),
                )
            size = _size(Path(folder))
        _write(report, plan, result, size)
        if session.as_json:
            print_json(msgspec.to_builtins(result))
        else:
            click.echo("\n".join(_told(plan, result, size)))
        click.echo(f"report: {report / 'report.md'}", err=True)
        return FAILED if result.waiting > 0 or result.refused else 0

    return execute(body)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.db*"))


def _plan(file: Path, minutes: float | None) -> SimulationPlan:
    try:
        plan = msgspec.convert(tomllib.loads(file.read_text("utf-8")), SimulationPlan)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{file} is no load: {text_of(error)}; `sealbus simulate --help` has one") from error
    if len({each.name for each in plan.types}) < len(plan.types):
        raise ConfigurationError(f"{file} names a type twice")
    return plan if minutes is None else msgspec.structs.replace(plan, minutes=minutes)


def _settings(settings: Settings, plan: SimulationPlan, folder: Path | None) -> Settings:
    replace = msgspec.structs.replace
    settings = replace(settings, worker=replace(settings.worker, concurrency=plan.concurrency, state_dir="off"))
    settings = replace(settings, topics=replace(settings.topics, partitions=plan.partitions, create=True))
    if folder is None:
        return settings
    return replace(
        settings,
        bus=replace(settings.bus, url=f"sqlite:///{folder}/log.db"),
        inbox=replace(settings.inbox, url="auto"),
    )


def _told(plan: SimulationPlan, result: SimulationResult, size: int) -> list[str]:
    busiest = max((sample.published_per_s for sample in result.samples), default=0.0)
    most = max((sample.waiting for sample in result.samples), default=0)
    slowest = max((sample.p99_s for sample in result.samples), default=0.0)
    cores = result.processor_s / result.seconds if result.seconds else 0.0
    speed = plan.hours * 3600 / (plan.minutes * 60)
    counts = f"{result.done:,} done, {result.rejected:,} dead, {result.retried:,} retried"
    lines = [
        f"{plan.hours:g} hours in {result.seconds:,.0f} s: {result.published:,} messages published, {counts}",
        f"busiest stretch: {busiest:,.0f} messages/s, which is {busiest / speed:,.1f}/s of a real day",
        f"most that waited: {most:,}; slowest p99 from publish to done: {slowest:,.3f} s",
        f"processor: {cores:.2f} cores in the run; for the day's own pace {cores / speed:.2g}",
    ]
    if size and plan.hours:
        lines.append(f"log and inbox: {size / 1e6:,.1f} MB, {size / 1e6 * 24 / plan.hours:,.1f} MB a day")
    if result.waiting > 0:
        lines.append(
            f"THE WORKER DID NOT KEEP UP: {result.waiting:,} messages were left; raise concurrency or partitions"
        )
    if result.refused:
        lines.append(f"{result.refused:,} publishes were refused or unknown: the log did not keep up")
    if result.late_s > 1:
        lines.append(f"the load itself ran up to {result.late_s:.1f} s late: this machine could not publish faster")
    return lines


def _write(folder: Path, plan: SimulationPlan, result: SimulationResult, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = result.samples
    charts = {
        "rates": line_chart(
            "Messages a second",
            {
                "published": [(each.at_s, each.published_per_s) for each in rows],
                "done": [(each.at_s, each.done_per_s) for each in rows],
            },
        ),
        "waiting": line_chart("Messages that wait", {"waiting": [(each.at_s, float(each.waiting)) for each in rows]}),
        "latency": line_chart(
            "From publish to done",
            {"p50": [(each.at_s, each.p50_s) for each in rows], "p99": [(each.at_s, each.p99_s) for each in rows]},
            unit=" s",
        ),
    }
    for name, picture in charts.items():
        (folder / f"{name}.svg").write_text(picture, "utf-8")
    kinds = [
        f"| {each.name} | {each.per_day:,} | {each.bytes:,} | {each.handle_ms:g} | {each.fail_share:.2%} | "
        f"{each.slow_share:.2%} |"
        for each in plan.types
    ]
    text = [
        "# Simulation",
        "",
        *(f"- {line}" for line in _told(plan, result, size)),
        "",
        f"Concurrency {plan.concurrency}, {plan.partitions} partitions for each type.",
        "",
        "| type | a day | bytes | handler ms | rejected | slow |",
        "|---|---|---|---|---|---|",
        *kinds,
        "",
        *(f"![{name}]({name}.svg)" for name in charts),
    ]
    (folder / "report.md").write_text("\n".join(text) + "\n", "utf-8")
