"""Measuring: a process per variant and round, in rotated order, each with a topic or a folder of its own.

Owns the rounds, what each process is given, and cleaning up behind it. Does not own what the processes do, nor what the
numbers mean.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from speed.broker import Broker
from speed.catalog import FAMILIES, Family, Variant, of_family
from speed.measurement import Answer, Task
from speed.order import rotated, warm_up_of
from speed.payloads import TYPE
from speed.results import Failure, Measured

__all__ = ["Runner"]

_TIMEOUT_S = 900.0
_LAST_LINES = 12


class Runner:
    """Runs measuring processes one after the other."""

    def __init__(self, broker: Broker | None, folder: Path, *, quick: bool, cpu: int | None) -> None:
        self._broker = broker
        self._folder = folder
        self._quick = quick
        self._cpu = cpu
        self._count = 0
        self._keep: set[str] = set()
        self._sources: dict[str, str] = {}

    def size_of(self, variant: Variant) -> int:
        """How many messages of *variant* count."""
        return variant.quick if self._quick else variant.messages

    def most_payloads(self, variants: Sequence[Variant]) -> int:
        """How many payloads the file has to hold."""
        families = {variant.family for variant in variants} - {"memory"}
        sizes = [(variant, self.size_of(variant)) for family in families for variant in of_family(family)]
        return max((size + warm_up_of(variant, size) for variant, size in sizes), default=1)

    def run(
        self,
        variants: Sequence[Variant],
        rounds: int,
        announce: Callable[[Variant, int], None] = lambda _variant, _round: None,
    ) -> Iterator[Measured | Failure]:
        """Every family's variants, round after round; *announce* is told what begins."""
        for family in FAMILIES:
            members = [variant for variant in variants if variant.family == family.name]
            for number in range(min(rounds, family.rounds) if members else 0):
                for variant in rotated(members, number):
                    announce(variant, number)
                    yield from self._measured(family, variant, number)
            self._forget()

    def _measured(self, family: Family, variant: Variant, number: int) -> Iterator[Measured | Failure]:
        try:
            answer = self._measure(family, variant)
        except (subprocess.SubprocessError, RuntimeError, OSError, msgspec.DecodeError) as error:
            yield Failure(variant=variant.id, round=number, text=str(error))
        else:
            yield Measured(variant=variant.id, round=number, answer=answer)

    def _measure(self, family: Family, variant: Variant) -> Answer:
        self._count += 1
        folder = self._folder / f"run-{self._count}"
        folder.mkdir(parents=True)
        messages = self.size_of(variant)
        task = Task(
            variant=variant.id,
            messages=messages,
            warm_up=warm_up_of(variant, messages),
            payloads=str(self.payloads),
            folder=str(folder),
            namespace=f"n{self._count}",
            group=f"group-{self._count}",
            partitions=variant.partitions,
            compression=family.compression,
            cpu=self._cpu,
        )
        try:
            answer = (
                self._on_kafka(family, variant, task) if family.log == "kafka" else self._on_file(family, variant, task)
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if self._broker is not None and family.log == "kafka":
                self._broker.keep_only(self._keep)
        return answer

    @property
    def payloads(self) -> Path:
        """The file of payloads."""
        return self._folder / "payloads.ndjson"

    def _on_kafka(self, family: Family, variant: Variant, task: Task) -> Answer:
        if self._broker is None:
            raise RuntimeError("no Kafka was started")
        task.bootstrap = self._broker.bootstrap
        if family.source:
            task.namespace = self._filled(family, task)
        task.topic = f"{task.namespace}.{TYPE}"
        if not family.source:
            self._broker.make_topic(task.topic, task.partitions)
        answer = self._answer(task, variant.native)
        in_log = self.most_payloads(of_family(family.name)) if family.source else answer.in_log
        answer.wire_bytes = self._broker.bytes_in(task.topic) / in_log
        return answer

    def _filled(self, family: Family, task: Task) -> str:
        """The namespace of the topic that this family reads, written at the first time; enough for the one that reads
        most."""
        if family.source not in self._sources:
            assert self._broker is not None
            namespace = f"sealed{self._count}"
            most = self.most_payloads(of_family(family.name))
            filling = msgspec.structs.replace(task, variant="fill", namespace=namespace, messages=most, warm_up=0)
            self._broker.make_topic(f"{namespace}.{TYPE}", task.partitions)
            self._answer(filling)
            self._keep |= self._broker.topics()
            self._sources[family.source] = namespace
        return self._sources[family.source]

    def _on_file(self, family: Family, variant: Variant, task: Task) -> Answer:
        if family.source and variant.ours:
            # A file of its own for each reader: the log is written to by those who read it.
            self._answer(msgspec.structs.replace(task, variant="fill-keyed" if family.source == "keyed" else "fill"))
        answer = self._answer(task)
        if answer.in_log:
            answer.wire_bytes = (
                sum(file.stat().st_size for file in Path(task.folder).rglob("*") if file.is_file()) / answer.in_log
            )
        return answer

    def _forget(self) -> None:
        self._keep, self._sources = set(), {}
        if self._broker is not None:
            self._broker.keep_only(self._keep)

    def _answer(self, task: Task, native: str = "") -> Answer:
        command = [sys.executable, str(Path(__file__).with_name("child.py")), msgspec.json.encode(task).decode()]
        environment = os.environ | ({"SEALBUS_NATIVE": native} if native else {})
        process = subprocess.Popen(
            command, cwd=task.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            output, errors = process.communicate(timeout=_TIMEOUT_S)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            raise RuntimeError(
                f"ended with {process.returncode}: " + "\n".join(errors.strip().splitlines()[-_LAST_LINES:])
            )
        return msgspec.json.decode(output.strip().splitlines()[-1], type=Answer)
