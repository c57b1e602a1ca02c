"""The core of sagas and approvals as a program of its own: random interleavings, crashes between any two steps.

Three workers share a store whose transactions are atomic, and a log that repeats and reorders. A process that asks one
agent after another, a process that takes many answers, and approvals with repeats, two deciders and a timer. `run`
plays one schedule and raises AssertionError where an invariant of design part two 16.9 does not hold; *mistake* plants
one of MISTAKES, which the schedules have to find.
"""

from __future__ import annotations

import copy
import itertools
import random
import sys
from collections import Counter
from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import Any, Final

__all__ = ["MISTAKES", "World", "run"]

MISTAKES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "judged-first": "a message that is done is judged by clock and state again",
        "hold-without-version": "a hold is added without moving the version",
        "no-compare": "a step does not compare the version that it has read",
        "early-is-done": "a nudge that comes too early counts as done",
        "both-asked": "the next addressee is asked before the time of the first is over",
    }
)
_HANDLED: Final = ("start", "answer", "due", "order", "decision")
_FOR_EVER: Final = 10**9

Row = dict[str, Any]
Life = Generator[None, None, str]


class World:
    """The store, the log, and who is alive."""

    def __init__(self, seed: int, mistake: str | None = None) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.mistake = mistake
        self.now = 0
        self.inbox: dict[Any, Row] = {}
        self.processes: dict[str, Row] = {}
        self.waits: dict[str, Row] = {}
        self.holds: dict[str, dict[str, Row]] = {}
        self.log: list[Row] = []
        self.settled: set[int] = set()
        self.lives: Counter[int] = Counter()
        self.runs: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.ends: dict[str, str] = {}
        self.asked: dict[str, set[str]] = {}
        """Request -> the agents that could be at work on it at one time."""
        self.was_buried = False
        self.ids = itertools.count()

    def append(self, record: Row) -> None:
        self.log.append(record)

    def fresh(self, prefix: str) -> str:
        return f"{prefix}{next(self.ids)}"

    # The inbox.

    def claim(self, key: Any, owner: tuple[int, int]) -> tuple[str, Any]:
        row = self.inbox.get(key)
        if row is None:
            self.inbox[key] = {"state": "claimed", "owner": owner, "token": 1, "outputs": []}
            return "claimed", 1
        if row["state"] == "done":
            return "done", row["outputs"]
        if row["state"] == "claimed" and self.lives[row["owner"][0]] == row["owner"][1]:
            return "held", None
        row.update(state="claimed", owner=owner, token=row["token"] + 1)
        return "claimed", row["token"]

    def is_mine(self, key: Any, owner: tuple[int, int], token: int) -> bool:
        row = self.inbox.get(key)
        return row is not None and (row["state"], row["owner"], row["token"]) == ("claimed", owner, token)

    def done(self, key: Any, outputs: list[Row]) -> None:
        self.inbox[key].update(state="done", outputs=list(outputs))

    def free(self, key: Any) -> None:
        self.inbox[key].update(state="free")

    def is_as_read(self, process: str, version: int) -> bool:
        if self.mistake == "no-compare":
            return True
        row = self.processes.get(process)
        return (0 if row is None else row["version"]) == version


def _take(world: World, record: Row, owner: tuple[int, int]) -> Life:  # noqa: C901 - the order of 16.4
    """One record through one worker; it may die or be overtaken at each yield. Returns how the record was settled."""
    key = record["key"]
    if world.mistake == "judged-first" and record["kind"] == "order":
        phase = (world.processes.get(f"A{key}") or {}).get("phase")
        if phase in ("consumed", "rejected", "timed_out") or record["expires"] < world.now:
            world.was_buried |= world.inbox.get(key, {}).get("state") == "done"
            world.ends.setdefault(record["id"], "dead")
            yield
            return "dead"
    answer, found = world.claim(key, owner)
    yield
    if answer == "held":
        return "again"
    if answer == "done":
        for output in found:
            world.append(output)
            yield
        if record["kind"] == "order":
            world.ends.setdefault(record["id"], "done")
        return "done"
    if record["kind"] == "order" and record["expires"] < world.now:
        if world.is_mine(key, owner, found):
            world.free(key)
            world.ends.setdefault(record["id"], "expired")
        yield
        return "dead"
    while True:
        outcome = yield from _STEPS[record["kind"]](world, record, owner, found)
        if outcome is not None:
            break
    how, outputs = outcome
    yield
    for output in outputs:
        world.append(output)
        yield
    return how


