"""What a user reads when a cluster cannot be used: the cause, in one line, in time, with an exit code that says whose
turn it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import started
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from deploy.kafka import clients
from deploy.kafka.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("secured"), secured=True) as cluster:
        admin = AdminClient(cluster.client_settings(clients.ADMIN))
        for done in admin.create_topics(
            [NewTopic("agents.task.request", 1, 1), NewTopic("agents.task.secret", 1, 1)]
        ).values():
            done.result(15)
        user = f"User:{clients.USER.username}"
        rights = [
            AclBinding(
                ResourceType.TOPIC,
                "agents.task.request",
                ResourcePatternType.LITERAL,
                user,
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in (AclOperation.DESCRIBE, AclOperation.WRITE)
        ]
        for done in admin.create_acls(rights).values():
            done.result(15)
        yield cluster


def publish(
    cluster: Cluster, message_type: str = "task.request", url: str = "", **settings: str
) -> tuple[int, str, float]:
    """Exit code, standard error, seconds."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SEALBUS_KAFKA__SECURITY_PROTOCOL": "sasl_ssl",
        "SEALBUS_KAFKA__CA_FILE": str(cluster.certificates.authority),
        "SEALBUS_KAFKA__USERNAME": clients.USER.username,
        "SEALBUS_KAFKA__PASSWORD": clients.USER.password,
        **{f"SEALBUS_KAFKA__{name.upper()}": value for name, value in settings.items()},
    }
    command = [
        sys.executable,
        "-m",
        "consumers.cli",
        "publish",
        message_type,
        "--type-version",
        "1.0.0",
        "--as",
        "a@b",
    ]
    started_s = time.monotonic()
    done = subprocess.run(
        [*command, "--bus", url or f"kafka://{cluster.bootstrap}"],
        env=environment,
        input=b'{"x":1}',
        capture_output=True,
        timeout=40,
        check=False,
    )
    return done.returncode, done.stderr.decode(), time.monotonic() - started_s


def test_the_right_settings_publish(secured: Cluster) -> None:
    code, text, _ = publish(secured)
    assert code == 0, text


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"password": "wrong"}, 78, "wrong user name or password"),
        ({"ca_file": "untrusted"}, 78, "its certificate is not accepted"),
        ({"message_type": "task.secret"}, 78, "does not let this user"),
        ({"message_type": "task.missing", "username": "admin"}, 78, "no topic agents.task.missing"),
        ({"url": "kafka://127.0.0.1:1"}, 69, "nothing listens at 127.0.0.1:1"),
        ({"security_protocol": "plaintext"}, 78, "kafka.security_protocol (plaintext) is not what this port speaks"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, 78, "SCRAM-SHA-256 is not offered there"),
        ({"url": "kafka://no-such-host.invalid:9092"}, 69, "host name in no-such-host.invalid:9092 is not known"),
    ],
)
def test_each_cause_has_its_own_line(secured: Cluster, changes: dict[str, str], code: int, sentence: str) -> None:
    if changes.get("ca_file") == "untrusted":
        changes = {"ca_file": str(secured.certificates.untrusted)}
    if changes.get("username") == "admin":
        changes = {**changes, "username": clients.ADMIN.username, "password": clients.ADMIN.password}
    exit_code, text, seconds = publish(secured, **changes)
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert (exit_code, len(errors)) == (code, 1), text
    assert sentence in errors[0]
    assert "Traceback" not in text
    assert seconds < 15


def test_a_client_certificate_is_enough_where_the_brokers_ask_for_one(secured: Cluster) -> None:
    certificates = secured.certificates
    admin = AdminClient(secured.client_settings(clients.ADMIN))
    right = AclBinding(
        ResourceType.TOPIC,
        "agents.task.request",
        ResourcePatternType.LITERAL,
        "User:CN=bus",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    for done in admin.create_acls([right]).values():
        done.result(15)
    given = {
        "security_protocol": "ssl",
        "cert_file": str(certificates.client_certificate),
        "key_file": str(certificates.client_key),
    }
    code, text, _ = publish(secured, url=f"kafka://{secured.certificate_bootstrap}", **given)
    assert code == 0, text
