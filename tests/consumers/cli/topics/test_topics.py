"""`sealbus topic apply` and `doctor` on the embedded log, and which findings follow from what was read."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from bus.settings import loading
from bus.settings.schema import Settings
from bus.topics.names import reply_topic
from bus.transports import open_transport
from bus.transports.base import Change, NewRecord, TopicSpec
from consumers.app.app import App
from consumers.operations.survey.drift import (
    LeftTier,
    detail,
    duration_text,
    of_brokers,
    of_changes,
    of_settings,
    of_tiers,
)
from consumers.operations.survey.verdicts import of_cards
from producers.directory.presence import AgentEntry

GROUP = App("worker@svc").group
OLD_TIER = f"agents._retry.{GROUP}.7s"
DAY_MINUTES = 24 * 60


def chosen(**env: str) -> Settings:
    return loading.load(env={f"SEALBUS_{name}": value for name, value in env.items()}, file=None).settings


def on_the_log(*specs: TopicSpec, records: int = 0) -> None:
    """Topics, and *records* in each."""

    async def body() -> None:
        transport = open_transport("sqlite:///sealbus.db")
        await transport.admin.create_topics(specs)
        await transport.append(
            [NewRecord(spec.name, None, b"x", partition=0) for spec in specs for _ in range(records)], timeout_s=5
        )
        await transport.close()

    asyncio.run(body())


def test_the_second_apply_has_nothing_to_do(folder: Any) -> None:
    assert "17 topics wanted, 17 created or changed" in folder.call("topic", "apply", "agents:app").stderr
    second = folder.call("topic", "apply", "agents:app")
    assert (second.exit_code, second.stdout) == (0, "")
    assert "nothing to do" in second.stderr


def test_apply_shows_the_cost_of_new_topics_before_creating_them(folder: Any) -> None:
    assert "17 topics are new: 23 partitions" in folder.call("topic", "apply", "agents:app").stderr
    assert "are new" not in folder.call("topic", "apply", "agents:app").stderr


def test_a_client_without_app_gets_only_its_reply_topic(folder: Any) -> None:
    made = folder.call("topic", "apply", "--agent", "client@svc", "-o", "json")
    assert {each["topic"] for each in folder.objects(made.stdout)} == {reply_topic("agents", "client@svc")}
    assert folder.call("topic", "apply").exit_code == 2


def test_the_buss_own_agents_are_named_by_their_ids(folder: Any) -> None:
    node = {"id": "ask", "type": "emit", "message": {"receiver": "a@b", "type": "review.request"}, "out": {"to": "end"}}
    workflow = {"name": "one", "nodes": [node, {"id": "end", "type": "end"}]}
    (folder.path / "one.json").write_bytes(msgspec.json.encode(workflow))
    made = folder.call("topic", "apply", "workflow@sealbus", "--workflow", "one.json", "-o", "json")
    names = {each["topic"] for each in folder.objects(made.stdout)}
    assert {"agents.workflow.start", "agents.review.request", "agents.status.update", "agents.act.request"} <= names
    again = folder.call("topic", "apply", "workflow@sealbus", "--workflow", "one.json", "--dry-run")
    assert "nothing to do" in again.stderr
    made = folder.call("topic", "apply", "registry@sealbus", "-o", "json")
    assert "agents.agent.discover" in {each["topic"] for each in folder.objects(made.stdout)}


OTHER = """
import msgspec
from sealbus import App, payload

@payload("other.job", version="1.0.0")
class Other(msgspec.Struct, frozen=True, kw_only=True):
    number: int

app = App("other@svc"NAMESPACE)