Step = Generator[None, None, tuple[str, list[Row]] | None]


def _open(world: World, record: Row, owner: tuple[int, int], token: int) -> Step:
    """A process asks two agents in turn, or, every third one, takes many answers."""
    process = f"P{record['id']}"
    row = world.processes.get(process)
    version = row["version"] if row else 0
    yield
    if row:
        if world.is_mine(record["key"], owner, token):
            world.free(record["key"])
        return "dead", []
    many = record["id"].endswith("2")
    request = _request(world, process, "first")
    yield
    if not world.is_as_read(process, version):
        return None
    if not world.is_mine(record["key"], owner, token):
        return "again", []
    world.processes[process] = {"version": version + 1, "phase": "open", "got": [], "many": many, "rest": ["second"]}
    world.waits[request["id"]] = {"process": process, "due": world.now + 20, "nudge": world.now + 20, "many": many}
    world.done(record["key"], [request])
    return "done", [request]


def _request(world: World, process: str, agent: str) -> Row:
    identity = world.fresh("q")
    return {
        "kind": "request",
        "id": identity,
        "key": ("x", identity),
        "process": process,
        "agent": agent,
        "expires": world.now + (40 if world.mistake == "both-asked" else 10),
    }


def _event(  # noqa: C901, PLR0912 - one step, told in one piece
    world: World, record: Row, owner: tuple[int, int], token: int
) -> Step:
    """An answer, a refusal, or a wait that is due."""
    key, identity = record["key"], record["wait"]
    wait = world.waits.get(identity)
    if wait is None:
        if world.is_mine(key, owner, token):
            world.free(key)
        yield
        return "done", []
    if record["kind"] == "due" and wait["due"] > world.now:
        if world.mistake == "early-is-done":
            world.done(key, [])
        else:
            world.free(key)
            world.waits[identity]["nudge"] = wait["due"]
        yield
        return "done", []
    process = wait["process"]
    row = copy.deepcopy(world.processes[process])
    version, outputs, following, ends = row["version"], [], None, True
    yield
    if wait.get("approval"):
        if row["phase"] == "open":
            row["phase"] = "timed_out"
            outputs = [dict(hold) for hold in world.holds.get(process, {}).values()]
    elif record["kind"] == "answer" and not record.get("refusal"):
        ends = not wait["many"]
        row["got"].append(identity if ends else "one of many")
        outputs = [{"kind": "next", "id": world.fresh("n"), "key": ("x", 0)}]
    elif wait["many"]:
        ends = record["kind"] == "due"
        row["got"] += ["over"] if ends else []
    elif row["rest"]:
        following = _request(world, process, row["rest"].pop(0))
        outputs = [following]
    else:
        row["got"].append("failed")
    yield
    if not world.is_as_read(process, version):
        return None
    if not world.is_mine(key, owner, token):
        return "again", []
    if identity not in world.waits:
        return None
    row["version"] = version + 1
    world.processes[process] = row
    if ends:
        del world.waits[identity]
    if following is not None:
        world.waits[following["id"]] = {**wait, "due": world.now + 20, "nudge": world.now + 20}
    if wait.get("approval"):
        world.holds.pop(process, None)
    world.done(key, outputs)
    return "done", outputs


