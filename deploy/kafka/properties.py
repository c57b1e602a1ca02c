"""What a node is told: its server.properties, as a pure function of the shape of the cluster.

Owns every setting and its reason. Does not own files, ports or processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CLUSTER_ID", "MECHANISM", "Address", "Login", "Security", "render", "server_properties"]

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
MECHANISM = "SCRAM-SHA-512"

# Small internal topics and short elections start faster; the short session lets a killed broker return within seconds
# instead of waiting out its old self.
_COMMON = {
    "offsets.topic.num.partitions": "4",
    "offsets.retention.minutes": "20160",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "200",
}


@dataclass(frozen=True)
class Login:
    """A user of the secured cluster."""

    username: str
    password: str


@dataclass(frozen=True)
class Security:
    """What makes a cluster secured: its certificates and who may do everything."""

    keystore: Path
    authority: Path
    certificate_name: str
    admin: Login


@dataclass(frozen=True)
class Address:
    """Where one node listens; a port is None where the node has no such listener."""

    id: int
    client_port: int | None
    controller_port: int | None
    certificate_port: int | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(
            port for port in (self.client_port, self.controller_port, self.certificate_port) if port is not None
        )

    @property
    def roles(self) -> str:
        """The value of process.roles."""
        roles = (("broker", self.client_port), ("controller", self.controller_port))
        return ",".join(role for role, port in roles if port is not None)


def server_properties(
    node: Address, nodes: Sequence[Address], *, data: Path, security: Security | None, settings: Mapping[str, str]
) -> dict[str, str]:
    """Everything the node reads at its start; *settings* win over all of it."""
    voters = ",".join(
        f"{each.id}@127.0.0.1:{each.controller_port}" for each in nodes if each.controller_port is not None
    )
    return {
        "process.roles": node.roles,
        "node.id": str(node.id),
        "controller.quorum.voters": voters,
        "log.dirs": str(data),
        **_listeners(node, secured=security is not None),
        **_replication(sum(each.client_port is not None for each in nodes)),
        **_COMMON,
        **(_security(security) if security else {}),
        **settings,
    }


def render(properties: Mapping[str, str]) -> str:
    """Write them in the format of a .properties file."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in properties.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _listeners(node: Address, *, secured: bool) -> dict[str, str]:
    protocol = "SASL_SSL" if secured else "PLAINTEXT"
    clients = [
        f"{name}://127.0.0.1:{port}"
        for name, port in ((protocol, node.client_port), ("SSL", node.certificate_port))
        if port is not None
    ]
    controller = [f"CONTROLLER://127.0.0.1:{node.controller_port}"] if node.controller_port is not None else []
    listeners = {
        "listeners": ",".join(clients + controller),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": (
            f"CONTROLLER:{'SSL' if secured else 'PLAINTEXT'},{protocol}:{protocol},SSL:SSL"
        ),
    }
    if clients:
        listeners |= {"advertised.listeners": ",".join(clients), "inter.broker.listener.name": protocol}
    return listeners


def _replication(brokers: int) -> dict[str, str]:
    factor = str(min(brokers, 3))
    min_in_sync = "2" if brokers >= 3 else "1"  # noqa: PLR2004 - the usual three replicas survive the loss of one
    return {
        "default.replication.factor": factor,
        "min.insync.replicas": min_in_sync,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": min_in_sync,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": min_in_sync,
    }


def _security(security: Security) -> dict[str, str]:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return {
        # Whoever reaches the controller may do everything, so it asks for a certificate too.
        "listener.name.controller.ssl.client.auth": "required",
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": (
            f'{login} username="{security.admin.username}" password="{security.admin.password}";'
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(security.keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(security.authority),
        "ssl.client.auth": "none",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{security.admin.username};User:CN={security.certificate_name}",
        "allow.everyone.if.no.acl.found": "false",
    }
