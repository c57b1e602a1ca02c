"""Which curves there are: what grows, the values it takes, and the lines of each plot.

Owns the list, and what is known beforehand about where each bends. Does not own measuring (`curves.runner`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["CURVES", "Curve", "Log", "Point", "chosen_xs"]

Log = Literal["kafka", "embedded"]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One plot."""

    name: str
    title: str
    of: str
    """What x counts."""
    xs: tuple[int, ...]
    how: Literal["both", "handlers", "workers", "producers"]
    logs: tuple[Log, ...] = ("kafka",)
    log_y: bool = False
    """From 200 bytes to a megabyte the rates differ by a factor of a thousand."""
    setting: str = ""
    """What else a reader has to know."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement."""

    curve: str
    line: str
    x: int
    rate: float
    cpu_us: float
    """Of the clients together, per message."""
    broker_cpu_us: float | None = None
    log_bytes: float | None = None
    """In the log, per message."""
    seconds: float
    messages: int
    note: str = ""


CURVES = (
    Curve(name="partitions", title="Partitions of one topic", of="partitions", xs=(1, 4, 16, 64, 256), how="both"),
    Curve(
        name="topics",
        title="Topics: as many payload types",
        of="topics",
        xs=(1, 10, 100, 1000),
        how="both",
        setting="one partition each, made beforehand; messages of 1 KB for each in turn",
    ),
    Curve(name="keys", title="Keys", of="keys", xs=(1, 100, 10_000, 100_000), how="both", setting="12 partitions"),
    Curve(
        name="payload",
        title="Size of the payload",
        of="bytes of text in a payload",
        xs=(200, 1_000, 10_000, 100_000, 1_000_000),
        how="both",
        logs=("kafka", "embedded"),
        log_y=True,
        setting="12 partitions on Kafka, 4 on the embedded log",
    ),
    Curve(
        name="handlers",
        title="Handlers running at the same time",
        of="handlers (worker.concurrency)",
        xs=(1, 16, 64, 256, 1024),
        how="handlers",
        logs=("kafka", "embedded"),
        log_y=True,
        setting="each yields to the loop once, or waits 1 ms",
    ),
    Curve(
        name="workers",
        title="Worker processes of one group",
        of="processes",
        xs=(1, 2, 3, 4),
        how="workers",
        logs=("kafka", "embedded"),
    ),
    Curve(
        name="producers",
        title="Producer processes",
        of="processes",
        xs=(1, 2, 4, 8),
        how="producers",
        logs=("kafka", "embedded"),
    ),
)


def chosen_xs(curve: Curve, *, quick: bool) -> tuple[int, ...]:
    """The values to measure; with *quick* only the first, and one in the middle."""
    return (curve.xs[0], curve.xs[len(curve.xs) // 2]) if quick else curve.xs
