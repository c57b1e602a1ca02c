"""One run: a log, workers, a publisher, a timeline of faults, healing, and the judgement.

Owns the order of these things and what is collected. The faults are `deeds`', the rules `checker`'s, the rows `rows`'.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from harness import checker, product
from harness.deeds import DEEDS, Deed
from harness.history import History, Life
from harness.journal import Published, published_in
from harness.ledger import Run, payments_in, runs_of
from harness.messages import AGENT, GROUP, KINDS, NAMESPACE, PUBLISHER, behaviour_of
from harness.processes import Crew, run_publisher
from harness.publisher import Config
from harness.terms import Load, Log, Result
from harness.timeline import Timeline

from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.topics.names import reply_topic
from bus.topics.specs import group_topics, message_topics, namespace_topics, reply_topics
from bus.transports import open_transport
from bus.transports.base import TopicSpec

__all__ = ["HEAL_S", "Arena"]

HEAL_S = 60.0
_POLL_S = 0.25
TIERS = "2s,4s"


Script = Callable[["Arena"], Awaitable[None]]


class Arena:
    """Everything of one run."""

    def __init__(
        self,
        folder: Path,
        log: Log,
        load: Load,
        timeline: Timeline,
        *,
        bug: str = "",
        namespace: str = NAMESPACE,
        deeds: dict[str, Deed] | None = None,
    ) -> None:
        self.folder = folder
        self.log = log
        self.namespace = namespace
        self.flag = folder / "dependency-is-down"
        self.ledger = folder / "ledger"
        self.log_path = folder / ("disk/log.db" if load.disk_mb else "log.db")
        self.codes: list[int] = []
        self.injected = 0
        self.heal_s = HEAL_S
        self.redriven = False
        self.cluster: Any = None
        self._load = load
        self.topics: list[TopicSpec] = []
        self._timeline = timeline
        self._bug = bug
        self._deeds = DEEDS | (deeds or {})
        self._journal = folder / "journal.jsonl"
        self._publisher: asyncio.subprocess.Process | None = None
        environment = {
            "FAULT_LEDGER": str(self.ledger),
            "FAULT_FLAG": str(self.flag),
            "FAULT_BUG": bug,
            "FAULT_CLOCK": str(self.clock("workers")),
            "SEALBUS_RETRY__TIERS": TIERS,
            "SEALBUS_WORKER__DRAIN_TIMEOUT_S": "5s",
            "SEALBUS_LOG__FORMAT": "json",
            "SEALBUS_KAFKA__SESSION_TIMEOUT_S": "6s",
            **(self._inbox_settings() if product.has_inbox() else {}),
        }
        self.crew = Crew(folder, log.url, namespace, environment | load.environment)

    @property
    def inbox_path(self) -> Path:
        """The file of the inbox: beside the embedded log where it is by default, on Kafka one that all workers here
        share."""
        return self.log_path.with_name("log-inbox.db") if self.log.name == "embedded" else self.folder / "inbox.db"

    def _inbox_settings(self) -> dict[str, str]:
        settings = {"SEALBUS_INBOX__LEASE_S": "5s"}
        if self.log.name != "embedded":
            settings |= {"SEALBUS_INBOX__URL": f"sqlite:///{self.inbox_path}", "SEALBUS_INBOX__LOCAL": "true"}
        return settings

    def clock(self, whose: str) -> Path:
        """The file that says by how much clocks are wrong."""
        return self.folder / f"clock-{whose}"

    async def run(self, script: Script | None = None) -> Result:
        """Do everything; nothing goes on afterwards."""
        started_s = time.monotonic()
        try:
            await self._prepare()
            await self.start_publisher()
            await asyncio.sleep(self._load.head_start_s)
            await self._take_seats()
            began_s = time.monotonic()
            await asyncio.gather(*(self._do(number, began_s) for number in range(len(self._timeline.faults))))
            healed_s = time.monotonic()
            await self._until_published()
            if script is not None:
                await self.settled(self.heal_s)
                await script(self)
                healed_s = time.monotonic()
            lag = await self.settled(self.heal_s)
            recovery_s = time.monotonic() - healed_s
            self.codes += await self.crew.stop()
            return await self._judged(lag, recovery_s, started_s)
        finally:
            await self.crew.end()
            self.kill_publisher()
            if self._publisher is not None:
                await self._publisher.wait()

    @property
    def seed(self) -> int:
        """What the run is drawn from."""
        return self._timeline.seed

    @property
    def direct_url(self) -> str:
        """The log past any link."""
        return getattr(self.log, "direct_url", self.log.url)

    def settings(self) -> Settings:
        """As the workers have them."""
        flags = {"bus.url": self.log.url, "bus.namespace": self.namespace, "retry.tiers": TIERS}
        return load(flags=flags, env={}, file=None).settings

    async def start_publisher(self) -> None:
        """Begin, or go on after a death."""
        load_ = self._load
        config = Config(
            url=self.log.url,
            namespace=self.namespace,
            journal=str(self._journal),
            seed=self._timeline.seed,
            bug=self._bug,
            clock=str(self.clock("publisher")),
            **{name: getattr(load_, name) for name in Load.__struct_fields__ if name in Config.__struct_fields__},
        )
        self._publisher = await run_publisher(self.folder, config)

    def kill_publisher(self) -> None:
        """End it as a power cut does."""
        if self._publisher is not None and self._publisher.returncode is None:
            self._publisher.kill()

    async def freeze_publisher(self, for_s: float) -> None:
        """Halt it for a while: it notices nothing."""
        process = self._publisher
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(for_s)
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)

    async def settled(self, within_s: float) -> int | None:
        """Wait until the group has committed everything; what is left of it after *within_s*."""
        deadline_s, quiet, lag = time.monotonic() + within_s, 0, None
        while quiet < 2 and time.monotonic() < deadline_s:
            await asyncio.sleep(_POLL_S)
            lag = await asyncio.to_thread(self.log.lag)
            quiet = quiet + 1 if lag == 0 else 0
        return lag

    async def _prepare(self) -> None:
        settings = self.settings()
        transport = open_transport(self.direct_url)
        try:
            self.topics = [
                *message_topics(settings, [*KINDS, "fault.answer", "task.cancel"]),
                *group_topics(settings, GROUP),
                *namespace_topics(settings),
            ]
            self.topics += reply_topics(settings, [reply_topic(self.namespace, agent) for agent in (PUBLISHER, AGENT)])
            there = [spec for spec in self.topics if not spec.name.endswith(self._load.absent)]
            await transport.admin.create_topics(there)
        finally:
            await transport.close()
        await asyncio.to_thread(self.log.watch)

    async def _take_seats(self) -> None:
        first = {
            fault.whom: fault.how for fault in self._timeline.faults if fault.what == "failpoint" and fault.at_s == 0
        }
        for number in range(1, self._load.workers + 1):
            seat = self.crew.seat(f"w{number}")
            if seat.name not in first:
                await seat.start()

    async def _do(self, number: int, began_s: float) -> None:
        fault = self._timeline.faults[number]
        await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
        self.injected += 1
        await self._deeds[fault.what](self, fault)

    async def _until_published(self) -> None:
        # Killed by a deed, it is started again by the same deed.
        while self._publisher is not None and await self._publisher.wait() == -signal.SIGKILL:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        if self._publisher is not None and self._publisher.returncode:
            words = (self.folder / "publisher.log").read_text("utf-8", "replace")[-2000:]
            raise RuntimeError(f"the publisher ended with {self._publisher.returncode}: {words}")

    async def _judged(self, lag: int | None, recovery_s: float, started_s: float) -> Result:
        history = await asyncio.to_thread(self.collected, lag)
        judgement = await asyncio.to_thread(checker.judge, history)
        (self.folder / "history.msgpack").write_bytes(msgspec.msgpack.encode(history))
        return Result(
            timeline=self._timeline,
            counts=judgement.counts,
            violations=judgement.violations,
            injected=self.injected,
            fallen=self.crew.fallen,
            recovery_s=recovery_s,
            stall_s=_longest_pause_s(history),
            took_s=time.monotonic() - started_s,
            codes=tuple(self.codes),
            folder=str(self.folder),
        )

    def collected(self, lag: int | None) -> History:
        """The history of the run, read from outside."""
        published, runs = published_in(self._journal), runs_of(self.ledger)
        strict = frozenset({"fault.strict"}) if product.has_strict_order() else frozenset()
        return History(
            published=published,
            runs=runs,
            entries=self.log.entries(),
            commits=self.log.commits(),
            lives=[*self.crew.lives, *_blocks(runs, published)],
            inbox=product.has_inbox(),
            payments=payments_in(self.inbox_path),
            strict=strict,
            ordered=frozenset({"fault.task", "fault.strict", "fault.need"}) - strict,
            lag=lag,
            redriven=self.redriven,
            notes=self.log.notes() if self.redriven else (),
        )


def _blocks(runs: Sequence[Run], published: Mapping[str, Published]) -> list[Life]:
    """A process whose loop is blocked stands still as if it were halted."""
    blocked = {name: behaviour_of(each.intent.behaviour) for name, each in published.items()}
    return [
        Life(worker=run.worker, pid=run.pid, ended_ms=run.at_ms + after_s * 1000, violent=True)
        for run in runs
        if run.kind == "began" and run.message_id in blocked and blocked[run.message_id].word == "block"
        for after_s in (0.0, blocked[run.message_id].amount)
    ]


def _longest_pause_s(history: History) -> float:
    times = [run.at_ms for run in history.runs]
    return max((after - before for before, after in itertools.pairwise(times)), default=0.0) / 1000
