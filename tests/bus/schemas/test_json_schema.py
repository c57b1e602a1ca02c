"""The JSON Schema of a type has the verdict of the gate `schema`; an independent validator reads it."""

from __future__ import annotations

import random
from typing import Any

import jsonschema_rs
import pytest

from bus.payloads.examples import example_of
from bus.payloads.payload_types import PayloadType
from bus.schemas.json_schema import schema_of
from bus.vocabulary import BUILT_IN
from tests.bus.schemas.cases import cases_of

# Lone surrogates are no text for it, and instants are judged by their form alone.
OPTIONS: dict[str, Any] = {"validate_formats": True}


@pytest.mark.parametrize("kind", list(BUILT_IN), ids=lambda kind: kind.name)
class TestVocabulary:
    def test_the_schema_is_one_of_its_dialect(self, kind: PayloadType) -> None:
        jsonschema_rs.meta.validate(schema_of(kind))

    def test_the_example_is_valid(self, kind: PayloadType) -> None:
        validator = jsonschema_rs.validator_for(schema_of(kind), **OPTIONS)
        validator.validate(example_of(kind))

    def test_the_schema_judges_as_the_gate_does(self, kind: PayloadType) -> None:
        schema = schema_of(kind)
        validator = jsonschema_rs.validator_for(schema, **OPTIONS)
        for data, accepted in cases_of(kind, 20, random.Random(kind.name)):
            if accepted:
                validator.validate(data)
            elif validator.is_valid(data):
                # Only what no schema can say may pass it.
                assert schema.get("x-sealbus-rules") or _has_time(schema), data


def _has_time(schema: Any) -> bool:
    return "date-time" in str(schema)
