"""Projects of `sealbus new`, made with the wheel and installed as their README shows: with pip, and with uv.

Each passes its tests, `sealbus check`, mypy and ruff, and its agents answer what is sent to them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PINNED = """\
langchain-openai==1.7.4
langgraph==1.2.24
openai-agents==0.24.0
pydantic-ai-slim==2.68.0
"""
"""The frameworks of templates. sealbus itself depends on none of them."""
UV = "uv==0.13.9"

WITH_PIP = [
    (),
    ("--template", "team", "--with", "postgres", "--with", "kafka", "--with", "keys"),
    ("--template", "team", "--with", "openai", "--with", "postgres"),
    ("--template", "llm", "--with", "kafka"),
    ("--template", "web", "--with", "langgraph", "--with", "postgres"),
    ("--with", "pydantic-ai"),
]
WITH_UV = [(), ("--with", "openai")]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # builds, installs, and starts processes


def run(*command: str | Path, cwd: Path, timeout: float = 600, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=plain(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def plain(environment: dict[str, str]) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_")) or "PROXY" in name
    }
    return {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())} | kept | environment


class Environment:
    """A virtual environment with the wheel, in which projects are made and installed."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.bin = folder / "environment" / "bin"
        venv.create(folder / "environment", with_pip=True)
        (folder / "pinned.txt").write_text(PINNED)
        self.variables = {"PATH": f"{self.bin}:/usr/bin:/bin", "PIP_CONSTRAINT": str(folder / "pinned.txt")}
        self.run("pip", "install", "-q", "-U", "pip")
        self.run("pip", "install", "-q", wheel)

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        return run(*command, cwd=cwd or self.folder, **self.variables)

    def made(self, name: str, *arguments: str) -> Path:
        self.run("sealbus", "new", name, *arguments)
        return self.folder / name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT),
        cwd=folder,
        SEALBUS_NATIVE="off",
        PATH=os.environ["PATH"],
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def with_pip(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("pip"), wheel)


@pytest.fixture(scope="module")
def with_uv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("uv"), wheel)
    environment.run("pip", "install", "-q", UV)
    return environment


@pytest.mark.parametrize("arguments", WITH_PIP, ids="".join)
def test_a_project_with_pip(with_pip: Environment, arguments: tuple[str, ...]) -> None:
    project = with_pip.made(f"desk-{WITH_PIP.index(arguments)}", *arguments)
    readme = (project / "README.md").read_text("utf-8")
    (install,) = re.findall(r"^pip install .*", readme, re.MULTILINE)
    with_pip.run("sh", "-ec", install, cwd=project)
    check_project(project, with_pip.variables)


@pytest.mark.parametrize("arguments", WITH_UV, ids="".join)
def test_a_project_with_uv(with_uv: Environment, arguments: tuple[str, ...]) -> None:
    project = with_uv.made(f"desk-{WITH_UV.index(arguments)}", *arguments)
    with_uv.run("uv", "sync", "-q", cwd=project)
    # Nothing of the environment in which the project was made counts here.
    check_project(project, {"PATH": f"{project}/.venv/bin:/usr/bin:/bin"})


def check_project(project: Path, variables: dict[str, str]) -> None:
    """Make keys, run every command that the README has for tests, then ask the agents."""
    readme = (project / "README.md").read_text("utf-8")
    for command in re.findall(r"^sealbus key new .*", readme, re.MULTILINE):
        run("sh", "-ec", command, cwd=project, **variables)
    (tests,) = re.findall(r"## Test\n\n```sh\n(.*?)```", readme, re.DOTALL)
    assert tests.split("\n")[:2] == ["pytest", "sealbus check"]
    output = run("sh", "-ec", tests, cwd=project, **variables)
    assert "warning" not in output.lower()
    run("ruff", "format", "--check", cwd=project, **variables)
    shutil.rmtree(project / ".mypy_cache")
    local = {
        "SEALBUS_BUS__URL": f"sqlite:///{project}/.sealbus/log.db",
        "SEALBUS_INBOX__URL": f"sqlite:///{project}/.sealbus/inbox.db",
    }
    with worker(project, variables | local):
        check_answers(project, readme, variables | local)


