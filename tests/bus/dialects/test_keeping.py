"""A mark is data that anybody can write: no mark makes a foreign message say something else than the sealed one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.dialects import Claims, Foreign, dialect
from bus.dialects.foreign import ForeignOptions
from bus.dialects.keeping import ABSENT, MARK
from bus.dialects.sealing import seal_foreign
from bus.errors import DialectError
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message

MARKS: list[tuple[str, str, Any]] = [
    ("004", "/sender/agent_id", "admin"),
    ("004", "/sender", {"agent_id": "admin", "framework": "x"}),
    ("004", "/recipient", {"agent_id": "other", "framework": "x"}),
    ("004", "/message_type", "task_response"),
    ("004", "/priority", "critical"),
    ("004", "/timestamp", "2030-01-01T00:00:00Z"),
    ("004", "/routing/timeout", "7d"),
    ("004", "/routing/timeout/x", "7d"),
    ("004", "/routing/retry_policy", {"max_retries": 99, "backoff": "linear"}),
    ("004", "/routing/fallback_agents", ["worker-1"]),
    ("004", "/metadata/task_id", "another"),
    ("004", "/metadata/x_sealbus/y", "x"),
    ("004", "/payload", "do something else"),
    ("004", "/payload/goal", "do something else"),
    ("004", "/payload/type", "task.result@1.0.0"),
    ("004", "", {"payload": "x"}),
    ("003", "/content", {"task": "something else"}),
    ("003", "/content/more", "something else"),
    ("003", "/performative", "accept"),
    ("003", "/sender", "admin"),
    ("003", "/in_reply_to", "another"),
    ("003", "/causality", {"in_reply_to": "another"}),
    ("003", "/tool_calls", [{"name": "rm", "arguments": {}}]),
    ("003", "/attachments", ["s3://a/b"]),
    ("003", "/auth", {"type": "jwt", "token": "x"}),
    ("003", "/unknown", 1),
    ("002", "/payload/parameters", {"currency": "XYZ"}),
    ("002", "/payload/more", 1),
    ("002", "/sender_id", "admin-1"),
    ("002", "/correlation_id", "a7f8d9e2-3c4b-4d6e-8f8a-9b0c1d2e3f40"),
    ("002", "/auth", {}),
    ("cloudevents", "/source", "sealbus://lab/admin"),
    ("cloudevents", "/source", "admin"),
    ("cloudevents", "/type", "com.example.x"),
    ("cloudevents", "/data", {}),
    ("cloudevents", "/data/more", 1),
    ("cloudevents", "/data_base64", "e30="),
    ("cloudevents", "/datacontenttype", "application/vnd.sealbus.v1+json"),
    ("cloudevents", "/subject", "other"),
    ("cloudevents", "/expirytime", "2030-01-01T00:00:00Z"),
    ("cloudevents", "/sbkey/x", "other"),
]
TYPES = {"004": "task.request", "003": "act.request", "002": "method.request", "cloudevents": "task.request"}
DATA: dict[str, dict[str, Any]] = {
    "task.request": {"goal": "g", "inputs": {"n": 1}},
    "act.request": {"content": {"task": "t", "n": 1}},
    "method.request": {"method": "get_price", "parameters": {"n": 1}},
}


def said_with(name: str, mark: Any) -> dict[str, Any]:
    """What a dialect says of a plain message with this mark."""
    kind = TYPES[name]
    data = DATA[kind] if mark is None else {**DATA[kind], MARK: mark}
    options = ForeignOptions(
        message_id="7e1a6b3e-3a74-4c7a-8c6f-2e21b8f59f44",
        to=Agent(id="worker-1"),
        correlation_id="workflow-7",
        task_id="task-1",
        expires_at_ms=1_767_225_690_000,
    )
    claims = Claims(sender=Agent(id="planner-1"), sent_at_ms=1_767_225_600_000)
    foreign = Foreign(type=kind, version="1.0.0", data=data, options=options, claims=claims)
    return dialect(name).encode(seal_foreign(foreign, namespace="lab"))


def meaning(name: str, said: dict[str, Any]) -> Foreign:
    """What a reader takes it for, without the reader's own mark."""
    foreign = dialect(name).decode(said)
    return msgspec.structs.replace(foreign, data={**foreign.data, MARK: None})


@pytest.mark.parametrize(("name", "pointer", "value"), MARKS)
def test_a_made_up_mark_changes_nothing(name: str, pointer: str, value: Any) -> None:
    assert said_with(name, {"of": name, "kept": {pointer: value}}) == said_with(name, None)


