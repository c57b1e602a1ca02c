"""The model of settlement holds whatever two workers, handlers and deaths do; and each rule that is left out of it
breaks something."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from settlement import Mind, Row, Run, World

pytestmark = pytest.mark.medium  # thousands of steps

VERDICTS = st.sampled_from(["succeeds", "succeeds", "fails", "rejects"])


class Settlement(RuleBasedStateMachine):
    """Any interleaving of durable steps."""

    world_class = World

    @initialize(strict=st.booleans())
    def begin(self, strict: bool) -> None:
        self.world = self.world_class(strict=strict)
        self.names = 0
        self.published = 0
        self.take_over(old_lives=False)

    @rule(order=st.sampled_from("ab"), repeats=st.integers(0, 1))
    def publish(self, order: str, repeats: int) -> None:
        self.published += 1
        for _ in range(1 + repeats):
            self.world.publish(f"m{self.published}", f"k{self.published}", order)

    @rule(old_lives=st.booleans())
    def take_over(self, old_lives: bool) -> None:
        self.names += 1
        # In strict order a process whose handler will not stop exits: nobody goes on behind the new owner's back.
        self.world.assign(f"w{self.names}", old_lives=old_lives and not self.world.strict)

    @precondition(lambda self: self.minds())
    @rule(data=st.data())
    def a_worker_dies(self, data: st.DataObject) -> None:
        self.world.die(data.draw(st.sampled_from(self.minds())))

    @precondition(lambda self: self.world.zombies)
    @rule(data=st.data())
    def a_lease_runs_out(self, data: st.DataObject) -> None:
        """Of a worker that was suspended, and goes on."""
        self.world.forget_leases(data.draw(st.sampled_from(self.world.zombies)).name)

    @precondition(lambda self: self.minds())
    @rule(data=st.data(), source=st.sampled_from(["log", "tier"]))
    def fetch(self, data: st.DataObject, source: str) -> None:
        self.world.fetch(data.draw(st.sampled_from(self.minds())), source)

    @precondition(lambda self: self.runs())
    @rule(data=st.data(), verdict=VERDICTS, steps=st.integers(1, 5))
    def step(self, data: st.DataObject, verdict: str, steps: int) -> None:
        mind, run = data.draw(st.sampled_from(self.runs()))
        for _ in range(steps):
            if run in mind.runs:
                self.world.step(mind, run, verdict)

    @precondition(lambda self: self.minds())
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.world.commit(data.draw(st.sampled_from(self.minds())))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """Left alone with a healthy worker, everything comes to its end."""
        if not hasattr(self, "world"):
            return
        for mind in list(self.world.minds()):
            self.world.die(mind)
        self.world.assign("last", old_lives=False)
        mind = self.world.owner
        assert mind is not None
        for _ in range(1000):
            for source in self.world.records:
                self.world.fetch(mind, source)
            for run in [run for run in mind.runs if self.world.may_run(mind, run)]:
                self.world.step(mind, run, "succeeds")
        self.world.commit(mind)
        self.world.check()
        assert self.world.committed == {source: len(records) for source, records in self.world.records.items()}

    def minds(self) -> list[Mind]:
        return list(self.world.minds())

    def runs(self) -> list[tuple[Mind, Run]]:
        return [(mind, run) for mind in self.world.minds() for run in mind.runs if self.world.may_run(mind, run)]


EXPLORE = settings(max_examples=300, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow  # hundreds of walks through the model
def test_nothing_is_lost_doubled_or_out_of_order_whatever_happens() -> None:
    run_state_machine_as_test(Settlement, settings=EXPLORE)


class MarksBeforeTheWork(World):
    def _claim(self, mind: Mind, run: Run) -> None:
        super()._claim(mind, run)
        row = self.inbox[run.entry.key]
        row.done = row.done or ()


class CommitsWhatItFetched(World):
    def commit(self, mind: Mind) -> None:
        self.committed = dict(mind.position)


class CommitsTheHighestSeen(World):
    def commit(self, mind: Mind) -> None:
        for source, seen in mind.settled.items():
            self.committed[source] = max([self.committed[source], *(offset + 1 for offset in seen)])


class IgnoresTheToken(World):
    def _handle(self, mind: Mind, run: Run, verdict: str) -> None:
        row = self.inbox[run.entry.key]
        row.owner, run.token = mind.name, row.token
        super()._handle(mind, run, verdict)


class ForgetsTheTierRecord(World):
    def step(self, mind: Mind, run: Run, verdict: str) -> None:
        if run.at == "retry":
            run.at = "settle"
        super().step(mind, run, verdict)


class SettlesBeforeTheDeadLetter(World):
    def step(self, mind: Mind, run: Run, verdict: str) -> None:
        if run.at == "bury" and run.offset not in mind.settled[run.source]:
            mind.settled[run.source].add(run.offset)
        else:
            super().step(mind, run, verdict)


class AnswersRepeatsAfresh(World):
    def _claim(self, mind: Mind, run: Run) -> None:
        super()._claim(mind, run)
        if run.at == "send":
            self.serial += 1
            run.outputs = (f"another answer {self.serial}",)


class RetriesInTheTierInStrictOrder(World):
    def _handle(self, mind: Mind, run: Run, verdict: str) -> None:
        strict, self.strict = self.strict, False
        super()._handle(mind, run, verdict)
        self.strict = strict


class HasNoInbox(World):
    def _claim(self, mind: Mind, run: Run) -> None:
        self.inbox[run.entry.key] = Row(owner=mind.name, token=1)
        run.token, run.at = 1, "handle"


@pytest.mark.parametrize(
    "broken",
    [
        MarksBeforeTheWork,
        CommitsWhatItFetched,
        CommitsTheHighestSeen,
        IgnoresTheToken,
        ForgetsTheTierRecord,
        SettlesBeforeTheDeadLetter,
        AnswersRepeatsAfresh,
        RetriesInTheTierInStrictOrder,
        HasNoInbox,
    ],
)
def test_without_one_of_its_rules_the_model_breaks(broken: type[World]) -> None:
    with pytest.raises(AssertionError):
        wander_often(broken, 20_000)


def wander_often(world_class: type[World], count: int) -> None:
    for seed in range(count):
        wander(world_class, random.Random(seed))


def wander(world_class: type[World], chance: random.Random) -> None:
    """A walk through the model that needs no data drawn: many more of them in a second than of the machine's."""
    world = world_class(strict=chance.random() < 0.5)
    world.assign("w0", old_lives=False)
    for number in range(1, 60):
        minds = list(world.minds())
        runs = [(mind, run) for mind in minds for run in mind.runs if world.may_run(mind, run)]
        match chance.choices(["publish", "assign", "die", "lapse", "fetch", "step", "commit"], [3, 1, 1, 1, 6, 10, 4])[
            0
        ]:
            case "publish":
                for _ in range(chance.choice([1, 1, 2])):
                    world.publish(f"m{number}", f"k{number}", chance.choice("ab"))
            case "assign":
                world.assign(f"w{number}", old_lives=chance.random() < 0.5 and not world.strict)
            case "die" if minds:
                world.die(chance.choice(minds))
            case "lapse" if world.zombies:
                world.forget_leases(chance.choice(world.zombies).name)
            case "fetch" if minds:
                world.fetch(chance.choice(minds), chance.choice(["log", "log", "tier"]))
            case "step" if runs:
                world.step(*chance.choice(runs), chance.choice(["succeeds", "succeeds", "fails", "rejects"]))
            case "commit" if minds:
                world.commit(chance.choice(minds))
        world.check()


def test_the_rules_hold_on_long_walks_too() -> None:
    wander_often(World, 3_000)
