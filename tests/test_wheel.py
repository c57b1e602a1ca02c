"""The built wheel, installed in a clean environment outside the checkout, runs the demo; and the facade names what
hides its packages."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(Path.home())} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_installed_wheel_runs_the_demo(tmp_path: Path) -> None:
    built = run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("sealbus-*.whl")
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    installed = run(python, "-m", "pip", "install", "-q", wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    found = run(python, "-c", "from bus import native; print(native.core is not None)", cwd=tmp_path)
    assert found.stdout == f"{'any' not in wheel.name}\n", found.stderr
    shown = run(tmp_path / "clean" / "bin" / "sealbus", "config", "show", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    demo = run(tmp_path / "clean" / "bin" / "sealbus", "demo", cwd=tmp_path, timeout=60)
    assert demo.returncode == 0, demo.stdout + demo.stderr


@pytest.mark.parametrize("hidden", ["bus.py", "producers/__init__.py", "consumers.py"])
def test_the_facade_says_which_file_hides_a_package(tmp_path: Path, hidden: str) -> None:
    (tmp_path / hidden).parent.mkdir(exist_ok=True)
    (tmp_path / hidden).write_text("", "utf-8")
    done = run(sys.executable, "-c", "import sealbus", cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 1
    assert str(tmp_path / hidden) in done.stderr.splitlines()[-1]


def test_the_facade_imports_quietly(tmp_path: Path) -> None:
    done = run(
        sys.executable, "-c", "import sealbus; print(len(sealbus.__all__) > 10)", cwd=tmp_path, PYTHONPATH=str(ROOT)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
