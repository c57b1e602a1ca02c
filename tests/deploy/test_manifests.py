"""What is shipped to deploy with: each file is judged by the tool that knows its form, offline."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from bus.errors import ConfigurationError
from bus.settings.loading import load
from bus.topics.names import consumer_group
from bus.transports.kafka import options_of
from bus.transports.kafka.admin.topic_config import shape
from bus.trust.keys.private_keys import read_private_key
from bus.trust.keys.trusted_keys import TrustedKeys
from bus.trust.policy.acls import acl_grants
from bus.trust.policy.reading import read_policy
from consumers.agents.loading import load_app
from consumers.app.app import App
from consumers.cli import main
from consumers.gateway.agents import GATEWAY_GROUP
from consumers.gateway.app import GatewayApp
from consumers.worker.needed_topics import needed_topics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BIN = Path(sys.executable).parent
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in YAML(typ="safe").load_all(path.read_text()) if each]


def containers() -> list[dict[str, Any]]:
    found = [each for path in MANIFESTS for each in documents(path) if each["kind"] == "Deployment"]
    return [container for each in found for container in each["spec"]["template"]["spec"]["containers"]]


def sample_app() -> App:
    return load_app("agents:app", DEPLOY / "container")


def verbs() -> dict[str, list[str]]:
    """By where it stands, the arguments of every call of `sealbus` that is shipped."""
    compose = documents(DEPLOY / "compose.yaml")[0]["services"]
    found = {name: compose[name]["command"] for name in ("worker", "exporter", "audit", "console", "gateway")}
    found |= {f"kubernetes {number}": container["args"] for number, container in enumerate(containers())}
    for unit in UNITS:
        found[unit.name] = re.findall(r"^ExecStart=/usr/bin/env sealbus (.*)$", unit.read_text(), re.MULTILINE)[
            0
        ].split()
    return found


@pytest.mark.medium
def test_compose_is_of_its_schema() -> None:
    found = run(str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml"))
    assert found.returncode == 0, found.stdout


@pytest.mark.medium
@pytest.mark.parametrize("name", ["Dockerfile", "worker.Dockerfile"])
def test_hadolint_finds_nothing_in_the_dockerfile(name: str) -> None:
    found = run(str(BIN / "hadolint"), str(DEPLOY / "container" / name))
    assert found.returncode == 0, found.stdout


@pytest.mark.medium
@pytest.mark.parametrize(
    "path",
    [
        path
        for path in MANIFESTS
        if path.name not in ("kustomization.yaml", "monitoring.yaml", "scaling.yaml", "topics.yaml", "users.yaml")
    ],
    ids=lambda path: path.name,
)
def test_kubernetes_takes_the_manifest(path: Path) -> None:
    found = run(str(BIN / "kubernetes-validate"), "--strict", str(path))
    assert found.returncode == 0, found.stdout + found.stderr


def test_kustomize_names_every_manifest_but_the_dummy_secrets() -> None:
    named = documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]["resources"]
    assert sorted([*named, "kustomization.yaml", "secrets.example.yaml"]) == [path.name for path in MANIFESTS]


def test_every_image_of_a_pod_has_its_place_in_the_registry() -> None:
    images = {
        each["name"]: each["newTag"] for each in documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]["images"]
    }
    assert {container["image"] for container in containers()} == {f"{name}:{tag}" for name, tag in images.items()}


def test_topics_are_those_that_the_sample_app_and_the_gateway_need() -> None:
    settings = load(flags={"bus.url": "kafka://events:9093"}, env={}, file=None).settings
    wanted = {
        spec.name: shape(spec, None, brokers=3, max_record_bytes=options_of(settings)["max_record_bytes"])
        for app in (sample_app(), GatewayApp())
        for spec in needed_topics(settings, app.declaration)
    }
    found = {}
    for each in documents(DEPLOY / "kubernetes" / "topics.yaml"):
        spec = each["spec"]
        assert each["metadata"]["name"] == spec["topicName"].replace("._", ".x-")
        config = {name: str(value).lower() for name, value in spec["config"].items()}
        config["message.timestamp.type"] = spec["config"]["message.timestamp.type"]
        found[spec["topicName"]] = {"partitions": str(spec["partitions"]), "replicas": str(spec["replicas"]), **config}
    assert found == wanted


def test_the_rights_of_the_worker_are_those_of_its_policy(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(documents(DEPLOY / "kubernetes" / "settings.yaml")[1]["data"]["policy.toml"])
    types = {"hello.said", "hello.answered"}
    rules = read_policy(policy)
    wanted: dict[tuple[str, str, bool], set[str]] = {}
    for grant in acl_grants(rules, namespace="agents", types=types, tiers=("5s", "30s", "5m")):
        for name in grant.names if grant.agent == "hello@svc" else ():
            wanted.setdefault((grant.kind, name, grant.prefixed), set()).update(grant.operations)
    users = {each["metadata"]["name"]: each["spec"] for each in documents(DEPLOY / "kubernetes" / "users.yaml")}
    found = {
        (each["resource"]["type"], each["resource"]["name"], each["resource"]["patternType"] == "prefix"): set(
            each["operations"]
        )
        for each in users["hello-svc"]["authorization"]["acls"]
    }
    assert found == wanted


def test_the_gateway_has_a_right_on_each_topic_that_it_reads_or_sends_to() -> None:
    settings = load(flags={"bus.url": "kafka://events:9093"}, env={}, file=None).settings
    users = {each["metadata"]["name"]: each["spec"] for each in documents(DEPLOY / "kubernetes" / "users.yaml")}
    rules = [(each["resource"], set(each["operations"])) for each in users["sealbus-gateway"]["authorization"]["acls"]]

    def granted(topic: str) -> set[str]:
        return {
            operation
            for resource, operations in rules
            if resource["type"] == "topic"
            and (
                topic == resource["name"]
                or (resource["patternType"] == "prefix" and topic.startswith(resource["name"]))
            )
            for operation in operations
        }

    namespace = settings.bus.namespace
    for spec in needed_topics(settings, GatewayApp().declaration):
        assert "Describe" in granted(spec.name)
        if "._mail.doors" in spec.name or "._retry.doors" in spec.name or "._redrive.doors" in spec.name:
            assert {"Read", "Write"} <= granted(spec.name), spec.name
    policy = documents(DEPLOY / "kubernetes" / "settings.yaml")[1]["data"]["policy.toml"]
    (rule,) = [each for each in tomllib.loads(policy)["rules"] if each["id"] == "door-ci"]
    for name in rule["types"]:
        assert "Write" in granted(f"{namespace}.{name}"), name
    (group,) = [resource["name"] for resource, _ in rules if resource["type"] == "group"]
    assert group == consumer_group(namespace, GATEWAY_GROUP)


def test_manifests_fit_strimzi_and_keda_limits_workers_to_partitions() -> None:
    topics = documents(DEPLOY / "kubernetes" / "topics.yaml")
    users = documents(DEPLOY / "kubernetes" / "users.yaml")
    assert {each["apiVersion"] for each in topics + users} == {"kafka.strimzi.io/v1"}
    scaled = documents(DEPLOY / "kubernetes" / "scaling.yaml")[1]["spec"]
    partitions = {each["spec"]["topicName"]: each["spec"]["partitions"] for each in topics}
    assert scaled["maxReplicaCount"] <= partitions[scaled["triggers"][0]["metadata"]["topic"]]


def test_the_scaled_group_is_that_of_the_sample_worker() -> None:
    scaled = documents(DEPLOY / "kubernetes" / "scaling.yaml")[1]["spec"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["consumerGroup"] == consumer_group("agents", sample_app().group)


def test_nothing_starts_with_the_dummy_keys(tmp_path: Path) -> None:
    secrets = {each["metadata"]["name"]: each for each in documents(DEPLOY / "kubernetes" / "secrets.example.yaml")}
    for name, text in secrets["sealbus-keys"]["stringData"].items():
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(ConfigurationError):
            TrustedKeys(path) if path.suffix == ".json" else read_private_key(path)


def test_nothing_runs_as_root_or_writes_to_its_root() -> None:
    assert "USER 10001" in (DEPLOY / "container" / "Dockerfile").read_text()
    for container in containers():
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.medium
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_unit_and_finds_it_safe(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    name = unit.name.replace("@.", "@agents.")
    copied = tmp_path / name
    shutil.copy(unit, copied)
    found = run("systemd-analyze", "verify", "--man=no", str(copied))
    assert name not in found.stderr, found.stderr
    judged = run("systemd-analyze", "security", "--offline=yes", "--threshold=30", str(copied))
    assert judged.returncode == 0, judged.stdout


def test_every_shipped_call_is_one_that_the_command_line_knows() -> None:
    for place, words in verbs().items():
        command: click.Command = main
        context = click.Context(main, info_name="sealbus")
        for word in map(str, words):
            if not isinstance(command, click.Group):
                break
            found = command.get_command(context, word)
            assert found is not None, f"{place}: {word}"
            command = found
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in map(str, words) if word.startswith("--")} <= options, place
