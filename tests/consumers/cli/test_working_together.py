"""`sealbus workflow`, `waits`, `approvals`, `workflow`, `agents` and `ask`, beside real workers."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.medium  # real workers

SAMPLE = Path(__file__).parents[1] / "agents" / "workflows" / "market_research.json"

SHOP = """
import msgspec
from sealbus import App, payload
from sealbus.sagas import Saga, SagaContext, on_timer, on_start

@payload("shop.order", version="1.0.0")
class Order(msgspec.Struct, frozen=True, kw_only=True):
    order_id: str

class BuyingState(msgspec.Struct):
    order_id: str = ""

class Buying(Saga[BuyingState], version="1.0.0"):
    @on_start(Order, key="/data/order_id")
    async def placed(self, order: Order, context: SagaContext) -> None:
        self.state.order_id = order.order_id
        context.timer("ripe", 3600)

        if order.order_id == "done":
            context.finish()

    @on_timer("ripe")
    async def ripe(self, context: SagaContext) -> None:
        context.finish()

app = App("shop@svc", capabilities=["sells tea"])
app.add(Buying)
"""

DEPLOYER = """
import msgspec
from sealbus import App, Approval, Context, payload

@payload("ship.order", version="1.0.0")
class Ship(msgspec.Struct, frozen=True, kw_only=True):
    service: str

app = App("deployer@svc")

@app.on(Ship, approval=Approval(by="human"))
async def ship(order: Ship, context: Context) -> None:
    with open("handled.txt", "a") as out:
        out.write(f"{order.service} {context.approval.decided_by[0]}\\n")
"""

POLICY = """
[[agents]]
id = "cli@sealbus"
owner = "ops"

[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"

[[rules]]
id = "everybody"
effect = "allow"
action = ["publish", "handle"]
types = ["ship.**", "error.reported", "status.update"]

[[rules]]
id = "approvers"
effect = "allow"
action = "approve"
agents = "*@acme"
types = "ship.**"
"""

HELPER = """
from bus.vocabulary.task import TaskRequest, TaskResult
from sealbus import App

app = App("helper@svc")

@app.on(TaskRequest)
async def help_out(asked: TaskRequest) -> TaskResult:
    return TaskResult(status="completed", summary=f"done: {asked.goal}")
"""


def said(folder: Any, *words: str, code: int = 0) -> str:
    result = folder.call(*words)
    assert result.exit_code == code, result.output + result.stderr
    assert "Traceback" not in result.stderr
    return str(result.stdout)


def objects(folder: Any, *words: str) -> list[dict[str, Any]]:
    return list(folder.objects(said(folder, *words, "-o", "json")))


def refused(folder: Any, *words: str, code: int = 1) -> str:
    result = folder.call(*words)
    assert result.exit_code == code, result.output + result.stderr
    assert "Traceback" not in result.stderr
    return str(result.stderr)


def published(folder: Any, name: str, data: dict[str, Any], *words: str) -> None:
    result = folder.call("publish", name, "--app", "agents:app", *words, stdin=json.dumps(data))
    assert result.exit_code == 0, result.output + result.stderr


def set_for_all(folder: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    """Let calls in this process and in others find *settings*."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    environment = folder.environment() | settings
    monkeypatch.setattr(folder, "environment", lambda: environment)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.slow)])