@app.on(Other)
async def run(job: Other) -> None: ...
"""


@pytest.fixture
def other(folder: Any) -> Any:
    """A folder with a second app, `topics_other:app`."""
    (folder.path / "topics_other.py").write_text(OTHER.replace("NAMESPACE", ""))
    yield folder
    sys.modules.pop("topics_other", None)


def sending(message_type: str) -> bytes:
    """A workflow that sends one message."""
    node = {"id": "ask", "type": "emit", "message": {"receiver": "a@b", "type": message_type}, "out": {"to": "end"}}
    return msgspec.json.encode({"name": "one", "nodes": [node, {"id": "end", "type": "end"}]})


def test_several_apps_are_applied_and_checked_at_once(other: Any) -> None:
    apps = ("agents:app", "topics_other:app")
    missing = other.call("doctor", *apps, "--bus", "memory://", "-o", "json")
    (first, *_) = [
        each["text"]
        for each in other.objects(missing.stdout)
        if each["area"] == "topics" and each["state"] in ("fault", "hint")
    ]
    assert first.endswith("the first worker creates them")
    made = other.call("topic", "apply", *apps, "-o", "json")
    assert {"agents.job.run", "agents.other.job"} <= {each["topic"] for each in other.objects(made.stdout)}
    for words in (apps, apps[:1], apps[1:]):
        assert other.call("doctor", *words).exit_code == 0


def test_apps_of_several_namespaces_are_named_apart(other: Any) -> None:
    (other.path / "topics_other.py").write_text(OTHER.replace("NAMESPACE", ', namespace="staging"'))
    refused = other.call("topic", "apply", "agents:app", "topics_other:app")
    assert refused.exit_code == 2
    assert "of several namespaces, agents, staging" in refused.stderr


@pytest.mark.parametrize("agent", ["", "a\nb", "x" * 257], ids=["empty", "a line break", "too long"])
def test_no_topic_is_created_for_an_invalid_agent_id(folder: Any, agent: str) -> None:
    refused = folder.call("topic", "apply", "--agent", agent)
    assert refused.exit_code == 2
    assert "is not a valid id" in refused.stderr
    assert not list(folder.path.glob("*.db"))


def test_an_unknown_type_in_a_workflow_gets_no_topic(folder: Any) -> None:
    (folder.path / "one.json").write_bytes(sending("review.reqest"))
    refused = folder.call("topic", "apply", "workflow@sealbus", "--workflow", "one.json")
    assert refused.exit_code == 2
    assert "one.json sends 'review.reqest'" in refused.stderr
    assert "the nearest is review.request" in refused.stderr
    assert not list(folder.path.glob("*.db"))


def test_a_workflow_may_send_the_types_of_a_named_app(other: Any) -> None:
    (other.path / "one.json").write_bytes(sending("other.job"))
    words = ("workflow@sealbus", "--workflow", "one.json")
    assert other.call("topic", "apply", *words).exit_code == 2
    assert other.call("topic", "apply", *words, "topics_other:app").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [("topic", "apply", "--workflow"), ("workflow", "start")],
    ids=lambda words: words[1],
)
@pytest.mark.parametrize("text", ["{", "[]"], ids=["no JSON", "no workflow"])
def test_a_broken_workflow_is_named(folder: Any, words: tuple[str, ...], text: str) -> None:
    (folder.path / "broken.json").write_text(text)
    refused = folder.call(*words, "broken.json")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: broken.json: ")


def test_a_target_that_names_nothing_is_answered_with_the_buss_own_agents(folder: Any) -> None:
    refused = folder.call("topic", "apply", "workflows@sealbus")
    assert refused.exit_code == 2
    assert "none of the bus's own agents, workflow@sealbus, registry@sealbus" in refused.stderr


def test_a_topic_that_a_running_agent_needs_and_that_is_missing_is_named() -> None:
    agents = [
        AgentEntry(agent_id="shop@svc", health="healthy", instances=1, heard_s_ago=0.0, types=("order.placed", "a.b"))
    ]
    (found,) = of_cards(agents, {"agents.a.b"}, "agents")
    assert (found.state, found.text) == (
        "fault",
        "shop@svc needs agents.order.placed, which does not exist",
    )


def test_a_change_of_existing_topics_is_confirmed(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app")
    more = {"SEALBUS_TOPICS__PARTITIONS": "6"}
    refused = folder.call("topic", "apply", "agents:app", env=more)
    assert (refused.exit_code, "give --yes" in refused.stderr) == (2, True)
    assert "4 -> 6 partitions" in folder.call("topic", "apply", "agents:app", "--dry-run", env=more).stdout


def test_a_dry_run_shows_the_plan_and_changes_nothing(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app")
    more = {"SEALBUS_TOPICS__PARTITIONS": "6", "SEALBUS_TOPICS__RETENTION_S": "20d"}
    dry = [folder.call("topic", "apply", "agents:app", "--dry-run", env=more) for _ in range(2)]
    done = folder.call("topic", "apply", "agents:app", "--yes", env=more)
    assert dry[0].stdout == dry[1].stdout == done.stdout
    assert "4 -> 6 partitions; kept 14d -> 20d" in done.stdout
    assert "6 would be created or changed" in dry[1].stderr
    assert "6 created or changed" in done.stderr


def test_apply_writes_one_object_for_each_setting(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app")
    result = folder.call(
        "topic", "apply", "agents:app", "--yes", "-o", "json", env={"SEALBUS_TOPICS__RETENTION_S": "20d"}
    )
    assert {
        "topic": "agents.job.run",
        "change": "change",
        "setting": "retention.ms",
        "found": "1209600000",
        "wanted": "1728000000",
        "detail": "kept 14d -> 20d",
    } in folder.objects(result.stdout)


def test_more_partitions_come_with_a_warning(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app")
    more = {"SEALBUS_TOPICS__PARTITIONS": "6"}
    (warning,) = [
        line
        for line in folder.call("topic", "apply", "agents:app", env=more).stderr.splitlines()
        if line.startswith("warning")
    ]
    assert "agents.job.run" in warning
    assert "keys move between partitions" in warning


def test_apply_completes_a_topic_that_another_program_left_without_partitions(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app")
    with contextlib.closing(sqlite3.connect("sealbus.db")) as connection, connection:
        connection.execute(
            "DELETE FROM partitions WHERE topic_id = (SELECT id FROM topics WHERE name = 'agents.job.run')"
        )
        connection.execute("UPDATE generation SET number = number + 1")
    assert "error: no topic agents.job.run" in folder.call("tail", "agents.job.run").stderr
    assert "17 topics wanted, 1 created or changed" in folder.call("topic", "apply", "agents:app").stderr
    assert folder.call("doctor", "agents:app").exit_code == 0


def test_fewer_partitions_than_there_are_is_nothing_to_do(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app", env={"SEALBUS_TOPICS__PARTITIONS": "6"})
    assert "nothing to do" in folder.call("topic", "apply", "agents:app").stderr
    assert folder.call("doctor", "agents:app").exit_code == 0


def test_what_apply_made_passes_the_check(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app")
    result = folder.call("doctor", "agents:app")
    assert result.exit_code == 0
    assert "that the apps need agree with the settings" in result.stdout


def test_the_doctor_counts_the_topics_that_a_worker_will_create(folder: Any) -> None:
    result = folder.call("doctor", "agents:app", "--bus", "memory://", "-o", "json")
    (found,) = [
        each
        for each in folder.objects(result.stdout)
        if each["area"] == "topics" and each["state"] in ("fault", "hint")
    ]
    assert found["text"].startswith("17 not created yet: agents.job.run, ")
    assert found["state"] == "hint"


def test_the_doctor_names_every_missing_topic_that_only_a_person_creates(folder: Any) -> None:
    options = ("--bus", "memory://", "-o", "json")
    result = folder.call("doctor", "agents:app", *options, env={"SEALBUS_TOPICS__CREATE": "false"})
    found = [
        each
        for each in folder.objects(result.stdout)
        if each["area"] == "topics" and each["state"] in ("fault", "hint")
    ]
    assert len(found) == 17
    assert {each["fix"] for each in found} == {"sealbus topic apply agents:app"}


@pytest.mark.medium
def test_applies_at_the_same_time_all_succeed(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app", env={"SEALBUS_TOPICS__PARTITIONS": "1"})
    running = [folder.start("topic", "apply", "agents:app", "--yes", stderr=subprocess.STDOUT) for _ in range(4)]
    for process in running:
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0, output
    assert folder.call("doctor", "agents:app").exit_code == 0


def test_a_removed_retry_tier_with_records_must_be_kept(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app")
    on_the_log(TopicSpec(name=OLD_TIER, partitions=2), records=3)
    result = folder.call("doctor", "agents:app")
    assert result.exit_code == 1
    assert f"still has 3 records waiting for group {GROUP}: keep the tier until it is drained" in result.stdout


def test_a_tier_no_setting_knows_and_that_is_empty_may_be_deleted(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app")
    on_the_log(TopicSpec(name=OLD_TIER), TopicSpec(name="agents._retry.other.7s"))
    result = folder.call("doctor", "agents:app", "-o", "json")
    assert result.exit_code == 0
    (hint,) = [
        each
        for each in folder.objects(result.stdout)
        if each["area"] == "topics" and each["state"] in ("fault", "hint")
    ]
    assert (hint["state"], hint["fix"]) == ("hint", "it may be deleted")
    assert OLD_TIER in hint["text"]


def test_a_retention_shorter_than_lifetime_and_retries_is_found(folder: Any) -> None:
    short = {"SEALBUS_TOPICS__RETENTION_S": "8d"}
    folder.call("topic", "apply", "agents:app", env=short)
    result = folder.call("doctor", "agents:app", env=short)
    assert result.exit_code == 1
    assert "set topics.retention_s to 14d or more" in result.stdout


@pytest.mark.parametrize(
    ("retention", "longest", "wrong"),
    [("14d", "7d", False), ("13d", "7d", True), ("14d", "8d", True), ("13d", "6d", False)],
)
def test_records_are_kept_for_the_longest_lifetime_and_a_week_of_retries(
    retention: str, longest: str, wrong: bool
) -> None:
    found = of_settings(chosen(TOPICS__RETENTION_S=retention, PUBLISH__MAX_TTL_S=longest))
    assert bool(found) == wrong


def test_offsets_must_be_kept_as_long_as_records() -> None:
    short = {
        "1": {"offsets.retention.minutes": str(7 * DAY_MINUTES)},
        "2": {"offsets.retention.minutes": str(14 * DAY_MINUTES)},
    }
    (finding,) = of_brokers(short, chosen())
    assert finding.detail.startswith("on broker 1 a stopped group's offsets are forgotten after 7d")
    assert of_brokers({"2": short["2"]}, chosen()) == []


def test_brokers_that_create_topics_by_themselves_are_named() -> None:
    (finding,) = of_brokers({name: {"auto.create.topics.enable": "true"} for name in ("2", "10")}, chosen())
    assert "brokers 2, 10" in finding.detail
    assert of_brokers({"1": {"auto.create.topics.enable": "false"}}, chosen()) == []


def test_brokers_that_tell_nothing_are_not_accused() -> None:
    assert of_brokers({}, chosen()) == []
    assert of_brokers({"1": {}}, chosen()) == []


def test_a_retry_tier_with_unreadable_offsets_is_kept_while_it_has_records() -> None:
    (held,) = of_tiers([LeftTier(OLD_TIER, GROUP, records=2, waiting=None)])
    (empty,) = of_tiers([LeftTier(OLD_TIER, GROUP, records=0, waiting=None)])
    (drained,) = of_tiers([LeftTier(OLD_TIER, GROUP, records=2, waiting=0)])
    assert [finding.severity for finding in (held, empty, drained)] == ["error", "hint", "hint"]
    assert "Describe on the group" in held.detail


def test_what_apply_cannot_do_is_not_advised_to_be_applied() -> None:
    change = Change(topic="a.b", setting="replicas", found="1", wanted="3", note="by other means", by_hand=True)
    (finding,) = of_changes([change], "agents:app")
    assert (finding.detail, finding.advice) == ("1 -> 3 replicas", "by other means")


@pytest.mark.parametrize(
    ("setting", "found", "wanted", "words"),
    [
        ("partitions", None, "4", "4 partitions"),
        ("retention.ms", "-1", "1000", "kept for ever -> 1s"),
        ("retention.bytes", "-1", "10", "any size -> 10 bytes per partition"),
        ("min.insync.replicas", "1", "2", "min.insync.replicas 1 -> 2"),
    ],
)
def test_changes_are_told_in_words(setting: str, found: str | None, wanted: str, words: str) -> None:
    assert detail(Change(topic="a.b", setting=setting, found=found, wanted=wanted)) == words


def test_an_odd_retention_time_is_printed_too() -> None:
    assert duration_text(2**63 - 1) == f"{2**63 - 1}ms"


APPROVED = """
import msgspec
from sealbus import App, Approval, payload

