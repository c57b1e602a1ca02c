"""A conversation as lanes of its parties."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bus.protocol.timestamps import format_ms
from consumers.operations.console.sequence import gist_of, sequence_of
from consumers.operations.lineage.timeline import Timeline, TimelineEvent

BEGIN_MS = 1_795_772_479_000


def event(
    number: int, sender: str, recipient: str = "", *, cause: int = 0, kind: str = "task.ask", at_s: float = 0,
    marks: tuple[str, ...] = (),
) -> TimelineEvent:  # fmt: skip
    return TimelineEvent(
        number=number,
        message_id=f"m{number}",
        causation_id=f"m{cause}" if cause else "",
        cause=cause,
        timestamp=format_ms(BEGIN_MS + round(1_000 * at_s)),
        message_type=kind,
        sender=sender,
        recipient=recipient,
        hops=0,
        place=f"t/0/{number}",
        marks=marks,
    )


def drawn(*events: TimelineEvent, data: dict[str, Any] | None = None, now_s: float = 60) -> Any:
    return sequence_of(Timeline(events), data or {}, BEGIN_MS + round(1_000 * now_s))


def test_lanes_are_the_parties_in_the_order_in_which_they_appear() -> None:
    found = drawn(
        event(1, "ada@acme", "planner@lab"),
        event(2, "planner@lab", "reader@svc", cause=1, at_s=1),
        event(3, "reader@svc", "planner@lab", cause=2, at_s=4),
    )
    assert found.lanes == ("ada@acme", "planner@lab", "reader@svc")
    assert [row.arrow.source for row in found.rows] == [0, 1, 2]
    assert [row.arrow.targets for row in found.rows] == [(1,), (2,), (1,)]


def test_whoever_made_a_message_of_one_to_a_role_has_taken_it() -> None:
    found = drawn(event(1, "ada@acme", "role:desk"), event(2, "desk-3@lab", cause=1, at_s=2))
    assert found.rows[0].targets == ("desk-3@lab",)


def test_a_question_of_a_worker_waits_until_it_is_answered() -> None:
    asked = event(1, "ada@acme", "desk@lab", kind="task.request")
    question = event(2, "desk@lab", "ada@acme", cause=1, kind="task.clarification", at_s=1)
    progress = event(3, "desk@lab", "ada@acme", cause=1, kind="status.update", at_s=2)
    told = event(4, "ada@acme", "desk@lab", cause=2, kind="task.clarified", at_s=3)
    assert drawn(asked, question, progress).state.word == "waits for an answer"
    assert drawn(asked, question, progress, told).state.word == "nothing waits"


def test_a_party_works_from_what_it_got_to_the_last_that_it_made_of_it() -> None:
    found = drawn(
        event(1, "ada@acme", "planner@lab"),
        event(2, "planner@lab", "reader@svc", cause=1, at_s=1),
        event(3, "planner@lab", "ada@acme", cause=1, at_s=9),
    )
    assert found.rows[0].took_s == 9
    (work,) = [each for each in found.work if each.lane == 1]
    assert (work.first, work.last) == (1, 3)
    assert found.work_s == 9


def test_what_died_and_what_does_not_verify_is_marked_and_counted() -> None:
    found = drawn(
        event(1, "a@lab", "b@lab", marks=("dead in b-lab: rejected",)),
        event(2, "a@lab", "b@lab", marks=("wrong: signature_invalid",)),
        event(3, "a@lab", "b@lab", marks=("retried in b-lab (5s)", "redriven to b-lab")),
    )
    assert (found.dead, found.refused) == (1, 1)
    assert [row.arrow.kind for row in found.rows] == ["dead", "forged", ""]
    assert [mark.word for mark in found.rows[2].marks] == ["tried again", "sent again"]
    assert found.state.kind == "dead"


def test_an_approval_that_nothing_closes_waits_for_a_person_until_now() -> None:
    ask = event(2, "publisher@svc", cause=1, kind="approval.request", at_s=1)
    found = drawn(event(1, "planner@lab", "publisher@svc"), ask)
    assert found.held == ask
    assert found.state.word == "waits for a person"
    assert found.end_ms == BEGIN_MS + 60_000
    closed = drawn(event(1, "planner@lab", "publisher@svc"), ask, event(3, "x", cause=2, kind="approval.closed"))
    assert closed.held is None


def test_of_many_parties_those_with_most_messages_have_lanes_and_the_rest_share_one() -> None:
    found = drawn(*(event(number, f"agent-{number % 30}@lab", "hub@lab", at_s=number) for number in range(1, 90)))
    assert len(found.lanes) == 8
    assert found.lanes[-1] == "others"
    assert "hub@lab" in found.lanes


def test_tokens_and_cost_are_summed_as_they_are_reported() -> None:
    data = {
        "m1": {"input_tokens": 10, "output_tokens": 5, "cost_usd": 0.5},
        "m2": {"usage": {"total_tokens": 7}, "cost": 1},
        "m3": {"tokens": "many", "cost": True},
    }
    found = drawn(*(event(number, "a@lab") for number in (1, 2, 3)), data=data)
    assert (found.tokens, found.cost) == (22, 1.5)


def test_a_number_of_any_length_is_summed_within_bounds() -> None:
    found = drawn(event(1, "a@lab"), data={"m1": {"total_tokens": 10**400, "cost": 10**400}})
    assert found.tokens < 1e12
    assert found.cost < 1e12


def test_a_payload_is_named_by_its_telling_member_else_shown_as_json() -> None:
    assert gist_of({"number": 3, "goal": "  look\nat it "}) == "look at it"
    assert gist_of({"number": 3}) == '{"number":3}'
    assert gist_of({}) == ""
    assert gist_of(None) == ""


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefghijkl"), st.sampled_from(["", "a", "b", "role:x"]), st.integers(0, 12),
            st.sampled_from([(), ("dead in g: r",), ("wrong: x",), ("odd mark",)]), st.integers(-5, 100),
        ),
        max_size=25,
    )
)  # fmt: skip
def test_every_timeline_can_be_drawn(rows: list[tuple[str, str, int, tuple[str, ...], int]]) -> None:
    found = drawn(
        *(
            event(number, sender, recipient, cause=cause, marks=marks, at_s=at_s)
            for number, (sender, recipient, cause, marks, at_s) in enumerate(rows, 1)
        )
    )
    lanes = range(len(found.lanes))
    assert all(row.arrow.source in lanes and set(row.arrow.targets) <= set(lanes) for row in found.rows)
    assert all(work.lane in lanes and work.first >= 1 for work in found.work)
    assert found.end_ms > found.begin_ms


def test_what_several_did_at_once_is_worked_once() -> None:
    found = drawn(
        event(1, "ada@acme", "desk@lab"),
        event(2, "ada@acme", "desk@lab", at_s=1),
        event(3, "desk@lab", "ada@acme", cause=1, at_s=10),
        event(4, "desk@lab", "ada@acme", cause=2, at_s=11),
    )
    assert found.work_s == 11
