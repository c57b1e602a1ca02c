"""The image: what goes into it, its steps one after the other, and every process of deploy/compose.yaml in it.

No container runtime is needed: the steps of the Dockerfile and its entry point run in a root of their own, with the
Python and Rust of this machine in place of those of the base images.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.machines import PATH, ROOT, Mounted, Started, eventually, refuse_or_skip, relayed, start
from tests.deploy.manifests import documents

CONTAINER = ROOT / "deploy" / "container"
DOCKERFILE = (CONTAINER / "Dockerfile").read_text()
USER = 10001
IMAGE = {"python_version": "3.13", "python_full_version": "3.13.0", "sys_platform": "linux", "platform_system": "Linux"}
COMPOSE: dict[str, Any] = documents(ROOT / "deploy" / "compose.yaml")[0]["services"]
OURS = ("worker", "exporter", "audit", "console", "gateway")
SECRETS = (
    "keys/jwks.json",
    "keys/planner-svc-0bdca03e.pem",
    "consumers/left.pem",
    "bus/jwks.json",
    "config/jwks-old.json",
    "sealbus/own.jwk",
    "sealbus.db",
    "bus/agents.db-wal",
    "consumers/.sealbus/log.db",
    "deploy/container/tokens.toml",
    "deploy/container/doors.toml",
    ".env",
    "bus/.env.local",
    ".git/config",
)


# What is pinned.


def pins(name: str) -> dict[str, str]:
    """The requirements of a file of constraints, with their hashes, by name."""
    blocks = re.split(r"\n(?=[A-Za-z0-9])", (ROOT / "constraints" / name).read_text().rstrip())
    return {canonicalize_name(re.split(r"[=\s]", block, maxsplit=1)[0]): block for block in blocks}


def closure(requirements: list[str]) -> set[str]:
    """All that *requirements* bring into the image."""
    seen: set[tuple[str, str]] = set()
    left = [Requirement(each) for each in requirements]
    while left:
        wanted = left.pop()
        for extra in ("", *wanted.extras):
            name = canonicalize_name(wanted.name)
            if (name, extra) not in seen:
                seen.add((name, extra))
                needs = [Requirement(each) for each in metadata.requires(name) or ()]
                left += [
                    each for each in needs if each.marker is None or each.marker.evaluate(IMAGE | {"extra": extra})
                ]
    return {name for name, _ in seen}


def test_everything_in_the_image_is_pinned_with_hashes_as_it_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = {
        "image.txt": [
            *project["project"]["dependencies"],
            *(each for name in ("console", "gateway", "mcp", "postgres", "trust") for each in extras[name]),
        ],
        "build.txt": project["build-system"]["requires"],
    }
    tested = pins("dev.txt")
    for name, requirements in wanted.items():
        found = pins(name)
        assert found.keys() == closure(requirements)
        assert all("--hash=sha256:" in block for block in found.values())
        assert found == {each: tested[each] for each in found}
    for line in DOCKERFILE.splitlines():
        if "pip install" in line:
            assert "--require-hashes" in line or "--no-index --no-deps" in line, line


# What goes in.


def ignored(path: str) -> bool:
    """Whether .dockerignore leaves *path* out: the last pattern that fits it, or a folder above it, decides."""
    found = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        above = [path, *map(str, Path(path).parents)]
        tail = pattern.removeprefix("**/")
        if any(
            (fnmatch.fnmatch(each, pattern) and each.count("/") == pattern.count("/"))
            or (tail != pattern and any(fnmatch.fnmatch(part, tail) for part in each.split("/")))
            for each in above
            if each != "."
        ):
            found = not line.startswith("!")
    return found


def test_no_key_database_or_token_goes_into_the_build() -> None:
    assert [path for path in SECRETS if not ignored(path)] == []
    for path in ("bus/trust/keys/private_keys.py", "bus/native/src/lib.rs", "bus/native/Cargo.lock", "README.md"):
        assert not ignored(path), path


# Its health check.

SERVER = """
import http.server, socketserver, sys
host, live, metrics = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({"/healthz/live": live, "/metrics": metrics}.get(self.path, 404))
        self.end_headers()
    def log_message(self, *_): pass