@contextlib.contextmanager
def worker(project: Path, variables: dict[str, str]) -> Iterator[None]:
    """`sealbus run` as long as this lasts; it ends in order."""
    log = project / "worker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["/usr/bin/env", "sealbus", "run"], cwd=project, env=plain(variables), stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + 60
        while b"working;" not in log.read_bytes():
            assert process.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.1)
        if (schema := project / "schema.sql").exists():
            create_table(project / ".sealbus/inbox.db", schema.read_text("utf-8"))
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text("utf-8")
    finally:
        process.kill()
        process.wait()


def create_table(database: Path, schema: str) -> None:
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        connection.executescript(schema)


def check_answers(project: Path, readme: str, variables: dict[str, str]) -> None:
    for publishing in re.findall(r"^echo .* \| sealbus publish .*", readme, re.MULTILINE):
        assert '"outcome":"published"' in run("sh", "-ec", publishing, cwd=project, **variables)
    for tailing in re.findall(r"^sealbus tail .*", readme, re.MULTILINE):
        assert len(soon(project, partial(json_lines, project, tailing, variables))) == 1
    asking, *pushing = re.findall(r"^sealbus ask .*", readme, re.MULTILINE) or [""]
    if asking:
        answer = run("sh", "-ec", asking, cwd=project, **variables)
        assert "OPENAI_API_KEY is not set: a scripted model answers" in answer
    for each in pushing:
        check_approval(project, each, variables)


def soon(project: Path, look: Callable[[], Any]) -> Any:
    """What *look* finds, once it finds something."""
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline, (project / "worker.log").read_text("utf-8")
        time.sleep(0.2)
    return found


def json_lines(project: Path, command: str, variables: dict[str, str]) -> list[dict[str, object]]:
    output = run("sh", "-ec", f"{command} -q -o json", cwd=project, **variables)
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def check_approval(project: Path, pushing: str, variables: dict[str, str], approving: str = "") -> None:
    """Ask for what needs a person, decide by the command that is shown and is that of *approving*, see the answer."""
    said, answer = project / "ask.err", project / "ask.out"
    with said.open("wb") as err, answer.open("wb") as out:
        asking = subprocess.Popen(
            ["/bin/sh", "-ec", pushing], cwd=project, env=plain(variables), stdout=out, stderr=err
        )
    try:
        shown = soon(project, lambda: re.search(r"(sealbus approval approve .*)", said.read_text("utf-8")))
        (waiting,) = json_lines(project, "sealbus approval list", variables)
        assert not (project / ".sealbus/pushed.txt").exists()
        if approving:
            assert shown[1] == approving.replace("ID", shown[1].split()[3])
        digits = str(waiting["action_hash"]).removeprefix("sha256:")[:8]
        run("sh", "-ec", f"echo {digits} | {shown[1]}", cwd=project, **variables)
        assert asking.wait(60) == 0, said.read_text("utf-8")
    finally:
        asking.kill()
        asking.wait()
    assert "Pushed fix" in answer.read_text("utf-8")
    assert (project / ".sealbus/pushed.txt").read_text("utf-8") == "fix\n"


def test_the_page_about_agents_goes_from_nothing_to_an_approved_call(wheel: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/agent-behind-the-bus.md").read_text("utf-8")
    blocks = [
        re.findall(r"^\$ (.*)", block, re.MULTILINE) for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    ]
    making, (developing,), (question, pushing), (approving,), *_ = blocks
    began = time.monotonic()
    script = "\n".join(making).replace("'sealbus[", f"'{wheel}[")
    run("sh", "-ec", script, cwd=tmp_path, PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    made_s = time.monotonic() - began
    project, variables = tmp_path / "desk", {"PATH": f"{tmp_path}/agents/bin:/usr/bin:/bin"}
    with (project / "worker.log").open("wb") as log:
        dev = subprocess.Popen(
            ["/bin/sh", "-ec", f"exec {developing} --port 0"], cwd=project, env=plain(variables), stdout=log, stderr=log
        )
    try:
        soon(project, lambda: b"token to change something" in (project / "worker.log").read_bytes())
        said = (project / "worker.log").read_text("utf-8")
        assert "missing:  OPENAI_API_KEY is not set (.env.example)" in said
        assert "ask:      sealbus ask desk@svc" in said
        assert "a message that failed for good" in run("sh", "-ec", question, cwd=project, **variables)
        check_approval(project, pushing, variables, approving)
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 130
    finally:
        dev.kill()
        dev.wait()
    commands = len(making) + 4
    print(
        f"{commands} commands: {made_s:.0f} s to make it, {time.monotonic() - began:.0f} s until the call was approved"
    )
