"""deploy/kubernetes as a cluster reads it: Secrets, ConfigMaps, pods with their volumes, rights of Kafka users."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from ruamel.yaml import YAML

from tests.deploy.machines import ROOT, Mounted

__all__ = ["FOLDER", "Manifests", "Pod", "bindings_of", "documents", "image_of"]

FOLDER = ROOT / "deploy" / "kubernetes"
CONTAINER = ROOT / "deploy" / "container"


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in YAML(typ="safe").load_all(path.read_text()) if each]


def image_of(name: str) -> dict[str, str]:
    """What of the image *name* its pods rely on: the module that it holds and its environment."""
    if name.partition(":")[0] == "sealbus":
        return {}
    text = (CONTAINER / "worker.Dockerfile").read_text()
    assert "COPY agents.py /app/agents.py" in text
    assert "FROM sealbus:" in text
    return dict(line.removeprefix("ENV ").split("=", 1) for line in text.splitlines() if line.startswith("ENV "))


class Pod(NamedTuple):
    """The one container of a Deployment or Job."""

    name: str
    spec: Mapping[str, Any]
    labels: Mapping[str, str]

    @property
    def container(self) -> Mapping[str, Any]:
        (only,) = self.spec["containers"]
        return only

    @property
    def arguments(self) -> list[str]:
        return [str(word) for word in self.container["args"]]

    @property
    def user(self) -> int:
        assert self.spec["securityContext"]["runAsNonRoot"] is True
        return int(self.spec["securityContext"]["runAsUser"])

    @property
    def group(self) -> int:
        return int(self.spec["securityContext"].get("runAsGroup", 0))

    @property
    def groups(self) -> list[int]:
        return [self.group, int(self.spec["securityContext"]["fsGroup"])]

    def port(self, name: str) -> int:
        return next(int(each["containerPort"]) for each in self.container["ports"] if each["name"] == name)


class Manifests:
    """Everything in deploy/kubernetes. *secrets* replace the dummies of the example, and name each of them."""

    def __init__(self, secrets: Mapping[str, Mapping[str, str]], settings: Mapping[str, str]) -> None:
        self.objects = [each for path in sorted(FOLDER.glob("*.yaml")) for each in documents(path)]
        self.data: dict[tuple[str, str], dict[str, str]] = {}
        for each in self.objects:
            if each["kind"] == "ConfigMap":
                self.data["configMap", each["metadata"]["name"]] = dict(each["data"])
            if each["kind"] == "Secret":
                name = each["metadata"]["name"]
                assert set(each["stringData"]) == set(secrets[name]), name
                assert all("DUMMY-REPLACE-ME" in value for value in each["stringData"].values()), name
                self.data["secret", name] = dict(secrets[name])
        assert settings.keys() <= self.data["configMap", "sealbus"].keys()
        self.data["configMap", "sealbus"] |= settings

    def pod(self, name: str) -> Pod:
        (found,) = [
            each["spec"]["template"]
            for each in self.objects
            if each["kind"] in ("Deployment", "Job") and each["metadata"]["name"] == name
        ]
        return Pod(name, found["spec"], found["metadata"]["labels"])

    def environment(self, pod: Pod) -> dict[str, str]:
        """That of the image, then of envFrom, then of env."""
        found = {"HOME": "/app", **image_of(pod.container["image"])}
        for source in pod.container.get("envFrom", ()):
            ((kind, reference),) = source.items()
            found |= self.data[kind.removesuffix("Ref"), reference["name"]]
        return found | {each["name"]: str(each["value"]) for each in pod.container.get("env", ())}

    def lay_out(self, pod: Pod, folder: Path) -> list[Mounted]:
        """The volumes of *pod*, made in *folder* as kubelet makes them, and the files of its image."""
        sources = {volume["name"]: self._volume(volume, folder, pod) for volume in pod.spec["volumes"]}
        used = [mount["name"] for mount in pod.container["volumeMounts"]]
        assert sorted(used) == sorted(sources), pod.name
        found = [
            Mounted(mount["mountPath"], sources[mount["name"]], bool(mount.get("readOnly")))
            for mount in pod.container["volumeMounts"]
        ]
        if image_of(pod.container["image"]):
            found.append(Mounted("/app/agents.py", CONTAINER / "agents.py"))
        else:
            found.append(Mounted("/app", None))
        return found

    def _volume(self, volume: Mapping[str, Any], folder: Path, pod: Pod) -> Path:
        made = folder / pod.name / volume["name"]
        made.mkdir(parents=True)
        group = int(pod.spec["securityContext"]["fsGroup"])
        if "emptyDir" in volume:
            os.chown(made, 0, group)
            made.chmod(0o2777)
            return made
        kind = "secret" if "secret" in volume else "configMap"
        said = volume[kind]
        values = self.data[kind, said.get("secretName", said.get("name"))]
        items = {each["path"]: values[each["key"]] for each in said["items"]} if "items" in said else values
        mode = int(said.get("defaultMode", 0o644))
        data = made / "..2026_11_26_12_00_00.000000001"
        data.mkdir()
        for name, text in items.items():
            path = data / name
            path.write_text(text)
            os.chown(path, 0, group)
            path.chmod(mode | 0o440)
            (made / name).symlink_to(Path("..data") / name)
        (made / "..data").symlink_to(data.name)
        for each in (data, made):
            os.chown(each, 0, group)
            each.chmod(0o2755 if each is data else 0o3777 if kind == "secret" else 0o2777)
        return made


_OPERATIONS = {
    "Alter": AclOperation.ALTER,
    "AlterConfigs": AclOperation.ALTER_CONFIGS,
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
}
_RESOURCES = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "cluster": ResourceType.BROKER}
_PATTERNS = {"literal": ResourcePatternType.LITERAL, "prefix": ResourcePatternType.PREFIXED}


def bindings_of(users: Sequence[Mapping[str, Any]]) -> Iterator[AclBinding]:
    """The rights of Strimzi's KafkaUsers, as its operator grants them."""
    for user in users:
        for rule in user["spec"]["authorization"]["acls"]:
            resource = rule["resource"]
            for operation in rule["operations"]:
                yield AclBinding(
                    _RESOURCES[resource["type"]],
                    resource.get("name", "kafka-cluster"),
                    _PATTERNS[resource.get("patternType", "literal")],
                    f"User:{user['metadata']['name']}",
                    "*",
                    _OPERATIONS[operation],
                    AclPermissionType.ALLOW,
                )
