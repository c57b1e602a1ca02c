"""What a layout accepts, the exact way accepts as the same message; whatever it does not know is left to that."""

from __future__ import annotations

import random
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus import native
from bus.errors import ContractError
from bus.payloads.payload_types import Registry, payload
from bus.protocol import sealing
from bus.protocol.envelope import Agent, Metadata, RetryPolicy, Routing, Security
from bus.protocol.fast_parse import KnownLayouts
from bus.protocol.sealing import Message

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")


@payload("layout.asked", version="1.0.0")
class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    question: str
    weight: float = 0.5
    count: int | None = None
    tags: tuple[str, ...] = ()


@payload("layout.loose", version="1.0.0")
class Loose(msgspec.Struct, frozen=True):
    anything: dict[str, Any]


REGISTRY = Registry([Asked, Loose])
START, END = "2026-01-01T00:00:00.000Z", "2026-01-01T01:00:00.000Z"


def sealed(data: bytes = b'{"question":"why?"}', routing: dict[str, Any] | None = None, **changes: Any) -> Message:
    fields: dict[str, Any] = {
        "conversation_id": "talk",
        "hops": 0,
        "message_id": "m-1",
        "message_type": "layout.asked",
        "namespace": "agents",
        "protocol": "sealbus/1",
        "schema_version": "1.0.0",
        "sender": Agent(id="planner@svc", type="agent"),
        "timestamp": START,
    }
    return sealing.seal(data, Metadata(**fields | changes), Routing(**{"expires_at": END} | (routing or {})))


PLAIN = {
    "bare": sealed(),
    "keyed": sealed(routing={"key": "order-1"}),
    "idempotent": sealed(routing={"idempotency_key": "task 7"}),
    "full": sealed(
        recipient=Agent(id="b", role="rôle"),
        security=Security(trust_level="user_request", policy_tags=("x", 'quo"te\\')),
        task_id="t",
        sequence=3,
        performative="request",
        routing={
            "idempotency_key": "i",
            "key": "k",
            "max_hops": 3,
            "priority": 7,
            "retry": RetryPolicy(backoff="linear", base_ms=10, cap_ms=20, max_attempts=5),
        },
    ),
    "loose": sealed(b'{"anything":{"a":[1,null,0.5,1e+21]}}', message_type="layout.loose"),
}


def learnt(*messages: Message) -> KnownLayouts[str]:
    """KnownLayouts of *messages*, each seen twice."""
    layouts: KnownLayouts[str] = KnownLayouts()
    for message in (*messages, *messages):
        if layouts.cast(message.value) is None:
            kind = REGISTRY.get(message.message_type)
            assert kind is not None
            layouts.learn(message, kind, message.message_type)
    return layouts


ALL = learnt(*PLAIN.values())


def agrees(layouts: KnownLayouts[str], value: bytes) -> bool:
    """Whether *value* is cast; what is cast is exactly what the exact way makes of it, and whole."""
    cast = layouts.cast(value)
    if cast is None:
        return False
    exact = sealing._parse_any(value)
    sealing.check_integrity(exact)
    assert msgspec.structs.replace(cast.message, payload=None) == exact
    assert cast.message.data == exact.data
    assert cast.known == exact.message_type
    if cast.message.payload is not None:
        assert cast.message.payload == REGISTRY.get(exact.message_type).decode(exact.data)
    return True


@pytest.mark.parametrize("name", PLAIN)
def test_the_third_of_its_kind_is_cast(name: str) -> None:
    layouts: KnownLayouts[str] = KnownLayouts()
    message = PLAIN[name]
    assert layouts.cast(message.value) is None
    layouts.learn(message, REGISTRY.get(message.message_type), message.message_type)
    assert layouts.cast(message.value) is None
    layouts.learn(message, REGISTRY.get(message.message_type), message.message_type)
    assert agrees(layouts, message.value)


def test_ids_times_keys_and_data_may_differ() -> None:
    layouts = learnt(PLAIN["bare"], PLAIN["full"])
    assert agrees(layouts, sealed(b'{"count":7,"question":"and?","weight":0.25}', message_id="m-2").value)
    assert agrees(layouts, sealed(conversation_id="a b", message_id="m~!").value)
    assert agrees(
        layouts, sealed(timestamp="2027-02-28T23:59:59.999Z", routing={"expires_at": "2028-02-29T00:00:00.000Z"}).value
    )
    assert agrees(layouts, sealed(routing={"key": "x", "idempotency_key": "y"}).value)


