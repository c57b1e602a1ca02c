"""What the gate `policy` lets in: who goes on after whom, authority and classification, interpreters, answers, redrives
by hand and by order, and what is noted of denials."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bus.clock import ManualClock
from bus.payloads.payload_types import encode_payload, payload_type
from bus.protocol import sealing
from bus.protocol.envelope import Metadata, Routing
from bus.protocol.identifiers import uuid7
from bus.protocol.timestamps import format_ms
from bus.settings.loading import load
from bus.topics.names import group_of_agent, redrive_topic
from bus.transports.base import NewRecord
from bus.transports.read_all import scan_topic
from bus.trust.admission import Admission, Denial, Party
from bus.trust.keys.key_directory import KeyDirectory, parse_keys
from bus.trust.keys.private_keys import PrivateKey, new_shared_secret, public_jwk
from bus.trust.policy.file import PolicyRules, parse_policy
from bus.vocabulary.bus import RedriveOrdered
from consumers.app.testing import TestBus
from consumers.delivery.receiving.redrive_orders import granted_until_ms
from consumers.worker.denial_journal import DenialRate
from sealbus import App, Context, Message, payload
from sealbus.envelope import Agent
from sealbus.errors import ContractError
from sealbus.trust import Authority, Security
from tests.keyrings import key_of

READER = "reader@svc"
GROUP = group_of_agent(READER)
AGENTS = ("user@people", "planner@svc", "worker@svc", "eve@svc", "operator@people", "gateway@sealbus", READER)
DOMAIN = new_shared_secret(bytes(32), "domain")
DAY_MS = 86_400_000


@payload("admit.note", performative="inform")
class Note(msgspec.Struct):
    text: str = ""


@payload("admit.memo", risk="low", performative="inform")
class Memo(msgspec.Struct):
    text: str = ""


@payload("admit.asked", performative="request")
class Asked(msgspec.Struct):
    text: str = ""


@payload("admit.transfer", risk="high", performative="request", side_effect="irreversible")
class Transfer(msgspec.Struct):
    cents: int = 1


POLICY = """
agents = [
    { id = "user@people", kind = "human", clearance = "restricted", authority = { can_execute = ["git *"] } },
    { id = "operator@people", kind = "human", clearance = "restricted" },
    { id = "planner@svc", clearance = "restricted", model = false, roles = ["planning"] },
    { id = "worker@svc", clearance = "restricted", model = false, roles = ["working"] },
    { id = "eve@svc", clearance = "restricted", model = false },
    { id = "engine@svc", clearance = "restricted", model = false, interpreter = true },
    { id = "gateway@sealbus", kind = "service", clearance = "restricted" },
    { id = "reader@svc", kind = "service", clearance = "confidential" },
]

[[rules]]
id = "people-and-planner"
effect = "allow"
action = "publish"
agents = ["user@people", "planner@svc"]
types = "admit.*"

[[rules]]
id = "others-note"
effect = "allow"
action = "publish"
agents = ["worker@svc", "eve@svc", "engine@svc", "gateway@sealbus"]
types = ["admit.note", "admit.memo"]

[[rules]]
id = "engine-transfers"
effect = "allow"
action = "publish"
agents = ["engine@svc", "gateway@sealbus"]
types = "admit.transfer"

[[rules]]
id = "who-handles"
effect = "allow"
action = "handle"
agents = ["planner@svc", "worker@svc", "reader@svc", "engine@svc", "gateway@sealbus"]
types = "admit.*"

