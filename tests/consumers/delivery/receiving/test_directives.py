"""A worker refuses below its threshold exactly what the rule calls a directive: every combination, on every way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_args

import msgspec
import pytest

from bus.clock import ManualClock
from bus.payloads.directives import DIRECTIVE, DirectiveFacts, is_directive
from bus.payloads.envelope_terms import ByField, SideEffect
from bus.protocol import sealing
from bus.protocol.envelope import Metadata, Performative, Routing
from bus.protocol.timestamps import format_ms
from bus.settings.loading import load
from bus.topics.names import mailbox_topic, redrive_topic, reply_topic, retry_topic
from bus.transports.base import Assignment, Record
from bus.trust.keys.generated_keys import GeneratedKeys
from consumers.delivery.group_plan import make_plan
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.resilience.retry import Tier
from consumers.delivery.resilience.retry_clock import RetryClock
from consumers.delivery.state.delivery import Refused
from consumers.delivery.state.partition import Partition
from sealbus import App, Message, payload
from sealbus.envelope import Agent
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_start
from sealbus.trust import Security

NOW_MS = ManualClock().now_ms()
SETTINGS = load(flags={}, env={}, file=None).settings
MODEL, READER = "model@svc", "reader@svc"
SAID: tuple[Any, ...] = (None, *get_args(Performative))
SIDE_EFFECTS: tuple[Any, ...] = (None, *get_args(SideEffect))
RISKS = ("low", "medium", "high", "raised")
TIER = Tier("5s", 5)
KEYS = GeneratedKeys(lambda: NOW_MS, b"table")


class Kind(NamedTuple):
    """What a type and its handler say."""

    type_says: Any
    side_effect: Any
    risk: str
    needs_key: bool
    has_threshold: bool

    @property
    def name(self) -> str:
        return "-".join(
            [
                "table.t",
                (self.type_says or "unsaid").replace("_", ""),
                self.side_effect or "unknown",
                self.risk,
                *(["key"] if self.needs_key else []),
                *(["threshold"] if self.has_threshold else []),
            ]
        )

    @property
    def is_declarable(self) -> bool:
        if self.type_says is None or self.type_says in DIRECTIVE:
            return True
        return not self.has_threshold and self.side_effect not in ("write", "external", "irreversible")


class Data(msgspec.Struct):
    text: str = ""


KINDS = [
    kind
    for kind in itertools.starmap(Kind, itertools.product(SAID, SIDE_EFFECTS, RISKS, (False, True), (False, True)))
    if kind.is_declarable
]


async def handle(_: object) -> None:
    pass


def reader() -> App:
    app = App(READER)
    for kind in KINDS:
        cls = payload(
            kind.name,
            performative=kind.type_says,
            side_effect=kind.side_effect,
            risk="medium" if kind.risk == "raised" else kind.risk,
            required_options=("idempotency_key",) if kind.needs_key else (),
        )(msgspec.defstruct("Data", [("text", str, "")]))
        threshold: Any = {"instructions_from": "user_request"} if kind.has_threshold else {}
        app.on(cls, **threshold)(handle)
    return app


def verification(app: App, *, keys: bool) -> RecordVerifier:
    clock = ManualClock()
    verifier = KEYS if keys else None
    raised = tuple(kind.name for kind in KINDS if kind.risk == "raised")
    trust = msgspec.structs.replace(SETTINGS.trust, high_risk=raised)
    declared = msgspec.structs.replace(app.declaration, verifier=verifier)
    plan = make_plan(declared, msgspec.structs.replace(SETTINGS, trust=trust))
    return RecordVerifier(plan.view, clock, RetryClock(clock, own=True), plan.tiers)


def sealed(
    name: str,
    said: Any,
    *,
    reply_to: bool = False,
    key: bool = False,
    keys: bool = False,
    level: str | None = "untrusted_content",
    data: bytes = b"{}",
) -> Message:
    metadata = Metadata(
        conversation_id="talk",
        hops=0,
        message_id="m-1",
        message_type=name,
        namespace="agents",
        performative=said,
        protocol="sealbus/1",
        schema_version="1.0.0",
        security=None if level is None else Security(trust_level=level),
        sender=Agent(id=MODEL),
        timestamp=format_ms(NOW_MS),
    )
    routing = Routing(
        expires_at=format_ms(NOW_MS + 60_000),
        idempotency_key="k" if key else None,
        reply_to=reply_topic("agents", MODEL) if reply_to else None,
    )
    return sealing.seal(data, metadata, routing, signer=KEYS.signer(MODEL) if keys else None)


def by_topic(message: Message) -> tuple[Record, Partition]:
    topic = f"agents.{message.message_type}"
    place = Partition(Assignment(topic, 0, 1), expected_type=message.message_type, own=False, tier=None)
    return Record(topic, 0, 7, NOW_MS, message.key, message.value), place


def by_own_topic(tier: Tier | None) -> Callable[[Message], tuple[Record, Partition]]:
    def placed(message: Message) -> tuple[Record, Partition]:
        topic = retry_topic("agents", "reader", tier.name) if tier else redrive_topic("agents", "reader")
        headers = (("sb-origin-topic", f"agents.{message.message_type}".encode()),)
        place = Partition(Assignment(topic, 0, 1), expected_type=None, own=True, tier=tier)
        return Record(topic, 0, 7, NOW_MS, message.key, message.value, headers), place

    return placed


def verdict(judge: RecordVerifier, placed: tuple[Record, Partition]) -> str | None:
    """Why a record is refused; None: its handler runs."""
    delivery = judge.judge(*placed, NOW_MS)
    assert delivery is not None
    return delivery.error.reason if isinstance(delivery, Refused) else None


def expected(kind: Kind, said: Any, *, reply_to: bool, keys: bool) -> str | None:
    is_high = kind.risk in ("high", "raised")
    if is_high and not keys:
        return "signature_missing"
    if None not in (kind.type_says, said) and kind.type_says != said:
        return "schema_violation"
    facts = DirectiveFacts(
        type_says=kind.type_says,
        message_says=said,
        has_reply_to=reply_to,
        side_effect=kind.side_effect,
        risk="high" if is_high else kind.risk,
        needs_key=kind.needs_key,
        has_threshold=kind.has_threshold,
    )
    return "untrusted_instruction" if is_directive(facts) else None


def every_message(words: tuple[Any, ...], *, keys: bool) -> Iterator[tuple[Kind, Any, bool, Message]]:
    for kind, said, reply_to in itertools.product(KINDS, words, (False, True)):
        yield kind, said, reply_to, sealed(kind.name, said, reply_to=reply_to, key=kind.needs_key, keys=keys)


@pytest.mark.medium
@pytest.mark.parametrize("keys", [False, True])
def test_a_worker_refuses_what_the_rule_calls_a_directive_in_every_combination(keys: bool) -> None:
    judge = verification(reader(), keys=keys)
    wrong = [
        (kind, said, reply_to)
        for kind, said, reply_to, message in every_message(SAID, keys=keys)
        if verdict(judge, by_topic(message)) != expected(kind, said, reply_to=reply_to, keys=keys)
    ]
    assert wrong == []


@pytest.mark.medium
@pytest.mark.parametrize("keys", [False, True])
def test_known_layouts_retries_and_redrives_get_the_same_verdict(keys: bool) -> None:
    judge = verification(reader(), keys=keys)
    ways = (by_topic, by_topic, by_topic, by_own_topic(TIER), by_own_topic(None))
    wrong = [
        (kind, said, reply_to)
        for kind, said, reply_to, message in every_message((None, "inform", "request"), keys=keys)
        if {verdict(judge, way(message)) for way in ways} != {expected(kind, said, reply_to=reply_to, keys=keys)}
    ]
    assert wrong == []


@pytest.mark.medium
@pytest.mark.parametrize(("level", "keys"), [("user_request", True), (None, True), (None, False)])
def test_an_instruction_of_a_user_is_accepted(level: str | None, keys: bool) -> None:
    judge = verification(reader(), keys=keys)
    for kind, reply_to in itertools.product(KINDS, (False, True)):
        message = sealed(kind.name, kind.type_says, reply_to=reply_to, key=kind.needs_key, keys=keys, level=level)
        is_unsigned = not keys and kind.risk in ("high", "raised")
        assert verdict(judge, by_topic(message)) == ("signature_missing" if is_unsigned else None)


# Payloads that say what they are, and thresholds above a user's level.


@payload("table.choosing", performative=ByField("mode", {"do": "request", "tell": "inform"}))
class Choosing(msgspec.Struct):
    mode: str = ""


@pytest.mark.parametrize("keys", [False, True])
def test_a_layout_known_from_an_informing_payload_lets_no_asking_one_in(keys: bool) -> None:
    app = App(READER)
    app.on(Choosing)(handle)
    judge = verification(app, keys=keys)

    def told(mode: str, said: Any = None) -> str | None:
        data = json.dumps({"mode": mode}, separators=(",", ":")).encode()
        return verdict(judge, by_topic(sealed("table.choosing", said, keys=keys, data=data)))

    assert [told("tell") for _ in range(4)] == [None] * 4
    assert told("do") == "untrusted_instruction"
    assert told("do", "inform") == "schema_violation"
    # It has no word for this, and a sender's adds what it asks.
    assert told("else") is None
    assert told("else", "request") == "untrusted_instruction"


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("performative", [None, "request"])
@pytest.mark.parametrize("level", ["user_request", None])
def test_a_threshold_above_user_level_refuses_unlabelled_messages(
    performative: Any, level: str | None, keys: bool
) -> None:
    cls = payload("table.strict", performative=performative)(msgspec.defstruct("Strict", [("text", str, "")]))
    app = App(READER)
    app.on(cls, instructions_from="task_instruction")(handle)
    judge = verification(app, keys=keys)
    message = sealed("table.strict", performative, keys=keys, level=level)
    assert [verdict(judge, by_topic(message)) for _ in range(4)] == ["untrusted_instruction"] * 4


# Answers: what comes by the mailbox goes to a process that waits for it, and to no handler.


def by_mailbox(app: App, *, tier: Tier | None = None) -> Callable[[Message], tuple[Record, Partition]]:
    mailbox = mailbox_topic("agents", app.declaration.group)

    def placed(message: Message) -> tuple[Record, Partition]:
        topic = mailbox if tier is None else retry_topic("agents", app.declaration.group, tier.name)
        headers = () if tier is None else (("sb-origin-topic", mailbox.encode()),)
        place = Partition(Assignment(topic, 0, 1), expected_type=None, own=tier is not None, tier=tier)
        return Record(topic, 0, 7, NOW_MS, message.key, message.value, headers), place

    return placed


@pytest.mark.parametrize("type_says", [None, "inform", "accept", "request"])
@pytest.mark.parametrize("risk", ["medium", "high"])
def test_of_an_answer_to_a_process_only_the_performative_counts_also_in_a_tier(type_says: Any, risk: Any) -> None:
    answer: Any = payload(
        "table.answer",
        performative=type_says,
        risk=risk,
        side_effect=None if type_says == "inform" else "write",
        required_options=("idempotency_key",),
    )(msgspec.defstruct("Answer", [("text", str, "")]))

    class Waiting(Saga[Data], version="1.0.0"):
        @on_start(Choosing, key="/data/mode")
        async def begun(self, _: Choosing, context: SagaContext) -> None: ...

        @on_answer("tool", answer)
        async def answered(self, _: Any, context: SagaContext) -> None: ...

        @on_failure("tool")
        async def failed(self, context: SagaContext) -> None: ...

    app = App(READER)
    app.add(Waiting)
    judge = verification(app, keys=True)
    for said, reply_to in itertools.product((None, "inform", "request"), (False, True)):
        message = sealed("table.answer", said, reply_to=reply_to, key=True, keys=True)
        found = {verdict(judge, by_mailbox(app, tier=tier)(message)) for tier in (None, TIER)}
        if None not in (said, type_says) and said != type_says:
            assert found == {"schema_violation"}
        else:
            assert found == {"untrusted_instruction" if {said, type_says} & DIRECTIVE else None}
