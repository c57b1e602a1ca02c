"""What a row of the audit counts as."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from consumers.operations.audit.rates import EVENTS, ProtocolCounter
from consumers.operations.audit.rows import AuditContent, AuditRow


def row(kind: str = "message", name: str = "task.request", reason: str = "", at_ms: int = 1) -> AuditRow:
    return AuditRow(
        topic="agents.x",
        partition=0,
        offset=0,
        through=0,
        before=-1,
        kind=kind,
        message_type=name,
        appended_ms=at_ms,
        verdict="holds",
        reason=reason,
        commitment="",
    )


def content(identity: str, *, cause: str = "", to: str = "b@svc", **payload: Any) -> AuditContent:
    facts = msgspec.json.encode({"payload": payload}).decode()
    return AuditContent(message_id=identity, causation_id=cause, recipient=to, facts=facts)


def counted(*rows: tuple[AuditRow, AuditContent | None]) -> Counter[str]:
    counter = ProtocolCounter()
    found = Counter(event for each in rows for event in counter.events_of(*each))
    assert set(found) <= set(EVENTS)
    return found


def test_acceptance_is_of_requests_that_are_addressed() -> None:
    found = counted(
        (row(), content("1")),
        (row(), content("2", to="")),
        (row(name="task.accepted"), content("3", cause="1")),
        (row(name="handoff.rejected"), content("4", cause="1")),
    )
    assert found == {"received": 4, "asked": 1, "accepted": 1, "rejected": 1}


def test_a_dead_letter_counts_by_its_reason_and_is_not_received_again() -> None:
    reasons = ("schema_violation", "unauthorized", "approval_timeout", "unsupported_version", "rejected")
    found = counted(*((row("dlq", reason=reason), content("1")) for reason in reasons))
    assert found == {"schema_failure": 1, "policy_denial": 2, "unsupported_version": 1}


def test_an_id_that_comes_again_is_a_duplicate() -> None:
    assert counted((row(), content("1")), (row(), content("1")))["duplicate"] == 1


def test_a_cause_that_comes_late_makes_no_orphan_and_one_that_never_comes_does() -> None:
    late = counted(
        (row(at_ms=5), content("2", cause="1")), (row(at_ms=4), content("1")), (row(at_ms=99_000), content("3"))
    )
    never = counted((row(at_ms=5), content("2", cause="1")), (row(at_ms=99_000), content("3")))
    assert (late["orphan"], never["orphan"]) == (0, 1)


def test_reviews_of_one_subject_disagree_where_their_verdicts_differ() -> None:
    verdicts = ("approved", "approved", "rejected")
    found = counted(
        *(
            (row(name="review.result"), content(str(number), subject_ref="s", verdict=verdict, evidence_refs=[{}]))
            for number, verdict in enumerate(verdicts)
        )
    )
    assert (found["reviewed"], found["disagreed"], found["claimed"], found["without_evidence"]) == (2, 1, 3, 0)


def test_a_claim_without_evidence_is_one() -> None:
    assert counted((row(name="claim.made"), content("1")))["without_evidence"] == 1
