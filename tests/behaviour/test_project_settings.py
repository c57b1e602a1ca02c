"""Programs read the same `sealbus.toml` as commands do: `connect`, `app.running`, the outbox, and `app.test()`."""

from __future__ import annotations

import inspect
from pathlib import Path

import msgspec
import pytest

from producers.connection import connect
from producers.outbox.outbox import Outbox
from producers.sync_connection import connect_sync
from sealbus import App, PublishRejected, payload

DENY_ALL = '[[agents]]\nid = "shop@svc"\n'


@payload("project.order", version="1.0.0", performative="request")
class Order(msgspec.Struct, frozen=True, kw_only=True):
    number: int


app = App("worker@svc")


@app.on(Order)
async def book(order: Order) -> None:
    """Take it."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with settings; the current folder is one of its folders."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "sealbus.toml").write_text('[bus]\nurl = "sqlite:///desk.db"\nnamespace = "desk"\n')
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    return tmp_path


async def test_connect_uses_the_log_of_the_project(project: Path) -> None:
    async with connect(agent="shop@svc", env={}) as bus:
        receipt = await bus.publish(Order(number=1))
    assert (receipt.topic, (project / "desk.db").exists()) == ("desk.project.order", True)


async def test_what_is_given_to_connect_comes_first(project: Path) -> None:
    async with connect("memory://", agent="shop@svc", namespace="other", env={}) as bus:
        receipt = await bus.publish(Order(number=1))
    assert receipt.topic == "other.project.order"
    assert not (project / "desk.db").exists()


def test_connect_sync_uses_the_log_of_the_project(project: Path) -> None:
    with connect_sync(agent="shop@svc", env={}) as bus:
        assert bus.publish(Order(number=1)).topic == "desk.project.order"


async def test_a_running_app_uses_the_log_of_the_project(project: Path) -> None:
    async with app.running() as bus:
        assert (await bus.publish(Order(number=1))).topic == "desk.project.order"
    assert (project / "desk.db").exists()


def test_an_outbox_uses_the_namespace_of_the_project(project: Path) -> None:
    assert Outbox("shop@svc", env={}).namespace == "desk"


def with_policy(project: Path) -> None:
    (project / "policy.toml").write_text(DENY_ALL)
    (project / "policy.toml").chmod(0o600)
    with (project / "sealbus.toml").open("a") as settings:
        settings.write('[policy]\nfile = "policy.toml"\n')


async def test_a_test_is_held_to_the_policy_of_the_project(project: Path) -> None:
    with_policy(project)
    async with app.test() as bus:
        with pytest.raises(PublishRejected, match="rule no-match"):
            await bus.publish(Order(number=1))


async def test_a_test_is_held_to_the_policy_of_the_environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_policy(project)
    (project / "sealbus.toml").unlink()
    monkeypatch.setenv("SEALBUS_POLICY__FILE", str(project / "policy.toml"))
    async with app.test() as bus:
        with pytest.raises(PublishRejected, match="rule no-match"):
            await bus.publish(Order(number=1))


async def test_a_test_reaches_nothing_that_the_settings_name(project: Path) -> None:
    """Neither the log, the inbox, the keys nor the brokers' secrets of a deployment are at hand where tests run."""
    (project / "sealbus.toml").write_text(
        """
        [bus]
        url = "kafka://broker.invalid:9092"
        [kafka]
        security_protocol = "sasl_ssl"
        username = "desk"
        ca_file = "ca.pem"
        [inbox]
        url = "postgresql://desk@database.invalid/desk"
        [trust]
        keys = "keys"
        key_file = "keys"
        [worker]
        concurrency = 3
        """
    )
    async with app.test() as bus:
        await bus.publish(Order(number=1))
        await bus.settle()
        bus.assert_all_handled()
        assert bus.publisher.settings.worker.concurrency == 3
    assert [path.name for path in project.iterdir() if path.name not in ("src", "pyproject.toml")] == ["sealbus.toml"]


def test_the_public_calls_say_where_settings_come_from() -> None:
    for call in (connect, App.running, Outbox):
        assert "sealbus.toml" in (inspect.getdoc(call) or "")
