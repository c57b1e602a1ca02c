"""Every command of a page works as pasted, in a project with a handled message, a dead letter and no worker.

Left out are commands that serve until Ctrl-C, and those that need a Kafka. Words in capitals are filled in.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents import DOCS, PAGES, README, ROOT, TUTORIAL, name_of, project_files, written

_ENDLESS = re.compile(r"\bsealbus (?:new|dev|run|demo|serve (?!.*(?:--once|--new-token)))")
_ELSEWHERE = re.compile(r"kafka://|^(?:make|docker|kubectl|pip|pytest|cd|touch|export)\b|--agent client@svc|shop\.db")
_UNFILLED = re.compile(r"\bID\b|\.pem\b|\bGROUP\b|\bFILE\b|--cause CAUSE .*--wait")
_ASKS = re.compile(r"without a terminal, give --yes|Nobody can answer here")


class Project(NamedTuple):
    """A project whose log has messages, and what the words in capitals stand for in it."""

    folder: Path
    values: dict[str, str]

    def run(self, line: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        folder = cwd or self.folder
        return subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def environment(folder: Path) -> dict[str, str]:
    path = f"{folder.parent / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT}:{folder / 'src'}"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    top = tmp_path_factory.mktemp("pasted")
    (top / "bin").mkdir()
    shim = top / "bin" / "sealbus"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m sealbus "$@"\n', "utf-8")
    shim.chmod(0o755)
    folder = top / "desk"
    for name in ("src/desk", "tests", "schemas", ".sealbus"):
        (folder / name).mkdir(parents=True)
    (folder / "src/desk/__init__.py").touch()
    settings = '[project]\napps = ["desk.agent:app"]\n\n[bus]\nurl = "sqlite:///.sealbus/desk.db"\n'
    (folder / "sealbus.toml").write_text(settings, "utf-8")
    for page in TUTORIAL[:3]:
        for path, text in project_files(page).items():
            works = text.replace('raise ConnectionError("the search server does not answer")', "return None")
            (folder / path).write_text(works, "utf-8")
    made = Project(folder, {})
    worker = subprocess.Popen(
        [sys.executable, "-m", "sealbus", "run"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        publish = """echo '{"text": "why?"}' | sealbus publish -q desk.question"""
        _until(lambda: "desk.question" in made.run("sealbus topic list -q").stdout)
        first = json.loads(made.run(publish).stdout)["message_id"]
        _until(lambda: "Start with SQLite" in made.run("sealbus tail -q desk.answer").stdout)
        made.run(publish.replace("why?", " "))
        _until(lambda: bool(made.run("sealbus dlq list -q -o json").stdout))
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    made.run("sealbus serve audit --once")
    listed = made.run("sealbus dlq list -q --by cause")
    made.values.update(MESSAGE_ID=first, CONVERSATION=first, CAUSE=listed.stdout.splitlines()[1].split()[0])
    return made


def _until(reached: Callable[[], bool], limit_s: float = 60) -> None:
    ends = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.2)


def pasted(page: Path) -> list[str]:
    lines = [re.sub(r"\s{2,}#.*", "", line) for line in re.findall(r"^\$ (.*)$", written(page), re.MULTILINE)]
    return [
        line
        for line in lines
        if "sealbus" in line
        and not any(pattern.search(line) for pattern in (_ENDLESS, _ELSEWHERE, _UNFILLED))
        # A page of the tutorial is tried with its own project, part by part.
        and not (page in TUTORIAL and "tail desk.mail-sent" in line)
    ]


@pytest.mark.slow  # a process for each command
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page for page in (*PAGES, README) if pasted(page)], ids=name_of)
def test_the_commands_of_a_page_work_as_pasted(page: Path, project: Project) -> None:
    folder = project.folder.with_name(page.stem)
    shutil.copytree(project.folder, folder)
    for path, text in project_files(page).items():
        if path.endswith((".toml", ".json")):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")
    failed = []
    for line in pasted(page):
        for word, value in project.values.items():
            line = re.sub(rf"\b{word}\b", value, line)  # noqa: PLW2901 - the line as somebody would paste it
        done = project.run(line, folder)
        if done.returncode not in (0, 1) and not _ASKS.search(done.stderr):
            failed.append(f"{line}\n{done.returncode}: {done.stderr}")
    assert failed == [], "\n".join(failed)


def test_most_commands_of_the_pages_are_tried() -> None:
    assert sum(len(pasted(page)) for page in (*PAGES, README)) > 45
    assert DOCS / "how-to" / "fix-dead-letters.md" in PAGES
