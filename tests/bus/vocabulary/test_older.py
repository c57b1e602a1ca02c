"""Older versions are judged by their own published schema, and every instance of it upcasts."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType
from bus.protocol import canonical, sealing
from bus.protocol.envelope import Agent, Metadata, Routing
from bus.schemas.json_schema import schema_of
from bus.vocabulary import BUILT_IN, older, older_types

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.sampled_from([0.5, -1.25])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def instances(schema: dict[str, Any], parts: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of *schema*, as far as the older types need it."""
    if "$ref" in schema:
        return instances(parts[schema["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in schema:
        return st.one_of(*(instances(each, parts) for each in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "null":
            return st.none()
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=12) | st.just("deploy")
        case "integer":
            return st.integers(schema.get("minimum", 0), schema.get("maximum", 2**53 - 1))
        case "array":
            return st.lists(instances(schema["items"], parts), max_size=3)
        case "object" if "properties" in schema:
            needed = {name: instances(schema["properties"][name], parts) for name in schema.get("required", ())}
            rest = {name: instances(one, parts) for name, one in schema["properties"].items() if name not in needed}
            return st.fixed_dictionaries(needed, optional=rest)
        case "object":
            return st.dictionaries(st.text(max_size=4), JSON, max_size=3)
    raise AssertionError(schema)


def with_others(kind: PayloadType, newer: PayloadType) -> st.SearchStrategy[dict[str, Any]]:
    """Data of *kind*, of which many have members that it does not know, or other values than it takes."""
    schema = schema_of(kind)
    known = sorted(schema["properties"])
    strange = sorted({*schema_of(newer)["properties"], "later"} - {*known})
    plain = instances(schema, schema.get("$defs", {}))
    extra = st.dictionaries(st.sampled_from(strange), JSON, max_size=2)
    changed = st.dictionaries(st.sampled_from(known), JSON, max_size=1)
    gone = st.sets(st.sampled_from(known), max_size=1)
    return st.builds(
        lambda data, more, other, less: {
            name: value for name, value in {**data, **more, **other}.items() if name not in less
        },
        plain,
        extra,
        st.just({}) | changed,
        st.just(set()) | gone,
    )


def message(kind: PayloadType, data: dict[str, Any], **options: Any) -> sealing.Message:
    metadata = Metadata(
        protocol="sealbus/1",
        namespace="agents",
        message_id="m-1",
        message_type=kind.name,
        schema_version=kind.version,
        timestamp="2026-01-01T00:00:00.000Z",
        sender=Agent(id="a@svc"),
        conversation_id="c",
        hops=0,
        **options,
    )
    return sealing.seal(canonical.encode(data), metadata, Routing(expires_at="2026-01-01T01:00:00.000Z"))


@pytest.mark.medium
@pytest.mark.parametrize("kind", older_types(), ids=lambda kind: f"{kind.name}@{kind.version}")
@settings(max_examples=400)
@given(st.data())
def test_an_older_version_is_taken_exactly_when_its_own_schema_takes_it(kind: PayloadType, data: Any) -> None:
    newer = BUILT_IN.get(kind.name)
    assert newer is not None
    instance = data.draw(with_others(kind, newer))
    fits = jsonschema_rs.validator_for(schema_of(kind)).is_valid(instance)
    try:
        opened = newer.open(message(kind, instance))
    except ContractError as error:
        refusal = error
    else:
        assert fits
        assert isinstance(opened, newer.cls)
        return
    assert (fits, refusal.reason) == (False, "schema_violation")
    # The pointer names what was sent.
    assert refusal.pointer.split("/")[2:3] in [[], *([name] for name in schema_of(kind)["properties"])]


@pytest.mark.parametrize(
    ("data", "pointer"),
    [
        ({"verdict": "needs_discussion", "comments": {"a": 1}}, "/data/comments"),
        ({"verdict": "needs_discussion", "comments": "abc"}, "/data/comments"),
        ({"verdict": "needs_discussion", "comments": [{"x": 1}]}, "/data/comments/0"),
        ({"verdict": "needs_discussion", "comments": None}, "/data/comments"),
        ({"comments": ["x"]}, "/data/verdict"),
    ],
)
def test_a_review_of_the_first_version_that_its_schema_refuses_is_refused_there(data: Any, pointer: str) -> None:
    kind, newer = older("review.result", "1.0.0"), BUILT_IN.get("review.result")
    assert kind is not None
    assert newer is not None
    with pytest.raises(ContractError) as caught:
        newer.open(message(kind, data))
    assert (caught.value.reason, caught.value.pointer) == ("schema_violation", pointer)


def test_upcasting_a_first_version_review_adds_no_fields() -> None:
    kind, newer = older("review.result", "1.0.0"), BUILT_IN.get("review.result")
    assert kind is not None
    assert newer is not None
    data = {"verdict": "changes_requested", "comments": ["x", ""], "items": [{"finding": "y"}]}
    opened = newer.open(message(kind, data))
    assert [(item.finding, item.blocking) for item in opened.items] == [("x", True)]


@pytest.mark.parametrize(
    ("said", "kind_of_action", "description"),
    [
        ("deploy", "deploy", "why"),
        ("Deploy to production", "deploy_to_production", "Deploy to production: why"),
        ("\u2708", "action", "\u2708: why"),
        ("7 of 9", "action", "7 of 9: why"),
        ("x" * 70, "x" * 64, f"{'x' * 70}: why"),
    ],
)
def test_any_action_of_an_old_approval_request_has_its_place(said: str, kind_of_action: str, description: str) -> None:
    kind, newer = older("approval.request", "1.0.0"), BUILT_IN.get("approval.request")
    assert kind is not None
    assert newer is not None
    data = {"request_id": "r", "action": said, "resource": {"type": "x", "id": "i"}, "reason": "why"}
    opened = newer.open(message(kind, {**data, "risk_level": "low", "timeout_seconds": 60}))
    assert (opened.action.type, opened.action.description) == (kind_of_action, description)


def test_a_field_that_only_the_older_version_has_may_be_critical() -> None:
    kind, newer = older("review.result", "1.0.0"), BUILT_IN.get("review.result")
    assert kind is not None
    assert newer is not None
    data = {"verdict": "approved", "comments": []}
    newer.open(message(kind, data, critical_fields=("/data/comments",)))
    with pytest.raises(ContractError) as caught:
        newer.open(message(kind, data, critical_fields=("/data/items",)))
    assert caught.value.reason == "critical_field"
