"""What nodes are told, without starting any."""

from __future__ import annotations

from pathlib import Path

from deploy.kafka.properties import Address, Login, Security, render, server_properties

DATA = Path("data")


def told(*nodes: Address, security: Security | None = None, **settings: str) -> dict[str, str]:
    return server_properties(
        nodes[0],
        nodes,
        data=DATA,
        security=security,
        settings={name.replace("_", "."): value for name, value in settings.items()},
    )


def test_one_node_replicates_once() -> None:
    properties = told(Address(1, 20001, 20002))
    assert properties["process.roles"] == "broker,controller"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:20002"
    assert properties["default.replication.factor"] == properties["min.insync.replicas"] == "1"


def test_three_nodes_replicate_three_times_and_survive_the_loss_of_one() -> None:
    properties = told(*(Address(number, 20000 + number, 21000 + number) for number in (1, 2, 3)))
    assert properties["default.replication.factor"] == "3"
    assert properties["min.insync.replicas"] == "2"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:21001,2@127.0.0.1:21002,3@127.0.0.1:21003"


def test_a_controller_of_its_own_takes_no_clients_and_brokers_have_no_vote() -> None:
    controller, broker = Address(100, None, 21000), Address(1, 20001, None)
    assert told(controller, broker)["listeners"] == "CONTROLLER://127.0.0.1:21000"
    properties = told(broker, controller)
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert properties["process.roles"] == "broker"
    assert properties["controller.quorum.voters"] == "100@127.0.0.1:21000"


def test_settings_win_over_the_defaults() -> None:
    assert told(Address(1, 20001, 20002))["auto.create.topics.enable"] == "false"
    assert told(Address(1, 20001, 20002), auto_create_topics_enable="true")["auto.create.topics.enable"] == "true"


def test_a_secured_controller_asks_for_certificates_and_nobody_is_a_guest() -> None:
    security = Security(
        keystore=Path("k"), authority=Path("a"), certificate_name="localhost", admin=Login("admin", "secret")
    )
    properties = told(Address(1, 20001, 20002, 20003), security=security)
    assert properties["listeners"] == "SASL_SSL://127.0.0.1:20001,SSL://127.0.0.1:20003,CONTROLLER://127.0.0.1:20002"
    assert properties["listener.name.controller.ssl.client.auth"] == "required"
    assert properties["allow.everyone.if.no.acl.found"] == "false"
    assert "ANONYMOUS" not in properties["super.users"]
    assert "PLAINTEXT" not in properties["listener.security.protocol.map"]


def test_values_are_written_on_one_line() -> None:
    assert render({"a": "b\nc", "log.dirs": "x\\y"}) == "a=b\\nc\nlog.dirs=x\\\\y\n"