if live:
    server = http.server.HTTPServer((host, 0), Handler)
else:
    server = socketserver.TCPServer((host, 0), None, bind_and_activate=True)
print("up", flush=True)
server.serve_forever() if live else sys.stdin.read()
"""
EVERYWHERE = "0.0.0.0"  # noqa: S104 - a container's


@pytest.mark.medium
@pytest.mark.parametrize(
    ("host", "live", "metrics", "code"),
    [
        (EVERYWHERE, 200, 404, 0),
        (EVERYWHERE, 503, 200, 1),
        (EVERYWHERE, 404, 200, 0),
        (EVERYWHERE, 404, 500, 1),
        ("127.0.0.1", 503, 200, 1),
        ("127.0.0.3", 200, 200, 0),
        (EVERYWHERE, 0, 0, 1),
        ("127.0.0.1", 0, 0, 0),
    ],
)
def test_health_is_what_the_process_serves(host: str, live: int, metrics: int, code: int) -> None:
    """0 for *live* is a port that never answers."""
    command = [sys.executable, "-c", SERVER, host, str(live), str(metrics)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        check = [sys.executable, str(CONTAINER / "healthcheck.py"), str(server.pid)]
        done = subprocess.run(check, capture_output=True, text=True, timeout=30, check=False)
        server.kill()
    assert done.returncode == code, done.stdout
    assert subprocess.run(check, capture_output=True, timeout=30, check=False).returncode == 1


# Its steps.


def steps() -> list[str]:
    """The RUN lines of the stage that builds."""
    build = DOCKERFILE.partition(" AS build\n")[2].partition("\nFROM ")[0]
    return [line.removeprefix("RUN ") for line in build.splitlines() if line.startswith("RUN ")]


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The environment of the image, made by the steps of the Dockerfile."""
    refuse_or_skip()
    if shutil.which("cargo") is None:
        if os.environ.get("SEALBUS_NATIVE") == "require":
            pytest.fail("there is no cargo")
        pytest.skip("there is no cargo")
    folder = tmp_path_factory.mktemp("image")
    for name in ("source", "venv", "build", "wheels"):
        (folder / name).mkdir()
    # Only what .dockerignore lets in again: a checkout has environments of a hundred thousand files beside it.
    again = {line[1:].split("/")[0] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    for path in sorted(path for name in again for path in (ROOT / name, *(ROOT / name).rglob("*"))):
        place = path.relative_to(ROOT)
        if path.is_file() and not ignored(str(place)):
            (folder / "source" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / "source" / place)
    mounts = [Mounted(f"/{name}", folder / name, is_read_only=False) for name in ("source", "venv", "build", "wheels")]
    mounts += [Mounted("/tmp", None, mode=0o1777)]  # noqa: S108 - in its own root
    home = Path.home()
    tools = [home / name for name in (".cargo", ".rustup") if (home / name).is_dir()]
    mounts += [Mounted(str(tool), tool, is_read_only=False) for tool in tools]
    programs = [f"{sys.base_prefix}/bin", *(f"{tool}/bin" for tool in tools), PATH]
    environment = {"PATH": ":".join(programs), "HOME": str(home)} | {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "CARGO_", "RUSTUP_", "SSL_"))
    }
    for extra in (Path("/opt/wheels"), Path.home() / ".config" / "pip"):
        if extra.is_dir():  # where this machine's pip looks
            mounts.append(Mounted(str(extra), extra))
    for number, step in enumerate(steps()):
        done = start(
            ["-ec", step],
            user=0,
            group=0,
            groups=[],
            environment=environment,
            mounts=mounts,
            log=folder / f"step-{number}.log",
            cwd="/source",
            command=["/bin/sh"],
        )
        assert done.process.wait(500) == 0, f"{step}\n{done.said()[-4000:]}"
    yield folder / "venv"
    shutil.rmtree(folder)


