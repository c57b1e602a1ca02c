"""The pods of deploy/kubernetes come up: each is run with its command, user, volumes and environment of the manifests,
against a real Kafka with passwords, TLS and the rights of users.yaml, and a real PostgreSQL.

What is not Kubernetes here: no network policies, no limits of memory, one pod of each kind. Strimzi, KEDA and the
Prometheus operator are played: users and rights are made of their objects, and metrics are scraped by the PodMonitor's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from clusters import started
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from deploy.kafka.cluster import Cluster
from tests.deploy.machines import ROOT, Started, eventually, get, refuse_or_skip, relayed, sample, start
from tests.deploy.manifests import FOLDER, Manifests, Pod, bindings_of, documents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOKEN = secrets.token_urlsafe(18)
TARGETS = r"sealbus-(worker|exporter|audit|console|gateway)"
USERS = documents(FOLDER / "users.yaml")


class Cloud:
    """What the manifests stand on, and the pods that were started."""

    def __init__(self, cluster: Cluster, manifests: Manifests, folder: Path) -> None:
        self.cluster = cluster
        self.manifests = manifests
        self.folder = folder
        self.pods: dict[str, Started] = {}
        self.door_token = ""
        self._laid_out: dict[str, Any] = {}

    def start(self, name: str, *instead: str, stdin: bytes = b"") -> Started:
        """Start the pod *name*; with *instead*, another command of `sealbus` in it, as `kubectl exec` does."""
        pod = self.manifests.pod(name)
        if name not in self._laid_out:
            self._laid_out[name] = self.manifests.lay_out(pod, self.folder)
        begun = start(
            instead or pod.arguments,
            user=pod.user,
            group=pod.group,
            groups=pod.groups,
            environment=self.manifests.environment(pod),
            mounts=self._laid_out[name],
            log=self.folder / f"{name}{'-exec' if instead else ''}.log",
            cwd="/app",
            stdin=stdin,
        )
        if not instead:
            self.pods[name] = begun
        return begun

    def run(self, name: str, *instead: str, stdin: bytes = b"") -> str:
        """Wait for the end of what `start` begins; its output."""
        begun = self.start(name, *instead, stdin=stdin)
        self.pods = {each: pod for each, pod in self.pods.items() if pod is not begun}
        code = begun.process.wait(120)
        assert code == 0, begun.said()
        return begun.said()

    def close(self) -> None:
        for each in self.pods.values():
            if each.process.poll() is None:
                each.process.kill()
            each.process.wait()


def probe(pod: Pod, kind: str) -> bool:
    """Whether the probe *kind* of the manifest succeeds now, as kubelet judges it."""
    said = pod.container[kind]["httpGet"]
    headers = {each["name"]: each["value"] for each in said.get("httpHeaders", ())}
    status, _ = get(pod.port(said["port"]), said["path"], headers)
    return 200 <= status < 400


def metrics(pod: Pod) -> str:
    """What a Prometheus reads by the PodMonitor, whose selector must choose the pod, as a job that the alerts know."""
    (monitor,) = documents(FOLDER / "monitoring.yaml")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod.labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (rule,) = endpoint["relabelings"]
    job = rule["replacement"].replace("$1", pod.labels["app.kubernetes.io/name"])
    assert rule["targetLabel"] == "job"
    assert re.fullmatch(TARGETS, job), job
    status, text = get(pod.port(endpoint["port"]), endpoint.get("path", "/metrics"))
    assert status == 200, text
    return text


@pytest.fixture(scope="module")
def databases(postgres: Any) -> Iterator[tuple[str, str]]:
    """URLs of two databases, at a port."""
    inbox, audit = (asyncio.run(postgres.create_database()) for _ in range(2))
    socket = Path(parse_qs(urlsplit(inbox).query)["host"][0]) / ".s.PGSQL.5432"
    user = urlsplit(inbox).username
    with relayed(socket) as port:
        base = f"postgresql://{user}@127.0.0.1:{port}"
        yield f"{base}{urlsplit(inbox).path}", f"{base}{urlsplit(audit).path}"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, databases: tuple[str, str]) -> Iterator[Cloud]:
    refuse_or_skip()
    inbox, audit = databases
    folder = tmp_path_factory.mktemp("pods")
    keys = folder / "keys"
    command = [sys.executable, "-m", "consumers.cli", "key", "new", "hello@svc", "audit@sealbus", "--dir", str(keys)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    door_token = add_credential(keys, folder / "doors.toml")
    with started(tmp_path_factory.mktemp("secured"), secured=True) as cluster:
        passwords = {user["metadata"]["name"]: {"password": secrets.token_urlsafe(12)} for user in USERS}
        values = {
            "sealbus": {"SEALBUS_INBOX__URL": inbox, "SEALBUS_AUDIT__URL": audit},
            "sealbus-keys": {path.name: path.read_text() for path in keys.iterdir() if not path.name.startswith(".")},
            "sealbus-tokens": {
                "tokens.toml": f'[alice]\nsha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"\nscopes = ["read"]\n'
            },
            "sealbus-doors": {"doors.toml": (folder / "doors.toml").read_text()},
            "events-cluster-ca-cert": {"ca.crt": cluster.certificates.authority.read_text()},
            **passwords,
        }
        made = Cloud(cluster, Manifests(values, {"SEALBUS_BUS__URL": f"kafka://{cluster.bootstrap}"}), folder)
        made.door_token = door_token
        give_rights(AdminClient(cluster.client_settings()), passwords)
        yield made
        made.close()
        shutil.rmtree(folder)


def add_credential(keys: Path, doors: Path) -> str:
    """Let ci@example use the gateway, whose key is made in *keys*; its token."""
    words = ["door", "add", "ci", "--agent", "ci@example", "--to", "hello@svc", "--type", "hello.said", "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "consumers.cli", *words, "--doors", str(doors)],
        check=True,
        capture_output=True,
        cwd=keys.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SEALBUS_TRUST__KEYS": str(keys)},
    )
    return str(json.loads(done.stdout)["token"])


def give_rights(admin: AdminClient, passwords: Mapping[str, Mapping[str, str]]) -> None:
    """Make the Kafka users, as Strimzi's user operator does."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    made = admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(name, info, said["password"].encode()) for name, said in passwords.items()]
    )
    for done in (*made.values(), *admin.create_acls(list(bindings_of(USERS))).values()):
        done.result(20)


