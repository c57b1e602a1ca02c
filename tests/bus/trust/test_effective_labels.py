"""Levels and classifications of a message, from all that it rests on: rules T1, T2 and T4 as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.protocol import sealing
from bus.protocol.envelope import Agent, Metadata, Routing, Security, Statement
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms
from bus.trust.effective_labels import (
    PLAIN,
    EffectiveLabels,
    LabelRules,
    begins_plainly,
    effective_labels,
    joined,
    says_nothing,
)
from bus.trust.labels import (
    CLASSIFICATIONS,
    LEVELS,
    highest_classification,
    least_trusted,
    rank_of_classification,
    rank_of_level,
)
from tests.keyrings import key_of

NOW_MS = 1_767_225_600_000
USER = "user_request"
WORST = "untrusted_content"
FAR = "sha256:" + "5" * 64
FURTHER = "sha256:" + "6" * 64


class Step(msgspec.Struct, frozen=True):
    """One message of a chain."""

    level: str | None = None
    kind: str = "job.run"
    sender: str = "planner@svc"
    classification: str | None = None


def message(*steps: Step, signed: bool = True, further: tuple[str, ...] = (), cut: bool = False) -> Message:
    """The last of *steps*, each caused by the one before. *cut*: the first rests on what is not at hand."""
    cause: Message | None = None
    for number, step in enumerate(steps):
        is_last = number == len(steps) - 1
        security = Security(trust_level=step.level, data_classification=step.classification)
        first = cause is None and not cut
        parents = () if first else (cause.seal if cause is not None else FAR,)
        metadata = Metadata(
            protocol="sealbus/1",
            namespace="agents",
            message_id=f"m-{number}",
            message_type=step.kind,
            schema_version="1.0.0",
            timestamp=format_ms(NOW_MS),
            sender=Agent(id=step.sender),
            conversation_id="c-1",
            hops=number + cut,
            causation_id=None if first else ("before" if cause is None else cause.message_id),
            security=security if security != Security() else None,
        )
        cause = sealing.seal(
            b"{}",
            metadata,
            Routing(expires_at=format_ms(NOW_MS + 1000)),
            parents=parents + (further if is_last else ()),
            proof_chain=() if cause is None else cause.chain_for_children(),
            signer=key_of(step.sender) if signed else None,
        )
    assert cause is not None
    return cause


def rules(
    *,
    keys: bool = True,
    ceilings: dict[str, str] | None = None,
    floors: dict[str, str] | None = None,
    lifters: dict[str, tuple[str, ...]] | None = None,
) -> LabelRules:
    """What a policy says; *lifters*: the levels that somebody may lift to."""
    may_lift: Callable[[Statement, str, str], bool] | None = None
    if lifters is not None:
        may_lift = lambda stated, _, to: to in lifters.get(stated.sender, ())  # noqa: E731
    return LabelRules(
        has_keys=keys,
        ceiling_of=None if ceilings is None else lambda sender: ceilings.get(sender, USER),
        floor_of=None if floors is None else lambda sender: floors.get(sender, "internal"),
        may_lift=may_lift,
    )


def level(*steps: Step, by: LabelRules | None = None, **options: Any) -> str:
    return effective_labels(message(*steps, **options), by or rules()).level


# The three scales.


def test_the_order_of_levels() -> None:
    assert LEVELS == (
        "platform_policy",
        "org_policy",
        "runtime_instruction",
        "task_instruction",
        "user_request",
        "trusted_tool_result",
        "model_generated",
        "untrusted_content",
    )
    assert CLASSIFICATIONS == ("public", "internal", "confidential", "restricted")


@pytest.mark.parametrize(
    "word", ["", "User_Request", "USER_REQUEST", " user_request", "user-request", "admin", "x" * 99]
)
def test_an_unknown_word_counts_as_the_worst(word: str) -> None:
    assert rank_of_level(word) == rank_of_level(WORST)
    assert least_trusted([word, USER]) == WORST
    assert rank_of_classification(word) == rank_of_classification("restricted")
    assert highest_classification([word, "public"]) == "restricted"


# T1: what is sealed, absent or not; first or later.


@pytest.mark.parametrize("claim", LEVELS)
def test_a_claim_only_lowers(claim: str) -> None:
    expected = LEVELS[max(rank_of_level(claim), rank_of_level(USER))]
    assert level(Step(claim)) == expected
    assert level(Step(), Step(claim)) == expected
    assert level(Step(claim), Step()) == expected


@pytest.mark.parametrize("keys", [False, True])
def test_a_message_without_labels_is_a_user_request(keys: bool) -> None:
    for steps in ([Step()], [Step(), Step()], [Step()] * 5):
        assert level(*steps, by=rules(keys=keys)) == USER


@pytest.mark.parametrize("word", ["User_Request", "trusted", "platform-policy"])
def test_an_unknown_claim_is_untrusted_wherever_it_stands(word: str) -> None:
    assert level(Step(word)) == WORST
    assert level(Step(word), Step(USER)) == WORST
    assert level(Step(), Step(word)) == WORST


def test_with_keys_configured_an_unsigned_message_is_unverified() -> None:
    assert level(Step(), signed=False) == WORST
    assert level(Step("platform_policy"), signed=False) == WORST
    assert level(Step(), signed=False, by=rules(keys=False)) == USER


# T1: ceilings.


@pytest.mark.parametrize("ceiling", LEVELS)
@pytest.mark.parametrize("claim", LEVELS)
def test_a_ceiling_bounds_a_claim(claim: str, ceiling: str) -> None:
    by = rules(ceilings={"planner@svc": ceiling})
    assert level(Step(claim), by=by) == least_trusted([claim, ceiling])


def test_a_first_message_without_claim_is_no_more_than_a_users_request() -> None:
    assert level(Step(), by=rules(ceilings={"planner@svc": "platform_policy"})) == USER


def test_the_ceiling_of_every_sender_in_the_chain_counts() -> None:
    by = rules(ceilings={"web@svc": "untrusted_content", "planner@svc": "org_policy"})
    assert level(Step(sender="web@svc"), Step(), Step(), by=by) == WORST
    assert level(Step(), Step(sender="web@svc"), by=by) == WORST
    assert level(Step("org_policy"), Step("org_policy"), by=by) == "org_policy"
    assert level(Step("org_policy"), Step("platform_policy"), by=by) == "org_policy"


@pytest.mark.parametrize("kind", ["tool.result", "evidence.observed"])
def test_outside_content_is_untrusted_unless_its_sender_labels_it(kind: str) -> None:
    assert level(Step(), Step(kind=kind)) == WORST
    assert level(Step(kind=kind)) == WORST
    assert level(Step(), Step(kind=kind), Step()) == WORST
    assert level(Step(), Step("trusted_tool_result", kind=kind)) == "trusted_tool_result"
    assert level(Step(), Step(kind=kind), by=rules(keys=False)) == USER


# T1 (d): what lies before a chain that is cut, and further parents.


def test_a_chain_that_is_cut_counts_by_its_oldest_level() -> None:
    assert level(Step(), cut=True) == WORST
    assert level(Step(), Step(), cut=True) == WORST
    assert level(Step(USER), Step(), cut=True) == USER
    assert level(Step("model_generated"), Step(), cut=True) == "model_generated"
    # A later level does not speak for what lies before.
    assert level(Step(), Step(USER), cut=True) == WORST
    assert level(Step(), Step(), cut=True, by=rules(keys=False)) == USER


def test_a_parent_that_is_not_at_hand_is_spoken_for_by_the_message_that_names_it() -> None:
    assert level(Step(), Step(), further=(FURTHER,)) == WORST
    assert level(Step(), Step(USER), further=(FURTHER,)) == USER
    assert level(Step(), Step("model_generated"), further=(FURTHER,)) == "model_generated"
    assert level(Step(), Step(), further=(FURTHER,), by=rules(keys=False)) == USER


# T4: lifting.

LIFT = "trust.lifted"
VALIDATOR = "validator@svc"
MAY = {VALIDATOR: ("trusted_tool_result", "user_request", "model_generated")}


def lift(to: str | None = "trusted_tool_result", sender: str = VALIDATOR, kind: str = LIFT) -> Step:
    return Step(to, kind=kind, sender=sender)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # The lift itself, and what follows from it.
        ([Step(WORST), lift()], "trusted_tool_result"),
        ([Step(WORST), lift(), Step()], "trusted_tool_result"),
        ([Step(WORST), lift(), Step(), Step()], "trusted_tool_result"),
        ([Step(), Step(WORST), lift(), Step()], "trusted_tool_result"),
        # What comes after it lowers again.
        ([Step(WORST), lift(), Step(WORST)], WORST),
        ([Step(WORST), lift(), Step("model_generated")], "model_generated"),
        # From what is untrusted at most to a trusted result.
        ([Step(WORST), lift(USER)], WORST),
        ([Step(kind="tool.result"), lift(USER)], WORST),
        ([Step("model_generated"), lift(USER)], USER),
        ([Step("model_generated"), lift(USER), Step()], USER),
        # Only with the right, of that very message, with a level that there is.
        ([Step(WORST), lift(sender="worker@svc")], WORST),
        ([Step(WORST), lift("task_instruction")], WORST),
        ([Step("model_generated"), lift("task_instruction")], "model_generated"),
        ([Step(WORST), lift(None)], WORST),
        ([Step(WORST), lift("Trusted_Tool_Result")], WORST),
        ([Step(WORST), lift(kind="status.update")], WORST),
        ([Step(WORST), lift(kind="trust.lifted.now")], WORST),
        # Nobody vouches for what it has sent itself.
        ([Step(WORST, sender=VALIDATOR), lift()], WORST),
        ([Step(WORST), Step(sender=VALIDATOR), lift()], WORST),
        # A validator's other messages lift nothing, also beside one that does.
        ([Step(WORST), Step(USER, sender=VALIDATOR)], WORST),
        ([Step(WORST), lift(), Step(WORST), Step(USER, sender=VALIDATOR)], WORST),
        ([Step(WORST), lift(), Step(WORST), lift(), Step()], "trusted_tool_result"),
        # One that does not count lowers as any other message.
        ([Step(), lift("model_generated", sender="worker@svc"), Step()], "model_generated"),
    ],
)
def test_only_a_lift_lifts(steps: list[Step], expected: str) -> None:
    assert level(*steps, by=rules(lifters=MAY)) == expected


def test_nobody_lifts_without_a_policy() -> None:
    assert level(Step(WORST), lift()) == WORST
    assert level(Step(WORST), lift(), by=rules(lifters={})) == WORST


def test_a_lift_that_is_not_signed_lifts_nothing() -> None:
    assert level(Step(WORST), lift(), signed=False, by=rules(lifters=MAY)) == WORST


def test_a_lift_ends_what_lies_before_also_where_the_chain_is_cut() -> None:
    assert level(Step(WORST), lift(), Step(), cut=True, by=rules(lifters=MAY)) == "trusted_tool_result"


def test_a_lift_at_the_end_of_a_truncated_chain_starts_from_untrusted() -> None:
    assert level(lift(), Step(), cut=True, by=rules(lifters=MAY)) == "trusted_tool_result"
    # One that does not count is as any other message: the level it seals speaks for what lies before.
    assert level(lift(USER), Step(), cut=True, by=rules(lifters=MAY)) == USER
    assert level(lift("org_policy"), Step(), cut=True, by=rules(lifters=MAY)) == USER


def test_a_lift_changes_no_classification() -> None:
    made = message(Step(WORST, classification="restricted"), lift(), Step())
    assert effective_labels(made, rules(lifters=MAY)).classification == "restricted"


# Classification, tags, and what is told of them.


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([None], "internal"),
        (["public"], "public"),
        ([None, "public"], "internal"),
        (["public", "public"], "public"),
        (["confidential", "public"], "confidential"),
        (["public", "restricted", None], "restricted"),
        (["Public"], "restricted"),
        (["secret", "public"], "restricted"),
    ],
)
def test_a_classification_is_the_highest_of_message_and_chain(classes: list[str | None], expected: str) -> None:
    made = message(*(Step(classification=name) for name in classes))
    assert effective_labels(made, rules()).classification == expected


def test_the_floor_of_a_sender_raises_a_classification() -> None:
    by = rules(floors={"web@svc": "confidential"})
    assert effective_labels(message(Step(classification="public")), by).classification == "internal"
    assert effective_labels(message(Step(sender="web@svc"), Step()), by).classification == "confidential"


def test_the_path_names_the_message_that_lowered_the_level() -> None:
    found = effective_labels(message(Step(), Step(kind="tool.result", sender="web@svc"), Step()), rules())
    (step,) = found.path
    assert step == "tool.result m-1 of web@svc carries what comes from outside"
    assert effective_labels(message(Step(), Step()), rules()).path == ()


def test_a_message_without_labels_takes_the_fast_path() -> None:
    assert says_nothing(message(Step(), Step()))
    for steps in ([Step(USER)], [Step(WORST), Step()], [Step(classification="public"), Step()]):
        assert not says_nothing(message(*steps))
    assert begins_plainly(message(Step()))
    for made in (message(Step(), Step()), message(Step(), signed=False), message(Step(kind="tool.result"))):
        assert not begins_plainly(made)


@given(
    st.lists(
        st.tuples(st.sampled_from([None, *LEVELS, "word"]), st.sampled_from(["a@svc", "b@svc", "c@svc"])),
        min_size=1,
        max_size=5,
    ),
    st.dictionaries(st.sampled_from(["a@svc", "b@svc", "c@svc"]), st.sampled_from(LEVELS)),
)
def test_a_message_is_no_more_trusted_than_its_cause_and_no_more_than_any_bound(
    drawn: list[tuple[str | None, str]], ceilings: dict[str, str]
) -> None:
    steps = [Step(claim, sender=sender) for claim, sender in drawn]
    by = rules(ceilings=ceilings)
    ranks = [rank_of_level(level(*steps[: size + 1], by=by)) for size in range(len(steps))]
    assert ranks == sorted(ranks)
    bounds = [rank_of_level(claim) for claim, _ in drawn if claim is not None]
    bounds += [rank_of_level(ceilings.get(sender, USER)) for _, sender in drawn]
    bounds += [rank_of_level(USER)] if drawn[0][0] is None else []
    assert ranks[-1] == max(bounds)


@given(
    st.lists(
        st.builds(
            EffectiveLabels,
            level=st.sampled_from(LEVELS),
            classification=st.sampled_from(CLASSIFICATIONS),
            tags=st.frozensets(st.sampled_from("abc")),
        ),
        min_size=1,
    )
)
def test_what_rests_on_several_has_the_worst_of_all(labels: list[EffectiveLabels]) -> None:
    found = joined(labels)
    assert found.level == least_trusted(one.level for one in labels)
    assert found.classification == highest_classification(one.classification for one in labels)
    assert found.tags == frozenset().union(*(one.tags for one in labels))
    assert joined([found, *labels]).level == found.level
    assert joined([PLAIN]).level == PLAIN.level
