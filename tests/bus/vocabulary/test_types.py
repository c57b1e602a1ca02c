"""What holds for every built-in type: the classes are the table, and nothing else lists them."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest

from bus import vocabulary
from bus.payloads.payload_types import PayloadType, is_payload, payload_type
from bus.vocabulary import BUILT_IN, FAMILIES, family_of, older, older_types, types_of

EVERY = [*BUILT_IN, *older_types()]


def name_of_class(kind: PayloadType) -> str:
    return "".join(word.capitalize() for word in re.split(r"[.-]", kind.name))


def test_every_payload_of_a_family_is_a_type() -> None:
    declared = {
        payload_type(value).cls
        for family in FAMILIES
        for value in vars(import_module(f"bus.vocabulary.{family}")).values()
        if isinstance(value, type) and is_payload(value)
    }
    assert declared == {kind.cls for kind in EVERY}
    assert len({kind.name for kind in BUILT_IN}) == len(BUILT_IN) == len(BUILT_IN.names())
    assert [kind.name for kind in BUILT_IN] == [kind.name for family in FAMILIES for kind in types_of(family)]


def test_a_class_is_named_after_its_type_and_an_older_one_after_its_major_too() -> None:
    assert [kind.cls.__name__ for kind in BUILT_IN] == [name_of_class(kind) for kind in BUILT_IN]
    assert [kind.cls.__name__ for kind in older_types()] == [
        f"{name_of_class(kind)}{kind.major}" for kind in older_types()
    ]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: f"{kind.name}@{kind.version}")
def test_a_type_names_its_sender_and_receiver_and_is_found_by_name(kind: PayloadType) -> None:
    assert inspect.getdoc(kind.cls)
    assert getattr(vocabulary, kind.cls.__name__) is kind.cls
    assert kind.cls.__module__ == f"bus.vocabulary.{family_of(kind.name)}"
    assert BUILT_IN.get(kind.name) is kind or older(kind.name, kind.version) is kind
    assert kind.terms.performative
    assert kind.terms.ttl_s or "ttl_s" in kind.terms.options_from


def test_an_unknown_type_name_gives_none() -> None:
    assert BUILT_IN.get("task.unheard-of") is None
    assert family_of("task.unheard-of") is None
    assert older("task.request", "0.9.0") is None
    with pytest.raises(AttributeError, match="TaskUnheardOf"):
        vocabulary.TaskUnheardOf  # noqa: B018


def test_parts_are_found_by_name_and_what_families_import_is_not() -> None:
    assert vocabulary.Money.__name__ == "Money"
    assert vocabulary.Finding.__module__ == "bus.vocabulary.review"
    assert not hasattr(vocabulary, "Rule")
    assert {"Money", "Finding", "TaskRequest", "BUILT_IN"} <= set(dir(vocabulary))