def test_the_pods_start_sign_process_are_scraped_and_drain(cloud: Cloud) -> None:
    eventually(lambda: logged_in(cloud))
    cloud.run("topics")
    assert set(topics(cloud)) == {each["spec"]["topicName"] for each in documents(FOLDER / "topics.yaml")}

    names = [each["metadata"]["name"] for each in cloud.manifests.objects if each["kind"] == "Deployment"]
    assert sorted(names) == ["audit", "console", "exporter", "gateway", "worker"]
    pods = {name: cloud.manifests.pod(name) for name in names}
    for name in names:
        cloud.start(name)
    running = list(cloud.pods.values())
    for name, pod in pods.items():
        limit = pod.container["startupProbe"]["periodSeconds"] * pod.container["startupProbe"]["failureThreshold"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            eventually(lambda: probe(pod, kind), running, limit)  # noqa: B023 - called here
        assert "not permitted" not in cloud.pods[name].said()

    # A message by the worker's own agent, and its signed answer.
    sent = cloud.run("worker", "publish", "hello.said", "--app", "agents:app", stdin=b'{"name": "Ada"}')
    assert "unsigned" not in sent
    eventually(lambda: records(cloud, "agents.hello.answered"), running)
    ((value, message_id),) = records(cloud, "agents.hello.answered")
    assert b"Hello, Ada!" in value
    # By the trusted keys of the settings, and its cause with it.
    assert "valid" in cloud.run("console", "verify", message_id)
    for topic in ("agents._directory", "agents._heartbeats"):
        assert records(cloud, topic), topic

    # A task of a program that has a token, answered by the worker to the gateway's mailbox.
    task = given_task(cloud, pods["gateway"])
    assert task["result"] == {"text": "Hello, Eve!"}, task
    for name, wanted in {
        "worker": lambda text: sample(text, "sealbus_settled_total") >= 1,
        "exporter": lambda text: all(
            # The groups of the worker and of the gateway have a member each.
            sample(text, f"sealbus_{name}") == wanted
            for name, wanted in {"survey_up": 1, "store_up": 1, "group_members": 2}.items()
        ),
        "audit": lambda text: sample(text, "sealbus_audit_rows_total") >= 2,
        "gateway": lambda text: sample(text, "sealbus_gateway_tasks_total") >= 1,
        "console": lambda text: "python_info" in text or "sealbus" in text,
    }.items():
        check: Callable[[str], bool] = wanted
        eventually(lambda: check(metrics(pods[name])), running)  # noqa: B023 - called here
    assert "hello-svc" in page(pods["console"])

    for name, begun in cloud.pods.items():
        begun.require_running()
        grace_s = pods[name].spec["terminationGracePeriodSeconds"]
        begun_s = time.monotonic()
        code = begun.end(grace_s)
        assert code in (0, 143), f"{name}: {begun.said()[-3000:]}"
        assert time.monotonic() - begun_s < grace_s
    assert cloud.pods["worker"].process.returncode == 0
    for name, begun in cloud.pods.items():
        said = begun.said()
        for fault in ("Traceback", "not permitted", "unsigned", "no_checkpoints"):
            assert fault not in said, f"{name}: {said[-3000:]}"


def given_task(cloud: Cloud, pod: Pod) -> dict[str, Any]:
    """The end of a task that is given over HTTP."""
    import httpx

    body = {"to": "hello@svc", "message_type": "hello.said", "data": {"name": "Eve"}}
    headers = {"Authorization": f"Bearer {cloud.door_token}", "Prefer": "wait=40"}
    answer = httpx.post(
        f"http://127.0.0.1:{pod.port('http')}/tasks", json=body, headers=headers, timeout=60, trust_env=False
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def logged_in(cloud: Cloud) -> bool:
    """Whether the brokers know the users: their passwords take a moment."""
    pod = cloud.manifests.pod("topics")
    user = cloud.manifests.environment(pod)["SEALBUS_KAFKA__USERNAME"]
    password = cloud.manifests.data["secret", user]["password"]
    try:
        client = AdminClient(
            cloud.cluster.client_settings() | {"sasl.username": user, "sasl.password": password, "log_level": 0}
        )
        client.list_topics(timeout=5)
    except Exception:  # noqa: BLE001 - not yet
        return False
    return True


def topics(cloud: Cloud) -> list[str]:
    found = AdminClient(cloud.cluster.client_settings()).list_topics(timeout=20).topics
    return [name for name in found if not name.startswith("__")]


def records(cloud: Cloud, topic: str) -> list[tuple[bytes, str]]:
    """Values and message ids of the records of *topic*."""
    client = Consumer(
        cloud.cluster.client_settings()
        | {"group.id": secrets.token_hex(8), "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    found: list[tuple[bytes, str]] = []
    client.subscribe([topic])
    give_up_s = time.monotonic() + 15
    while time.monotonic() < give_up_s:
        record = client.poll(1.0)
        if record is None:
            if found:
                break
            continue
        if not record.error():
            message_id = dict(record.headers() or []).get("sb-id")
            found.append((record.value() or b"", message_id.decode() if isinstance(message_id, bytes) else ""))
    client.close()
    return found


def page(pod: Pod) -> str:
    """The console's page of groups, for somebody who has logged in with the token."""
    import httpx

    base = f"http://127.0.0.1:{pod.port('http')}"
    with httpx.Client(base_url=base, follow_redirects=True, headers={"origin": base}) as client:
        assert client.get("/groups").url.path == "/login"
        form = client.get("/login").text
        field = re.search(
            r'<input[^>]+type="password"[^>]+name="(\w+)"|<input[^>]+name="(\w+)"[^>]+type="password"', form
        )
        assert field is not None, form
        client.post("/login", data={field.group(1) or field.group(2): TOKEN})
        answer = client.get("/groups")
    assert answer.status_code == 200
    return answer.text