[[rules]]
id = "operators-redrive"
effect = "allow"
action = ["redrive", "publish"]
agents = "operator@people"
types = ["admit.*", "redrive.ordered"]
"""


class Sealer:
    """Seals messages by hand, one after the other."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._count = 0

    def __call__(
        self,
        sender: str,
        subject: Any = None,
        *,
        cause: Message | None = None,
        to: Agent | None = None,
        authority: Authority | None = None,
        classification: str | None = None,
        level: str | None = None,
        key: PrivateKey | None = None,
        signed: bool = True,
        ago_ms: int = 0,
        ttl_ms: int = 600_000,
        performative: Any = None,
    ) -> Message:
        subject = Note() if subject is None else subject
        self._count += 1
        at_ms, kind = self.now_ms - ago_ms, payload_type(type(subject))
        message_id = uuid7(at_ms, self._count.to_bytes(10, "big"))
        security = Security(trust_level=level, data_classification=classification)
        metadata = Metadata(
            protocol="sealbus/1",
            namespace="agents",
            message_id=message_id,
            message_type=kind.name,
            schema_version=kind.version,
            timestamp=format_ms(at_ms),
            sender=Agent(id=sender),
            recipient=to,
            conversation_id=message_id if cause is None else cause.metadata.conversation_id,
            hops=0 if cause is None else cause.metadata.hops + 1,
            causation_id=None if cause is None else cause.message_id,
            authority=authority,
            security=security if security != Security() else None,
            performative=performative,
        )
        signer = (key or key_of(sender)) if signed else None
        return sealing.seal(
            encode_payload(subject),
            metadata,
            Routing(expires_at=format_ms(at_ms + ttl_ms)),
            parents=() if cause is None else (cause.seal,),
            proof_chain=() if cause is None else cause.chain_for_children(),
            signer=signer,
        )


class Rules:
    """A policy that is not read from a file."""

    def __init__(self, text: str) -> None:
        self._rules = parse_policy(text.encode(), name="policy.toml")

    def rules(self) -> PolicyRules:
        return self._rules

    def refusal(self, message: Message, group: str) -> str | None:
        return None


def keys() -> KeyDirectory:
    jwks = [public_jwk(key_of(agent), principals=[agent]) for agent in (*AGENTS, "engine@svc")]
    secret = {"kty": "oct", "alg": "HS256", "k": "A" * 43, "kid": "domain", "principals": ["engine@svc", "planner@svc"]}
    return parse_keys({"a.json": json.dumps({"keys": [*jwks, secret]}).encode()}, domain="closed")


class Gate:
    """The gate `policy` of the reader."""

    def __init__(self, text: str = POLICY) -> None:
        self.denials: list[Denial] = []
        self.seal = Sealer(ManualClock().now_ms())
        party = Party(agent_id=READER, namespace="agents", group=GROUP)
        policy: Any = Rules(text)
        verifier: Any = keys()
        self.admission = Admission(
            party, verifier=verifier, policy=policy, now_ms=ManualClock().now_ms, note=self.denials.append
        )

    def refusal(self, message: Message, subject: Any = None) -> str | None:
        """Why *message* is refused; None: it is let in."""
        kind = payload_type(type(Note() if subject is None else subject))
        try:
            self.admission.admit(message, kind, subject)
        except ContractError as error:
            return f"{error.reason} {error.pointer}: {error.text}"
        return None


@pytest.fixture
def gate() -> Gate:
    return Gate()


# Security S2: who goes on after a link.


@pytest.mark.parametrize(
    ("to", "follower", "refused"),
    [
        (None, "planner@svc", None),
        (None, "worker@svc", None),
        (None, "eve@svc", "does not let it handle"),
        (Agent(role="working"), "worker@svc", None),
        (Agent(role="working"), "planner@svc", "does not give it that role"),
        (Agent(role="working"), "eve@svc", "does not give it that role"),
        (Agent(role="planning"), "planner@svc", None),
        (Agent(role="nobody"), "worker@svc", "does not give it that role"),
        (Agent(id="worker@svc"), "worker@svc", None),
        (None, "user@people", None),
        (Agent(role="working"), "user@people", None),
    ],
)
def test_only_an_addressed_agent_may_continue_a_chain(
    gate: Gate, to: Agent | None, follower: str, refused: str | None
) -> None:
    message = gate.seal(follower, cause=gate.seal("user@people", to=to))
    found = gate.refusal(message)
    assert (found is None) == (refused is None)
    assert refused is None or (found is not None and refused in found and found.startswith("unauthorized"))


