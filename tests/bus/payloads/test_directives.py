"""Which messages ask their reader to act: the rule over every combination, against its table in words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from bus.errors import ContractError
from bus.payloads.directives import DIRECTIVE, DirectiveFacts, always_informs, declared_facts, is_directive
from bus.payloads.envelope_terms import NO_TERMS, ByField, EnvelopeTerms, SideEffect
from bus.payloads.payload_types import payload
from bus.protocol.envelope import Performative

PERFORMATIVES = get_args(Performative)
SIDE_EFFECTS = (None, *get_args(SideEffect))
INFORMING = ("inform", "confirm", "reject", "error")
ASKING = tuple(word for word in PERFORMATIVES if word not in INFORMING)


def every_case() -> Iterator[DirectiveFacts]:
    said, flags = (None, *PERFORMATIVES), (False, True)
    for values in itertools.product(said, said, flags, SIDE_EFFECTS, ("low", "medium", "high"), flags, flags, flags):
        yield DirectiveFacts(**dict(zip(DirectiveFacts.__struct_fields__, values, strict=True)))


def as_told(case: DirectiveFacts) -> bool:
    """The table of docs/explanation/trust.md, row by row: the first that fits decides."""
    match case:
        case DirectiveFacts(type_says=word) if word in ASKING:
            return True
        case DirectiveFacts(message_says=word) if word in ASKING:
            return True
        case DirectiveFacts(type_says=word) if word in INFORMING:
            return False
        case DirectiveFacts(is_answer=True):
            return False
        case DirectiveFacts(has_reply_to=True) | DirectiveFacts(side_effect="write" | "external" | "irreversible"):
            return True
        case DirectiveFacts(risk="high") | DirectiveFacts(needs_key=True) | DirectiveFacts(has_threshold=True):
            return True
    return False


def test_every_performative_asks_or_informs() -> None:
    assert frozenset(ASKING) == DIRECTIVE


def test_every_combination_is_judged_as_the_table_says() -> None:
    cases = list(every_case())
    assert len(cases) == 12 * 12 * 2 * 6 * 3 * 2 * 2 * 2
    assert [case for case in cases if is_directive(case) != as_told(case)] == []


def test_no_word_of_a_sender_makes_a_directive_less() -> None:
    for case in every_case():
        unsaid = msgspec.structs.replace(case, message_says=None)
        assert is_directive(case) >= is_directive(unsaid)


def test_no_mark_makes_a_directive_less() -> None:
    for case in every_case():
        for name in ("has_reply_to", "needs_key", "has_threshold"):
            assert is_directive(msgspec.structs.replace(case, **{name: True})) >= is_directive(case)


class Both(msgspec.Struct):
    mode: str = ""


CHOOSING = ByField("mode", {"do": "request", "tell": "inform"})


@pytest.mark.parametrize(
    ("terms", "data", "said"),
    [
        (NO_TERMS, Both(), None),
        (EnvelopeTerms(performative="inform"), Both(), "inform"),
        (EnvelopeTerms(performative="inform"), None, "inform"),
        (EnvelopeTerms(performative=CHOOSING), Both("do"), "request"),
        (EnvelopeTerms(performative=CHOOSING), Both("tell"), "inform"),
        # What the type has no word for is judged as of a type without one.
        (EnvelopeTerms(performative=CHOOSING), Both("else"), None),
        # Without its data, the word that asks.
        (EnvelopeTerms(performative=CHOOSING), None, "request"),
    ],
)
def test_the_word_of_a_type_is_that_for_this_payload(terms: EnvelopeTerms, data: object, said: str | None) -> None:
    assert declared_facts(terms, data, side_effect=None, risk="medium").type_says == said


@pytest.mark.parametrize(
    ("performative", "informs"),
    [
        (None, False),
        *((word, word in INFORMING) for word in PERFORMATIVES),
        (CHOOSING, False),
        (ByField("mode", {"no": "reject"}), False),
        (ByField("mode", {"no": "reject"}, otherwise="inform"), True),
        (ByField("mode", {"no": "reject"}, otherwise="accept"), False),
    ],
)
def test_a_type_informs_whatever_it_holds_only_where_each_word_does(performative: Any, informs: bool) -> None:
    assert always_informs(EnvelopeTerms(performative=performative)) is informs


# Declarations that contradict themselves.


@pytest.mark.parametrize("side_effect", SIDE_EFFECTS)
@pytest.mark.parametrize("performative", [None, *PERFORMATIVES])
def test_a_type_that_informs_changes_nothing(performative: Any, side_effect: Any) -> None:
    def declare() -> None:
        @payload("declared.so", performative=performative, side_effect=side_effect)
        class Declared(msgspec.Struct):
            text: str = ""

    if performative in INFORMING and side_effect in ("write", "external", "irreversible"):
        with pytest.raises(ContractError, match=rf"'{performative}' only informs.*write performative='request', or"):
            declare()
    else:
        declare()


def test_a_type_that_may_inform_by_its_data_changes_nothing_either() -> None:
    with pytest.raises(ContractError, match="'inform' only informs, and side_effect 'write'"):
        payload("declared.choosing", performative=CHOOSING, side_effect="write")