def _order(world: World, record: Row, owner: tuple[int, int], token: int) -> Step:
    """A message that needs an approval."""
    key = record["key"]
    process = f"A{key}"
    row = copy.deepcopy(world.processes.get(process))
    version, phase = (row["version"], row["phase"]) if row else (0, None)
    yield
    if phase in (None, "open"):
        return (yield from _hold(world, record, owner, token, row, version))
    if phase == "approved":
        world.runs[process] += 1
        yield
        if not world.is_mine(key, owner, token) or world.processes[process]["phase"] != "approved":
            return "again", []
        world.processes[process] = {**world.processes[process], "version": version + 1, "phase": "consumed"}
        world.effects[process] += 1
        outputs = [{"kind": "result", "id": world.fresh("r"), "key": ("x", 0)}]
        world.done(key, outputs)
        world.ends[record["id"]] = "done"
        return "done", outputs
    assert phase != "consumed", "consumed, and its inbox row is not done"
    if not world.is_mine(key, owner, token):
        return "again", []
    world.free(key)
    world.ends[record["id"]] = str(phase)
    yield
    return "dead", [{"kind": "letter", "id": record["id"], "key": ("x", 0)}]


def _hold(  # noqa: PLR0917 - what was read
    world: World, record: Row, owner: tuple[int, int], token: int, row: Row | None, version: int
) -> Step:
    key = record["key"]
    process = f"A{key}"
    request = row["request"] if row else {"kind": "asked", "id": world.fresh("a"), "key": ("x", 0), "process": process}
    yield
    if world.mistake == "hold-without-version" and row:
        if world.is_mine(key, owner, token):
            world.holds.setdefault(process, {})[record["id"]] = dict(record)
            world.free(key)
        yield
        return "held", [request]
    if not world.is_as_read(process, version):
        return None
    if not world.is_mine(key, owner, token):
        return "again", []
    world.processes[process] = {"version": version + 1, "phase": "open", "request": request}
    world.holds.setdefault(process, {})[record["id"]] = dict(record)
    if row is None:
        wait = {"process": process, "due": world.now + 15, "nudge": world.now + 15, "approval": True, "many": True}
        world.waits[f"expiry-{process}"] = wait
    world.free(key)
    yield
    return "held", [request]


def _decision(world: World, record: Row, owner: tuple[int, int], token: int) -> Step:
    process, key = record["process"], record["key"]
    row = copy.deepcopy(world.processes.get(process))
    yield
    if row is None or row["phase"] != "open":
        if world.is_mine(key, owner, token):
            world.free(key)
        yield
        return "dead", []
    version = row["version"]
    outputs = [dict(hold) for hold in world.holds.get(process, {}).values()]
    yield
    if not world.is_as_read(process, version):
        return None
    if not world.is_mine(key, owner, token):
        return "again", []
    world.processes[process] = {**row, "version": version + 1, "phase": record["says"]}
    world.holds.pop(process, None)
    world.waits.pop(f"expiry-{process}", None)
    world.done(key, outputs)
    return "done", outputs


_STEPS: Final = {"start": _open, "answer": _event, "due": _event, "order": _order, "decision": _decision}


def _sweep(world: World) -> Life:
    due = [identity for identity, wait in world.waits.items() if wait["nudge"] <= world.now][:2]
    for identity in due:
        world.waits[identity]["nudge"] = world.now + 6
    yield
    for identity in due:
        world.append({"kind": "due", "id": f"due-{identity}", "key": ("due", identity), "wait": identity})
        yield
        if identity in world.waits:
            world.waits[identity]["nudge"] = world.now + 40
        yield
    return "swept"


def _outside(world: World, answered: set[str]) -> None:
    """Agents answer, or refuse, or do not; people decide."""
    chance = world.chance
    for record in list(world.log):
        if record["id"] in answered:
            continue
        if record["kind"] == "request":
            running = world.asked.setdefault(record["process"], set())
            if record["expires"] <= world.now:
                running.discard(record["agent"])
                answered.add(record["id"])
            elif not _is_many(world, record):
                running.add(record["agent"])
                assert len(running) == 1, (world.seed, "two agents at work on one ask", running)
            if chance.random() < 0.01 and record["id"] not in answered:
                answered.add(record["id"])
                running.discard(record["agent"])
                for _ in range(chance.choice((1, 1, 2))):
                    identity = world.fresh("an")
                    world.append(
                        {
                            "kind": "answer",
                            "id": identity,
                            "key": ("answer", identity),
                            "wait": record["id"],
                            "refusal": chance.random() < 0.3,
                        }
                    )
        elif record["kind"] == "asked" and chance.random() < 0.02:
            answered.add(record["id"])
            for says in chance.sample(["approved", "rejected", "approved"], chance.choice((0, 1, 2))):
                identity = world.fresh("d")
                said = {"process": record["process"], "says": says}
                world.append({"kind": "decision", "id": identity, "key": ("decision", identity), **said})


