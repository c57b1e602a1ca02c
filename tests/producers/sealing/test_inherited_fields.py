"""What a template makes of a cause is what the general way makes of it, and is believed by receivers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus import gates, native
from bus.clock import ManualClock
from bus.errors import ContractError
from bus.payloads.payload_types import payload, payload_type
from bus.protocol import sealing
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.settings.loading import load
from producers.outcomes import PublishRejected
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import SealedRecord
from producers.sealing.sealer import Sealer, make_sealer
from tests.twins_alone import twins_alone


@payload("heritage.medium")
class Medium(msgspec.Struct, frozen=True):
    text: str = ""


@payload("heritage.low", risk="low")
class Low(msgspec.Struct, frozen=True):
    text: str = ""


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TEXTS = st.sampled_from(["x", 'quo"te', "back\\slash", "\u00e9\U0001f600", "a" * 256])
ROOTS = st.fixed_dictionaries(
    {},
    optional={
        "conversation_id": TEXTS,
        "correlation_id": TEXTS,
        "task_id": TEXTS,
        "parent_task_id": TEXTS,
        "run_id": TEXTS,
        "traceparent": st.sampled_from([TRACE, "not a trace", "x" * 300]),
        "tracestate": st.sampled_from(["a=b", "x" * 600]),
        "max_hops": st.integers(0, 20),
        "key": TEXTS,
        "message_id": st.sampled_from(['i"d', "plain", "~" * 128]),
    },
)
AGENTS = st.builds(
    Agent,
    id=st.sampled_from(["b@svc", None, 'b"']),
    session_id=st.none() | st.just("s1"),
    role=st.none() | st.just("writer"),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "to": st.sampled_from(["b@svc", ""]) | AGENTS,
        "key": st.none() | TEXTS | st.just(""),
        "idempotency_key": st.none() | TEXTS,
        "conversation_id": st.none() | TEXTS,
        "ttl_s": st.sampled_from([None, 5, 0.0015, 0, True, 1e9]),
        "priority": st.sampled_from([None, 3, "high", True]),
        "max_hops": st.sampled_from([None, 0, 3, 30]),
        "intent": st.none() | TEXTS,
        "performative": st.sampled_from([None, "inform", "shout"]),
        "run_id": st.none() | TEXTS,
    },
)


def sealer(agent: str = "heir@tests", **flags: object) -> Sealer:
    loaded = load(flags={"bus.url": "memory://", **flags}, env={}, file=None).settings
    return make_sealer(loaded, agent, clock=ManualClock())


def cause_of(options: dict[str, Any], kinds: list[type[msgspec.Struct]]) -> Message | None:
    """A message with as many ancestors as there are *kinds*, of these kinds."""
    before = sealer("elder@tests")
    try:
        message = before.seal(Outgoing(Medium(), **options)).message
        for kind in kinds:
            message = before.seal(Outgoing(kind()), SealRequest(cause=message)).message
    except PublishRejected:
        return None
    return message


def made_by(seal: Callable[[], SealedRecord]) -> object:
    """What is sealed, or why it is refused."""
    try:
        sealed = seal()
    except PublishRejected as error:
        return str(error.__cause__)
    except ContractError as error:
        return str(error)
    return sealed.message_id, sealed.message_type, sealed.record, sealed.message.metadata


@pytest.mark.slow  # hundreds of cases, each sealed twice
@settings(max_examples=500, deadline=None)
@given(
    root=ROOTS,
    kinds=st.lists(st.sampled_from([Medium, Low]), max_size=3) | st.just([Medium] * 15),
    subject=st.sampled_from([Medium("te\nxt"), Low("\u00e9")]),
    options=OPTIONS,
    answers=st.booleans(),
    topic=st.sampled_from([None, "agents.elsewhere"]),
    compiled=st.booleans(),
)
def test_template_and_general_path_seal_the_same_effect(
    root: dict[str, Any],
    kinds: list[type[msgspec.Struct]],
    subject: Medium | Low,
    options: dict[str, Any],
    *,
    answers: bool,
    topic: str | None,
    compiled: bool,
) -> None:
    cause = cause_of(root, kinds)
    if cause is None:
        return
    draft = Outgoing(subject, **options)
    kind = payload_type(subject)
    with nullcontext() if compiled else twins_alone():
        heir = sealer()
        heir._entropy = bytes
        expected = made_by(
            lambda: heir.seal_data(
                draft, kind, kind.encode(subject), SealRequest(cause=cause, answers=answers, topic=topic)
            )
        )
        for _ in range(3):
            assert made_by(lambda: heir.seal(draft, SealRequest(cause=cause, answers=answers, topic=topic))) == expected


@pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")
def test_an_answer_is_made_by_a_template_and_passes_the_gates() -> None:
    cause = cause_of({"run_id": "r", "traceparent": TRACE}, [Medium, Medium])
    assert cause is not None
    heir = sealer()
    heir.seal(Outgoing(Medium()))
    sealed = heir.seal(Outgoing(Medium("answer")), SealRequest(cause=cause, answers=True))
    assert sealed.made is None
    message = sealing.parse(sealed.record.value)
    sealing.check_integrity(message)
    gates.authenticity_gate(message, "medium", None)
    assert message.metadata.correlation_id == cause.message_id
    assert sealed.record.headers[-1] == ("traceparent", TRACE.encode())


def test_prepared_data_are_sealed_instead_of_the_changed_payload() -> None:
    cause = cause_of({}, [])
    heir = sealer()
    heir.seal(Outgoing(Medium()))
    sealed = heir.seal(Outgoing(Medium("later")), SealRequest(cause=cause, data=b'{"text":"then"}'))
    assert sealed.message.data == b'{"text":"then"}'


def test_an_answer_that_is_too_large_is_refused() -> None:
    cause = cause_of({}, [])
    heir = sealer(**{"publish.max_message_bytes": 2_000})
    heir.seal(Outgoing(Medium()))
    with pytest.raises(PublishRejected, match="at most 2000 are allowed"):
        heir.seal(Outgoing(Medium("x" * 2_000)), SealRequest(cause=cause))
