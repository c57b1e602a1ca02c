"""The tree that this one is measured beside: the commit whose speed was agreed on, with its compiled core.

Owns taking it out of the repository into `build/`, and building its core, once. It never moves: a step that takes 3 %
is small beside the step before it, and ten such steps are not small beside this tree.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

__all__ = ["COMMIT", "MissingBaseError", "base_tree"]

COMMIT = "3258f88588b13a4101fb378f8a7171a9feddafd2"
_TIMEOUT_S = 900
_WHOLE = ".whole"
"""A file that is made once all others are there."""


class MissingBaseError(Exception):
    """Why there is nothing to measure beside."""


def base_tree(root: Path, *, compiled: bool) -> Path:
    """Return the folder of the base; *compiled*: with its core.

    Raises MissingBaseError with one sentence for a reader.
    """
    tree = root / "build" / f"base-{COMMIT[:7]}"
    if not (tree / _WHOLE).exists():
        _take_out(root, tree)
        (tree / _WHOLE).touch()
    if compiled and not list((tree / "bus" / "native").glob(f"_core.{sys.implementation.cache_tag}-*")):
        _build_core(tree)
    return tree


def _take_out(root: Path, tree: Path) -> None:
    try:
        found = subprocess.run(
            ["git", "archive", COMMIT], cwd=root, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingBaseError(f"git could not be run ({error}): this tree is measured without its base.") from error
    if found.returncode:
        cure = "`git fetch --unshallow` brings it" if (root / ".git").exists() else "a clone of the repository has it"
        raise MissingBaseError(
            f"Commit {COMMIT[:7]} is not in this clone: this tree is measured without its base; {cure}."
        )
    shutil.rmtree(tree, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(tree, filter="data")


def _build_core(tree: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.native", "--require"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "SEALBUS_NATIVE": "require"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise MissingBaseError(f"The core of {COMMIT[:7]} could not be built: {done.stderr.strip()[-1000:]}")
