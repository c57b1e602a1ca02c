"""Every command of a page works as pasted, in a project with a handled message, a dead letter and no worker.

Left out are commands that serve or wait until Ctrl-C, and those that need a Kafka. Words in capitals are filled in.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents import (
    DOCS,
    PAGES,
    README,
    TUTORIAL,
    environment,
    name_of,
    new_project,
    paste,
    pasted_lines,
    project_files,
    until,
    written,
)

_ENDLESS = re.compile(r"\bsealbus (?:new|dev|run|demo|ask desk@svc|serve (?!.*(?:--once|--new-token)))")
_ELSEWHERE = re.compile(r"kafka://|^(?:make|docker|kubectl|pip|pytest|cd|touch|export)\b|--agent client@svc|shop\.db")
_UNFILLED = re.compile(r"\bID\b|\bLOCATION\b|\.pem\b|\bGROUP\b|\bFILE\b|--cause CAUSE .*--wait")
_ASKS = re.compile(r"without a terminal, give --yes|Nobody can answer here")


class Project(NamedTuple):
    """A project whose log has messages, and what the words in capitals stand for in it."""

    folder: Path
    values: dict[str, str]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = new_project(tmp_path_factory.mktemp("pasted"))
    for page in TUTORIAL[:3]:
        for path, text in project_files(page).items():
            works = text.replace('raise ConnectionError("the search server does not answer")', "return None")
            (folder / path).write_text(works, "utf-8")
    worker = subprocess.Popen(
        [sys.executable, "-m", "sealbus", "run"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        publish = """echo '{"text": "why?"}' | sealbus publish -q desk.question"""
        until(lambda: "desk.question" in paste("sealbus topic list -q", folder).stdout)
        first = json.loads(paste(publish, folder).stdout)["message_id"]
        until(lambda: "Start with SQLite" in paste("sealbus tail -q desk.answer", folder).stdout)
        paste(publish.replace("why?", " "), folder)
        until(lambda: paste("sealbus dlq list -q -o json", folder).stdout)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    paste("sealbus serve audit --once", folder)
    listed = paste("sealbus dlq list -q --by cause", folder).stdout
    values = {"MESSAGE_ID": first, "CONVERSATION": first, "CAUSE": listed.splitlines()[1].split()[0]}
    return Project(folder, values)


def pasted(page: Path) -> list[str]:
    return [
        line
        for line in pasted_lines(written(page))
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
        done = paste(line, folder)
        if done.returncode not in (0, 1) and not _ASKS.search(done.stderr):
            failed.append(f"{line}\n{done.returncode}: {done.stderr}")
    assert failed == [], "\n".join(failed)


def test_most_commands_of_the_pages_are_tried() -> None:
    assert sum(len(pasted(page)) for page in (*PAGES, README)) > 45
    assert DOCS / "how-to" / "fix-dead-letters.md" in PAGES
