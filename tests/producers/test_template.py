"""A template makes the very bytes that the general way makes."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bus import sealing
from bus.envelope import Agent
from bus.names import uuid7
from bus.payloads import payload, payload_type
from producers.draft import Draft, Origin, compose
from producers.template import Template


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


@given(
    agent=agents,
    text=st.text(max_size=50),
    number=st.floats(allow_nan=False, allow_infinity=False),
    now_ms=st.integers(0, 2**45),
    ttl_s=st.floats(0.0001, 600_000),
    entropy=st.binary(min_size=10, max_size=10),
)
def test_a_template_seals_as_the_general_way_does(  # noqa: PLR0917 - what is drawn
    agent: Agent, text: str, number: float, now_ms: int, ttl_s: float, entropy: bytes
) -> None:
    kind = payload_type(Sample)
    origin = Origin(sender=agent, namespace="tests", ttl_s=ttl_s, max_ttl_s=1e9)
    data = kind.encode(Sample(text=text, number=number))
    identity = uuid7(now_ms, entropy)
    layers = compose(Draft(payload=Sample(text=text, number=number)), kind, origin, now_ms=now_ms, message_id=identity)
    message = sealing.seal(data, layers.metadata, layers.routing)
    made = Template(kind, origin).seal(data, identity.encode(), now_ms)
    assert made == message.value
    sealing.check_integrity(sealing.parse(made))
