"""Examples whose agents run in the environments of their frameworks, one process each, on one log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from sealbus import connect
from tests.consumers.adapters.test_adapters import FRAMEWORKS, allowed, environment

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "tests" / "examples" / "two_frameworks"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # processes, in environments that may have to be made


def python_of(rig: str) -> Path:
    extra, more = FRAMEWORKS[rig]
    return environment(f"{rig}-newest", [*allowed(extra, oldest=False), *more])


@contextmanager
def worker(python: Path | str, app: str, folder: Path, settings: dict[str, str]) -> Iterator[None]:
    """A worker of that app of the example, as long as this lasts."""
    with (folder / f"{app}.log").open("wb") as log:
        command = [str(python), "-m", "consumers.cli", "run", f"{app}:app"]
        process = subprocess.Popen(command, cwd=EXAMPLE, env=settings, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


async def test_a_supervisor_of_two_frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    articles = import_module("articles")
    log = f"sqlite:///{tmp_path}/log.db"
    settings = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{EXAMPLE}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SEALBUS_BUS__URL": log,
    }
    pythons = {
        "supervisor": sys.executable,
        "researcher": python_of("pydantic_ai"),
        "writer": python_of("openai_agents"),
    }
    with ExitStack() as stack:
        for name, python in pythons.items():
            own = {"SEALBUS_INBOX__URL": f"sqlite:///{tmp_path}/{name}.db"}
            stack.enter_context(worker(python, name, tmp_path, settings | own))
        async with connect(log, agent="ann@people") as bus:
            answer = await bus.request(
                articles.ArticleWanted(topic="tea"), articles.Article, to="supervisor@svc", timeout_s=120
            )
    assert answer == articles.Article(text="NEWS: tea is green")
