"""A template makes the very bytes that the general way makes, compiled or not."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import native
from bus.errors import ContractError
from bus.payloads.payload_types import payload, payload_type
from bus.protocol import sealing
from bus.protocol.envelope import Agent, Routing
from bus.protocol.identifiers import uuid7
from producers.sealing.envelope_template import EnvelopeTemplate, shared_options
from producers.sealing.options import Outgoing, PublisherIdentity, compose


@payload("template.tested", version="1.2.3")
class Sample(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    number: float


agents = st.builds(
    Agent,
    id=st.text(st.characters(blacklist_categories=("Cs", "Cc", "Cf", "Zl", "Zp")), min_size=1, max_size=40),
    role=st.none() | st.just("plan\u00e9r"),
    type=st.none() | st.just("agent"),
)


TEXTS = (
    st.none()
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
    | st.text(max_size=3)
    | st.sampled_from(["a" * 256, "a" * 257])
)


LIFETIMES = st.none() | st.floats() | st.integers() | st.sampled_from([0, 1, 0.0005, 0.0015, 2.0025, True, 700_000])
OPTIONS = st.fixed_dictionaries(
    {"conversation_id": TEXTS, "idempotency_key": TEXTS, "key": TEXTS, "ttl_s": LIFETIMES},
    optional={
        "to": st.none() | st.sampled_from(["b@svc", "\u00e9", "", 'q"', Agent(role="r")]),
        "priority": st.sampled_from([None, 5, 0, 10, True, "high", "none"]),
        "reply_to": st.sampled_from([None, "tests.reply.a", "a"]),
        "max_hops": st.sampled_from([None, 0, 3, -1, False]),
        "intent": st.none() | st.text(max_size=5) | st.just("i" * 201),
        "performative": st.sampled_from([None, "request", "shout"]),
        "run_id": st.none() | st.just("run"),
    },
)


compiled = pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")


@compiled
@given(
    agent=agents,
    text=st.text(max_size=50),
    now_ms=st.integers(0, 2**45) | st.just(253_402_300_799_000),
    entropy=st.binary(min_size=10, max_size=10),
    options=OPTIONS,
)
def test_a_template_seals_as_the_general_way_does_or_leaves_it_to_that(
    agent: Agent, text: str, now_ms: int, entropy: bytes, options: dict[str, Any]
) -> None:
    kind = payload_type(Sample)
    origin = PublisherIdentity(sender=agent, namespace="tests", ttl_s=30.0, max_ttl_s=600_000)
    data = kind.encode(Sample(text=text, number=0.5))
    draft = Outgoing(Sample(text=text, number=0.5), **options)
    try:
        layers = compose(draft, kind, origin, now_ms=now_ms, message_id=uuid7(now_ms, entropy))
        expected = sealing.seal(data, layers.metadata, layers.routing)
    except ContractError:
        expected = None
    filled = {name: options.get(name) for name in ("conversation_id", "idempotency_key", "key", "ttl_s")}
    try:
        made = (
            None
            if shared_options(draft) is None
            else EnvelopeTemplate(kind, origin, draft).seal(data, now_ms, entropy, **filled)
        )
    except ContractError:
        made = None
    if made is not None:
        assert expected is not None
        assert made == (expected.message_id, expected.key, expected.value)
        sealing.check_integrity(sealing.parse(expected.value))


@compiled
def test_ordinary_options_need_no_general_way() -> None:
    kind = payload_type(Sample)
    origin = PublisherIdentity(sender=Agent(id="a@svc"), namespace="tests", ttl_s=30.0, max_ttl_s=600)
    draft = Outgoing(
        payload=Sample(text="", number=0.5), to="b@svc", priority="high", intent="try", max_hops=3, performative="query"
    )
    made = EnvelopeTemplate(kind, origin, draft).seal(b"{}", 0, bytes(10), key="k", ttl_s=5)
    assert made is not None
    assert sealing.parse(made[2]).routing == Routing(
        expires_at="1970-01-01T00:00:05.000Z", key="k", max_hops=3, priority=7
    )


def test_a_bool_does_not_match_an_integer_of_a_template() -> None:
    one, yes = (shared_options(Outgoing(Sample(text="", number=0.5), priority=priority)) for priority in (1, True))
    assert one is not None
    assert yes is None


def test_overlong_text_uses_the_general_path_and_is_not_cached() -> None:
    draft = Outgoing(Sample(text="", number=0.5), to="a" * 256)
    assert shared_options(draft) is not None
    for changes in ({"to": "a" * 257}, {"to": Agent(id="a" * 257)}, {"intent": "i" * 100_000}):
        assert shared_options(msgspec.structs.replace(draft, **changes)) is None


@pytest.mark.parametrize("name", Outgoing.__struct_fields__)
def test_an_option_is_filled_in_or_the_templates_or_for_the_general_way(name: str) -> None:
    draft = msgspec.structs.replace(Outgoing(Sample(text="", number=0.5)), **{name: "x"})
    if name in {"payload", "conversation_id", "idempotency_key", "key", "ttl_s"}:
        assert shared_options(draft) == ()
    elif name in {"to", "priority", "reply_to", "max_hops", "intent", "performative"}:
        assert "x" in (shared_options(draft) or ())
    else:
        assert shared_options(draft) is None


@pytest.mark.parametrize("name", Outgoing.__struct_fields__[1:])
def test_an_option_that_is_equal_to_anything_is_not_taken_for_none(name: str) -> None:
    draft = msgspec.structs.replace(Outgoing(Sample(text="", number=0.5)), **{name: mock.ANY})
    if name in {"conversation_id", "idempotency_key", "key", "ttl_s"}:
        assert shared_options(draft) == ()
    else:
        assert shared_options(draft) is None
