"""Where the demo happens: its settings, its log, its folder."""

from __future__ import annotations

import os
from pathlib import Path

from bus.settings.loading import load
from bus.settings.schema import Settings

__all__ = ["absolute_url", "demo_settings", "fresh_log"]


_NAMESPACE = "demo"


def demo_settings(url: str) -> Settings:
    # On a shared cluster, which keeps what earlier runs left, each run has its own namespace.
    namespace = f"{_NAMESPACE}-{os.urandom(4).hex()}" if url.startswith("kafka:") else _NAMESPACE
    return load(
        flags={"bus.url": url, "bus.namespace": namespace, "topics.create": True}, env=os.environ, file=None
    ).settings


def absolute_url(url: str) -> str:
    """Make a relative path absolute: the workers run in another folder, where it would be another file."""
    path = url.removeprefix("sqlite:///")
    return url if path == url or path.startswith("/") else f"sqlite:///{Path.cwd() / path}"


def fresh_log(folder: Path) -> str:
    """Return the URL of a new log, so that nothing from an earlier run in this folder takes part."""
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        (folder / name).unlink(missing_ok=True)
    return f"sqlite:///{folder}/log.db"
