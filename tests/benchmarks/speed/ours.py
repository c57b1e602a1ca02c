"""Opening sealbus the way a program does, with the defaults, on the log a task names.

Owns the settings that a benchmark has to give (where, which namespace, how many partitions, a lifetime longer than the
benchmark) and leaves all others alone.
"""

from __future__ import annotations

from speed.measurement import Task

from bus.settings.loading import load
from bus.settings.schema import Settings

__all__ = ["settings_of", "url_of"]


def url_of(task: Task) -> str:
    """The log of *task*: its Kafka, or a file in its folder."""
    return f"kafka://{task.bootstrap}" if task.bootstrap else f"sqlite:///{task.folder}/log.db"


def settings_of(task: Task) -> Settings:
    """The settings of *task*."""
    flags: dict[str, object] = {
        "bus.url": url_of(task),
        "bus.namespace": task.namespace,
        "topics.partitions": task.partitions,
        "topics.create": True,
        "publish.ttl_s": "6d",
    }
    if task.bootstrap:
        flags["kafka.compression"] = task.compression
    return load(flags=flags, env={}, file=None).settings
