"""What the benchmark ran on: versions and the machine, for the head of the results.

Owns looking them up. No names of hosts, users or folders.
"""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bus.native import core
from deploy.kafka.errors import KafkaUnavailableError
from deploy.kafka.jars import VERSION
from deploy.kafka.java import java

__all__ = ["described"]

_LIBRARIES = (
    "aiokafka",
    "confluent-kafka",
    "cramjam",
    "faststream",
    "huey",
    "litequeue",
    "msgspec",
    "orjson",
    "persist-queue",
    "prometheus-client",
    "zstandard",
)


def described() -> Mapping[str, str]:
    """Line by line."""
    return {
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "libraries": ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES),
        "sealbus": "with its compiled hot path"
        if core is not None
        else "in Python alone (make native builds the compiled hot path)",
        "SQLite": sqlite3.sqlite_version,
        "Kafka": _kafka(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processors": f"{os.cpu_count()} x {_processor()}",
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _kafka() -> str:
    try:
        return f"{VERSION} on Java {java().version}"
    except KafkaUnavailableError:
        return f"{VERSION}, which this machine cannot run"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