def test_every_step_of_a_chain_is_asked(gate: Gate) -> None:
    stolen = gate.seal("eve@svc", cause=gate.seal("user@people"))
    assert "does not let it handle" in str(gate.refusal(gate.seal("worker@svc", cause=stolen)))
    honest = gate.seal("worker@svc", cause=gate.seal("user@people"))
    assert gate.refusal(gate.seal("planner@svc", cause=honest)) is None


# Security S3: authority and classification along a chain.

GIT, PUSH, ALL = (Authority(can_execute=(glob,)) for glob in ("git *", "git push *", "**"))


@pytest.mark.parametrize(
    ("authorities", "refused"),
    [
        ((GIT, PUSH), None),
        ((GIT, None, PUSH), None),
        ((PUSH, None, None), None),
        ((PUSH, GIT), "the message has more authority than its cause: can_execute 'git *'"),
        ((PUSH, None, GIT), "more authority"),
        ((PUSH, GIT, PUSH), "link 1 has more authority"),
        ((ALL,), "user@people may grant less"),
        ((ALL, GIT), "user@people may grant less"),
    ],
)
def test_authority_only_narrows(gate: Gate, authorities: tuple[Authority | None, ...], refused: str | None) -> None:
    message: Message | None = None
    for sender, authority in zip(("user@people", "planner@svc", "worker@svc"), authorities, strict=False):
        message = gate.seal(sender, cause=message, authority=authority)
    assert message is not None
    found = gate.refusal(message)
    assert (found is None) == (refused is None)
    assert refused is None or (found is not None and refused in found and "/metadata/authority/can_execute" in found)


@pytest.mark.parametrize(
    ("classes", "refused"),
    [
        (("public", "internal", "confidential"), None),
        (("confidential", None, "confidential"), None),
        (("confidential", None, None), None),
        ((None, None, "public"), None),
        (("confidential", "public"), "rests on what is confidential"),
        (("confidential", None, "internal"), "rests on what is confidential"),
        (("restricted", "secret"), "clearance"),
        (("restricted",), "clearance"),
        (("secret", "restricted"), "clearance"),
    ],
)
def test_a_classification_only_rises_and_a_clearance_reaches_it(
    gate: Gate, classes: tuple[str | None, ...], refused: str | None
) -> None:
    message: Message | None = None
    for sender, name in zip(("user@people", "planner@svc", "worker@svc"), classes, strict=False):
        message = gate.seal(sender, cause=message, classification=name)
    assert message is not None
    found = gate.refusal(message)
    assert (found is None) == (refused is None)
    assert refused is None or refused in str(found)


def test_a_query_reads(gate: Gate) -> None:
    acting = gate.seal("user@people", authority=GIT, performative="query")
    assert "a query reads" in str(gate.refusal(acting))
    reading = gate.seal("user@people", authority=Authority(can_execute=()), performative="query")
    assert gate.refusal(reading) is None


def test_publisher_and_reader_refuse_the_same_authorities(gate: Gate) -> None:
    acting = gate.seal("user@people", authority=GIT, performative="query")
    granting = gate.seal("user@people", authority=Authority(can_execute=("rm *",)))
    less = gate.seal("user@people", authority=Authority(can_execute=("git push",)))
    for message, refused in ((acting, "a query reads"), (granting, "user@people may grant less"), (less, None)):
        assert (refused or "None") in str(gate.refusal(message))
        party = Party(agent_id="user@people", namespace="agents", group="")
        policy: Any = Rules(POLICY)
        verifier: Any = keys()
        publisher = Admission(party, verifier=verifier, policy=policy, now_ms=ManualClock().now_ms)
        if refused is None:
            publisher.check_outgoing(message, payload_type(Note), Note())
            continue
        with pytest.raises(ContractError, match=refused):
            publisher.check_outgoing(message, payload_type(Note), Note())


