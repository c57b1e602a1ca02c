"""Node and the packages of `tests/node/package-lock.json`: zod, TypeScript and the AsyncAPI schemas.

Owns installing them once per checkout, for all processes of a run. A machine without Node or npm fails the tests that
ask for them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent / "node"
_CACHE = Path(__file__).parent.parent / ".node-test"


def node_project() -> Path:
    """Return a folder with the installed packages; files for Node are written to folders below it."""
    lock = _HERE / "package-lock.json"
    folder = _CACHE / hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    _CACHE.mkdir(exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=_CACHE))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_HERE / name, building)
    run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=building)
    try:
        building.rename(folder)
    except OSError:
        # Another process was first.
        shutil.rmtree(building)
    return folder


def run(*command: str, cwd: Path, stdin: str | None = None) -> str:
    """Run *command* and return what it printed; fail with its errors."""
    done = subprocess.run(
        command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=300, check=False, env={**os.environ}
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