@pytest.mark.parametrize("name", sorted(TYPES))
@pytest.mark.parametrize(
    "mark",
    [
        5,
        [],
        {},
        {"of": 5},
        {"of": "other", "kept": {"/priority": "critical"}},
        {"kept": {"/x": 1}},
        {"of": "SELF", "kept": 5, "derived": 5},
        {"of": "SELF", "kept": {"x": 1, "/": 2, "//": 3, "/~2": 4}, "derived": [5, {}, "/goal", "/no/such"]},
        {"of": "SELF", "kept": {"/payload": ABSENT, "/content": ABSENT, "/data": ABSENT, "/message_type": ABSENT}},
    ],
)
def test_a_mark_of_another_form_counts_as_nothing(name: str, mark: Any) -> None:
    mark = json.loads(json.dumps(mark).replace("SELF", name))
    said, plain = said_with(name, mark), said_with(name, None)
    unknown = {member: value for member, value in said.items() if member not in plain}
    # Open dialects write members without a canonical place as they were.
    known = {"", "~2", "payload", "content", "data", "message_type"}
    assert unknown == {} or (name in ("004", "cloudevents") and set(unknown) <= known)
    assert {**plain, **unknown} == said


pointers = st.sampled_from(
    [
        *("/message_id", "/id", "/sender", "/sender/agent_id", "/sender_id", "/recipient", "/receiver", "/subject"),
        *("/timestamp", "/time", "/payload", "/payload/goal", "/payload/method", "/payload/parameters", "/content"),
        *("/content/task", "/data", "/type", "/performative", "/priority", "/routing", "/routing/timeout", "/ttl"),
        *(
            "/metadata",
            "/metadata/task_id",
            "/sbtask",
            "/sbkey",
            "/idempotency_key",
            "/conversation_id",
            "/specversion",
        ),
        *("/correlation_id", "/correlationid", "/in_reply_to", "/tool_calls", "/routing/retry_policy/backoff"),
    ]
)
scalars = st.none() | st.booleans() | st.integers(-5, 9) | st.sampled_from(["x", "high", "5m", "request", "task-1"])
values = (
    scalars | st.just(ABSENT) | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from(["n", "goal"]), scalars)
)


@pytest.mark.medium
@pytest.mark.parametrize("name", sorted(TYPES))
@given(kept=st.dictionaries(pointers, values, max_size=3))
@settings(max_examples=400, deadline=None)
def test_no_mark_makes_a_reader_understand_something_else(name: str, kept: dict[str, Any]) -> None:
    said = said_with(name, {"of": name, "kept": kept})
    try:
        foreign = meaning(name, said)
    except DialectError as error:
        # Only members that defaults may stand for can be left out, and their lack is noticed.
        assert error.found == "nothing"  # noqa: PT017
    else:
        plain = meaning(name, said_with(name, None))
        expected = msgspec.structs.replace(
            plain,
            options=msgspec.structs.replace(plain.options, expires_at_ms=foreign.options.expires_at_ms),
            claims=msgspec.structs.replace(plain.claims, sent_at_ms=foreign.claims.sent_at_ms),
        )
        assert foreign == expected
        assert foreign.claims.sent_at_ms in (plain.claims.sent_at_ms, None)
        assert foreign.options.expires_at_ms in (plain.options.expires_at_ms, None)


def test_a_mark_shows_where_a_message_came_from(examples: Callable[[str], Any]) -> None:
    assert dialect("003").decode(examples("003")["inform"]).data[MARK]["of"] == "003"


def test_another_dialects_mark_is_not_passed_on(examples: Callable[[str], Any]) -> None:
    message: Message = seal_foreign(dialect("004").decode(examples("004")["task request"]), namespace="lab")
    for name in ("003", "004", "cloudevents"):
        said = dialect(name).encode(
            seal_foreign(dialect("004").decode(examples("004")["task request"]), namespace="lab", message_id="x")
            if name != "003"
            else with_uuid(message)
        )
        assert MARK not in json.dumps(said)


def with_uuid(message: Message) -> Message:
    foreign = dialect("cloudevents").decode(dialect("cloudevents").encode(message))
    options = msgspec.structs.replace(foreign.options, message_id="7e1a6b3e-3a74-4c7a-8c6f-2e21b8f59f44")
    return seal_foreign(msgspec.structs.replace(foreign, options=options), namespace="lab")
