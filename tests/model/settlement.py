"""A model of settlement on paper: one partition, a tier, an inbox, what handlers send, two workers, and death at any
moment.

Owns what is durable (`World`), what a worker only has in its head (`Mind`), and each durable step as one method:
between any two of them a worker may die. The rules are design section 5's, written down as shortly as they can be; what
must hold whatever happens is `World.check`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["succeeds", "fails", "rejects"]


@dataclass(frozen=True)
class Entry:
    """A record of the log or of the tier."""

    message_id: str
    key: str
    order: str
    attempt: int = 0


@dataclass
class Row:
    """What the inbox knows of a key."""

    owner: str | None = None
    token: int = 0
    done: tuple[str, ...] | None = None


@dataclass
class Run:
    """One delivery in a worker's head. *at* is the next step."""

    source: str
    offset: int
    entry: Entry
    at: str = "claim"
    token: int = 0
    outputs: tuple[str, ...] = ()


@dataclass
class Mind:
    """A worker: all of this is gone when it dies."""

    name: str
    epoch: int
    position: dict[str, int]
    runs: list[Run] = field(default_factory=list)
    settled: dict[str, set[int]] = field(default_factory=lambda: {"log": set(), "tier": set()})

    def frontier(self, source: str, start: int) -> int:
        """The first offset not settled, of those that were delivered."""
        offset = start
        while offset < self.position[source] and offset in self.settled[source]:
            offset += 1
        return offset


class World:
    """Everything durable. *strict* is the order mode `key_strict`."""

    def __init__(self, *, strict: bool, attempts: int = 3) -> None:
        self.strict = strict
        self.attempts = attempts
        self.records: dict[str, list[Entry]] = {"log": [], "tier": []}
        self.committed = {"log": 0, "tier": 0}
        self.inbox: dict[str, Row] = {}
        self.effects: list[Entry] = []
        self.sent: list[tuple[str, str]] = []
        self.dead: list[str] = []
        self.epoch = 0
        self.owner: Mind | None = None
        self.zombies: list[Mind] = []
        self.serial = 0

    # What a publisher does.

    def publish(self, message_id: str, key: str, order: str) -> None:
        self.records["log"].append(Entry(message_id, key, order))

    # What the group does.

    def assign(self, name: str, *, old_lives: bool) -> None:
        """Another worker owns the partition and the tier from now on. The old one is dead, or goes on without
        knowing."""
        if self.owner is not None and old_lives:
            self.zombies.append(self.owner)
        elif self.owner is not None:
            self.forget_leases(self.owner.name)
        self.epoch += 1
        self.owner = Mind(name, self.epoch, dict(self.committed))

    def die(self, mind: Mind) -> None:
        if mind is self.owner:
            self.owner = None
        else:
            self.zombies.remove(mind)
        self.forget_leases(mind.name)

    def forget_leases(self, name: str) -> None:
        for row in self.inbox.values():
            if row.owner == name:
                row.owner = None

    # What a worker does, one durable step at a time.

    def fetch(self, mind: Mind, source: str) -> None:
        offset = mind.position[source]
        if offset < len(self.records[source]):
            mind.runs.append(Run(source, offset, self.records[source][offset]))
            mind.position[source] = offset + 1

    def may_run(self, mind: Mind, run: Run) -> bool:
        """A lane: one at a time, in order."""
        return next(other for other in mind.runs if other.entry.order == run.entry.order) is run

    def step(self, mind: Mind, run: Run, verdict: Verdict) -> None:
        """The next durable step of *run*; *verdict* is the handler's, where it comes to that."""
        match run.at:
            case "claim":
                self._claim(mind, run)
            case "handle":
                self._handle(mind, run, verdict)
            case "send":
                # One acknowledged append of them all, or a part and the rest again: here the last part counts.
                self.sent.extend((run.entry.message_id, output) for output in run.outputs)
                run.at = "settle"
            case "retry":
                self.records["tier"].append(
                    Entry(run.entry.message_id, run.entry.key, run.entry.order, run.entry.attempt + 1)
                )
                run.at = "settle"
            case "bury":
                self.dead.append(run.entry.message_id)
                run.at = "settle"
            case "settle":
                mind.settled[run.source].add(run.offset)
                mind.runs.remove(run)

    def _claim(self, mind: Mind, run: Run) -> None:
        row = self.inbox.setdefault(run.entry.key, Row())
        if row.done is not None:
            run.outputs, run.at = row.done, "send"
        elif row.owner is None or row.owner == mind.name:
            row.owner, row.token = mind.name, row.token + 1
            run.token, run.at = row.token, "handle"

    def _handle(self, mind: Mind, run: Run, verdict: Verdict) -> None:
        row = self.inbox[run.entry.key]
        if verdict == "succeeds":
            # Fresh bytes each time it really runs: only what stands in the row may ever be sent twice.
            self.serial += 1
            if (row.owner, row.token) != (mind.name, run.token):
                run.at = "claim"
                return
            # The effect, the result and the outputs: one transaction.
            self.effects.append(run.entry)
            row.done, row.owner = (f"answer {self.serial} to {run.entry.key}",), None
            run.outputs, run.at = row.done, "send"
            return
        if (row.owner, row.token) == (mind.name, run.token):
            row.owner = None
        if verdict == "rejects" or run.entry.attempt + 1 >= self.attempts:
            run.at = "bury"
        elif self.strict:
            run.entry = Entry(run.entry.message_id, run.entry.key, run.entry.order, run.entry.attempt + 1)
            run.at = "claim"
        else:
            run.at = "retry"

    def commit(self, mind: Mind) -> None:
        """Fenced by the epoch, never backwards."""
        if mind.epoch != self.epoch:
            return
        for source in self.committed:
            self.committed[source] = max(self.committed[source], mind.frontier(source, self.committed[source]))

    # What must hold.

    def check(self) -> None:
        ended = {message_id for message_id, _ in self.sent} | set(self.dead)
        waiting = {
            entry.message_id for source in self.records for entry in self.records[source][self.committed[source] :]
        }
        lost = {entry.message_id for entry in self.records["log"]} - ended - waiting
        assert not lost, f"lost: {sorted(lost)}"
        doubled = [key for key, count in Counter(entry.key for entry in self.effects).items() if count > 1]
        assert not doubled, f"effects twice: {doubled}"
        answers: dict[str, set[str]] = {}
        keys = {entry.message_id: entry.key for entry in self.records["log"]}
        for message_id, output in self.sent:
            answers.setdefault(keys[message_id], set()).add(output)
        assert all(len(outputs) == 1 for outputs in answers.values()), f"answered in two ways: {answers}"
        if self.strict:
            self._check_order()

    def _check_order(self) -> None:
        places: dict[str, int] = {}
        for offset, entry in enumerate(self.records["log"]):
            places.setdefault(entry.key, offset)
        # What has died and is delivered once more, its worker having died before the commit, runs again: behind those
        # that followed its death.
        effects = [entry for entry in self.effects if entry.message_id not in self.dead]
        for order in {entry.order for entry in effects}:
            offsets = [places[entry.key] for entry in effects if entry.order == order]
            assert offsets == sorted(offsets), f"out of order: {order} {offsets}"

    def minds(self) -> Iterator[Mind]:
        yield from self.zombies
        if self.owner is not None:
            yield self.owner
