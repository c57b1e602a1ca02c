"""Real nodes: they start, survive what befalls them, and never outlive the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.kafka import clients, jars
from deploy.kafka.cluster import Cluster
from deploy.kafka.errors import KafkaFailedError, KafkaUnavailableError
from deploy.kafka.properties import Login

ROOT = Path(__file__).parent.parent.parent
PARENT = """
import sys, time
from pathlib import Path
from deploy.kafka.cluster import Cluster
cluster = Cluster(Path(sys.argv[1]))
cluster.start()
print(cluster.nodes[0].pid, flush=True)
time.sleep(600)
"""
QUIET = {"log_level": 0}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module", autouse=True)
def needs_kafka() -> None:
    try:
        jars.installed()
    except KafkaUnavailableError as error:
        if os.environ.get("SEALBUS_REQUIRE_KAFKA") == "1":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, needs_kafka: None) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("secured"), secured=True) as cluster:
        yield cluster


def create(settings: dict[str, str], topic: str) -> None:
    client = AdminClient({**settings, **QUIET})
    client.create_topics([NewTopic(topic, 1)])[topic].result(20)


def send(settings: dict[str, str], topic: str, value: bytes) -> None:
    errors: list[object] = []
    producer = Producer({**settings, **QUIET, "acks": "all"})
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None]


def read(settings: dict[str, str], topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({**settings, **QUIET, "group.id": "reader", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


def test_a_node_killed_and_started_again_keeps_its_port_and_data(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        (node,) = cluster.nodes
        settings, port, pid = cluster.client_settings(), node.port, node.pid
        create(settings, "kept")
        send(settings, "kept", b"before")
        node.kill()
        assert not node.running
        assert node.pid is None
        node.start()
        assert node.port == port
        assert node.pid not in {None, pid}
        send(settings, "kept", b"after")
        assert read(settings, "kept", 2) == [b"before", b"after"]
        assert "Kafka Server started" in node.log.read_text()
    assert not node.running


def test_a_folder_serves_the_next_cluster_and_refuses_one_of_another_shape(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create(cluster.client_settings(), "kept")
        send(cluster.client_settings(), "kept", b"first")
    with Cluster(tmp_path) as cluster:
        assert read(cluster.client_settings(), "kept", 1) == [b"first"]
    with pytest.raises(KafkaFailedError, match="take another folder"):
        Cluster(tmp_path, brokers=3).start()


def test_a_frozen_node_answers_again_when_thawed_and_can_be_stopped_frozen(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        (node,) = cluster.nodes
        client = AdminClient({**cluster.client_settings(), **QUIET})
        node.freeze()
        assert node.running
        with pytest.raises(KafkaException):
            client.list_topics(timeout=1)
        node.thaw()
        assert client.list_topics(timeout=20).brokers
        node.freeze()
        node.stop()
        assert not node.running


@pytest.mark.parametrize("controller", [False, True])
def test_three_brokers_know_each_other_and_survive_the_loss_of_one(tmp_path: Path, controller: bool) -> None:
    with Cluster(tmp_path, brokers=3, controller=controller) as cluster:
        assert [node.id for node in cluster.nodes] == [1, 2, 3, *([100] if controller else [])]
        settings = cluster.client_settings()
        create(settings, "kept")
        cluster.nodes[0].kill()
        send(settings, "kept", b"without one")
        cluster.nodes[0].start()
        assert read(settings, "kept", 1) == [b"without one"]
    assert not any(node.running for node in cluster.nodes)


def test_a_node_that_dies_at_start_shows_the_reason(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, settings={"log.segment.bytes": "nonsense"})
    with pytest.raises(KafkaFailedError, match="nonsense"):
        cluster.start()
    assert not any(node.running for node in cluster.nodes)


def test_nodes_die_with_their_parent_however_it_dies(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_secured_node_serves_who_has_the_password_and_refuses_others(secured: Cluster) -> None:
    create(secured.client_settings(), "private")
    errors: list[str] = []
    settings = {
        **secured.client_settings(Login("admin", "wrong")),
        **QUIET,
        "error_cb": lambda error: errors.append(error.str()),
    }
    client = AdminClient(settings)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=5)
    client.poll(1)
    assert any("uthentication failed" in error for error in errors)


def test_a_secured_node_grants_nothing_that_was_not_granted(secured: Cluster) -> None:
    create(secured.client_settings(), "granted-to-nobody")
    client = AdminClient({**secured.client_settings(clients.USER), **QUIET})
    assert "granted-to-nobody" not in client.list_topics(timeout=10).topics


@pytest.mark.parametrize(("authority", "served"), [("authority", True), ("untrusted", False)])
def test_a_secured_node_is_known_by_its_certificate(secured: Cluster, authority: str, served: bool) -> None:
    client = AdminClient(
        {**secured.client_settings(), **QUIET, "ssl.ca.location": str(getattr(secured.certificates, authority))}
    )
    if served:
        assert client.list_topics(timeout=10).brokers
    else:
        with pytest.raises(KafkaException):
            client.list_topics(timeout=3)


@pytest.mark.parametrize("shown", [True, False])
def test_a_client_may_show_a_certificate_instead_of_a_password(secured: Cluster, shown: bool) -> None:
    files = secured.certificates
    settings = {
        "bootstrap.servers": secured.certificate_bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(files.authority),
    }
    if shown:
        settings |= {
            "ssl.certificate.location": str(files.client_certificate),
            "ssl.key.location": str(files.client_key),
        }
    client = AdminClient({**settings, **QUIET})
    if shown:
        assert client.list_topics(timeout=10).brokers
    else:
        with pytest.raises(KafkaException):
            client.list_topics(timeout=3)
