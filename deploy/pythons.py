"""The Pythons of this machine that sealbus runs on: `python -m deploy.pythons [--but 3.11]`.

Owns finding them: one of each minor version, the newest, as a line `3.12 /path/to/python`, oldest version first. They
are looked for on the PATH and where pyenv and uv put them. A shim without its Python, a pre-release, a build without
the global lock and anything but CPython are passed over.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Python", "candidates", "newest", "probe"]

_NAME = re.compile(r"python3\.\d+")
_TIMEOUT_S = 30
_PROBE = """
import sys, sysconfig
is_plain = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
is_plain = is_plain and sys.version_info.releaselevel == "final"
print(*sys.version_info[:3], sys.executable) if is_plain else sys.exit(1)
"""


class Python(NamedTuple):
    """An interpreter, and its version in full."""

    version: tuple[int, ...]
    path: Path

    @property
    def minor(self) -> str:
        return ".".join(map(str, self.version[:2]))


def candidates(path: str, home: Path, pyenv: str | None = None) -> Iterator[Path]:
    """Yield what may be a Python: by name in the folders of *path*, and below *home* or *pyenv* by place."""
    for folder in path.split(os.pathsep):
        if folder and Path(folder).is_dir():
            yield from sorted(found for found in Path(folder).iterdir() if _NAME.fullmatch(found.name))
    for versions in (Path(pyenv or home / ".pyenv") / "versions", home / ".local/share/uv/python"):
        yield from sorted(versions.glob("*/bin/python3"))


def probe(path: Path) -> Python | None:
    """Return the interpreter behind *path*; None where it does not run, or is none that sealbus is tested on."""
    try:
        done = subprocess.run(  # noqa: S603 - an interpreter of this machine
            [path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    *version, executable = done.stdout.strip().split(" ", 3)
    return Python(tuple(map(int, version)), Path(executable))


def newest(found: Iterable[Python], at_least: tuple[int, ...]) -> list[Python]:
    """Return the newest of each minor version from *at_least* on; of equal ones the first."""
    best: dict[tuple[int, ...], Python] = {}
    for python in found:
        known = best.get(python.version[:2])
        if python.version >= at_least and (known is None or python.version > known.version):
            best[python.version[:2]] = python
    return [best[minor] for minor in sorted(best)]


def main() -> int:
    """Print them."""
    parser = argparse.ArgumentParser(prog="python -m deploy.pythons", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--but", default="", metavar="VERSION", help="a minor version to leave out")
    left_out = parser.parse_args().but
    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text("utf-8"))
    at_least = tuple(int(number) for number in re.findall(r"\d+", project["project"]["requires-python"]))
    paths = candidates(os.environ.get("PATH", ""), Path.home(), os.environ.get("PYENV_ROOT"))
    for python in newest(filter(None, map(probe, paths)), at_least):
        if python.minor != left_out:
            sys.stdout.write(f"{python.minor} {python.path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
