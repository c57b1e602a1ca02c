"""Approvals: messages that run only when somebody has agreed to exactly this, as an application sees them."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from bus import gates
from bus.clock import ManualClock
from bus.protocol import sealing
from bus.vocabulary.agent import AgentHeartbeat
from bus.vocabulary.approval import ApprovalRequest
from bus.vocabulary.bus import ApprovalClosed
from bus.vocabulary.task import StatusUpdate, TaskCancel
from consumers.app.testing import HeldMessage, TestBus
from consumers.delivery.inbox.sqlite import SqliteInbox
from consumers.processes.approvals.deciding import decision_about, seal_decision
from consumers.processes.approvals.open_requests import open_requests
from consumers.processes.sagas.process import ending_of
from producers.sealing.seal_request import SealRequest
from sealbus import App, Approval, Context, Outgoing, PublishRejected, RequestFailed, payload
from sealbus.errors import ConfigurationError
from sealbus.trust import PolicyFile


@payload("deploy.order", version="1.0.0")
class Deploy(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    ref: dict[str, str] = {}


@payload("deploy.done", version="1.0.0")
class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    by: str = ""
    conditions: tuple[str, ...] = ()


RULES = """
[[agents]]
id = "test@sealbus"
owner = "ops"

[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"

[[agents]]
id = "boss@acme"
kind = "human"
owner = "boss"

[[agents]]
id = "alias@acme"
kind = "human"
owner = "ops"

[[agents]]
id = "bot@svc"
owner = "bots"

[[rules]]
id = "everybody"
effect = "allow"
action = ["publish", "handle"]
types = ["deploy.**", "error.reported", "status.update"]

[[rules]]
id = "approvers"
effect = "allow"
action = "approve"
agents = ["*@acme", "bot@svc"]
types = "deploy.**"
"""

NEED = """
[[rules]]
id = "deploys-are-approved"
effect = "need"
action = "handle"
types = "deploy.order"
require_approval = "human"
quorum = 2
"""


def deployer(runs: list[str], approval: Approval | None, policy: PolicyFile | None = None) -> App:
    app = App("deployer@svc", policy=policy)

    @app.on(Deploy, approval=approval)
    async def deploy(order: Deploy, context: Context) -> Deployed:
        runs.append(order.service)
        given = context.approval
        assert given is not None
        return Deployed(service=order.service, by=",".join(given.decided_by), conditions=given.conditions)

    return app


class Site:
    """A deployer in a test, and what it ran."""

    def __init__(self, folder: Path) -> None:
        self.runs: list[str] = []
        self.folder = folder
        self.clock = ManualClock()
        """The clock by which the policy is read again."""

    def bus(self, rules: str | None = RULES, **options: Any) -> AbstractAsyncContextManager[TestBus]:
        policy = None
        if rules is not None:
            path = self.folder / "policy.toml"
            path.write_text(rules, "utf-8")
            path.chmod(0o600)
            policy = PolicyFile(path, clock=self.clock)
        asked = None if options.pop("by_rule", False) else Approval(**options)
        return deployer(self.runs, asked, policy).test(keys=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def held_by(bus: TestBus, **options: Any) -> HeldMessage:
    await bus.publish(Deploy(service="shop"), **options)
    await bus.settle()
    (held,) = await bus.held()
    return held


def reasons(bus: TestBus) -> list[str]:
    return [letter.reason for letter in bus.dead_letters]


async def test_a_message_that_waits_keeps_no_transaction_open(site: Site) -> None:
    async with site.bus() as bus:
        with capture_logs() as logs:
            await held_by(bus, idempotency_key="d1")
            await bus.advance(10)
    assert [line for line in logs if line["event"] == "inbox.long_transaction"] == []


async def test_an_approved_message_runs_once_and_its_requester_is_kept_informed(site: Site) -> None:
    async with site.bus() as bus:
        held = await held_by(bus, idempotency_key="d1")
        assert site.runs == []
        assert held.action["data"] == {"ref": {}, "service": "shop"}
        assert [update.new_status for update in bus.sent(StatusUpdate)] == ["waiting_for_approval"]
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert site.runs == ["shop"]
        assert bus.sent(Deployed) == [Deployed(service="shop", by="lead@acme")]
        assert [closed.state for closed in bus.sent(ApprovalClosed)] == ["approved", "consumed"]
        assert await bus.held() == []
        bus.assert_all_handled()


async def test_an_interpreter_may_publish_its_own_heartbeat(site: Site) -> None:
    interpreter = '[[agents]]\nid = "engine@svc"\ninterpreter = true\n\n'
    async with site.bus(interpreter + RULES) as bus:
        await bus.as_agent("engine@svc").publish(AgentHeartbeat(status="healthy"))
    denied = '\n[[rules]]\nid = "quiet"\neffect = "deny"\naction = "publish"\ntypes = "agent.heartbeat"\n'
    async with site.bus(interpreter + RULES + denied) as bus:
        with pytest.raises(PublishRejected, match="rule quiet"):
            await bus.as_agent("engine@svc").publish(AgentHeartbeat(status="healthy"))


async def test_a_rejected_action_never_runs(site: Site) -> None:
    async with site.bus() as bus:
        await bus.publish(Deploy(service="other"))
        await bus.settle()
        (held,) = await bus.held()
        await bus.reject(held, by="lead@acme", reason="not today")
        await bus.settle()
        assert reasons(bus) == ["approval_rejected"]
        assert site.runs == []


async def test_a_waiting_requester_is_informed_that_the_decision_is_pending(site: Site) -> None:
    async with site.bus(timeout_s=600) as bus:
        with pytest.raises(RequestFailed) as failed:
            await bus.request(Deploy(service="shop"), Deployed, timeout_s=3600)
        assert failed.value.reason == "approval_timeout"


async def test_silence_is_a_rejection(site: Site) -> None:
    async with site.bus(timeout_s=600) as bus:
        await bus.publish(Deploy(service="shop"))
        await bus.advance(598)
        assert not bus.dead_letters
        await bus.advance(4)
        assert reasons(bus) == ["approval_timeout"]
        assert site.runs == []


async def test_a_message_that_lives_too_short_is_refused_at_once(site: Site) -> None:
    async with site.bus() as bus:
        await bus.publish(Deploy(service="shop"), ttl_s=30)
        await bus.settle()
        assert reasons(bus) == ["approval_timeout"]


async def test_an_approval_never_outlives_its_message(site: Site) -> None:
    async with site.bus(timeout_s=86_400) as bus:
        await bus.publish(Deploy(service="shop"), ttl_s=600)
        await bus.advance(572)
        assert reasons(bus) == ["approval_timeout"]


async def test_a_rule_of_the_policy_asks_for_two_and_counts_owners(site: Site) -> None:
    async with site.bus(RULES + NEED, by_rule=True) as bus:
        held = await held_by(bus)
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert site.runs == []
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert reasons(bus) == ["approval_invalid"]
        await bus.approve(held, by="boss@acme")
        await bus.settle()
        assert bus.sent(Deployed)[0].by == "lead@acme,boss@acme"


@pytest.mark.parametrize(
    ("decider", "why"),
    [
        ("test@sealbus", "takes part in the action"),
        ("deployer@svc", "takes part in the action"),
        ("alias@acme", "belongs to ops"),
        ("bot@svc", "is not a human"),
        ("stranger@svc", "is not a human"),
    ],
)
async def test_a_decision_by_an_unauthorised_agent_changes_nothing(site: Site, decider: str, why: str) -> None:
    async with site.bus() as bus:
        held = await held_by(bus)
        await bus.approve(held, by=decider)
        await bus.settle()
        assert reasons(bus) == ["approval_invalid"]
        assert site.runs == []
        assert len(await bus.held()) == 1


async def send(bus: TestBus, by: str, held: HeldMessage, **changes: Any) -> None:
    request = sealing.parse(held.request)
    decision = msgspec.structs.replace(decision_about(request, "approve", by=by), **changes)
    publisher = bus.as_agent(by).publisher
    await publisher.send(seal_decision(publisher.sealer, decision, request))
    await bus.settle()


async def test_a_decision_on_another_hash_is_ignored(site: Site) -> None:
    async with site.bus() as bus:
        held = await held_by(bus)
        await send(bus, "lead@acme", held, approved_action_hash="sha256:" + "0" * 64)
        assert reasons(bus) == ["approval_invalid"]
        assert site.runs == []


async def test_a_decision_about_one_action_runs_no_other(site: Site) -> None:
    async with site.bus() as bus:
        await bus.publish(Deploy(service="harmless"))
        await bus.publish(Deploy(service="shop"))
        await bus.settle()
        first, second = await bus.held()
        harmless, other = (first, second) if first.action["data"]["service"] == "harmless" else (second, first)
        # The request is about one action, and the decision names the other one.
        await send(bus, "lead@acme", harmless, approval_id=other.approval_id, approved_action_hash=other.action_hash)
        assert reasons(bus) == ["approval_invalid"]
        await bus.approve(harmless, by="lead@acme")
        await bus.settle()
        assert site.runs == ["harmless"]


async def test_a_decision_that_rests_on_more_than_the_request_is_refused(site: Site) -> None:
    async with site.bus() as bus:
        held = await held_by(bus)
        request = sealing.parse(held.request)
        publisher = bus.as_agent("lead@acme").publisher
        decided = decision_about(request, "approve", by="lead@acme")
        draft = Outgoing(decided, rests_on=(sealing.parse(held.opener),))
        await publisher.send(
            publisher.sealer.seal(draft, SealRequest(cause=request, answers=True, topic=request.routing.reply_to))
        )
        await bus.settle()
        assert reasons(bus) == ["approval_invalid"]
        assert site.runs == []


async def test_the_first_of_two_decisions_counts(site: Site) -> None:
    async with site.bus() as bus:
        held = await held_by(bus)
        await bus.reject(held, by="lead@acme")
        await bus.approve(held, by="boss@acme")
        await bus.settle()
        # The later one is late: it is counted, and leaves nothing to mend.
        assert reasons(bus) == ["approval_rejected"] or (reasons(bus), site.runs) == ([], ["shop"])


async def test_a_decision_after_the_end_changes_nothing(site: Site) -> None:
    async with site.bus(timeout_s=600) as bus:
        held = await held_by(bus)
        await bus.advance(605)
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert reasons(bus) == ["approval_timeout"]
        assert site.runs == []


async def test_a_requester_gets_the_reason_of_a_rejection(site: Site) -> None:
    async with site.bus() as bus:
        asking = asyncio.ensure_future(bus.as_agent("bot@svc").request(Deploy(service="shop"), Deployed, timeout_s=600))
        await bus.advance(1)
        (held,) = await bus.held()
        await bus.reject(held, by="lead@acme", reason="not on a Friday")
        await bus.advance(5)
        with pytest.raises(RequestFailed, match="not on a Friday"):
            await asking


async def test_a_repeat_under_one_key_meets_the_same_approval_and_both_are_answered(site: Site) -> None:
    async with site.bus() as bus:
        held = await held_by(bus, idempotency_key="d1")
        await bus.publish(Deploy(service="shop"), idempotency_key="d1")
        await bus.settle()
        assert len(await bus.held()) == 1
        assert len(bus.messages(ApprovalRequest)) == 2
        assert len({message.message_id for message in bus.messages(ApprovalRequest)}) == 1
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert site.runs == ["shop"]
        bus.assert_all_handled()


async def test_a_reference_without_its_hash_is_never_held(site: Site) -> None:
    async with site.bus() as bus:
        await bus.publish(Deploy(service="shop", ref={"uri": "diff://patch"}))
        await bus.settle()
        assert reasons(bus) == ["approval_invalid"]
        assert await bus.held() == []


async def test_conditions_reach_a_handler_that_takes_them(site: Site) -> None:
    async with site.bus(takes_conditions=True) as bus:
        held = await held_by(bus)
        await bus.approve(held, by="lead@acme", conditions=["after six"])
        await bus.settle()
        assert bus.sent(Deployed)[0].conditions == ("after six",)


async def test_conditions_stop_a_handler_that_does_not_take_them(site: Site) -> None:
    async with site.bus() as bus:
        held = await held_by(bus)
        await bus.approve(held, by="lead@acme", conditions=["after six"])
        await bus.settle()
        assert reasons(bus) == ["approval_rejected"]
        assert site.runs == []


async def test_a_sender_has_at_most_twenty_open_approvals(site: Site) -> None:
    async with site.bus() as bus:
        for number in range(22):
            await bus.publish(Deploy(service=f"shop-{number}"))
        await bus.settle()
        held = await bus.held()
        assert len(held) == 20
        assert reasons(bus) == []
        await bus.approve(held[0], by="lead@acme")
        await bus.approve(held[1], by="lead@acme")
        await bus.advance(31)
        assert len(await bus.held()) == 20
        assert reasons(bus) == []


async def test_a_sender_has_one_approval_open_for_a_resource() -> None:
    @payload("site.move", version="1.0.0", resource="/site")
    class Move(msgspec.Struct, frozen=True, kw_only=True):
        site: str
        to: str

    app, ran = App("ops@acme"), list[str]()

    @app.on(Move, approval=Approval(by="human", timeout_s=3600))
    async def move(order: Move) -> None:
        ran.append(order.to)

    async with app.test(keys=True) as bus:
        await bus.publish(Move(site="shop", to="north"))
        await bus.settle()
        await bus.publish(Move(site="shop", to="south"))
        await bus.publish(Move(site="depot", to="south"))
        await bus.settle()
        assert len(await bus.held()) == 2
        assert reasons(bus) == []
        (first,) = [held for held in await bus.held() if held.action["data"]["to"] == "north"]
        await bus.approve(first, by="lead@acme")
        await bus.settle()
        await bus.advance(31)
        assert ran == ["north"]
        assert {held.action["data"]["to"] for held in await bus.held()} == {"south"}
        assert len(await bus.held()) == 2


async def test_a_right_that_is_taken_away_before_the_run_counts(site: Site) -> None:
    async with site.bus(RULES + NEED, by_rule=True) as bus:
        held = await held_by(bus)
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        (site.folder / "policy.toml").write_text((RULES + NEED).replace('agents = ["*@acme"', 'agents = ["boss@acme"'))
        site.clock.advance(15)
        await bus.approve(held, by="boss@acme")
        await bus.settle()
        assert reasons(bus) == ["approval_invalid"]
        assert site.runs == []


async def test_a_forged_approved_row_runs_nothing(site: Site) -> None:
    async with site.bus() as bus:
        held = await held_by(bus)
        (row,) = await bus.database.fetch("SELECT state FROM sealbus_processes")
        forged = {**msgspec.json.decode(row[0]), "phase": "approved"}
        await bus.database.execute("UPDATE sealbus_processes SET state = $1", msgspec.json.encode(forged))
        await bus.publish(Deploy(service="shop"), message_id="again", idempotency_key="x")
        await bus.advance(4000)
        assert site.runs == []
        assert held.approval_id


def test_strict_order_and_an_approval_are_refused_together() -> None:
    app = App("deployer@svc")
    with pytest.raises(ConfigurationError, match="key_strict"):
        app.on(Deploy, approval=Approval(), order="key_strict")


# Code of another version.


NEWER = {
    "an unknown wait": ("UPDATE sealbus_waits SET name = $1", b"reminder"),
    "a later shape": ("UPDATE sealbus_processes SET shape = $1", b"2.0.0"),
    "an unknown phase": ("UPDATE sealbus_processes SET state = $1", b'{"phase":"asked"}'),
}


@pytest.mark.parametrize("name", NEWER)
async def test_an_approval_that_newer_code_has_written_is_not_timed_out_by_this(site: Site, name: str) -> None:
    change, value = NEWER[name]
    column, table = ("name", "waits") if "waits" in change else (change.split()[3], "processes")
    async with site.bus(timeout_s=600) as bus:
        await held_by(bus, ttl_s=6 * 86_400)
        ((before,),) = await bus.database.fetch(f"SELECT {column} FROM sealbus_{table}")  # noqa: S608
        await bus.database.execute(change, value if column == "state" else value.decode())
        await bus.advance(7200)
        assert (site.runs, reasons(bus)) == ([], [])
        assert await bus.database.fetch("SELECT count(*) FROM sealbus_waits") == [(1,)]
        await bus.database.execute(change, before)
        await bus.advance(2 * 86_400)
        assert reasons(bus) == ["approval_timeout"]


async def test_a_closed_approval_has_its_outcome(site: Site) -> None:
    async with site.bus() as bus:
        await bus.approve(await held_by(bus), by="lead@acme")
        await bus.settle()
        await bus.reject(await held_by(bus), by="lead@acme", reason="not on a Friday")
        await bus.settle()
        steps = bus.workers[0].steps
        assert steps is not None
        found = [ending_of(process) for process in await steps.store.processes()]
        assert {(each.outcome, each.where, each.reason) for each in found if each is not None} == {
            ("completed", "consumed", ""),
            ("failed", "rejected", "not on a Friday"),
        }


async def test_a_rejection_is_attributed_to_the_rejecting_agent_only(site: Site) -> None:
    async with site.bus(quorum=2) as bus:
        held = await held_by(bus)
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        await bus.reject(held, by="boss@acme", reason="no")
        await bus.settle()
        (closed,) = bus.sent(ApprovalClosed)
        assert (closed.state, closed.decided_by) == ("rejected", ("boss@acme",))


async def test_a_no_whose_reason_speaks_of_cancelling_is_still_a_no(site: Site) -> None:
    rules = RULES.replace('"status.update"]', '"status.update", "task.cancel"]')
    async with site.bus(rules) as bus:
        await bus.reject(await held_by(bus, task_id="t-1"), by="lead@acme", reason="CANCELLED: the fair is off")
        await bus.settle()
        await held_by(bus, task_id="t-2")
        await bus.publish(TaskCancel(reason_code="NOT_NEEDED"), task_id="t-2")
        await bus.settle()
        steps = bus.workers[0].steps
        assert steps is not None
        found = {process.task_id: ending_of(process) for process in await steps.store.processes()}
        outcomes = {task: each.outcome for task, each in found.items() if each is not None}
        assert outcomes == {"t-1": "failed", "t-2": "cancelled"}


async def test_a_list_of_what_waits_verifies_one_message_for_each_closed_request(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.bus() as bus:
        for name in ("shop", "cart", "till"):
            await bus.publish(Deploy(service=name))
            await bus.settle()
            for held in await bus.held():
                if name != "till":
                    await bus.approve(held, by="lead@acme")
            await bus.settle()
        app = bus.workers[0].app
        proven: list[str] = []
        prove = gates.prove

        def counted(message: sealing.Message, *rest: Any) -> None:
            proven.append(message.message_type)
            prove(message, *rest)

        monkeypatch.setattr(gates, "prove", counted)
        found = await open_requests(bus.transport, "agents", verifier=app.verifier, clock=bus.clock)
        assert [each.request.action.data for each in found] == [{"ref": {}, "service": "till"}]
        assert sorted(proven) == ["approval.closed", "approval.closed", "approval.request"]
        assert (
            len(await open_requests(bus.transport, "agents", verifier=app.verifier, clock=bus.clock, closed=True)) == 3
        )


async def test_finished_approvals_are_not_looked_at_for_those_that_wait(site: Site) -> None:
    async with site.bus() as bus:
        inbox, steps = bus.workers[0].inbox, bus.workers[0].steps
        assert isinstance(inbox, SqliteInbox)
        assert steps is not None
        asked: list[tuple[str, tuple[Any, ...]]] = []
        read = inbox.read

        async def noted(statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
            asked.append((statement, arguments))
            return await read(statement, *arguments)

        inbox.read = noted
        await steps.store.processes(saga="approval", status="open")
        ((statement, arguments),) = asked
        plan = " ".join(str(row[-1]) for row in await read(f"EXPLAIN QUERY PLAN {statement}", *arguments))
        assert "sealbus_processes_by_group (namespace=? AND grp=? AND status=? AND saga=?)" in plan
