"""The page about HTTP is true: its lines run in their order against its agent and gateways, with curl, jq and Node."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.gateway.credentials import DoorsFile
from tests.documents import DOCS, blocks, environment, pasted_lines, until, write_files, written
from tests.node_tools import node_project

pytestmark = [pytest.mark.medium, pytest.mark.timeout(240)]
PAGE = DOCS / "how-to" / "http.md"
SERVES = ("sealbus run", "sealbus serve gateway")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Pasted:
    """The page in a folder of its own, at ports that are free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {"8766": str(free_port()), "8767": str(free_port())}
        self._started: list[subprocess.Popen[bytes]] = []

    def moved(self, text: str) -> str:
        for port, free in self.ports.items():
            text = text.replace(port, free)
        return text

    def serve(self, line: str) -> None:
        words = self.moved(line).split()[1:]
        if "gateway" in words and "--port" not in words:
            words += ["--port", self.ports["8766"]]
        with (self.folder / "served.log").open("ab") as log:
            command = [sys.executable, "-m", "sealbus", *words]
            self._started.append(
                subprocess.Popen(command, cwd=self.folder, env=self.environment(), stdout=log, stderr=log)
            )
        port = words[words.index("--port") + 1] if "--port" in words else None
        until(lambda: port is None or self._answers(port))

    def environment(self) -> dict[str, str]:
        return {
            **environment(self.folder / "desk"),
            "PYTHONPATH": f"{self.folder}:{Path(DOCS).parent}",
            "NO_PROXY": "*",
        }

    def _answers(self, port: str) -> bool:
        assert all(each.poll() is None for each in self._started), (self.folder / "served.log").read_text()
        asked = ["curl", "-sf", "--noproxy", "*", f"http://127.0.0.1:{port}/healthz/ready"]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def bash(self, lines: list[str]) -> str:
        """Run *lines* in one shell, which ends with the first that fails."""
        script = "\n".join(["set -eo pipefail", *map(self.moved, lines)])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def close(self) -> None:
        for each in self._started:
            each.send_signal(signal.SIGTERM)
        for each in self._started:
            each.wait(60)


@pytest.fixture
def pasted(tmp_path: Path) -> Iterator[Pasted]:
    if missing := [tool for tool in ("curl", "jq", "bash") if shutil.which(tool) is None]:
        if os.environ.get("CI"):
            pytest.fail(f"there is no {missing[0]}")
        pytest.skip(f"there is no {missing[0]}")
    made = Pasted(tmp_path)
    write_files(PAGE, tmp_path)
    (agent,) = blocks(PAGE, "python")
    (tmp_path / "writer.py").write_text(agent.text, "utf-8")
    (tmp_path / "sealbus.toml").write_text('[bus]\nurl = "sqlite:///log.db"\n')
    yield made
    made.close()


def test_every_line_works_in_its_order(pasted: Pasted) -> None:
    lines = [line for line in pasted_lines(written(PAGE)) if not line.startswith("pip ")]
    served = [line for line in lines if line.startswith(SERVES)]
    first = lines.index(served[0])
    pasted.bash(lines[:first])
    for line in served:
        pasted.serve(line)
    said = pasted.bash([line for line in lines[first:] if line not in served])
    for each in ('"completed"', "event: task", "(en) A letter to the landlord", "written in en", "Which language?"):
        assert each in said, said
    assert '{"status":"ok","message_id":"m-1","task_id":' in said
    # The rotated token stands beside the one before.
    (me,) = DoorsFile(pasted.folder / "doors.toml").read().all
    assert len(me.tokens) == 2


def test_the_socket_of_the_page_follows_its_task_to_the_end(pasted: Pasted) -> None:
    lines = [line for line in pasted_lines(written(PAGE)) if line.startswith(("sealbus door add me --agent", *SERVES))]
    pasted.bash(lines[:1])
    for line in lines[1:3]:
        pasted.serve(line)
    folder = node_project() / f"page-{os.getpid()}"
    folder.mkdir()
    try:
        (block,) = blocks(PAGE, "js")
        (folder / "follow.mjs").write_text(pasted.moved(block.text), "utf-8")
        done = subprocess.run(
            ["node", str(folder / "follow.mjs")],
            cwd=pasted.folder,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "completed"