# Security S22 and S25: interpreters, and shared secrets.


@pytest.mark.parametrize("engine", ["engine@svc", "gateway@sealbus"])
def test_an_interpreter_publishes_what_everybody_in_its_chain_may_publish(gate: Gate, engine: str) -> None:
    by_user = gate.seal("user@people")
    assert gate.refusal(gate.seal(engine, Transfer(), cause=by_user), Transfer()) is None
    by_worker = gate.seal("worker@svc")
    found = gate.refusal(gate.seal(engine, Transfer(), cause=by_worker), Transfer())
    assert found is not None
    assert "on behalf of worker@svc, who may not publish it" in found or "interpreter" in found
    assert gate.refusal(gate.seal(engine, cause=by_worker)) is None
    through = gate.seal("planner@svc", cause=by_worker)
    assert gate.refusal(gate.seal(engine, Transfer(), cause=through), Transfer()) is not None
    assert gate.refusal(gate.seal("planner@svc", Transfer(), cause=through), Transfer()) is None


@pytest.mark.parametrize("engine", ["engine@svc", "gateway@sealbus"])
def test_an_interpreter_without_a_chain_publishes_nothing_above_low_risk(gate: Gate, engine: str) -> None:
    assert gate.refusal(gate.seal(engine, Memo()), Memo()) is None
    assert gate.refusal(gate.seal(engine)) is not None
    assert gate.refusal(gate.seal(engine, Transfer()), Transfer()) is not None


def test_a_shared_secret_signs_for_no_interpreter(gate: Gate) -> None:
    cause = gate.seal("user@people")
    assert "key of its own" in str(gate.refusal(gate.seal("engine@svc", cause=cause, key=DOMAIN)))
    assert gate.refusal(gate.seal("planner@svc", cause=cause, key=DOMAIN)) is None


# Rule R2: a condition on agents matches a proven sender alone.


def test_an_unsigned_message_matches_only_rules_for_unsigned_ones() -> None:
    unsigned = Gate().seal("user@people", Memo(), signed=False)
    assert "an unverified sender may not publish" in str(Gate().refusal(unsigned, Memo()))
    rule = '[[rules]]\nid = "u-{0}"\neffect = "allow"\naction = "{0}"\ntypes = "admit.memo"\nwhen.signed = {1}\n'
    publish, handle = (rule.format(action, "false") for action in ("publish", "handle"))
    assert "may not handle" in str(Gate(POLICY + publish).refusal(unsigned, Memo()))
    assert Gate(POLICY + publish + handle).refusal(unsigned, Memo()) is None
    assert Gate(POLICY + rule.format("publish", "true") + handle).refusal(unsigned, Memo()) is not None


# Rule T3: who may instruct.


@pytest.mark.parametrize(
    ("level", "refused"),
    [(None, False), ("user_request", False), ("model_generated", True), ("untrusted_content", True), ("odd", True)],
)
def test_a_directive_needs_the_level_of_a_user(gate: Gate, level: str | None, refused: bool) -> None:
    asked = gate.seal("user@people", Asked(), level=level)
    found = gate.refusal(asked, Asked())
    assert (found is not None) == refused
    assert found is None or found.startswith("untrusted_instruction /metadata/security/trust_level")
    # What only informs passes.
    assert gate.refusal(gate.seal("user@people", level=level)) is None


# Rule R1: who may answer what named a role or nobody.


