"""The facade in a checkout: it imports quietly, and names what hides one of its packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python(folder: Path, code: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("hidden", ["bus.py", "producers/__init__.py", "consumers.py"])
def test_an_error_names_the_file_that_hides_a_package(tmp_path: Path, hidden: str) -> None:
    (tmp_path / hidden).parent.mkdir(exist_ok=True)
    (tmp_path / hidden).write_text("", "utf-8")
    done = python(tmp_path, "import sealbus", f"{tmp_path}:{ROOT}")
    assert done.returncode == 1
    assert str(tmp_path / hidden) in done.stderr.splitlines()[-1]


@pytest.mark.medium
def test_it_imports_quietly(tmp_path: Path) -> None:
    done = python(tmp_path, "import sealbus; print(len(sealbus.__all__) > 10)", str(ROOT))
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.medium
def test_the_facade_is_the_command_line_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sealbus", "types", "list"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "task.request" in done.stdout, done.stderr) == (0, True, "")


def test_what_the_dialects_raise_is_a_name_of_the_facade() -> None:
    import sealbus

    with pytest.raises(sealbus.DialectError):
        sealbus.dialects.dialect("plain-ids").decode(b"{}")
