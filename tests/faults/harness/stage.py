"""Where runs take place: a folder and a log for each, and one cluster for all that need one.

Owns starting the cluster when it is first needed and stopping it at the end. A run itself is `arena`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness import disks
from harness.arena import HEAL_S, Arena
from harness.checker import Violation
from harness.logs import EmbeddedLog
from harness.messages import GROUP, NAMESPACE
from harness.rows.row import Row
from harness.terms import Result
from harness.timeline import Timeline

from bus.topics.names import consumer_group

__all__ = ["Stage"]


class Stage:
    """`async with Stage(folder) as stage: await stage.run(row, timeline)`."""

    def __init__(self, folder: Path, *, heal_s: float = HEAL_S) -> None:
        self._folder = folder
        self._heal_s = heal_s
        self._cluster: Any = None
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cluster is not None:
            await self._cluster.close()

    async def run(self, row: Row, timeline: Timeline, *, bug: str = "") -> Result:
        """One run of *row*, in a folder of its own; with a deliberate *bug*, if given."""
        number = next(self._numbers)
        folder = self._folder / f"{number:04d}-{timeline.row}-{timeline.log}-{timeline.seed}"
        folder.mkdir(parents=True)
        if timeline.log == "kafka":
            arena = await self._on_kafka(folder, row, timeline, number, bug)
        else:
            place = folder / "disk" if row.load.disk_mb else folder
            arena = Arena(
                folder, EmbeddedLog(place, NAMESPACE, consumer_group(NAMESPACE, GROUP)), row.load, timeline, bug=bug
            )
        arena.heal_s = self._heal_s
        with disks.mounted(folder / "disk", row.load.disk_mb) if row.load.disk_mb else contextlib.nullcontext():
            result = await arena.run(row.script)
        if row.reaches and not result.fallen and not bug:
            result.violations += (Violation("HARNESS", "nobody came to the failpoint: this run says nothing"),)
        return result

    def forget(self, result: Result) -> None:
        """Nobody will look at its files."""
        if result.folder:
            shutil.rmtree(result.folder, ignore_errors=True)

    async def _on_kafka(self, folder: Path, row: Row, timeline: Timeline, number: int, bug: str) -> Arena:
        from harness.clusterdeeds import DEEDS
        from harness.clusterlogs import KafkaLog
        from harness.linked import LinkedCluster

        if self._cluster is None:
            self._cluster = LinkedCluster(self._folder / "cluster")
            await self._cluster.open()
        self._cluster.calm()
        await asyncio.to_thread(self._cluster.mend)
        namespace = f"{NAMESPACE}{number}"
        arena = Arena(
            folder,
            KafkaLog(self._cluster, namespace, consumer_group(namespace, GROUP)),
            row.load,
            timeline,
            bug=bug,
            namespace=namespace,
            deeds=DEEDS,
        )
        arena.cluster = self._cluster
        return arena