@payload("ship.order", version="1.0.0")
class Ship(msgspec.Struct, frozen=True, kw_only=True):
    service: str

app = App("deployer@svc")

@app.on(Ship{approval})
async def ship(order: Ship) -> None: ...
"""
RULES = """
[[agents]]
id = "deployer@svc"
owner = "ops"

[[rules]]
id = "ships"
effect = "need"
action = "handle"
types = "ship.**"
require_approval = "human"
approvers = "*@acme"
"""


@pytest.mark.parametrize("by", ["the handler", "the policy"])
def test_an_app_with_approvals_gets_the_approval_topics(folder: Any, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ', approval=Approval(by="human")' if by == "the handler" else ""
    (folder.path / "agents.py").write_text(APPROVED.replace("{approval}", said))
    (folder.path / "policy.toml").write_text(RULES)
    if by == "the policy":
        assert folder.call("key", "new", "deployer@svc").exit_code == 0
        monkeypatch.setenv("SEALBUS_TRUST__KEYS", "keys/jwks.json")
        monkeypatch.setenv("SEALBUS_POLICY__FILE", "policy.toml")
    made = folder.call("topic", "apply", "agents:app", "-o", "json")
    assert made.exit_code == 0, made.stderr
    names = {each["topic"] for each in folder.objects(made.stdout)}
    assert {"agents.approval.request", "agents.approval.closed", "agents.status.update"} <= names
    assert [name for name in names if name.startswith("agents._mail.")]
