"""Lets the tests of the benchmarks import them as the benchmarks import each other; last in line, for other folders
have a `run` too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
