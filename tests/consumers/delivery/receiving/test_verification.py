"""A record like many before is judged by a shorter way, and exactly as every gate would judge it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus import native
from bus.clock import ManualClock
from bus.payloads.payload_types import payload
from bus.protocol import sealing
from bus.protocol.envelope import Agent, Metadata, Routing
from bus.protocol.sealing import Message
from bus.protocol.signatures import Signature
from bus.protocol.timestamps import format_ms
from bus.settings.loading import load
from bus.transports.base import Assignment, Record
from consumers.app.app import App
from consumers.delivery.declaration import Order
from consumers.delivery.group_plan import make_plan
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.resilience.retry import Tier
from consumers.delivery.resilience.retry_clock import RetryClock
from consumers.delivery.state.delivery import Delivery, Refused
from consumers.delivery.state.partition import Partition

NOW_MS = ManualClock().now_ms()
SETTINGS = load(flags={}, env={}, file=None).settings


@payload("intake.job", version="1.2.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    n: int = 0
    share: float = 0.5


@payload("intake.old", version="2.0.0", upcasters={1: lambda data: {"text": str(data["number"])}})
class Old(msgspec.Struct, frozen=True):
    text: str


@payload("intake.grave", version="1.0.0", risk="high")
class Grave(msgspec.Struct, frozen=True):
    n: int = 0


@payload("intake.unhandled", version="1.0.0")
class Unhandled(msgspec.Struct, frozen=True):
    n: int = 0


@dataclass
class Moody:
    """A policy that refuses some messages of a sender and not others."""

    refused: set[str] = field(default_factory=set)
    confusing: dict[str, BaseException] = field(default_factory=dict)

    def refusal(self, message: Message, group: str) -> str | None:
        if message.message_id in self.confusing:
            raise self.confusing[message.message_id]
        return "not this one" if message.message_id in self.refused else None


class Verifier:
    def judge(self, signature: Signature, statement: object, data: bytes) -> str | None:
        return None


async def handle(job: object) -> None:
    pass


def app(*, order: Order = "key", policy: Moody | None = None, verifier: Verifier | None = None) -> App:
    made = App("intake@tests", roles=("reviewer",), types=[Unhandled], policy=policy, verifier=verifier)
    for cls in (Job, Old, Grave):
        made.on(cls, order=order)(handle)
    return made


def verification(made: App) -> RecordVerifier:
    clock = ManualClock()
    plan = make_plan(made.declaration, SETTINGS)
    return RecordVerifier(plan.view, clock, RetryClock(clock, own=True), plan.tiers)


def message(data: bytes = b'{"n":1,"share":0.5}', routing: dict[str, Any] | None = None, **changes: Any) -> Message:
    fields: dict[str, Any] = {
        "conversation_id": "talk",
        "hops": 0,
        "message_id": "m-1",
        "message_type": "intake.job",
        "namespace": "agents",
        "protocol": "sealbus/1",
        "schema_version": "1.2.0",
        "sender": Agent(id="planner@svc"),
        "timestamp": format_ms(NOW_MS),
    }
    return sealing.seal(
        data, Metadata(**fields | changes), Routing(**{"expires_at": format_ms(NOW_MS + 60_000)} | (routing or {}))
    )


def record(
    given: Message | bytes | None,
    key: bytes | None = b"talk",
    append_ms: int = NOW_MS,
    topic: str = "agents.intake.job",
) -> Record:
    return Record(topic, 0, 7, append_ms, key, given.value if isinstance(given, Message) else given)


def partition(expected: str | None = "intake.job", *, own: bool = False, tier: Tier | None = None) -> Partition:
    return Partition(Assignment(f"agents.{expected}", 0, 1), expected_type=expected, own=own, tier=tier)


def told(delivery: Delivery | None) -> Any:
    """A delivery as plain values; what the bytes were proven by is no part of the verdict."""
    if delivery is None:
        return "skipped"
    seen = {name: getattr(delivery, name) for name in delivery.__struct_fields__}
    if isinstance(delivery, Refused):
        seen["error"] = (delivery.error.reason, delivery.error.pointer, delivery.error.text)
        seen["otherwise"] = None if delivery.otherwise is None else told(delivery.otherwise)
    if delivery.message is not None:
        seen["message"] = msgspec.structs.replace(delivery.message, payload=None)
    return seen


def experienced(made: App, *messages: Message) -> RecordVerifier:
    """A verifier that has seen *messages* often enough to know their like."""
    taught = verification(made)
    for _ in range(3):
        for each in messages:
            taught.judge(record(each, each.key), partition(each.message_type), NOW_MS)
    return taught


LIKES = [
    message(),
    message(routing={"key": "k"}),
    message(routing={"idempotency_key": "i", "priority": 8}),
    message(recipient=Agent(role="reviewer")),
    message(recipient=Agent(id="somebody@else")),
    message(schema_version="1.0.0"),
    message(schema_version="2.0.0"),
    message(namespace="others"),
    message(b'{"number":5}', message_type="intake.old", schema_version="1.0.0"),
    message(b'{"text":"5"}', message_type="intake.old", schema_version="2.0.0"),
    message(b"{}", message_type="intake.grave", schema_version="1.0.0"),
    message(b"{}", message_type="intake.unhandled", schema_version="1.0.0"),
    message(b"{}", message_type="intake.unknown"),
]
VARIANTS: dict[str, dict[str, Any]] = {
    "as before": {},
    "another id": {"message_id": "m-2"},
    "another conversation": {"conversation_id": "chat"},
    "other data": {"data": b'{"n":2,"share":0.25}'},
    "an integral share": {"data": b'{"n":2,"share":1}'},
    "a share of a millionth": {"data": b'{"n":2,"share":0.000001}'},
    "data of another schema": {"data": b'{"n":"x"}'},
    "an unknown field": {"data": b'{"n":1,"o":2,"share":0.5}'},
    "data that is not canonical": {"data": b'{"share":0.5,"n":1}'},
    "a wrong spelling": {"data": b'{"n":1,"share":5e-1}'},
    "a number twice": {"data": b'{"n":1,"n":1,"share":0.5}'},
    "expired": {"timestamp": format_ms(NOW_MS - 70_000), "routing": {"expires_at": format_ms(NOW_MS - 5_001)}},
    "just not expired": {"timestamp": format_ms(NOW_MS - 70_000), "routing": {"expires_at": format_ms(NOW_MS - 5_000)}},
    "sealed too late": {
        "timestamp": format_ms(NOW_MS + 120_001),
        "routing": {"expires_at": format_ms(NOW_MS + 900_000)},
    },
    "sealed just in time": {
        "timestamp": format_ms(NOW_MS + 120_000),
        "routing": {"expires_at": format_ms(NOW_MS + 900_000)},
    },
}


def varied(like: Message, variant: str) -> Message:
    changes = dict(VARIANTS[variant])
    metadata = {name: getattr(like.metadata, name) for name in like.metadata.__struct_fields__}
    routing = {name: getattr(like.routing, name) for name in like.routing.__struct_fields__} | changes.pop(
        "routing", {}
    )
    return sealing.seal(changes.pop("data", like.data), Metadata(**metadata | changes), Routing(**routing))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("like", range(len(LIKES)))
@pytest.mark.parametrize("kind", ["plain", "unordered", "with keys"])
def test_the_fast_path_gives_the_verdict_of_all_gates(variant: str, like: int, kind: str) -> None:
    made = app(order="none" if kind == "unordered" else "key", verifier=Verifier() if kind == "with keys" else None)
    given = varied(LIKES[like], variant)
    place = partition(given.message_type)
    of_old = experienced(made, *LIKES).judge(record(given, given.key), place, NOW_MS)
    assert told(of_old) == told(verification(made).judge(record(given, given.key), place, NOW_MS))


@pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")
def test_the_short_way_is_taken() -> None:
    made = app()
    for like in LIKES[:4]:
        taught = experienced(made, like)
        assert taught._judge_known_layout(record(like, like.key), partition(), NOW_MS) is not None
    for like in LIKES[4:8]:
        assert experienced(made, like)._judge_known_layout(record(like, like.key), partition(), NOW_MS) is None


@pytest.mark.parametrize("key", [None, b"", b"other"])
@pytest.mark.parametrize(
    "place",
    [partition(), partition("intake.old"), partition(None, own=True), partition(None, own=True, tier=Tier("5s", 5))],
)
def test_a_record_in_a_wrong_place_or_under_a_wrong_key_is_refused(key: bytes | None, place: Partition) -> None:
    given, made = record(LIKES[0], key), app()
    of_old, fresh = (
        experienced(made, *LIKES).judge(given, place, NOW_MS),
        verification(made).judge(given, place, NOW_MS),
    )
    assert told(of_old) == told(fresh)
    assert fresh is not None
    assert isinstance(fresh, Refused)


def test_a_policy_is_asked_about_each_message() -> None:
    policy = Moody()
    made = app(policy=policy)
    taught = experienced(made, *LIKES)
    policy.refused.add("m-2")
    for identity, reason in (("m-1", None), ("m-2", "unauthorized"), ("m-3", None)):
        given = message(message_id=identity)
        delivery = taught.judge(record(given), partition(), NOW_MS)
        assert delivery is not None
        assert (delivery.error.reason if isinstance(delivery, Refused) else None) == reason


@pytest.mark.parametrize("failure", [KeyError("sender"), RuntimeError(), SystemExit(1)])
def test_what_a_policy_fails_over_is_unauthorized_and_no_other_message_is(failure: BaseException) -> None:
    policy = Moody()
    made = app(policy=policy)
    fresh, taught = verification(made), experienced(made, *LIKES)
    policy.confusing["m-2"] = failure
    for judge in (fresh, taught):
        for identity, reason in (("m-1", None), ("m-2", "unauthorized"), ("m-3", None)):
            delivery = judge.judge(record(message(message_id=identity)), partition(), NOW_MS)
            assert delivery is not None
            assert (delivery.error.reason if isinstance(delivery, Refused) else None) == reason


@pytest.mark.medium
@settings(max_examples=600, deadline=None)
@given(st.integers(0, 3), st.binary(max_size=3), st.data())
def test_a_damaged_record_is_refused_for_the_same_reason(like: int, piece: bytes, data: st.DataObject) -> None:
    value = LIKES[like].value
    at = data.draw(st.integers(0, len(value)))
    damaged = value[:at] + piece + value[at + data.draw(st.integers(0, 3)) :]
    given = record(damaged, LIKES[like].key)
    assert told(TAUGHT.judge(given, PLACE, NOW_MS)) == told(FRESH.judge(given, PLACE, NOW_MS))
    FRESH._layouts._layouts.clear()


MADE, PLACE = app(), partition()
TAUGHT, FRESH = experienced(MADE, *LIKES), verification(MADE)
