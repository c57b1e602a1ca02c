"""Where the results of a benchmark go.

Owns the option of the command line; what is written there is each command's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_out"]

_BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"


def add_out(parser: argparse.ArgumentParser) -> None:
    """Where results go; absolute, since the measuring processes have folders of their own."""
    parser.add_argument(
        "--out",
        type=lambda text: Path(text).absolute(),
        default=_BUILD,
        metavar="DIR",
        help="where the results go (default build/bench)",
    )
