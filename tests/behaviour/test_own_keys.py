"""What an agent's own key may not sign is refused before it is sealed, and a worker waits for one that may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from bus.errors import ConfigurationError
from bus.payloads.payload_types import payload_type
from bus.settings.loading import load
from bus.transports.read_all import scan_topic
from bus.trust.keys.generated_keys import GeneratedKeys
from bus.trust.keys.key_directory import TrustedKey
from bus.trust.keys.private_keys import SigningKey
from bus.trust.keys.trusted_keys import TrustedKeys
from consumers.app.app import App
from consumers.delivery.context import Context
from producers.connection import connect
from producers.outcomes import PublishRejected
from tests.keyrings import jwks_of, write_keys
from tests.kit import Done, Job, handling

DAY_MS = 86_400_000


def numbers(bus: Any, cls: type[Any]) -> list[int]:
    return [payload_type(cls).decode(message.data).number for message in bus.messages(cls)]


class Limits(dict[str, dict[str, Any]]):
    """Agent -> what its key is limited to from now on."""


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Limits of generated keys, which have none of their own."""
    found = Limits()

    def key_named(self: GeneratedKeys, kid: str) -> TrustedKey | None:
        key = self._directory.key_named(kid)
        return None if key is None else msgspec.structs.replace(key, **found.get(min(key.principals), {}))

    monkeypatch.setattr(GeneratedKeys, "key_named", key_named)
    return found


LIMITED = [
    ({"not_after_ms": 0}, "key_expired", "ended at 1970-01-01T00:00:00.000Z: `sealbus key rotate planner@svc`"),
    ({"not_before_ms": 2**42}, "key_expired", "is not valid before 2109"),
    ({"revoked_at_ms": 0}, "key_revoked", "was revoked at 1970"),
    ({"types": ("other.*",)}, "unauthorized", "may not sign job.asked"),
    ({"namespaces": frozenset({"elsewhere"})}, "sender_mismatch", "signs in elsewhere, not in agents"),
    ({"principals": frozenset({"planner@svc-2"})}, "sender_mismatch", "not for planner@svc"),
]


@pytest.mark.parametrize(("limit", "reason", "said"), LIMITED)
async def test_publish_refuses_what_the_key_may_not_sign(
    limits: Limits, limit: dict[str, Any], reason: str, said: str
) -> None:
    async with App("reader@svc").test(keys=True) as bus:
        planner = bus.as_agent("planner@svc")
        await planner.publish(Job(number=1))
        limits["planner@svc"] = limit
        limits["planner@svc-2"] = limit
        for _ in range(3):
            with pytest.raises(PublishRejected) as caught:
                await planner.publish(Job(number=2))
            assert (caught.value.reason, caught.value.pointer) == (reason, "/verification/signature")
            assert said in str(caught.value)
        with pytest.raises(PublishRejected, match=r"not sent"):
            await planner.request(Job(number=3), Done, timeout_s=1)
        limits.clear()
        await planner.publish(Job(number=4))
        lying = [record async for record in scan_topic(bus.transport, "agents.job.asked")]
        assert sorted(json.loads(record.value or b"")["data"]["number"] for record in lying) == [1, 4]


async def test_a_worker_runs_nothing_while_its_key_may_not_sign(limits: Limits) -> None:
    runs: list[int] = []
    app = App("worker@svc")

    @app.on(Job)
    async def answer(asked: Job) -> Done:
        runs.append(asked.number)
        return Done(number=asked.number)

    async with app.test(keys=True) as bus:
        limits["worker@svc"] = {"not_after_ms": 0}
        with structlog.testing.capture_logs() as logs:
            await bus.publish(Job(number=1))
            await bus.advance(60)
        assert (runs, bus.dead_letters, bus.sent(Done)) == ([], [], [])
        told = [line for line in logs if line["event"] == "trust.key_refused"]
        assert [line["reason"] for line in told] == ["key_expired"]
        limits.clear()
        await bus.advance(10)
        bus.assert_all_handled()
        assert runs == [1]
        assert numbers(bus, Done) == [1]


