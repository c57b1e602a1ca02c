"""The AsyncAPI document is one by the official schemas, and says what an app handles and sends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from bus.payloads.examples import example_of
from bus.schemas.asyncapi import asyncapi_of
from bus.vocabulary import BUILT_IN
from tests.node_tools import node_project


def document(**options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "title": "reviewers",
        "version": "1.0.0",
        "namespace": "agents",
        "group": "reviewers",
        "url": "kafka://kafka:9092",
        "handled": [kind for kind in BUILT_IN if kind.name.startswith("review.")],
        "published": [kind for kind in BUILT_IN if kind.name.startswith("draft.")],
    }
    return asyncapi_of(**{**given, **options})


@pytest.fixture(scope="module")
def official() -> Any:
    specs = node_project() / "node_modules" / "@asyncapi" / "specs" / "schemas" / "3.0.0.json"
    return jsonschema_rs.validator_for(json.loads(specs.read_text()))


def test_the_document_is_valid(official: Any) -> None:
    official.validate(document())
    official.validate(document(handled=list(BUILT_IN), published=list(BUILT_IN), url="sqlite:///bus.db"))


def test_the_official_schema_refuses_a_wrong_action(official: Any) -> None:
    wrong = document()
    wrong["operations"]["send_draft.output"]["action"] = "publish"
    assert not official.is_valid(wrong)


def test_every_reference_leads_somewhere() -> None:
    found = document(handled=list(BUILT_IN))
    for reference in set(_references(found)):
        part: Any = found
        for token in reference.removeprefix("#/").split("/"):
            part = part[token]


def test_the_document_lists_handled_and_sent_types() -> None:
    found = document()
    assert found["operations"]["receive_review.result"]["action"] == "receive"
    assert found["operations"]["send_draft.output"]["action"] == "send"
    assert found["channels"]["review.result"]["address"] == "agents.review.result"
    group = found["operations"]["receive_review.result"]["bindings"]["kafka"]["groupId"]["enum"]
    assert group == ["reviewers"]


def test_the_data_schema_in_it_accepts_the_example() -> None:
    found = document(handled=list(BUILT_IN))
    for name in ("task.result", "review.result", "approval.request"):
        kind = BUILT_IN.get(name)
        assert kind is not None
        within = {"$ref": f"#/components/schemas/{name}", "components": found["components"]}
        jsonschema_rs.validator_for(within).validate(example_of(kind))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