@pytest.mark.parametrize(
    ("to", "answerer", "believed"),
    [
        (None, "worker@svc", True),
        (None, "eve@svc", False),
        (None, "nobody@else", False),
        (Agent(role="working"), "worker@svc", True),
        (Agent(role="working"), "planner@svc", False),
        (Agent(role="working"), "eve@svc", False),
    ],
)
def test_an_answer_is_accepted_only_from_an_agent_allowed_to_handle_the_request(
    gate: Gate, to: Agent | None, answerer: str, believed: bool
) -> None:
    request = gate.seal(READER, Asked(), to=to)
    assert gate.admission.may_answer(answerer, request, payload_type(Asked)) is believed


# What is noted (security S40).


def test_a_denial_has_its_rule_and_its_facts_and_no_payload(gate: Gate) -> None:
    assert gate.refusal(gate.seal("eve@svc", Transfer(cents=4711)), Transfer(cents=4711)) is not None
    (denial,) = gate.denials
    assert (denial.rule, denial.action, denial.sender, denial.actor) == ("no-match", "publish", "eve@svc", "eve@svc")
    assert denial.message_type == "admit.transfer"
    assert denial.differing
    assert denial.policy == Rules(POLICY).rules().sha256
    assert "4711" not in str(denial)


def _denial(sender: str = "eve@svc", rule: str = "no-match") -> Denial:
    return Denial(
        rule=rule,
        action="publish",
        how="topic",
        sender=sender,
        actor=sender,
        message_type="admit.note",
        message_id="m",
        group=GROUP,
        reason="unauthorized",
        differing=(),
        policy=None,
    )


def test_ten_denials_a_minute_are_recorded_and_the_rest_counted() -> None:
    rate, now_ms = DenialRate(), 1_000_000
    assert [rate.take(_denial(), now_ms + number) for number in range(200)] == [True] * 10 + [False] * 190
    assert rate.take(_denial(sender="other@svc"), now_ms)
    assert rate.take(_denial(rule="other"), now_ms)
    assert rate.due(now_ms + 59_999) == []
    assert [(denial.sender, count) for denial, count in rate.due(now_ms + 60_000)] == [("eve@svc", 190)]
    assert rate.due(now_ms + 120_000) == []
    assert rate.take(_denial(), now_ms + 60_000)


def test_a_thousand_forged_senders_need_no_more_memory() -> None:
    rate = DenialRate()
    told = sum(rate.take(_denial(sender=f"{number}@svc"), 0) for number in range(5000))
    assert told == 1000 + 10
    assert [count for _, count in rate.due(60_000)] == [5000 - 1000 - 10]


# Running workers.


