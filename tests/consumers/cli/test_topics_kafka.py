"""What `sealbus topic apply` and `sealbus doctor` do with topics on Kafka: as any user, and as one with the rights of
an administrator of one namespace and no more."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import started
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from consumers.app.app import App
from deploy.kafka import clients
from deploy.kafka.cluster import Cluster

GROUP = App("worker@svc").group
pytestmark = pytest.mark.slow  # a secured cluster of its own
RIGHTS = ("CREATE", "DESCRIBE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
QUIET = {"log_level": 0}


@pytest.fixture
def namespace() -> str:
    return f"n{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("secured"), secured=True) as cluster:
        yield cluster


REPLAY_S = 0.7
"""Brokers acknowledge a right before they have all replayed it, and nobody tells when they have."""


class Secured:
    """The secured cluster, its administrator, and a user who has only what `grant` gave."""

    def __init__(self, cluster: Cluster, folder: Any, namespace: str) -> None:
        self.cluster, self.folder, self.namespace = cluster, folder, namespace
        self.admin = AdminClient({**cluster.client_settings(), **QUIET})

    def grant(
        self,
        *operations: str,
        resource: ResourceType = ResourceType.TOPIC,
        name: str | None = None,
        prefixed: bool = False,
    ) -> None:
        is_literal = name is not None and not prefixed
        pattern = ResourcePatternType.LITERAL if is_literal else ResourcePatternType.PREFIXED
        bindings = [
            AclBinding(
                resource,
                name or f"{self.namespace}.",
                pattern,
                "User:bus",
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for created in self.admin.create_acls(bindings).values():
            created.result(20)
        time.sleep(REPLAY_S)

    def revoke_all(self) -> None:
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, "User:bus", None, AclOperation.ANY, AclPermissionType.ANY
        )
        for deleted in self.admin.delete_acls([everything]).values():
            deleted.result(20)
        time.sleep(REPLAY_S)

    def environment(self) -> dict[str, str]:
        return {
            "SEALBUS_BUS__URL": f"kafka://{self.cluster.bootstrap}",
            "SEALBUS_BUS__NAMESPACE": self.namespace,
            "SEALBUS_KAFKA__SECURITY_PROTOCOL": "sasl_ssl",
            "SEALBUS_KAFKA__CA_FILE": str(self.cluster.certificates.authority),
            "SEALBUS_KAFKA__USERNAME": clients.USER.username,
            "SEALBUS_KAFKA__PASSWORD": clients.USER.password,
        }

    def call(self, *arguments: str, **more: str) -> Any:
        return self.folder.call("topic", *arguments, "--yes", env=self.environment() | more)

    def findings(self, **more: str) -> dict[str, list[str]]:
        """What the doctor says of topics, by state."""
        found: dict[str, list[str]] = {}
        done = self.folder.call("doctor", "agents:app", "-o", "json", env=self.environment() | more)
        for each in self.folder.objects(done.stdout):
            if each["area"] in {"topics", "brokers"}:
                found.setdefault(each["state"], []).append(f"{each['text']} {each.get('fix')}")
        return found

    def topic(self, name: str, records: int = 0) -> None:
        self.admin.create_topics([NewTopic(name, 1)])[name].result(20)
        producer = Producer({**self.cluster.client_settings(), **QUIET})
        for _ in range(records):
            producer.produce(name, b"x")
        assert producer.flush(20) == 0


@pytest.fixture
def user(secured: Cluster, folder: Any, namespace: str) -> Iterator[Secured]:
    made = Secured(secured, folder, namespace)
    yield made
    made.revoke_all()


class Open:
    """A namespace of its own on a cluster that lets everybody do everything."""

    def __init__(self, addresses: str, namespace: str) -> None:
        self.common = ("agents:app", "--bus", f"kafka://{addresses}", "--namespace", namespace)
        self._namespace = namespace
        self._client = AdminClient({"bootstrap.servers": addresses, **QUIET})

    def topics(self) -> list[str]:
        return [name for name in self._client.list_topics(timeout=10).topics if name.startswith(f"{self._namespace}.")]

    def close(self) -> None:
        """Others count what is in the cluster."""
        for deleted in self._client.delete_topics(self.topics()).values() if self.topics() else ():
            deleted.result(20)


@pytest.fixture
def shared(kafka: str, namespace: str) -> Iterator[Open]:
    made = Open(kafka, namespace)
    yield made
    made.close()


def test_apply_creates_aligns_and_then_has_nothing_to_do(folder: Any, shared: Open) -> None:
    first = folder.call("topic", "apply", *shared.common)
    assert "17 topics wanted, 17 created or changed" in first.stderr
    assert "message.timestamp.type LogAppendTime" in first.stdout
    more = {"SEALBUS_TOPICS__PARTITIONS": "6", "SEALBUS_TOPICS__RETENTION_S": "20d"}
    assert (
        "4 -> 6 partitions; kept 14d -> 20d" in folder.call("topic", "apply", "--yes", *shared.common, env=more).stdout
    )
    second = folder.call("topic", "apply", *shared.common, env=more)
    assert (second.exit_code, second.stdout) == (0, "")
    assert "nothing to do" in second.stderr


def test_a_dry_run_creates_nothing(folder: Any, shared: Open) -> None:
    dry = folder.call("topic", "apply", *shared.common, "--dry-run")
    assert "17 would be created or changed" in dry.stderr
    assert ".job.run.dlq" in dry.stdout
    assert shared.topics() == []


@pytest.mark.slow
def test_applies_at_the_same_time_all_succeed(folder: Any, shared: Open) -> None:
    command = ("topic", "apply", *shared.common)
    running = [folder.start(*command, stderr=subprocess.STDOUT) for _ in range(4)]
    for process in running:
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 0, output
    assert "nothing to do" in folder.call(*command).stderr


def test_rights_on_the_prefix_are_enough_to_apply_and_check(user: Secured) -> None:
    user.grant(*RIGHTS)
    assert user.call("apply", "agents:app", SEALBUS_TOPICS__PARTITIONS="2").exit_code == 0
    assert "2 created or changed" in user.call("apply", "agents:app").stderr
    assert "nothing to do" in user.call("apply", "agents:app").stderr
    assert "fault" not in user.findings()


def test_a_missing_cluster_permission_is_told_as_not_looked_at(user: Secured) -> None:
    user.grant(*RIGHTS)
    user.call("apply", "agents:app")
    (unseen,) = user.findings()["unknown"]
    assert "needed: DescribeConfigs on the cluster" in unseen


def test_brokers_are_checked_where_they_may_be_read(user: Secured) -> None:
    user.grant(*RIGHTS)
    user.grant("DESCRIBE_CONFIGS", resource=ResourceType.BROKER, name="kafka-cluster")
    assert user.call("apply", "agents:app").exit_code == 0
    assert set(user.findings()) == {"ok"}
    longer = user.findings(SEALBUS_PUBLISH__MAX_TTL_S="8d", SEALBUS_TOPICS__RETENTION_S="15d")
    assert "set offsets.retention.minutes=21600 or more on the brokers" in str(longer["fault"])


@pytest.mark.parametrize(
    ("lacking", "needed"),
    [
        ("CREATE", "Create on topic"),
        ("DESCRIBE", "Describe on topic"),
        ("DESCRIBE_CONFIGS", "DescribeConfigs on topic"),
        ("ALTER", "Alter on topic"),
        ("ALTER_CONFIGS", "AlterConfigs on topic"),
    ],
)
def test_a_missing_right_is_named_in_one_line(user: Secured, lacking: str, needed: str) -> None:
    # Describe follows from Alter, and DescribeConfigs from AlterConfigs.
    without = {lacking, *{"DESCRIBE": {"ALTER"}, "DESCRIBE_CONFIGS": {"ALTER_CONFIGS"}}.get(lacking, set())}
    user.grant(*RIGHTS)
    if lacking != "CREATE":
        user.call("apply", "agents:app", SEALBUS_TOPICS__PARTITIONS="2")
    user.revoke_all()
    user.grant(*(right for right in RIGHTS if right not in without))
    changed = {"SEALBUS_TOPICS__RETENTION_S": "20d"} if lacking == "ALTER_CONFIGS" else {}
    partitions = "2" if lacking == "ALTER_CONFIGS" else "4"
    result = user.call("apply", "agents:app", SEALBUS_TOPICS__PARTITIONS=partitions, **changed)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert f"needed: {needed} '{user.namespace}." in line
    assert result.exit_code == 78


def test_a_retry_tier_with_records_is_kept_without_the_right_to_see_the_group(user: Secured) -> None:
    user.grant(*RIGHTS)
    user.call("apply", "agents:app")
    user.topic(f"{user.namespace}._retry.{GROUP}.7s", records=2)
    assert "Describe on the group" in str(user.findings())
    user.grant("DESCRIBE", resource=ResourceType.GROUP, name=f"{user.namespace}.{GROUP}")
    assert f"still has 2 records waiting for group {GROUP}" in str(user.findings()["fault"])


APP = """
import msgspec
from sealbus import App, payload

