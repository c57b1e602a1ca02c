"""What is shipped to deploy with: each file is judged by the tool that knows its form, offline."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from consumers.app.app import App
from consumers.cli import main

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


def verbs() -> dict[str, list[str]]:
    """By where it stands, the arguments of every call of `sealbus` that is shipped."""
    compose = documents(DEPLOY / "compose.yaml")[0]["services"]
    found = {name: compose[name]["command"] for name in ("worker", "exporter", "audit", "console")}
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
def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    found = run(str(BIN / "hadolint"), str(DEPLOY / "container" / "Dockerfile"))
    assert found.returncode == 0, found.stdout


@pytest.mark.medium
@pytest.mark.parametrize(
    "path",
    [
        path
        for path in MANIFESTS
        if path.name not in ("kustomization.yaml", "scaling.yaml", "topics.yaml", "users.yaml")
    ],
    ids=lambda path: path.name,
)
def test_kubernetes_takes_the_manifest(path: Path) -> None:
    found = run(str(BIN / "kubernetes-validate"), "--strict", str(path))
    assert found.returncode == 0, found.stdout + found.stderr


def test_kustomize_names_every_manifest() -> None:
    named = documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]["resources"]
    assert sorted([*named, "kustomization.yaml"]) == [path.name for path in MANIFESTS]


def test_manifests_fit_strimzi_and_keda_limits_workers_to_partitions() -> None:
    topics = documents(DEPLOY / "kubernetes" / "topics.yaml")
    users = documents(DEPLOY / "kubernetes" / "users.yaml")
    assert {each["apiVersion"] for each in topics + users} == {"kafka.strimzi.io/v1"}
    scaled = documents(DEPLOY / "kubernetes" / "scaling.yaml")[0]["spec"]
    partitions = {each["spec"]["topicName"]: each["spec"]["partitions"] for each in topics}
    assert scaled["maxReplicaCount"] <= partitions[scaled["triggers"][0]["metadata"]["topic"]]


def test_the_scaled_group_is_that_of_the_sample_worker() -> None:
    scaled = documents(DEPLOY / "kubernetes" / "scaling.yaml")[0]["spec"]
    assert scaled["triggers"][0]["metadata"]["consumerGroup"] == App("hello@svc").group


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
