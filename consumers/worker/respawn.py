"""The command line of another process of ours: `sealbus ARGUMENTS`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["COMMAND_MODULE", "command_of"]

COMMAND_MODULE = f"{__name__.removesuffix('.worker.respawn')}.cli"
"""The module of the command line, as this installation calls it."""


def command_of(arguments: Sequence[str]) -> list[str]:
    """Return `sealbus ARGUMENTS` for another process.

    It finds our packages even if the current directory has packages of the same names.
    """
    # Beside the outermost package: the checkout, or where sealbus is installed.
    home = str(Path(__file__).resolve().parents[__name__.count(".")])
    start = (
        f"import sys; p = {home!r}; p in sys.path or sys.path.insert(0, p); "
        f"from {COMMAND_MODULE} import main; main(prog_name='sealbus')"
    )
    return [sys.executable, "-P", "-c", start, *arguments]
