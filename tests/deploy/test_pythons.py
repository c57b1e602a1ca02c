"""`deploy.pythons` finds each Python once, and nothing that only looks like one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from deploy.pythons import Python, candidates, newest, probe

pytestmark = pytest.mark.medium  # starts interpreters


def python(*version: int, path: str = "x") -> Python:
    return Python(version, Path(path))


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_one_of_each_minor_version_is_named_the_newest() -> None:
    found = [python(3, 13, 0), python(3, 12, 1, path="old"), python(3, 10, 13), python(3, 12, 4), python(3, 13, 0)]
    assert newest(found, (3, 11)) == [python(3, 12, 4), python(3, 13, 0)]


def test_names_on_the_path_and_places_of_pyenv_and_uv_are_looked_at(tmp_path: Path) -> None:
    wanted = [
        script(tmp_path / "bin" / "python3.12", ""),
        script(tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin" / "python3", ""),
        script(tmp_path / ".local" / "share" / "uv" / "python" / "cpython-3.14" / "bin" / "python3", ""),
    ]
    for name in ("python3", "python3.12-config", "python3.13t"):
        script(tmp_path / "bin" / name, "")
    path = os.pathsep.join([str(tmp_path / "nowhere"), "", str(tmp_path / "bin")])
    assert list(candidates(path, tmp_path)) == wanted


def test_an_interpreter_says_its_version_and_where_it_is() -> None:
    assert probe(Path(sys.executable)) == Python(tuple(sys.version_info[:3]), Path(sys.executable))


def test_a_shim_without_its_python_is_passed_over(tmp_path: Path) -> None:
    assert probe(script(tmp_path / "python3.12", "echo no such version >&2; exit 127")) is None
