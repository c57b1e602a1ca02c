"""The tutorial from its first command to its last, as a newcomer pastes it: no error on the way."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents import TUTORIAL, environment, new_project, paste, pasted_lines, project_files, until, written

_WORKING = "working; Ctrl-C"
_FAILS = 'raise ConnectionError("the search server does not answer")'


class Terminal:
    """The first terminal, in which a worker runs, and the second one, in which commands are pasted."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.log = project.parent / "worker.log"
        self.log.touch()

    @contextmanager
    def worker(self, line: str) -> Iterator[subprocess.Popen[bytes]]:
        started = self.starts()
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.project,
                env=environment(self.project),
                stdout=log,
                stderr=log,
            )
        try:
            until(lambda: self.starts() > started)
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)

    def paste(self, line: str, typed: str = "") -> str:
        done = paste(line, self.project, typed)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def write(self, page: Path) -> list[str]:
        """Write the files of *page* and return its commands."""
        for path, text in project_files(page).items():
            (self.project / path).write_text(text, "utf-8")
        return [line for line in pasted_lines(written(page)) if not re.match(r"pip|cd|sealbus (?:new|dev|run)", line)]

    def starts(self) -> int:
        return self.log.read_text("utf-8").count(_WORKING)

    def calls(self) -> int:
        return self.log.read_text("utf-8").count("model called:")


def _first(text: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(text.splitlines()[0])
    return found


@pytest.mark.slow  # a worker is started five times, and a lease of 20 s runs out
@pytest.mark.timeout(400)
def test_the_tutorial_as_a_newcomer_pastes_it(tmp_path: Path) -> None:
    terminal = Terminal(new_project(tmp_path))
    first, second, third, fourth = TUTORIAL

    lines = terminal.write(first)
    assert lines.pop(0) == lines.pop(0) == "pytest"
    terminal.paste("pytest")
    with terminal.worker("sealbus dev --port 0"):
        publish, tail = lines
        terminal.paste(publish)
        until(lambda: "You asked: Which vector database" in paste(tail, terminal.project).stdout)

    touch, publish, tail = terminal.write(second)
    terminal.paste(touch)
    with terminal.worker("sealbus run") as worker:
        terminal.paste(publish)
        assert worker.wait(60) == 1
    with terminal.worker("sealbus run"):
        until(lambda: "Start with SQLite" in paste(tail, terminal.project).stdout)
    assert terminal.calls() == 1

    publish, publish_empty, *looks, redrive, tail, dismiss, _ = terminal.write(third)
    with terminal.worker("sealbus dev --port 0"):
        message = _first(terminal.paste(publish))["message_id"]
        terminal.paste(publish_empty)
        until(lambda: len(paste("sealbus dlq list -q -o json", terminal.project).stdout.splitlines()) == 2)
        for line in looks:
            terminal.paste(line.replace("MESSAGE_ID", message))
        agent, started = terminal.project / "src/desk/agent.py", terminal.starts()
        agent.write_text(agent.read_text("utf-8").replace(_FAILS, "return None"), "utf-8")
        causes = terminal.paste("sealbus dlq list -q --by cause").splitlines()
        (cause,) = (row.split()[0] for row in causes if "retries_exhausted" in row)
        until(lambda: terminal.starts() > started)  # by the change
        terminal.paste(redrive.replace("CAUSE", cause))
        until(lambda: paste(tail, terminal.project).stdout.count("Start with SQLite") == 2)
        terminal.paste(dismiss)
        assert terminal.paste("sealbus dlq list -q -o json --state open") == ""
    assert terminal.calls() == 2

    key, publish, listing, show, approve, tail, verify, trace = terminal.write(fourth)
    terminal.paste(key)
    with terminal.worker("sealbus run"):
        terminal.paste(publish)
        until(lambda: paste(f"{listing} -q -o json", terminal.project).stdout)
        waiting = _first(terminal.paste(f"{listing} -q -o json"))
        for line in (show, approve):
            digits = waiting["action_hash"].removeprefix("sha256:")[:8]
            terminal.paste(re.sub(r"\bID\b", waiting["approval"][:12], line), typed=f"{digits}\n")
        until(lambda: "team@example.org" in paste(tail, terminal.project).stdout)
        last = json.loads(terminal.paste(f"{tail} -q -o json"))["value"]["metadata"]["message_id"]
        for line in (verify, trace):
            assert "guest@local" in terminal.paste(line.replace("MESSAGE_ID", last))
    assert "mail sent to team@example.org" in terminal.log.read_text("utf-8")
