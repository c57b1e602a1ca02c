"""The laws of all dialects, on generated messages.

A: a foreign message that is accepted comes back as the same JSON value, without its proofs. B: a canonical message that
is carried comes back as the same bytes. Every type can be said in every dialect.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.dialects import DIALECTS, Defaults, cloudevents, dialect
from bus.dialects.sealing import seal_foreign
from bus.errors import DialectError
from bus.protocol import canonical
from bus.protocol.sealing import Message
from bus.vocabulary import BUILT_IN

Check = Callable[..., None]
NAMES = ("002", "003", "004", "cloudevents")
LOSSY = {
    "002": {"error.reported", "agent.handshake", "agent.handshake-ack", "agent.announcement", "agent.goodbye"},
    "003": {"error.reported"},
    "004": {"error.reported"},
    "cloudevents": set[str](),
}
"""Types of which a dialect leaves out what it has no member for."""

ids = st.uuids(version=4).map(str)
words = st.sampled_from(["a", "code_review", "häßlich ☂", "with space", "a/b~c"])
texts = st.text(max_size=12) | words
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
objects = st.dictionaries(texts, values, max_size=3)
times = st.sampled_from(
    [
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00.000Z",
        "2026-01-31T12:00:00.125Z",
        "2026-01-31T19:00:00+07:00",
        "2026-01-31t12:00:00.1234567-00:30",
        "2026-02-30T12:00:00Z",
    ]
)


def some(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


# --- messages of each dialect -----------------------------------------------------------------------------------------

agents_002 = st.sampled_from(["client-1", "server-1", "Ab3"])
typed = st.sampled_from(
    [
        {"type": "task.accepted@1.0.0", "data": {"understood_goal": "g"}},
        {"type": "task.request@1.0.0", "data": {"goal": "g"}},
        {"type": "task.request@2.0.0", "data": {"goal": "g"}},
        {"type": "no.such@1.0.0", "data": {}},
        {"type": "task.accepted@1.0.0", "data": {"understood_goal": 5}},
    ]
)
card = some(
    {
        "agent_id": agents_002,
        "name": st.just("n"),
        "version": st.sampled_from(["1.0.0", "1"]),
        "description": texts,
        "capabilities": st.lists(texts, min_size=1, max_size=2),
        "supported_protocols": st.just(["A2A/1.0"]),
    },
    {"metadata": objects, "schema_versions": st.just(["1.0.0"])},
)
agent_info = some(
    {
        "agent_id": agents_002,
        "name": st.just("n"),
        "capabilities": st.lists(st.just("c"), max_size=2),
        "status": st.sampled_from(["healthy", "unhealthy"]),
        "endpoint": st.sampled_from(["http://localhost:1", "sealbus://lab/client-1", "sealbus://other/client-1", "x"]),
    },
    {"last_heartbeat": times},
)
error_002 = some(
    {"code": st.sampled_from(["INVALID_CURRENCY", "X", "x1"]), "message": st.just("m")},
    {"details": objects, "retry_after": st.integers(0, 9), "documentation_url": st.just("https://a.example/b#c")},
)
payloads_002 = {
    "request": some({"method": st.sampled_from(["get", "task.request@1.0.0"])}, {"parameters": objects}),
    "response": some({"status": st.just("success"), "data": objects | typed}, {})
    | some({"status": st.just("error"), "error": error_002.map(lambda e: {k: e[k] for k in e if k[:2] != "do"})}, {}),
    "handshake": some({"agent_card": card}, {}),
    "handshake_ack": some(
        {"accepted": st.booleans()}, {"agent_card": card, "protocol": st.just("A2A/1.0"), "error": error_002}
    ),
    "error": some({"error": error_002}, {}),
    "discover_agents": some(
        {},
        {
            "capabilities": st.lists(st.just("c"), max_size=2),
            "filters": some({}, {"status": st.sampled_from(["all", "healthy"]), "max_results": st.integers(0, 101)}),
        },
    ),
    "agent_announcement": some(
        {"agents": st.lists(agent_info, max_size=2), "total_count": st.integers(0, 9)},
        {"query_time_ms": st.sampled_from([0, 15.3])},
    ),
    "goodbye": some({}, {"reason": st.just("MOVED"), "message": st.just("m")}),
}


def message_002(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    answers = kind in ("response", "handshake_ack", "error", "agent_announcement")
    required = {
        "message_id": ids,
        "message_type": st.just(kind),
        "sender_id": st.just("registry") if kind == "agent_announcement" else st.just("client-1"),
        "recipient_id": st.just("registry") if kind == "discover_agents" else agents_002,
        "timestamp": times,
        "payload": payloads_002[kind],
    }
    return some(
        required | ({"correlation_id": ids} if answers else {}), {} if answers else {"correlation_id": st.none()}
    )


content_003 = (
    objects
    | typed
    | some(
        {"code": st.sampled_from(["error.transient.rate_limit", "error.semantic", "boom"]), "message": st.just("m")},
        {"retry_after_seconds": st.sampled_from([0, 20, 1.5, -1]), "x": values},
    )
    | some({"conclude": st.booleans()}, {"summary": texts})
)
performatives = st.sampled_from(
    [
        "request",
        "inform",
        "propose",
        "accept",
        "reject",
        "query",
        "confirm",
        "error",
        "call_for_proposal",
        "cancel",
        "sing",
    ]
)
message_003 = some(
    {
        "message_id": ids,
        "conversation_id": texts,
        "sender": st.just("planner@svc"),
        "receiver": st.just("worker@svc"),
        "timestamp": times,
        "performative": performatives,
        "schema_version": st.sampled_from(["1.0.0", "2"]),
        "content": content_003,
    },
    {
        "in_reply_to": st.sampled_from(["a", "b"]),
        "causality": st.just({"in_reply_to": "a"}),
        "reply_to": texts,
        "ttl": st.integers(0, 5000),
        "priority": st.integers(0, 9),
        "idempotency_key": texts,
        "auth": st.just({"type": "jwt", "token": "secret"}),
        "signature": st.just("abc"),
        "tool_calls": st.lists(some({"name": st.just("t"), "arguments": objects}, {"x": values}), max_size=2),
        "attachments": st.lists(st.sampled_from(["https://a.example/b", "s3://a/b"]), max_size=2),
    },
)
agents_004 = some(
    {"agent_id": st.sampled_from(["a", "opencode://b"]), "framework": st.sampled_from(["codex", "sealbus"])},
    {"session_id": st.sampled_from(["s", "task-1", "msg-1", None]), "region": values},
)
payloads_004 = {
    "task_request": texts
    | typed
    | st.builds(
        lambda base, more: {**more, **base},
        some(
            {},
            {
                "task_type": st.just("review"),
                "goal": texts | st.none(),
                "acceptance_criteria": st.lists(texts, max_size=2),
            },
        ),
        objects,
    ),
    "task_response": typed
    | st.builds(
        lambda base, more: {**more, **base},
        some(
            {"status": st.sampled_from(["completed", "failed", "cancelled", "done"])},
            {
                "summary": texts | st.none(),
                "error": st.sampled_from(
                    [None, {"code": "FAILED", "message": "failed"}, {"code": "A1", "message": "b"}]
                ),
                "findings": st.none()
                | st.lists(
                    some(
                        {"message": st.just("m")},
                        {
                            "severity": st.sampled_from(["low", "none"]),
                            "line": st.integers(0, 9),
                            "claim": texts,
                            "q": values,
                        },
                    ),
                    max_size=2,
                ),
            },
        ),
        objects,
    ),
    "status_update": some(
        {},
        {
            "phase": st.just("analysis"),
            "notes": texts,
            "percent_complete": st.sampled_from([0, 65, 65.5, 100.0, 101]),
            "x": values,
        },
    ),
    "error": some(
        {"code": words, "message": texts}, {"details": texts | objects | st.just({"text": "t"}), "x": values}
    ),
    "heartbeat": some(
        {"status": st.just("healthy")},
        {"active_tasks": st.integers(-1, 9), "cpu": st.just(0.41), "memory": st.just(512)},
    ),
}


def message_004(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    routing = some(
        {
            "timeout": st.sampled_from(["300s", "300.0s", "5m", "250ms", "0s", "300"]),
            "retry_policy": some(
                {
                    "max_retries": st.sampled_from([0, 2, 2.0, 1.5, 99]),
                    "backoff": st.sampled_from(["linear", "exponential"]),
                },
                {"x": values},
            ),
        },
        {
            "fallback_agents": st.sampled_from([[], ["c"], ["c", "d"], ["c", "c"], None]),
            "delivery_mode": st.sampled_from(["sync", "async"]),
        },
    )
    required = {
        "message_id": st.sampled_from(["msg-1", "msg_1719000000000_abcd123"]),
        "timestamp": times,
        "sender": agents_004,
        "recipient": agents_004,
        "message_type": st.just(kind),
        "priority": st.sampled_from(["low", "medium", "high", "critical"]),
        "payload": payloads_004[kind],
        "routing": routing,
    }
    metadata = some(
        {}, {"task_id": st.sampled_from(["task-1", "msg-1", None]), "retryable": st.booleans(), "diagnostics": values}
    )
    return some(required, {"metadata": metadata | st.none(), "trace": values})


event = some(
    {
        "specversion": st.just("1.0"),
        "id": st.sampled_from(["1", "msg-1"]),
        "source": st.sampled_from(
            ["sealbus://lab/planner%40svc", "sealbus://lab/planner@svc", "/mine", "sealbus://X/y"]
        ),
        "type": st.sampled_from(["event.observed", "task.accepted", "no.such"]),
        "data": st.sampled_from(
            [
                {"understood_goal": "g", "x_mine": 1.5},
                {"event": "x", "subject": "y", "occurred_at": "2026-01-01T00:00:00Z"},
            ]
        ),
    },
    {
        "datacontenttype": st.sampled_from(["application/json", "application/json; charset=utf-8"]),
        "dataschema": st.sampled_from(
            ["urn:sealbus:schema:event.observed:1.0.0", "urn:sealbus:schema:task.accepted:1.7.0", "x:y"]
        ),
        "time": times | st.none(),
        "expirytime": st.sampled_from(["2026-01-31T13:00:00Z", "2026-01-31T13:00:01+00:00"]),
        "subject": st.sampled_from(["worker@svc", "role:reviewer"]),
        "partitionkey": st.sampled_from(["1", "k"]),
        "sbconversation": st.sampled_from(["1", "c"]),
        "correlationid": st.sampled_from(["w", "a"]),
        "causationid": st.just("a"),
        "sequence": st.sampled_from(["7", "007", "x"]),
        "traceparent": st.just("00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
        "dataclassification": st.just("secret"),
        "sbtask": st.sampled_from(["task-1", "1"]),
        "sbkey": st.just("k"),
        "sbpriority": st.integers(0, 10),
        "sbtrust": st.sampled_from(["user_request", "internal_agent"]),
        "sbhops": st.integers(0, 3),
        "dataref": st.just("https://a.example/b"),
        "other": st.sampled_from(["x", 5, True, None, [1]]),
    },
)
messages: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "002": st.sampled_from(sorted(payloads_002)).flatmap(message_002),
    "003": message_003,
    "004": st.sampled_from(sorted(payloads_004)).flatmap(message_004),
    "cloudevents": event,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn, base: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """A message of which one member, anywhere, is another value, or gone, or new."""
    message = copy.deepcopy(draw(base))
    way = draw(st.sampled_from(["none", "replace", "delete", "add"]))
    path = draw(st.sampled_from(places(message)[1:]))
    target: Any = message
    for key in path[:-1]:
        target = target[key]
    if way == "replace":
        target[path[-1]] = draw(values | typed)
    elif way == "delete":
        del target[path[-1]]
    elif way == "add" and isinstance(target, dict):
        target[draw(texts)] = draw(values)
    return message


@pytest.mark.medium
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=500, deadline=None)
def test_a_foreign_message_is_refused_or_comes_back_as_it_was(
    name: str, data: st.DataObject, assert_kept_whole: Check, fragment_defaults: Defaults
) -> None:
    message = data.draw(mutated(messages[name]))
    with contextlib.suppress(DialectError):
        assert_kept_whole(name, message)
    with contextlib.suppress(DialectError):
        assert_kept_whole(name, message, fragment_defaults)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_most_generated_messages_are_accepted(name: str, data: st.DataObject) -> None:
    """Not a law: it says that the test of the law sees more than refusals."""
    codec = dialect(name)

    def accepts(message: dict[str, Any]) -> bool:
        with contextlib.suppress(DialectError):
            codec.decode(message)
            return True
        return False

    data.draw(messages[name].filter(accepts))


KINDS = sorted(kind.name for kind in BUILT_IN)


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_a_carried_message_comes_back_as_the_same_bytes(kind: str, message_of: Callable[..., Message]) -> None:
    for seed in range(5):
        message = message_of(kind, seed)
        for name in ("004", "cloudevents"):
            codec = dialect(name)
            said = codec.encode(message, carry=True)
            foreign = codec.decode(json.dumps(said).encode())
            assert seal_foreign(foreign, namespace="elsewhere").value == message.value
            assert codec.encode(seal_foreign(foreign, namespace="lab"), carry=True) == said
        headers, body = cloudevents.encode_binary(message, carry=True)
        foreign = cloudevents.decode_binary(headers, body)
        assert foreign.carried is not None
        assert foreign.carried.value == message.value


@pytest.mark.medium
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_message_that_came_from_a_dialect_is_carried_whole(data: st.DataObject) -> None:
    message = data.draw(messages["004"])
    with contextlib.suppress(DialectError):
        sealed = seal_foreign(dialect("004").decode(message), namespace="lab")
        for name in ("004", "cloudevents"):
            said = dialect(name).encode(sealed, carry=True)
            foreign = None
            with contextlib.suppress(DialectError):
                foreign = dialect(name).decode(json.dumps(said).encode())
            assert foreign is not None, said
            assert seal_foreign(foreign, namespace="lab").value == sealed.value


@pytest.mark.medium
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_can_be_said_in_every_dialect(kind: str, name: str, message_of: Callable[..., Message]) -> None:
    codec, known = dialect(name), BUILT_IN.get(kind)
    assert known is not None
    for seed in range(5):
        message = message_of(kind, seed)
        try:
            said = codec.encode(message)
        except DialectError as error:
            # The only data that a dialect cannot say: references of more than a URI, where it has bare URIs.
            assert (name, error.pointer[:18]) == ("003", "/data/attachments/")  # noqa: PT017
            continue
        foreign = codec.decode(json.dumps(said).encode())
        assert foreign.type == kind
        if kind not in LOSSY[name]:
            assert known.decode(canonical.encode(foreign.data)) == known.decode(message.data)
        again = codec.encode(seal_foreign(foreign, namespace="lab"))
        assert canonical.encode(again) == canonical.encode(said)


def test_all_dialects_are_named_once() -> None:
    assert set(NAMES) < set(DIALECTS)
