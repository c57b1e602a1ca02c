"""What an app needs and the configuration lacks: known at start where it can be, else messages wait; none dies of
it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.settings.loading import load
from bus.settings.schema import Settings
from consumers.worker.startup_checks import check_artifacts, check_hash_seed, check_needs
from sealbus import App, Context, payload
from sealbus.errors import ConfigurationError
from sealbus.sagas import Saga, SagaContext, on_start
from sealbus.trust import PolicyFile
from tests.kit import Job, handling


@payload("needs.payment", risk="high")
class Payment(msgspec.Struct, frozen=True):
    number: int


class Keys:
    """Signs everything, and finds every signature good."""

    kid, alg = "k", "HS256"

    def sign(self, signing_input: bytes) -> bytes:
        return b"signed"

    def judge(self, *_: object) -> None:
        return None


def settings(**flags: object) -> Settings:
    return load(flags={"bus.url": "memory://", **flags}, env={}, file=None).settings


def orders(**options: Any) -> App:
    app = App("needs@tests")

    @app.on(Job, **options)
    async def handle(order: Job, context: Context) -> None:
        await (await context.transaction()).execute("SELECT $1", order.number)

    return app


async def test_a_message_whose_handler_needs_an_inbox_that_is_off_waits_and_does_not_die() -> None:
    async with orders().test(settings=settings(**{"inbox.url": "off"})) as bus:
        await bus.publish(Job(1), idempotency_key="one", ttl_s=3_000)
        await bus.publish(Job(2), ttl_s=3_000)
        await bus.advance(2_000)
        assert not bus.dead_letters
        await bus.advance(2_000)
        assert {letter.reason for letter in bus.dead_letters} == {"expired"}


async def test_a_message_without_a_key_is_told_apart_from_a_missing_inbox() -> None:
    async with orders().test() as bus:
        await bus.publish(Job(1))
        await bus.settle()
        assert [(letter.reason, letter.pointer) for letter in bus.dead_letters] == [
            ("rejected", "/routing/idempotency_key")
        ]


async def test_an_output_that_nobody_can_sign_here_waits_for_the_signer() -> None:
    app = App("needs@tests")

    @app.on(Job)
    async def handle(order: Job, context: Context) -> None:
        context.send(Payment(order.number))

    async with app.test() as bus:
        await bus.publish(Job(1), ttl_s=3_000)
        await bus.advance(2_000)
        assert not bus.dead_letters
        app.signer = Keys()


def test_problems_detectable_at_start_are_reported() -> None:
    check_needs(orders().declaration, has_inbox=False)
    with pytest.raises(ConfigurationError, match=r"job\.asked .*inbox\.url"):
        check_needs(orders(dedup="always").declaration, has_inbox=False)
    check_needs(orders(dedup="always").declaration, has_inbox=True)


def test_high_risk_without_keys_is_refused_at_start() -> None:
    with pytest.raises(ConfigurationError, match="signer"):
        check_needs(App("needs@tests", types=[Payment]).declaration, has_inbox=True)
    app = handling(App("needs@tests"), Payment)
    with pytest.raises(ConfigurationError, match="verifier"):
        check_needs(app.declaration, has_inbox=True)
    keys = Keys()
    check_needs(App("needs@tests", types=[Payment], signer=keys, verifier=keys).declaration, has_inbox=False)


async def test_a_handler_without_a_timeout_of_its_own_may_run_until_its_message_expires() -> None:
    app, left = App("needs@tests"), list[float]()

    @app.on(Job, timeout_s=None)
    async def handle(order: Job, context: Context) -> None:
        left.append(context.remaining_s)

    async with app.test(settings=settings(**{"worker.timeout_s": 60})) as bus:
        await bus.publish(Job(1), ttl_s=3_600)
        await bus.settle()
    assert left == [3_600.0]


@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_a_fixed_hash_seed_is_refused(seed: str) -> None:
    with pytest.raises(ConfigurationError, match="PYTHONHASHSEED"):
        check_hash_seed({"PYTHONHASHSEED": seed})
    check_hash_seed({"PYTHONHASHSEED": "random"})
    check_hash_seed({})


RULES = """
[[agents]]
id = "needs@tests"
{groups}

[[rules]]
id = "everybody"
effect = "allow"
action = ["publish", "handle"]
types = "**"
"""


@pytest.mark.parametrize(("groups", "is_fine"), [("", False), ('groups = ["dep"]', True)])
def test_a_group_not_allowed_by_the_policy_is_refused_with_the_missing_rule(
    tmp_path: Path, groups: str, is_fine: bool
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(RULES.replace("{groups}", groups), "utf-8")
    app = App("needs@tests", group="dep", policy=PolicyFile(path), verifier=Keys())
    app.add(Waiting)
    if is_fine:
        check_needs(app.declaration, has_inbox=True)
    else:
        with pytest.raises(ConfigurationError, match=r'groups = \["dep"\]'):
            check_needs(app.declaration, has_inbox=True)


class Nothing(msgspec.Struct):
    pass


class Waiting(Saga[Nothing], version="1.0.0"):
    @on_start(Job)
    async def placed(self, order: Job, context: SagaContext) -> None: ...


def test_a_folder_for_artifacts_that_cannot_be_used_is_named_at_the_start(tmp_path: Path) -> None:
    check_artifacts(settings())
    check_artifacts(settings(**{"artifacts.url": f"file://{tmp_path}/deep/artifacts"}))
    assert (tmp_path / "deep/artifacts").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"artifacts\.url: .* cannot be made \(Not a directory\)"):
        check_artifacts(settings(**{"artifacts.url": f"file://{tmp_path}/file/artifacts"}))
