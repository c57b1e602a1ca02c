"""Whatever several owners do in whatever order, against a model that only counts: who runs, what is done, who died
alone."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bus.transports.base import NewRecord
from consumers.delivery.inbox.base import AlreadyDone, Claimed, ClaimedElsewhere, Conflict, KeepsCrashing, Suspect
from consumers.delivery.inbox.claim_rules import (
    CLOSED,
    MAX_DEATHS,
    Claimant,
    ClaimRow,
    decide_claim,
    finished,
    released,
)
from consumers.delivery.inbox.row_encoding import encode_outputs

LEASE_S = 10
KEYS = ("bad", "neighbour", "third")


class Owner(msgspec.Struct):
    """One incarnation. `running`: key to token and whether it runs alone."""

    number: int
    until_s: int
    is_alive: bool = True
    running: dict[str, tuple[int, bool]] = {}


class Inboxes(RuleBasedStateMachine):
    """Owners over a dict of rows; the lease table is the owners that have not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, ClaimRow] = {}
        self.leases: dict[int, Owner] = {}
        self.gone: list[tuple[Owner, str, int]] = []
        self.now_s = 0
        self.numbers = 0
        self.done: dict[str, bytes] = {}
        self.tokens: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.died_alone: dict[str, int] = dict.fromkeys(KEYS, 0)

    def living(self) -> list[Owner]:
        return [owner for owner in self.leases.values() if owner.is_alive]

    @rule()
    def start(self) -> None:
        if len(self.living()) < 4:
            self.numbers += 1
            self.leases[self.numbers] = Owner(self.numbers, self.now_s + LEASE_S)

    @rule(seconds=st.integers(1, 2 * LEASE_S))
    def time_passes(self, seconds: int) -> None:
        self.now_s += seconds
        for owner in self.living():
            owner.until_s = self.now_s + LEASE_S

    @precondition(lambda self: self.living())
    @rule(data=st.data(), key=st.sampled_from(KEYS), content=st.sampled_from("hhhg"))
    def claim(self, data: st.DataObject, key: str, content: str) -> None:
        owner = data.draw(st.sampled_from(self.living()))
        if any(alone for _, alone in owner.running.values()):
            return
        before = self.rows.get(key)
        rest_s = CLOSED
        if before is not None and before.owner in self.leases:
            rest_s = self.leases[before.owner].until_s - self.now_s
        row, answer = decide_claim(
            before, Claimant(owner.number, content, 0, running=key in owner.running, alone=not owner.running), rest_s
        )
        if row is not None:
            self.rows[key] = row
        self.check(owner, key, content, before, answer)

    def check(self, owner: Owner, key: str, content: str, before: ClaimRow | None, answer: object) -> None:
        if before is not None and before.content_hash != content:
            assert answer == Conflict(before.content_hash)
        elif key in self.done:
            assert isinstance(answer, AlreadyDone)
            assert encode_outputs(answer.outputs) == self.done[key]
        elif isinstance(answer, Claimed):
            assert not any(key in other.running for other in self.living())
            assert answer.token > self.tokens[key]
            self.tokens[key] = answer.token
            assert not (answer.alone and owner.running)
            owner.running[key] = (answer.token, answer.alone)
        elif isinstance(answer, Suspect):
            assert owner.running
        elif isinstance(answer, KeepsCrashing):
            assert answer.deaths == MAX_DEATHS
            assert self.died_alone[key] >= MAX_DEATHS
        else:
            assert isinstance(answer, ClaimedElsewhere)
            assert 0 < answer.wait_s <= 1

    @precondition(lambda self: any(owner.running for owner in self.living()))
    @rule(data=st.data(), outputs=st.sampled_from([b"", encode_outputs([NewRecord("t", b"k", b"v")])]))
    def finish(self, data: st.DataObject, outputs: bytes) -> None:
        owner, key = self.some_run(data)
        token, _ = owner.running.pop(key)
        row = finished(self.rows[key], owner=owner.number, token=token, outputs=outputs)
        assert row is not None, "a living owner's claim is its own"
        self.rows[key] = row
        self.done[key] = outputs

    @precondition(lambda self: any(owner.running for owner in self.living()))
    @rule(data=st.data(), is_written=st.booleans())
    def release(self, data: st.DataObject, is_written: bool) -> None:
        owner, key = self.some_run(data)
        if is_written:
            self.give_back(owner, key)
        else:
            del owner.running[key]

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.living()))
        owner.is_alive = False
        for key, (token, alone) in owner.running.items():
            self.died_alone[key] += alone
            self.gone.append((owner, key, token))

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.living()))
        owner.is_alive = False
        del self.leases[owner.number]
        self.gone += [(owner, key, token) for key, (token, _) in owner.running.items()]

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def the_dead_come_back(self, data: st.DataObject) -> None:
        """Frozen, not dead: it tries to finish what it had, and succeeds only where nobody has claimed it since."""
        owner, key, token = data.draw(st.sampled_from(self.gone))
        row = finished(self.rows[key], owner=owner.number, token=token, outputs=b"stale")
        if self.tokens[key] > token or self.rows[key].state != "claimed":
            assert row is None

    def some_run(self, data: st.DataObject) -> tuple[Owner, str]:
        runs = [(owner, key) for owner in self.living() for key in owner.running]
        return data.draw(st.sampled_from(runs))

    def give_back(self, owner: Owner, key: str) -> None:
        token, _ = owner.running.pop(key)
        row = released(self.rows[key], owner=owner.number, token=token)
        assert row is not None
        self.rows[key] = row

    @invariant()
    def at_most_one_living_owner_runs_a_message(self) -> None:
        for key in KEYS:
            assert sum(key in owner.running for owner in self.living()) <= 1

    @invariant()
    def done_is_for_ever(self) -> None:
        assert all(
            self.rows[key].state == "done" and self.rows[key].outputs == outputs for key, outputs in self.done.items()
        )

    @invariant()
    def only_deaths_alone_are_held_against_a_message(self) -> None:
        assert all(row.deaths <= self.died_alone[key] for key, row in self.rows.items())


TestInboxes = pytest.mark.medium(Inboxes.TestCase)
TestInboxes.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