@pytest.mark.parametrize(
    "changes",
    [
        {"sender": Agent(id="mallory@svc", type="agent")},
        {"sender": Agent(id="planner@svc", type="human")},
        {"message_type": "layout.other"},
        {"namespace": "others"},
        {"schema_version": "1.0.1"},
        {"recipient": Agent(id="b")},
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        {"intent": "look"},
        {"correlation_id": "c"},
        {"critical_fields": ("/data/question",)},
        {"conversation_id": "tälk"},
        {"conversation_id": "t\\k"},
        {"message_id": "m\\1"},
        {"routing": {"priority": 1}},
        {"routing": {"key": "ключ"}},
    ],
)
def test_what_is_unlike_is_left_to_the_exact_way(changes: dict[str, Any]) -> None:
    assert learnt(PLAIN["bare"]).cast(sealed(**changes).value) is None


def test_caused_and_signed_messages_have_no_mould() -> None:
    class Signer:
        kid, alg = "k", "HS256"

        def sign(self, signing_input: bytes) -> bytes:
            return b"signed"

    first = PLAIN["bare"]
    caused = sealing.seal(
        b'{"question":"so?"}',
        msgspec.structs.replace(first.metadata, hops=1, message_id="m-2", causation_id="m-1"),
        first.routing,
        parents=(first.seal,),
        proof_chain=first.chain_for_children(),
    )
    signed = sealing.seal(first.data, first.metadata, first.routing, signer=Signer())
    layouts = learnt(caused, signed, first)
    assert layouts.cast(caused.value) is None
    assert layouts.cast(signed.value) is None
    assert agrees(layouts, first.value)


def test_fields_that_differ_from_message_to_message_are_not_remembered() -> None:
    layouts: KnownLayouts[str] = KnownLayouts()
    for number in range(2_000):
        message = sealed(task_id=f"t-{number}")
        for _ in range(1 + number % 2):
            assert layouts.cast(message.value) is None
            layouts.learn(message, REGISTRY.get("layout.asked"), "layout.asked")
    assert len(layouts._layouts) <= 512
    assert len(layouts._seen_once) <= 512


# --- forgeries with right hashes: only the layout and the forms stand in their way ------------------------------------


def forged(data: bytes, slots: dict[str, str], layout: Message) -> bytes:
    """*layout* with other texts put in as they are, every hash made again over the bytes as they then stand."""
    text = layout.value[layout.data_end :].decode()
    for old, new in (
        (f'"conversation_id":"{layout.metadata.conversation_id}"', f'"conversation_id":"{slots["talk"]}"'),
        (f'"message_id":"{layout.metadata.message_id}"', f'"message_id":"{slots["id"]}"'),
        (f'"timestamp":"{START}"', f'"timestamp":"{slots["timestamp"]}"'),
        (f'"expires_at":"{END}"', f'"expires_at":"{slots["expires_at"]}"'),
        (f'"key":"{layout.routing.key}"', f'"key":"{slots["key"]}"'),
        (f'"idempotency_key":"{layout.routing.idempotency_key}"', f'"idempotency_key":"{slots["idempotency_key"]}"'),
    ):
        text = text.replace(old, new, 1)
    envelope = text[1 : text.index(',"verification":')].encode("utf-8", "surrogatepass")
    statement = sealing._encode(layout.statement).decode()
    statement = statement.replace(f'"message_id":"{layout.metadata.message_id}"', f'"message_id":"{slots["id"]}"')
    statement = statement.replace(f'"timestamp":"{START}"', f'"timestamp":"{slots["timestamp"]}"')
    content, enclosed = sha256(data).hexdigest(), sha256(b"{" + envelope + b"}").hexdigest()
    statement = statement.replace(layout.statement.content_hash, f"sha256:{content}").replace(
        layout.statement.envelope_hash, f"sha256:{enclosed}"
    )
    seal = sha256(statement.encode("utf-8", "surrogatepass")).hexdigest()
    text = text.replace(layout.verification.content_hash, f"sha256:{content}").replace(layout.seal, f"sha256:{seal}")
    return b'{"data":' + data + text.encode("utf-8", "surrogatepass")