class World:
    """A worker of the reader, with keys and a policy in files."""

    def __init__(self, bus: TestBus, handled: list[str]) -> None:
        self.bus = bus
        self.handled = handled
        self._sealer = Sealer(bus.clock.now_ms())

    @property
    def seal(self) -> Sealer:
        self._sealer.now_ms = self.bus.clock.now_ms()
        return self._sealer

    async def send(self, *records: NewRecord | Message) -> list[str]:
        """Append *records*; return the reasons of the dead letters that they became."""
        self.bus.clock.advance(0.001)
        before = len(self.bus.dead_letters)
        made = [
            NewRecord(f"agents.{record.message_type}", record.key, record.value)
            if isinstance(record, Message)
            else record
            for record in records
        ]
        await self.bus.transport.append(made, timeout_s=5)
        await self.bus.settle()
        return [letter.reason for letter in self.bus.dead_letters[before:]]

    def redriven(self, message: Message, **headers: bytes) -> NewRecord:
        """*message* as whoever can write the redrive topic of the group may write it."""
        origin = ("sb-origin-topic", f"agents.{message.message_type}".encode())
        given = [(f"sb-{name.replace('_', '-')}", value) for name, value in headers.items()]
        return NewRecord(redrive_topic("agents", GROUP), message.key, message.value, (origin, *given))

    def order(self, message: Message, until_ms: int, sender: str = "operator@people", **changes: Any) -> bytes:
        order = {"seals": [message.seal], "group": GROUP, "extend_until": format_ms(until_ms), "reason": "again"}
        return self.seal(sender, msgspec.convert(order | changes, RedriveOrdered)).value


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    handled: list[str] = []
    app = App(READER)

    for kind in (Note, Transfer, Asked):

        @app.on(kind)
        async def handle(_: Any, context: Context) -> None:
            handled.append(context.message.message_id)

    jwks = [public_jwk(key_of(agent), principals=[agent]) for agent in AGENTS]
    for name, text in (("jwks.json", json.dumps({"keys": jwks})), ("policy.toml", POLICY)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    flags = {"trust.keys": str(folder / "jwks.json"), "policy.file": str(folder / "policy.toml")}
    async with app.test(settings=load(flags=flags, env={}, file=None).settings) as bus:
        yield World(bus, handled)


async def test_a_hand_written_extension_counts_for_medium_risk_up_to_the_longest_lifetime(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        now_ms = w.bus.clock.now_ms()
        message = w.seal("planner@svc", ago_ms=3_600_000, ttl_ms=60_000)
        assert await w.send(w.redriven(message)) == ["expired"]
        assert await w.send(w.redriven(message, extend_until=b"%d" % (now_ms + 60_000))) == []
        assert w.handled == [message.message_id]


def test_a_hand_written_extension_ends_a_lifetime_after_its_record_was_appended() -> None:
    view: Any = SimpleNamespace(verifier=None, high_risk=(), max_ttl_ms=7 * DAY_MS, inbox_keep_ms=DAY_MS)
    record: Any = SimpleNamespace(timestamp_ms=1000)
    message = Sealer(0)("planner@svc", Transfer())
    for asked_ms, granted_ms in (
        (0, 0),
        (5000, 5000),
        (1000 + 7 * DAY_MS, 1000 + 7 * DAY_MS),
        (10**15, 1000 + 7 * DAY_MS),
    ):
        control: Any = SimpleNamespace(extend_until_ms=asked_ms, order=b"")
        assert granted_until_ms(record, control, message, payload_type(Transfer), view) == granted_ms


async def test_a_hand_written_extension_counts_for_nothing_at_high_risk(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        until_ms = w.bus.clock.now_ms() + 60_000
        message = w.seal("planner@svc", Transfer(), ago_ms=3_600_000, ttl_ms=60_000)
        assert await w.send(w.redriven(message, extend_until=b"%d" % until_ms)) == ["expired"]
        assert w.handled == []


async def test_an_extension_that_an_operator_has_signed_counts_for_the_message_it_names(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        until_ms = w.bus.clock.now_ms() + 60_000
        text = b"%d" % until_ms
        message = w.seal("planner@svc", Transfer(), ago_ms=3_600_000, ttl_ms=60_000)
        other = w.seal("planner@svc", Transfer(cents=2), ago_ms=3_600_000, ttl_ms=60_000)
        unsigned = w.seal(
            "operator@people",
            msgspec.convert(
                {"seals": [message.seal], "group": GROUP, "extend_until": format_ms(until_ms), "reason": "x"},
                RedriveOrdered,
            ),
            signed=False,
        ).value
        refused: dict[str, tuple[bytes, bytes]] = {
            "no order": (text, b""),
            "of an agent without the right": (text, w.order(message, until_ms, "eve@svc")),
            "of the sender itself": (text, w.order(message, until_ms, "planner@svc")),
            "unsigned": (text, unsigned),
            "for another message": (text, w.order(other, until_ms)),
            "for another group": (text, w.order(message, until_ms, group="other")),
            "until another time": (text, w.order(message, until_ms + 1000)),
            "for longer than it says": (b"%d" % (until_ms + 1000), w.order(message, until_ms)),
            "another message": (text, message.value),
            "no message": (text, b"{}"),
        }
        for name, (until, order) in refused.items():
            headers = {"extend_until": until} | ({"redrive_order": order} if order else {})
            assert await w.send(w.redriven(message, **headers)) == ["expired"], name
        assert w.handled == []
        order = w.order(message, until_ms)
        assert await w.send(w.redriven(message, extend_until=text, redrive_order=order)) == []
        assert w.handled == [message.message_id]
        # A second time it is done.
        assert await w.send(w.redriven(message, extend_until=text, redrive_order=order)) == []
        assert w.handled == [message.message_id]


async def test_an_extension_beyond_what_the_inbox_remembers_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        until_ms = w.bus.clock.now_ms() + 60_000
        message = w.seal("planner@svc", Transfer(), ago_ms=300 * DAY_MS, ttl_ms=60_000)
        order = w.order(message, until_ms)
        record = w.redriven(message, extend_until=b"%d" % until_ms, redrive_order=order)
        assert await w.send(record) == ["expired"]
        assert w.handled == []


async def test_control_headers_on_an_ordinary_topic_are_ignored(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        until_ms = w.bus.clock.now_ms() + 60_000
        message = w.seal("planner@svc", ago_ms=3_600_000, ttl_ms=60_000)
        record = w.redriven(message, extend_until=b"%d" % until_ms)
        assert await w.send(msgspec.structs.replace(record, topic=f"agents.{message.message_type}")) == ["expired"]


async def test_a_redrive_passes_every_gate_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        assert await w.send(w.redriven(w.seal("eve@svc", Transfer()))) == ["unauthorized"]
        assert await w.send(w.redriven(w.seal("planner@svc", Transfer(), signed=False))) == ["signature_missing"]
        assert await w.send(w.redriven(w.seal("planner@svc", Transfer(), key=key_of("eve@svc")))) == ["sender_mismatch"]
        assert w.handled == []


async def test_a_changed_policy_applies_within_a_second_to_similar_messages_too(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        path = tmp_path / "policy.toml"
        for _ in range(5):
            assert await w.send(w.seal("planner@svc"), w.seal("planner@svc", Transfer())) == []
        path.write_text(POLICY.replace('"user@people", "planner@svc"]\ntypes', '"user@people"]\ntypes'))
        w.bus.clock.advance(1)
        assert await w.send(w.seal("planner@svc"), w.seal("planner@svc", Transfer())) == ["unauthorized"] * 2
        # One that cannot be used keeps the last good one; what is of high risk dies when that is too old.
        for text, mode in (("[[rules]]", 0o600), (POLICY, 0o666)):
            path.write_text(text)
            path.chmod(mode)
            w.bus.clock.advance(1)
            assert await w.send(w.seal("planner@svc")) == ["unauthorized"]
        assert await w.send(w.seal("user@people", Transfer())) == []
        w.bus.clock.advance(901)
        assert await w.send(w.seal("user@people"), w.seal("user@people", Transfer())) == ["unauthorized"]
        path.chmod(0o600)
        w.bus.clock.advance(1)
        assert await w.send(w.seal("planner@svc"), w.seal("planner@svc", Transfer())) == []


async def test_denials_become_events_ten_a_minute_and_then_a_count(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        seal = w.seal
        messages = [seal("eve@svc", Transfer(cents=number)) for number in range(25)]
        assert await w.send(*messages) == ["unauthorized"] * 25
        entries = [json.loads(record.value or b"") async for record in scan_topic(w.bus.transport, "agents._audit")]
        assert [entry["count"] for entry in entries] == [1] * 10
        await w.bus.advance(61)
        await w.bus.settle()
        entries = [json.loads(record.value or b"") async for record in scan_topic(w.bus.transport, "agents._audit")]
        assert sum(entry["count"] for entry in entries) == 25
        assert len(entries) == 11
        for entry in entries:
            assert (entry["event"], entry["rule"], entry["sender"]) == ("policy.denied", "no-match", "eve@svc")
            assert entry["by"] == READER
            assert "cents" not in json.dumps(entry)
