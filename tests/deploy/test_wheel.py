"""The built wheel: one package and nothing beside it, so that a project with folders of the same names as ours works
with it, typed, and without a word of the checkout on any path."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents import PAGES, program, write_files

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).with_name("wheel_project")

REVEALED = {
    "mypy": [
        "sealbus.consumers.app.app.App",
        (
            "def (consumers.driver.Ride, sealbus.consumers.delivery.context.Context)"
            " -> typing.Coroutine[Any, Any, consumers.driver.Arrived]"
        ),
        "sealbus.producers.connection.Bus",
        "sealbus.producers.outcomes.Receipt",
        "consumers.driver.Arrived",
        "str",
        (
            "sealbus.producers.outcomes.Receipt | sealbus.producers.outcomes.PublishRejected"
            " | sealbus.producers.outcomes.PublishUnknown"
        ),
        "int",
        "list[consumers.driver.Arrived]",
        "list[sealbus.consumers.deadletters.letters.DeadLetter]",
        "TypedDict(typed.DictRide, {'stop': str})",
        "typed.ModelRide",
        "typed.DataRide",
        "consumers.driver.Arrived",
        "bytes | None",
    ],
    "pyright": [
        "App",
        "(Ride, Context) -> Coroutine[Any, Any, Arrived]",
        "Bus",
        "Receipt",
        "Arrived",
        "str",
        "Receipt | PublishRejected | PublishUnknown",
        "int",
        "list[Arrived]",
        "list[DeadLetter]",
        "DictRide",
        "ModelRide",
        "DataRide",
        "Arrived",
        "bytes | None",
    ],
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # builds, installs, and starts processes


def run(*command: str | Path, cwd: Path, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=plain(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def plain(environment: dict[str, str]) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(Path.home())} | environment


def built(folder: Path, *arguments: str, source: Path = ROOT, native: str = "") -> Path:
    done = run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, *arguments, source),
        cwd=folder,
        SEALBUS_NATIVE=native,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("sealbus-*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert len(names) == len(set(names))
        return {name: archive.read(name) for name in names}


class Installed(NamedTuple):
    """Where sealbus is installed, and a project beside it."""

    environment: Path
    site: Path
    entries: set[str]
    project: Path

    def run(self, program: str, *arguments: str, timeout: float = 60, **environment: str) -> str:
        done = run(self.environment / "bin" / program, *arguments, cwd=self.project, timeout=timeout, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextlib.contextmanager
    def worker(self, *arguments: str) -> Iterator[Path]:
        """`sealbus run` as long as this lasts, with its log; it ends in order."""
        command = [self.environment / "bin" / "sealbus", "run", *arguments]
        log = self.project / "worker.log"
        with log.open("wb") as file:
            worker = subprocess.Popen(command, cwd=self.project, env=plain({}), stdout=file, stderr=file)
        try:
            yield log
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0, log.read_text("utf-8")
        finally:
            worker.kill()
            worker.wait()


@pytest.fixture(scope="module", params=["off", ""], ids=["pure", "as built here"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own, which borrows what sealbus depends on from this one."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "dist").mkdir()
    wheel = built(folder / "dist", "--wheel", native=request.param)
    environment = folder / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    done = run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    entries = {path.name for path in site.iterdir()}
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    project = folder / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    for package in ("bus", "producers", "consumers"):
        (project / package / "__init__.py").touch()
    return Installed(environment, site, entries, project)


def test_nothing_is_installed_but_sealbus(installed: Installed) -> None:
    assert installed.entries == {"sealbus", next(name for name in installed.entries if name.endswith(".dist-info"))}
    shipped = {path.name for path in (installed.site / "sealbus").iterdir()} - {"__pycache__"}
    facade = {path.name for path in (ROOT / "sealbus").iterdir()} - {"__pycache__"}
    assert shipped == facade | {"bus", "producers", "consumers", "config"}


def test_no_module_is_known_by_its_name_in_the_checkout(installed: Installed) -> None:
    # The parts of adapters that import their framework are tried in its environment.
    code = (
        "import pkgutil, re, sys, sealbus, importlib\n"
        "framework = re.compile(r'__main__|adapters\\.(langgraph|openai_agents|pydantic_ai)_')\n"
        "found = pkgutil.walk_packages(sealbus.__path__, 'sealbus.')\n"
        "names = [m.name for m in found if not framework.search(m.name)]\n"
        "[importlib.import_module(name) for name in names]\n"
        "[getattr(sealbus, name) for name in sealbus.__all__]\n"
        "print(len(names) > 200, sorted(m for m in sys.modules if m.partition('.')[0] in sys.argv))"
    )
    assert installed.run("python", "-P", "-c", code, "bus", "producers", "consumers", "config") == "True []\n"


def test_the_compiled_hot_path_is_in_the_wheel_that_says_so(installed: Installed) -> None:
    (tag,) = (installed.site / next(n for n in installed.entries if n.endswith(".dist-info"))).glob("WHEEL")
    is_pure = "py3-none-any" in tag.read_text("utf-8")
    code = (
        "from sealbus.bus import native; from sealbus.bus.transports.base import NewRecord; c = native.core\n"
        "print(c and c.record_sizes([NewRecord(topic='t', key=b'k', value=b'v')]) is not None)"
    )
    assert installed.run("python", "-c", code) == ("None\n" if is_pure else "True\n")


def test_the_demo_and_the_settings_are_inside(installed: Installed) -> None:
    assert "publish" in installed.run("sealbus", "config")
    demo = installed.run("python", "-m", "sealbus", "demo")
    assert re.search(r"(?m)^- sealbus/(bus|producers|consumers)/", demo)


@pytest.mark.parametrize("target", ["agent:app", "consumers.driver:app"])
def test_a_worker_runs_an_agent_from_folders_named_as_ours(installed: Installed, target: str) -> None:
    driven = installed.project / "driven.txt"
    driven.unlink(missing_ok=True)
    url = f"sqlite:///{target.partition(':')[0]}.db"
    with installed.worker(target, "--bus", url, "--processes", "2") as log:
        (installed.project / "rides.ndjson").write_text('{"stop": "north"}\n{"stop": "south"}\n', "utf-8")
        installed.run("sealbus", "publish", "ride.request", "rides.ndjson", "--app", target, "--bus", url)
        deadline = time.monotonic() + 30
        while not driven.exists() or len(driven.read_text("utf-8").split()) < 2:
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.05)
    assert sorted(driven.read_text("utf-8").split()) == ["north", "south"]
    assert "sealed ok" in installed.run("sealbus", "tail", "ride.output", "--from", "start", "--verify", "--bus", url)


@pytest.mark.slow  # a Python process for each page
@pytest.mark.timeout(300)
def test_the_programs_of_the_documents_run_with_the_wheel_alone(installed: Installed) -> None:
    folder = installed.project / "pages"
    folder.mkdir()
    for page in PAGES:
        write_files(page, installed.project)
        if text := program(page):
            name = "test_" + page.stem.replace("-", "_") + ".py"
            (folder / name).write_text(text, "utf-8")
    assert len(list(folder.iterdir())) > 10
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:anyio")
    assert "passed" in installed.run("python", "-m", "pytest", *quiet, "pages", timeout=240)


def test_the_projects_own_test_passes(installed: Installed) -> None:
    without = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:anyio")
    assert "2 passed" in installed.run("python", "-m", "pytest", "-q", *without, "ride_checks.py")
    assert "2 passed" in installed.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "ride_checks.py")


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_mistakes_in_handlers_are_seen_by_type_checkers(installed: Installed, checker: str) -> None:
    options = {
        "mypy": [
            "--strict",
            "--python-executable",
            str(installed.environment / "bin" / "python"),
            "--cache-dir",
            os.devnull,
        ],
        "pyright": ["--pythonpath", str(installed.environment / "bin" / "python")],
    }
    done = run(*(sys.executable, "-m", checker, *options[checker], "mistakes.py"), cwd=installed.project)
    lines = (installed.project / "mistakes.py").read_text("utf-8").splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if line.startswith("@app.on") and "wrong" in line}
    found = {int(line) for line in re.findall(r"mistakes\.py:(\d+):.*error", done.stdout)}
    # A checker may name the decorator, or the function below it.
    assert {min(wanted, key=lambda at: (at > line, line - at)) for line in found} == wanted, done.stdout


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_types_reach_the_code_of_users(installed: Installed, checker: str) -> None:
    pytest.importorskip(checker)
    if checker == "pyright" and shutil.which("node") is None:
        pytest.skip("pyright needs node, and would fetch it")
    python = installed.environment / "bin" / "python"
    options = {
        "mypy": ["--strict", "--python-executable", str(python), "--cache-dir", os.devnull],
        "pyright": ["--pythonpath", str(python)],
    }
    (installed.project / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}\n', "utf-8")
    done = run(
        *(
            sys.executable,
            "-m",
            checker,
            *options[checker],
            "typed.py",
            "subjects.py",
            "consumers",
            "producers",
            "agent.py",
        ),
        cwd=installed.project,
    )
    revealed = re.findall(r'Revealed type is "(.*)"|Type of ".*" is "(.*)"', done.stdout)
    assert [mypy or pyright for mypy, pyright in revealed] == REVEALED[checker], done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_source_distribution_builds_the_same_wheel(tmp_path: Path) -> None:
    (tmp_path / "through").mkdir()
    (tmp_path / "straight").mkdir()
    through = contents(built(tmp_path / "through", native="off"))
    assert through == contents(built(tmp_path / "straight", "--wheel", native="off"))


def test_the_wheels_dependencies_are_declared(tmp_path: Path) -> None:
    """In a clean environment, with what pip finds out."""
    (tmp_path / "dist").mkdir()
    wheel = built(tmp_path / "dist", "--wheel")
    venv.create(tmp_path / "clean", with_pip=True)
    installed = run(tmp_path / "clean" / "bin" / "python", "-m", "pip", "install", "-q", wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    demo = run(tmp_path / "clean" / "bin" / "sealbus", "demo", cwd=tmp_path, timeout=60)
    assert demo.returncode == 0, demo.stdout + demo.stderr