@payload("acl.job", version="1.0.0", performative="inform")
class Job(msgspec.Struct, frozen=True):
    n: int = 0

app = App("worker@svc")

@app.on(Job)
async def handle(job: Job) -> None:
    print(f"handled {job.n}", flush=True)
"""
POLICY = """
[[agents]]
id = "worker@svc"

[[rules]]
id = "jobs"
effect = "allow"
action = ["publish", "handle"]
agents = "worker@svc"
types = "acl.job"
"""


def test_the_rights_that_a_policy_prints_are_enough_for_its_worker(user: Secured) -> None:
    (user.folder.path / "jobs.py").write_text(APP)
    (user.folder.path / "policy.toml").write_text(POLICY)
    user.grant(*RIGHTS)
    assert user.call("apply", "jobs:app").exit_code == 0
    user.revoke_all()
    environment = user.environment() | {"SEALBUS_TOPICS__CREATE": "false"}
    printed = user.folder.call(
        "policy", "export", "--format", "kafka-acls", "policy.toml", "--app", "jobs:app", "-o", "json", env=environment
    )
    for grant in user.folder.objects(printed.stdout):
        for name in grant["names"]:
            user.grant(
                *map(str.upper, grant["operations"]),
                resource=ResourceType.GROUP if grant["kind"] == "group" else ResourceType.TOPIC,
                name=name,
                prefixed=grant["prefixed"],
            )
    worker = subprocess.Popen(
        [sys.executable, "-m", "consumers.cli", "run", "jobs:app"],
        cwd=user.folder.path,
        env=user.folder.environment() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        options = ("--app", "jobs:app", "--as", "worker@svc")
        sent = user.folder.call("publish", "acl.job", *options, env=environment, stdin='{"n": 7}\n')
        assert sent.exit_code == 0, sent.stderr
        assert worker.stdout is not None
        assert worker.stdout.readline() == "handled 7\n"
        assert worker.poll() is None
    finally:
        worker.terminate()
        _, said = worker.communicate(timeout=60)
    assert worker.returncode == 0, said
    assert "not permitted" not in said
