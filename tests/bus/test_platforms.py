"""Where sealbus does not run, its import says so in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bus.platforms import check_platform

ROOT = Path(__file__).parents[2]


def test_this_system_is_supported() -> None:
    check_platform()


@pytest.mark.parametrize("name", ["getuid", "geteuid", "fork", "register_at_fork", "fchmod"])
def test_a_missing_call_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(os, name)
    with pytest.raises(ImportError, match=rf"os\.{name}.*WSL"):
        check_platform()


@pytest.mark.parametrize("module", ["fcntl", "mmap"])
def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}.*WSL"):
        check_platform()


@pytest.mark.parametrize("imported", ["sealbus", "bus.errors", "consumers.cli", "producers.connection"])
@pytest.mark.parametrize(
    "taken", ["sys.modules['fcntl'] = None", "del os.getuid", "del os.register_at_fork; del os.fork"]
)
def test_every_door_refuses_at_import(imported: str, taken: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import os, sys\n{taken}\nimport {imported}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: sealbus runs on Linux and macOS")
    assert "WSL" in last