async def test_outputs_wait_for_a_new_key_when_the_key_has_expired(limits: Limits) -> None:
    app = App("worker@svc")

    @app.on(Job)
    async def answer(asked: Job, context: Context) -> Done:
        if context.attempt == 1 and not limits:
            limits["worker@svc"] = {"not_after_ms": 0}
        return Done(number=asked.number)

    async with app.test(keys=True) as bus:
        await bus.publish(Job(number=1))
        await bus.advance(120)
        assert (bus.dead_letters, bus.messages(Done)) == ([], [])
        limits["worker@svc"] = {"not_after_ms": 2**42}
        await bus.advance(600)
        bus.assert_all_handled()
        assert numbers(bus, Done) == [1]


async def test_a_worker_warns_two_weeks_before_its_key_expires(limits: Limits) -> None:
    app = handling(App("worker@svc"), Job)
    async with app.test(keys=True) as bus:

        def expiry() -> float | None:
            registry = bus.publisher.metrics.registry
            return registry.get_sample_value("sealbus_key_expiry_timestamp_seconds", {"agent": "worker@svc"})

        await bus.settle()
        assert expiry() == float("inf")
        for left_ms, is_told in ((15 * DAY_MS, False), (13 * DAY_MS, True)):
            end_ms = bus.clock.now_ms() + left_ms
            limits["worker@svc"] = {"not_after_ms": end_ms}
            with structlog.testing.capture_logs() as logs:
                await bus.settle()
            assert expiry() == end_ms / 1000
            told = [line for line in logs if line["event"] == "trust.key_ends"]
            assert bool(told) == is_told
            assert all("sealbus key rotate worker@svc" in line["detail"] for line in told)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_keys(tmp_path / "keys", "planner@svc", "eve@svc").parent


def settings_of(folder: Path, private: str) -> Any:
    flags = {"trust.keys": str(folder / "jwks.json"), "trust.key_file": str(folder / private), "bus": "memory://"}
    return load(flags=flags, env={}, file=None).settings


async def test_an_agent_with_the_key_of_another_does_not_connect(folder: Path) -> None:
    async with connect(settings=settings_of(folder, "planner.pem"), agent="planner@svc"):
        pass
    with pytest.raises(ConfigurationError, match=r"signs for eve@svc, not for planner@svc"):
        async with connect(settings=settings_of(folder, "eve.pem"), agent="planner@svc"):
            pass
    with pytest.raises(ConfigurationError, match=r"the agent and its key do not fit"):
        async with connect(
            "memory://",
            agent="planner@svc",
            signer=SigningKey(folder / "eve.pem"),
            verifier=TrustedKeys(folder / "jwks.json"),
        ):
            pass


async def test_an_app_with_the_key_of_another_does_not_start(folder: Path) -> None:
    app = handling(
        App("planner@svc", signer=SigningKey(folder / "eve.pem"), verifier=TrustedKeys(folder / "jwks.json")), Done
    )
    with pytest.raises(ConfigurationError, match=r"signs for eve@svc, not for planner@svc"):
        async with app.running("memory://"):
            pass


async def test_a_stream_reports_for_each_message_why_it_was_not_signed(folder: Path) -> None:
    (folder / "jwks.json").write_bytes(jwks_of("planner@svc", types=["job.done"]))
    async with connect(settings=settings_of(folder, "planner.pem"), agent="planner@svc") as bus:
        for cls, expected in ((Done, ""), (Job, "unauthorized"), (Done, "")):
            results = [result async for result in bus.publish_many(cls(number=n) for n in range(600))]
            assert [getattr(result, "reason", "") for result in results] == [expected] * 600


async def test_a_key_missing_from_the_local_jwks_can_still_sign(folder: Path) -> None:
    (folder / "jwks.json").write_bytes(jwks_of("eve@svc"))
    async with connect(settings=settings_of(folder, "planner.pem"), agent="planner@svc") as bus:
        receipt = await bus.publish(Done(number=1))
    assert receipt.topic == "agents.job.done"
