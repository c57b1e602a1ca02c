"""Every adapter passes one suite of cases, alone in its environment, with the oldest and the newest allowed framework.

Environments are made below `build/adapters`, once for what is pinned in them. What cannot be made is a failure.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SUITE = Path(__file__).with_name("suite")
PLACE = ROOT / "build" / "adapters"
TESTING = ("pytest>=9", "pytest-asyncio>=1.1", "pytest-timeout>=2.3", "cryptography>=45")
"""What the suite itself needs."""

# Makes an environment (half a minute each), and runs processes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FRAMEWORKS = {
    "langgraph": ("langgraph", ("langchain-mcp-adapters", "langgraph-checkpoint-conformance")),
    "openai_agents": ("openai", ()),
    "pydantic_ai": ("pydantic-ai", ("pydantic-ai-slim[mcp]", "mcp")),
}
"""The rig of each adapter: its extra, and what its suite needs beside."""


def allowed(extra: str, *, oldest: bool) -> list[str]:
    """What *extra* asks for, as requirements of pip: the oldest version that it allows, or the newest."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    found = [re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+),<([0-9.]+)", each) for each in extras[extra]]
    assert all(found), extras[extra]
    return [f"{each[1]}=={each[2]}" if oldest else each[0] for each in found if each]


def environment(name: str, packages: list[str]) -> Path:
    """The Python of an environment that has *packages*, and what the bus itself needs in its pinned version."""
    pinned = re.findall(r"^([a-z0-9-]+==[^ ]+)", (ROOT / "constraints" / "run.txt").read_text("utf-8"), re.MULTILINE)
    wanted = [*pinned, *TESTING, *packages]
    folder = PLACE / f"{name}-{hashlib.sha256(' '.join([sys.version, *wanted]).encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
        assert done.returncode == 0, done.stderr[-4000:]
        (folder / "ready").touch()
    return python


def passes(python: Path, rig: str, *more: str) -> None:
    own = [*(each.name for each in SUITE.glob(f"cases_{rig}*.py")), *more]
    files = ["cases.py", "cases_page.py", *own]
    command = [python, "-m", "pytest", "-c", "pytest.ini", "--rootdir", ".", "-q", *files]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{SUITE}", "RIG": rig}
    done = subprocess.run(
        [str(each) for each in command], cwd=SUITE, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.parametrize("version", ["oldest", "newest"])
@pytest.mark.parametrize("rig", FRAMEWORKS)
def test_an_adapter_passes_the_suite(rig: str, version: str) -> None:
    extra, more = FRAMEWORKS[rig]
    packages = [*allowed(extra, oldest=version == "oldest"), *more]
    # Deaths of real workers take a minute; what they show is not a matter of the version.
    passes(environment(f"{rig}-{version}", packages), rig, *(["cases_kills.py"] if version == "newest" else []))


@pytest.mark.parametrize("rig", FRAMEWORKS)
def test_without_its_framework_an_adapter_names_the_extra(rig: str) -> None:
    code = f"from sealbus.adapters import {rig}; {rig}.serve(None)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"pip install 'sealbus[{FRAMEWORKS[rig][0]}]'" in done.stderr


def test_an_adapter_imports_no_framework_before_it_is_called() -> None:
    code = (
        "import sys, sealbus.adapters; "
        "print([name for name in sys.modules if name.split('.')[0] in ('agents', 'langgraph', 'pydantic_ai', 'mcp')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n"