def folder_on_each_log(request: pytest.FixtureRequest, folder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder whose commands use the embedded log, and one whose commands use a real Kafka."""
    if request.param == "kafka":
        settings = {
            "SEALBUS_BUS__URL": f"kafka://{request.getfixturevalue('kafka')}",
            "SEALBUS_BUS__NAMESPACE": f"c{uuid.uuid4().hex[:8]}",
            "SEALBUS_TOPICS__CREATE": "true",
            "SEALBUS_INBOX__URL": f"sqlite:///{folder.path}/inbox.db",
            "SEALBUS_INBOX__LOCAL": "true",
        }
        set_for_all(folder, monkeypatch, settings)
    return folder


def test_a_process_is_listed_shown_and_cancelled(folder: Any) -> None:
    (folder.path / "agents.py").write_text(SHOP)
    folder.worker()
    assert "handles shop.order" in (folder.path / "worker.log").read_text()
    published(folder, "shop.order", {"order_id": "\x1b[31mred"})
    folder.wait_until(lambda: bool(objects(folder, "workflow", "list")))
    (process,) = objects(folder, "workflow", "list", "--state", "open")
    assert (process["name"], process["key"]) == ("buying", "\x1b[31mred")
    (wait,) = objects(folder, "workflow", "list", "--waits")
    assert (wait["wait"], wait["answer_of"]) == ("ripe", None)
    assert objects(folder, "workflow", "list", "--overdue") == []
    shown = said(folder, "workflow", "show", process["id"][:8])
    assert "ripe" in shown
    assert "\x1b" not in shown + said(folder, "workflow", "list") + said(folder, "workflow", "list", "--waits")
    assert "no workflow 'ffff'" in refused(folder, "workflow", "show", "ffff")
    said(folder, "workflow", "cancel", process["id"][:8], "--why", "ordered twice", "--yes")
    folder.wait_until(lambda: bool(objects(folder, "workflow", "list", "--state", "cancelled")))
    assert objects(folder, "workflow", "list", "--waits") == []
    (ended,) = objects(folder, "workflow", "list", "--state", "cancelled")
    assert (ended["state"], ended["reason"]) == ("cancelled", "ordered twice")
    assert objects(folder, "workflow", "list", "--state", "failed") == []
    assert "cancelled: ordered twice" in said(folder, "workflow", "list", "--all")
    assert "cancelled" in said(folder, "workflow", "show", process["id"][:8])


def test_processes_with_the_same_key_are_distinguished_by_their_opener(folder: Any) -> None:
    (folder.path / "agents.py").write_text(SHOP)
    folder.worker()
    for sender in ("anna@svc", "ben@svc"):
        published(folder, "shop.order", {"order_id": "tea"}, "--as", sender)
    folder.wait_until(lambda: len(objects(folder, "workflow", "list")) == 2)
    found = objects(folder, "workflow", "list")
    assert {(each["key"], each["sender"]) for each in found} == {("tea", "anna@svc"), ("tea", "ben@svc")}
    table = said(folder, "workflow", "list")
    assert "SENDER" in table
    assert "anna@svc" in table
    assert "ben@svc" in table


@pytest.mark.parametrize(
    "words",
    [("--state", "completed"), ("--state", "failed"), ("--name", "selling"), ("--group", "nobody")],
    ids=lambda words: str(words[0]),
)
def test_an_empty_filtered_list_of_processes_is_not_reported_as_an_empty_store(folder: Any, words: Any) -> None:
    (folder.path / "agents.py").write_text(SHOP)
    worker = folder.worker()
    published(folder, "shop.order", {"order_id": "tea"})
    folder.wait_until(lambda: bool(objects(folder, "workflow", "list")))
    folder.end(worker)
    told = folder.call("workflow", "list", *words)
    assert (told.exit_code, told.stdout, told.stderr.strip()) == (0, "", "no workflow matches")
    if words[0] == "--group":
        assert (
            folder.call("workflow", "list", "--waits", *words).stderr.strip() == "nothing is waited for in group nobody"
        )


def test_an_outcome_is_found_behind_processes_that_ended_otherwise_and_later(folder: Any) -> None:
    (folder.path / "agents.py").write_text(SHOP)
    folder.worker()
    published(folder, "shop.order", {"order_id": "tea"})
    folder.wait_until(lambda: bool(objects(folder, "workflow", "list")))
    (process,) = objects(folder, "workflow", "list")
    said(folder, "workflow", "cancel", process["id"], "--why", "ordered twice", "--yes")
    folder.wait_until(lambda: bool(objects(folder, "workflow", "list", "--state", "cancelled")))
    published(folder, "shop.order", {"order_id": "done"})
    folder.wait_until(lambda: len(objects(folder, "workflow", "list", "--state", "completed")) == 1)
    (found,) = objects(folder, "workflow", "list", "--state", "cancelled", "--limit", "1")
    assert found["id"] == process["id"]


def test_processes_of_a_store_that_is_not_there(folder: Any) -> None:
    assert "no inbox" in refused(folder, "workflow", "list", code=78)
    assert not list(folder.path.glob("*.db"))


def test_an_agent_is_seen_while_it_works_and_gone_afterwards(folder_on_each_log: Any) -> None:
    folder = folder_on_each_log
    (folder.path / "agents.py").write_text(SHOP)
    worker = folder.worker()
    folder.wait_until(lambda: bool(objects(folder, "agent", "list")))
    (agent,) = objects(folder, "agent", "list", "--type", "shop.order")
    assert (agent["agent"], agent["health"], agent["capabilities"]) == ("shop@svc", "healthy", ["sells tea"])
    assert "shop@svc" in said(folder, "agent", "show", "shop@svc")
    assert folder.call("agent", "list", "--type", "shop.none").stderr.strip() == "no agent matches"
    assert "unknown agent shop@svk: no worker has announced it" in refused(folder, "agent", "show", "shop@svk")
    assert "healthy" in said(folder, "agent", "show", "shop@svc", "--wait-heartbeat", "30s")
    assert "unknown agent" in refused(folder, "agent", "show", "nobody@svc", "--wait-heartbeat", "1s")
    folder.end(worker)
    assert objects(folder, "agent", "list") == []
    assert "no agent is up" in folder.call("agent", "list").stderr
    (agent,) = objects(folder, "agent", "list", "--all")
    assert agent["health"] == "gone"


@pytest.fixture
def guarded(folder_on_each_log: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with keys, a policy, and a deployer that works by them."""
    folder = folder_on_each_log
    (folder.path / "agents.py").write_text(DEPLOYER)
    policy = folder.path / "policy.toml"
    policy.write_text(POLICY)
    policy.chmod(0o600)
    said(folder, "key", "new", "cli@sealbus", "lead@acme", "deployer@svc")
    settings = {"SEALBUS_TRUST__KEYS": "keys", "SEALBUS_TRUST__KEY_FILE": "keys", "SEALBUS_POLICY__FILE": "policy.toml"}
    set_for_all(folder, monkeypatch, settings)
    folder.worker()
    return folder


def test_what_waits_for_a_decision_is_shown_and_runs_when_its_hash_is_named(guarded: Any) -> None:
    published(guarded, "ship.order", {"service": "shop"}, "--idempotency-key", "s1")
    guarded.wait_until(lambda: bool(objects(guarded, "approval", "list")))
    (held,) = objects(guarded, "approval", "list")
    digits = held["approval"].removeprefix("sha256:")[:12]
    assert "the request is about exactly this message" in said(guarded, "approval", "show", digits)
    message_id = objects(guarded, "approval", "show", digits)[0]["waiting_message"]

    def outcome() -> str:
        return said(guarded, "show", message_id, "--part", "outcome")

    # Its offset is committed a moment after the request is there.
    guarded.wait_until(lambda: f": held for approval {digits}" in outcome())
    assert "done" not in outcome()
    assert "unknown to the inbox" not in guarded.call("doctor").stdout
    lead = ("--as", "lead@acme", "--key-file", "keys")
    assert "not the hash" in refused(guarded, "approval", "approve", digits, *lead, "--hash", "00000000")
    for part in ("cli@sealbus", "deployer@svc"):
        own = ("--as", part, "--key-file", "keys", "--hash", held["action_hash"].removeprefix("sha256:")[:8])
        assert "takes part in the action" in refused(guarded, "approval", "approve", digits, *own)
    said(guarded, "approval", "approve", digits, *lead, "--hash", held["action_hash"].removeprefix("sha256:")[:8])
    guarded.wait_until(lambda: bool(guarded.handled()))
    assert guarded.handled() == [["shop", "lead@acme"]]
    guarded.wait_until(lambda: objects(guarded, "approval", "list") == [])
    guarded.wait_until(lambda: objects(guarded, "approval", "list", "--all")[0]["state"] == "consumed")
    (ended,) = objects(guarded, "approval", "list", "--all")
    assert ended["decided_by"] == ["lead@acme"]
    assert "approved by lead@acme, it has run" in said(guarded, "approval", "list", "--all")
    guarded.wait_until(lambda: ": done" in outcome())


def test_what_was_approved_and_is_in_no_workers_inbox_is_not_shown_as_done(
    guarded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(guarded, "ship.order", {"service": "shop"}, "--idempotency-key", "s1")
    guarded.wait_until(lambda: bool(objects(guarded, "approval", "list")))
    (held,) = objects(guarded, "approval", "list")
    digits = held["approval"].removeprefix("sha256:")[:12]
    message_id = objects(guarded, "approval", "show", digits)[0]["waiting_message"]
    (worker,) = guarded._processes
    guarded.end(worker)
    set_for_all(
        guarded,
        monkeypatch,
        {"SEALBUS_INBOX__URL": f"sqlite:///{guarded.path}/another.db", "SEALBUS_INBOX__LOCAL": "true"},
    )
    guarded.worker()
    lead = ("--as", "lead@acme", "--key-file", "keys")
    said(guarded, "approval", "approve", digits, *lead, "--hash", held["action_hash"].removeprefix("sha256:")[:8])
    guarded.wait_until(lambda: sum(row["lag"] for row in objects(guarded, "group", "list")) == 0)
    shown = said(guarded, "show", message_id, "--part", "outcome")
    assert f"held for approval {digits}: lead@acme sent approve, and no worker has run it yet" in shown
    assert ": done" not in shown
    assert "1 approval is open in the log and unknown to the inbox" in guarded.call("doctor").stdout
    assert guarded.handled() == []


def test_an_approval_is_not_cancelled_as_a_process(guarded: Any) -> None:
    published(guarded, "ship.order", {"service": "shop"}, "--idempotency-key", "s1")
    guarded.wait_until(lambda: bool(objects(guarded, "workflow", "list")))
    (process,) = objects(guarded, "workflow", "list")
    told = refused(guarded, "workflow", "cancel", process["id"], "--why", "no", "--yes", code=1)
    assert "this is an approval: `sealbus approval reject` decides about it" in told
    assert "hint" not in told


def test_a_rejected_message_is_dead_lettered(guarded: Any) -> None:
    published(guarded, "ship.order", {"service": "shop"}, "--idempotency-key", "s1")
    guarded.wait_until(lambda: bool(objects(guarded, "approval", "list")))
    (held,) = objects(guarded, "approval", "list")
    digits = held["approval"].removeprefix("sha256:")[:12]
    # Whom the key speaks for, acts.
    (own,) = (guarded.path / "keys").glob("lead-acme-*.pem")
    lead = ("--key-file", str(own))
    said(guarded, "approval", "reject", digits, *lead, "--why", "not on a Friday")
    guarded.wait_until(lambda: bool(objects(guarded, "dlq", "list")))
    assert [letter["reason"] for letter in objects(guarded, "dlq", "list")] == ["approval_rejected"]
    assert guarded.handled() == []


def test_a_decided_approval_is_shown_with_its_end_and_is_not_decided_again(guarded: Any) -> None:
    published(guarded, "ship.order", {"service": "shop"}, "--idempotency-key", "s1")
    guarded.wait_until(lambda: bool(objects(guarded, "approval", "list")))
    (held,) = objects(guarded, "approval", "list", "--all")
    assert (held["state"], held["decided_by"]) == ("open", [])
    digits = held["approval"].removeprefix("sha256:")[:12]
    (own,) = (guarded.path / "keys").glob("lead-acme-*.pem")
    lead = ("--key-file", str(own), "--why", "not on a Friday")
    said(guarded, "approval", "reject", digits, *lead)
    guarded.wait_until(lambda: objects(guarded, "approval", "list") == [])
    (ended,) = objects(guarded, "approval", "list", "--all")
    assert (ended["state"], ended["decided_by"]) == ("rejected", ["lead@acme"])
    assert "rejected by lead@acme" in said(guarded, "approval", "list", "--all")
    assert "state:     rejected by lead@acme" in said(guarded, "approval", "show", digits)
    (shown,) = objects(guarded, "approval", "show", digits)
    assert (shown["state"], shown["decided_by"]) == ("rejected", ["lead@acme"])
    assert "nothing to decide: rejected by lead@acme" in refused(guarded, "approval", "reject", digits, *lead)
    assert "no approval begins with 'ffff'" in refused(guarded, "approval", "show", "ffff")


def test_workflow_files_of_a_project_are_checked(folder: Any) -> None:
    flows = folder.path / "workflows"
    flows.mkdir()
    good = flows / "good.json"
    good.write_text(SAMPLE.read_text("utf-8"))
    said(folder, "check", "--only", "workflows", "--fail-on", "error")
    bad = json.loads(good.read_text())
    bad["nodes"][0]["out"]["to"] = "nowhere"
    (flows / "bad.json").write_text(json.dumps(bad))
    result = folder.call("check", "--only", "workflows")
    assert (result.exit_code, "bad.json/nodes/0" in result.stdout, "nowhere" in result.stdout) == (1, True, True)
    (flows / "worse.json").write_text("[" * 2_000)
    result = folder.call("check", "--only", "workflows")
    assert (result.exit_code, "worse.json" in result.stdout) == (1, True)
    assert "2 workflow files" not in result.stderr


def test_a_list_of_workflows_says_how_and_why_each_has_ended(folder: Any) -> None:
    (folder.path / "one.json").write_text(SAMPLE.read_text("utf-8"))
    folder.start("serve", "workflows", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    said(folder, "workflow", "start", "one.json", "--no-wait")
    folder.wait_until(lambda: bool(folder.call("workflow", "list", "-o", "json").stdout))
    (run,) = objects(folder, "workflow", "list")
    assert (run["state"], run["reason"]) == ("open", "")
    said(folder, "workflow", "cancel", run["id"], "--why", "ordered twice", "--yes")
    folder.wait_until(lambda: objects(folder, "workflow", "list") == [])
    (run,) = objects(folder, "workflow", "list", "--all")
    assert (run["state"], run["reason"]) == ("cancelled", "ordered twice")
    assert "cancelled: ordered twice" in said(folder, "workflow", "list", "--all")


def test_a_task_is_asked_and_taken_up_again(folder: Any) -> None:
    (folder.path / "agents.py").write_text(HELPER)
    folder.worker()
    assert "done: tea" in said(folder, "ask", "helper@svc", "tea", "--timeout", "20s")
    handle = said(folder, "ask", "helper@svc", "more tea", "--timeout", "20s", "--no-wait").strip()
    assert "done: more tea" in said(folder, "ask", "--resume", handle)


def test_waiting_for_a_missing_agent_times_out(folder: Any) -> None:
    refused(folder, "ask", "nobody@svc", "tea", "--timeout", "1s", code=75)