class Composed:
    """The services of deploy/compose.yaml, each in the image."""

    def __init__(self, venv: Path, folder: Path, settings: dict[str, str]) -> None:
        self._venv = venv
        self._folder = folder
        self._settings = settings
        self.services: dict[str, Started] = {}

    def start(self, name: str, *instead: str, stdin: bytes = b"") -> Started:
        service = COMPOSE[name]
        assert service["read_only"] is True
        mounts = [Mounted(place, None, mode=0o1777) for place in service["tmpfs"]]
        mounts += [Mounted("/venv", self._venv), Mounted("/app", None)]
        for volume in service.get("volumes", ()):
            source, target, _ = volume.split(":")
            mounts.append(Mounted(target, (ROOT / "deploy" / source).resolve()))
        unknown = self._settings.keys() - service["environment"].keys()
        assert not unknown
        begun = start(
            list(map(str, instead or service["command"])),
            user=USER,
            group=USER,
            groups=[],
            environment={
                "PATH": f"/venv/bin:{PATH}",
                "HOME": "/app",
                **{key: str(value) for key, value in service["environment"].items()},
                **self._settings,
            },
            mounts=mounts,
            log=self._folder / f"{name}{'-exec' if instead else ''}.log",
            cwd=service.get("working_dir", "/app"),
            stdin=stdin,
            command=["sealbus"],
        )
        if not instead:
            self.services[name] = begun
        return begun

    def is_healthy(self, begun: Started) -> bool:
        """Whether the HEALTHCHECK of the image says so, as the user of the container."""
        assert re.search(
            r"^HEALTHCHECK .*CMD \[\"python\", \"/usr/local/lib/sealbus/healthcheck.py\"\]$", DOCKERFILE, re.MULTILINE
        )
        check = Mounted("/usr/local/lib/sealbus/healthcheck.py", CONTAINER / "healthcheck.py")
        done = start(
            ["/opt/healthcheck.py", str(begun.process.pid)],
            user=USER,
            group=USER,
            groups=[],
            environment={},
            mounts=[Mounted("/venv", self._venv), check._replace(target="/opt/healthcheck.py")],
            log=self._folder / "health.log",
            command=["/venv/bin/python"],
        )
        return done.process.wait(60) == 0

    def close(self) -> None:
        for each in self.services.values():
            if each.process.poll() is None:
                each.process.kill()
            each.process.wait()


@pytest.fixture
def composed(venv: Path, tmp_path: Path, kafka: str, postgres: Any) -> Iterator[Composed]:
    url = asyncio.run(postgres.create_database())
    parts = urlsplit(url)
    with relayed(Path(parse_qs(parts.query)["host"][0]) / ".s.PGSQL.5432") as port:
        reached = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
        settings = {"SEALBUS_BUS__URL": f"kafka://{kafka}"}
        made = Composed(venv, tmp_path, settings | {"SEALBUS_INBOX__URL": reached, "SEALBUS_AUDIT__URL": reached})
        yield made
        made.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_processes_of_compose_run_in_the_image_healthy_until_they_are_stopped(composed: Composed) -> None:
    for name in OURS:
        composed.start(name)
    running = list(composed.services.values())
    for begun in running:
        eventually(lambda: composed.is_healthy(begun), running)  # noqa: B023 - called here
    sent = composed.start(
        "worker", "publish", "hello.said", "--app", "agents:app", "--as", "a@b", stdin=b'{"name": "Ada"}'
    )
    assert sent.process.wait(60) == 0, sent.said()
    for name, begun in composed.services.items():
        assert begun.end(45) in (0, 143), f"{name}: {begun.said()[-3000:]}"
        assert not composed.is_healthy(begun)
        assert "Traceback" not in begun.said()