ODD = [
    '"',
    "\\",
    "\\u0061",
    "\x00",
    "\x1f",
    "\x7f",
    "é",
    "\u200b",
    "\u2028",
    "\U0001f600",
    "\ud800",
    " ",
    "",
    "a" * 128,
    "a" * 129,
    "a" * 257,
]
ODD += [
    'x","hops":0',
    'x","x":"y',
    '"},"routing":{"expires_at":"' + END,
    ',"timestamp":"' + START,
    "talk",
    "m-1",
    "m-2",
    "k",
]
TEXTS = (
    st.sampled_from(ODD)
    | st.text(max_size=6)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
)
TIMES = (
    st.sampled_from(
        [
            START,
            END,
            "2026-02-30T00:00:00.000Z",
            "2026-01-01T00:00:60.000Z",
            "2026-01-01t00:00:00.000Z",
            "2026-01-01T00:00:00.00Z",
        ]
    )
    | st.datetimes().map(lambda moment: f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z".rjust(24, "0"))
    | st.text(min_size=24, max_size=24)
)
DATA = st.sampled_from(
    [
        b'{"question":"why?"}',
        b'{"count":1,"question":"a"}',
        b'{"count":9007199254740991,"question":"a","weight":0.1}',
        b'{"anything":{"a":1}}',
        b'{"anything":{"\xef\xac\xb3":1,"\xf0\x9f\x98\x80":2}}',
        b'{"anything":{"b":1,"a":1}}',
        b'{"anything":{"a":1,"a":1}}',
        b'{"anything":{"a":1.0}}',
        b'{"count":9007199254740993,"question":"a"}',
        b'{"question":"a","weight":1}',
        b'{"question":"a","weight":1.0}',
        b'{"question":"a","weight":1e-6}',
        b'{"question":"a","weight":0.000001}',
        b'{"question":"a","weight":1e+21}',
        b'{"question":"a","weight":0.5}',
        b'{"count":null,"question":"a"}',
        b'{"question":"a","count":1}',
        b'{"question":"a","question":"a"}',
        b'{"qu\\u0065stion":"a"}',
        b'{"question":"\\u0061"}',
        b'{"question":"\xff"}',
        b'{"question":"\xed\xa0\x80"}',
        b'{"question":"\\ud800"}',
        b'{"question": "a"}',
        b'{"question":"a","zzz":1}',
        b'{"question":5}',
        b"{}",
        b"[]",
        b"null",
        b"",
        b'{"question":"a"},"metadata":{}',
        b'{"anything":' + b'{"a":' * 62 + b"1" + b"}" * 62 + b"}",
        b'{"anything":' + b'{"a":' * 61 + b"1" + b"}" * 61 + b"}",
    ]
)


@pytest.mark.slow  # thousands of cases
@settings(max_examples=4_000, deadline=None)
@given(
    name=st.sampled_from(sorted(PLAIN)),
    data=DATA,
    slots=st.fixed_dictionaries(
        {},
        optional={
            "talk": TEXTS,
            "id": TEXTS,
            "key": TEXTS,
            "idempotency_key": TEXTS,
            "timestamp": TIMES,
            "expires_at": TIMES,
        },
    ),
)
def test_a_forgery_with_right_hashes_is_cast_only_where_the_exact_way_accepts_it(
    name: str, data: bytes, slots: dict[str, str]
) -> None:
    layout = PLAIN[name]
    usual = {"talk": "talk", "id": "m-1", "timestamp": START, "expires_at": END, "key": "k", "idempotency_key": "i"}
    value = forged(data, usual | slots, layout)
    if agrees(ALL, value):
        return
    if not slots and data != b'{"question":"why?"}':
        # Nothing but data differs, so the layout is known: what is left aside the exact way refuses.
        with pytest.raises(ContractError):
            sealing.check_integrity(sealing.parse(value))


def test_the_forger_of_these_tests_makes_what_is_right() -> None:
    for layout in PLAIN.values():
        key, idempotency_key = layout.routing.key or "", layout.routing.idempotency_key or ""
        slots = {
            "talk": "talk",
            "id": "m-1",
            "timestamp": START,
            "expires_at": END,
            "key": key,
            "idempotency_key": idempotency_key,
        }
        assert forged(layout.data, slots, layout) == layout.value
        assert agrees(ALL, forged(layout.data, slots | {"talk": "other", "id": "m-9"}, layout))


def test_ten_thousand_mutations_are_cast_only_where_the_exact_way_accepts_them() -> None:
    rng = random.Random(7)
    values = [message.value for message in PLAIN.values()]
    accepted = 0
    for number in range(10_000):
        value = values[number % len(values)]
        at, length = rng.randrange(len(value)), rng.choice((0, 1, 1, 2, 9))
        piece = rng.choice(
            (
                b"",
                b" ",
                b'"',
                b"\\",
                b"{",
                b"}",
                b",",
                b"0",
                b"\xff",
                b"\x00",
                b'"x":1,',
                value[at : at + rng.randrange(60)],
            )
        )
        accepted += agrees(ALL, value[:at] + piece + value[at + length :])
    assert accepted > 10, "too few mutations are none to say anything"


def test_a_hostile_megabyte_is_not_searched() -> None:
    front = b'{"data":' + b',"metadata":{"conversation_id":' * 33_000
    assert ALL.cast(front + PLAIN["bare"].value[PLAIN["bare"].data_end :]) is None
    assert ALL.cast(b'{"data":"' + b"\xff" * 1_000_000) is None
    assert ALL.cast(b"") is None
