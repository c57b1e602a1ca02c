"""`sealbus demo`: the command around the story.

Owns the options, the demo's folder, and the exit code.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console

from consumers.agents.demo.agents import OWN_SOURCES
from consumers.agents.demo.place import absolute_url, demo_settings, fresh_log
from consumers.agents.demo.second_act import tell_second
from consumers.agents.demo.story import tell
from consumers.agents.demo.view import outcomes_of, report_text, show_story
from consumers.agents.demo.watch import StuckError
from consumers.cli.shell import Command

__all__ = ["demo"]


@click.command(cls=Command)
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--bus", "url", help="Use this log instead of a temporary embedded one: sqlite:///demo.db, kafka://localhost:9092."
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the log, the workers' logs and the report in this folder.",
)
def demo(path: Path | None, url: str | None, keep: Path | None) -> None:
    """Watch three agents review Python code over the bus, while things go wrong.

    A researcher reads the Python files under PATH (default: sealbus itself), a writer drafts a report, a reviewer
    judges it; the writer revises once. During this one agent is killed, a record in the log is altered, and other
    faults are injected. In a second act a person approves a change with a key, the winner of an auction is killed and
    the next bidder delivers, and a workflow survives its engine. Exit code 1 if the bus does not behave as expected.

    \b
    Examples:
      sealbus demo
      sealbus demo ~/src/my-project --keep ./demo-run
    """
    # End as by an exception, so that the workers and the folder are removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    started_s = time.monotonic()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    folder = keep or Path(tempfile.mkdtemp(prefix="sealbus-demo-"))
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    repository = OWN_SOURCES if path is None else str(path.resolve())

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - started_s:5.1f} s[/] {line}")

    try:
        settings = demo_settings(absolute_url(url) if url else fresh_log(folder))
        story = asyncio.run(tell(settings, folder, repository, say))
        if keep:
            (folder / "report.md").write_text(report_text(story.report), "utf-8")
        second = asyncio.run(tell_second(folder, say)) if find_spec("cryptography") else ()
        show_story(story, console)
        console.print()
        if second:
            console.print(outcomes_of("Outcomes of the second act", second))
        else:
            console.print("There is a second act, whose messages are signed: pip install 'sealbus\\[trust]'")
    except StuckError as error:
        raise click.ClickException(str(error)) from error
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if not all(check.holds for check in (*story.checks, *second)):
        sys.exit(1)