def _is_many(world: World, request: Row) -> bool:
    return bool(world.processes.get(request["process"], {}).get("many"))


def run(seed: int, mistake: str | None = None, *, wild: int = 700) -> World:  # noqa: C901 - the schedule
    """Play one schedule: *wild* turns with deaths and forgeries, then calm ones until all has ended."""
    world = World(seed, mistake)
    chance, answered = world.chance, set[str]()
    jobs: dict[Any, Any] = {}
    for number in range(3):
        world.append({"kind": "start", "id": f"s{number}", "key": ("start", number)})
    for number in range(2):
        for copy_ in range(chance.choice((1, 2))):
            expires = chance.choice((_FOR_EVER, _FOR_EVER, 12, 40))
            world.append({"kind": "order", "id": f"o{number}{copy_}", "key": ("order", number), "expires": expires})
    # All has ended about a hundred calm turns after the wild ones; where it never does, the check says what is left.
    for turn in range(wild + 5_000):
        calm = turn > wild
        world.now += calm or chance.random() < 0.25
        worker = chance.randrange(3)
        if worker in jobs:
            life, index = jobs[worker]
            if not calm and chance.random() < 0.06:
                world.lives[worker] += 1
                del jobs[worker]
                continue
            try:
                next(life)
            except StopIteration as end:
                if index is not None and end.value in ("done", "dead", "held"):
                    world.settled.add(index)
                del jobs[worker]
            continue
        taken = {index for _, index in jobs.values()}
        waiting = [
            index
            for index, record in enumerate(world.log)
            if record["kind"] in _HANDLED and index not in world.settled and index not in taken
        ]
        if chance.random() < 0.2:
            jobs[worker] = (_sweep(world), None)
        elif waiting:
            index = chance.choice(waiting)
            jobs[worker] = (_take(world, world.log[index], (worker, world.lives[worker])), index)
        _outside(world, answered)
        if not calm:
            _disturb(world)
        if calm and not jobs and not waiting and not world.waits:
            break
    _check(world)
    return world


def _disturb(world: World) -> None:
    """Somebody forges a nudge, or a record is appended twice."""
    if world.chance.random() < 0.01 and world.waits:
        identity = world.chance.choice(list(world.waits))
        world.append({"kind": "due", "id": f"due-{identity}", "key": ("due", identity), "wait": identity})
    if world.chance.random() < 0.01:
        record = world.chance.choice(world.log)
        if record["kind"] in _HANDLED:
            world.append(dict(record))


def _check(world: World) -> None:
    for process, row in world.processes.items():
        if process.startswith("P"):
            ends = [each for each in row["got"] if each != "one of many"]
            assert len(ends) == 1, (world.seed, process, row, f"an ask ended {len(ends)} times")
    assert not world.was_buried, (world.seed, "a done message was buried")
    for process, count in world.effects.items():
        assert count == 1, (world.seed, process, f"{count} effects")
    assert not any(world.holds.values()), (world.seed, "held for ever", world.holds)
    assert not world.waits, (world.seed, "waits are left")
    orders = {record["id"] for record in world.log if record["kind"] == "order"}
    assert orders == set(world.ends), (world.seed, "no end", orders - set(world.ends))
    decided = {(record["process"], record["says"]) for record in world.log if record["kind"] == "decision"}
    for process, row in world.processes.items():
        if process.startswith("A"):
            assert (row["phase"] == "consumed") == (world.effects[process] == 1), (world.seed, process, row)
            assert row["phase"] != "consumed" or (process, "approved") in decided, (world.seed, process)


if __name__ == "__main__":
    counted = Counter[str]()
    for number in range(int(sys.argv[1])):
        played = run(number)
        counted += Counter(schedules=1, runs=sum(played.runs.values()), effects=sum(played.effects.values()))
    print(dict(counted))
