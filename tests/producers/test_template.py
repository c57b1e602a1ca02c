"""A template makes the very bytes that the general way makes, compiled or not."""

from __future__ import annotations

from unittest import mock

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bus import native, sealing
from bus.envelope import Agent
from bus.names import uuid7
from bus.payloads import payload, payload_type
from producers.draft import Draft, Origin, compose
from producers.template import Template, has_only_keys


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


@given(
    agent=agents,
    text=st.text(max_size=50),
    number=st.floats(allow_nan=False, allow_infinity=False),
    now_ms=st.integers(0, 2**45),
    ttl_s=st.floats(0.0001, 600_000),
    entropy=st.binary(min_size=10, max_size=10),
    talk=TEXTS,
    idempotency_key=TEXTS,
    key=TEXTS | st.just("same"),
)
def test_a_template_seals_as_the_general_way_does(  # noqa: PLR0917 - what is drawn
    agent: Agent,
    text: str,
    number: float,
    now_ms: int,
    ttl_s: float,
    entropy: bytes,
    talk: str | None,
    idempotency_key: str | None,
    key: str | None,
) -> None:
    kind = payload_type(Sample)
    key = talk if key == "same" else key
    origin = Origin(sender=agent, namespace="tests", ttl_s=ttl_s, max_ttl_s=1e9)
    data = kind.encode(Sample(text=text, number=number))
    identity = uuid7(now_ms, entropy)
    for core in (native.core, None):
        with mock.patch.object(native, "core", core):
            made = Template(kind, origin).seal(data, now_ms, entropy, conversation_id=talk, idempotency_key=idempotency_key, key=key)
        if made is None:
            assert (
                not all(
                    plain is None
                    or (plain.isascii() and plain.isprintable() and '"' not in plain and "\\" not in plain and 0 < len(plain) <= 256)
                    for plain in (talk, idempotency_key, key)
                )
                or now_ms < 0
            )
            continue
        draft = Draft(payload=Sample(text=text, number=number), conversation_id=talk, idempotency_key=idempotency_key, key=key)
        assert has_only_keys(draft)
        layers = compose(draft, kind, origin, now_ms=now_ms, message_id=identity)
        message = sealing.seal(data, layers.metadata, layers.routing)
        assert made == (identity, message.key, message.value)
        sealing.check_integrity(sealing.parse(message.value))


def test_options_beside_the_keys_are_seen() -> None:
    for name in Draft.__struct_fields__:
        draft = msgspec.structs.replace(Draft(payload=Sample(text="", number=0.5)), **{name: "x"})
        assert has_only_keys(draft) == (name in {"payload", "conversation_id", "idempotency_key", "key"})
