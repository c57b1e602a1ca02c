"""The states of a task: what each message makes of them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.clock import ManualClock
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.settings.loading import load
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.parts import ErrorInfo
from bus.vocabulary.task import (
    StatusUpdate,
    TaskAccepted,
    TaskArtifact,
    TaskClarification,
    TaskRejected,
    TaskResult,
)
from consumers.processes.tasks.snapshot import (
    TaskChange,
    TaskError,
    TaskLimits,
    TaskRow,
    TaskSnapshot,
    cancelled,
    cursor_after,
    ended,
    error_of,
    resumed,
    stepped,
    told,
)
from producers.sealing.options import Outgoing
from producers.sealing.sealer import make_sealer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEALER = make_sealer(load(flags={}, env={}, file=None).settings, Agent(id="desk@svc"), clock=ManualClock())
ENDS = {"completed", "failed", "rejected", "cancelled"}


def first() -> TaskRow:
    shown = TaskSnapshot(
        id="t-1",
        status="submitted",
        generation=1,
        cursor="",
        to="desk@svc",
        type="task.request",
        conversation_id="c",
        opened_at="2026-01-01T00:00:00.000Z",
        expires_at="2026-01-02T00:00:00.000Z",
        content_hash="sha256:" + "0" * 64,
    )
    return TaskRow(shown=msgspec.structs.replace(shown, cursor=cursor_after("", shown)))


def sealed(payload: Any) -> Message:
    return SEALER.seal(Outgoing(payload, to="ci@acme", task_id="t-1")).message


def after(
    row: TaskRow, payload: Any, limits: TaskLimits | None = None, message: Message | None = None
) -> TaskChange | None:
    message = message or sealed(payload)
    data = msgspec.json.decode(message.value)["data"]
    return told(row, message, payload, data, limits or TaskLimits())


def status(update: str, **given: Any) -> StatusUpdate:
    return StatusUpdate(task_id="t-1", new_status=update, timestamp=NOW, **given)


REPORT = ErrorReported(error_code="retries_exhausted", error_message="no", source_agent="x", timestamp=NOW)
MESSAGES = st.sampled_from(
    [
        TaskAccepted(understood_goal="compare"),
        status("running", message="reading", progress_pct=40),
        status("waiting_for_approval", approval_id="a-1"),
        TaskClarification(questions=("Which?",), options=("a", "b")),
        TaskArtifact(artifact_id="r", index=0, content="one"),
        TaskArtifact(artifact_id="r", index=5, content="six", append=True),
        TaskRejected(reason_code="OUT_OF_SCOPE", explanation="no"),
        TaskResult(status="completed", summary="done"),
        TaskResult(status="failed", error=ErrorInfo(code="NO_DATA", message="nothing")),
        TaskResult(status="cancelled"),
        REPORT,
    ]
)


@given(st.lists(MESSAGES, max_size=12))
def test_generations_grow_cursors_differ_and_the_first_end_stays(messages: list[Any]) -> None:
    row, seen = first(), []
    for generation, payload in enumerate(messages, 2):
        if row.shown.is_over:
            break
        change = after(row, payload)
        if change is None:
            continue
        row = stepped(change, generation).row
        seen.append(row.shown)
    assert [each.generation for each in seen] == sorted({each.generation for each in seen})
    assert len({each.cursor for each in seen}) == len(seen)
    assert all(each.status not in ENDS for each in seen[:-1])
    assert all(each.cursor.startswith(f"{each.generation}-") for each in seen)


@given(st.lists(MESSAGES, max_size=8))
def test_equal_histories_have_equal_cursors(messages: list[Any]) -> None:
    known = [(payload, sealed(payload)) for payload in messages]

    def played() -> str:
        row = first()
        for generation, (payload, message) in enumerate(known, 2):
            if not row.shown.is_over and (change := after(row, payload, message=message)) is not None:
                row = stepped(change, generation).row
        return row.shown.cursor

    assert played() == played()


def test_a_question_stays_open_whatever_the_agent_reports_besides() -> None:
    asked = after(first(), TaskClarification(questions=("Which?",)))
    assert asked is not None
    later = after(asked.row, status("running", message="waiting"))
    assert later is not None
    assert later.row.shown.status == "input_required"
    assert later.row.question
    answered = resumed(later.row, "sha256:0", None)
    assert answered.row.shown.status == "working"
    assert answered.row.shown.questions is msgspec.UNSET
    assert not answered.row.question


def test_a_cancelled_task_is_completed_where_its_result_was_quicker() -> None:
    row = cancelled(first()).row
    done, gone = after(row, TaskResult(status="completed")), after(row, REPORT)
    assert done is not None
    assert gone is not None
    assert (done.row.shown.status, gone.row.shown.status) == ("completed", "cancelled")


def test_the_code_of_a_report_is_told_once() -> None:
    report = msgspec.structs.replace(REPORT, error_code="CANCELLED", error_message="CANCELLED: NOT_NEEDED")
    change = after(first(), report)
    assert change is not None
    error = change.row.shown.error
    assert isinstance(error, TaskError)
    assert (error.code, error.message) == ("CANCELLED", "NOT_NEEDED")


@pytest.mark.parametrize(
    ("code", "at", "expected"),
    [
        ("retries_exhausted", "2026-01-02T00:00:00+00:00", "TIMEOUT"),
        ("retries_exhausted", "2026-01-01T23:00:00+00:00", "retries_exhausted"),
        ("expired", "2026-01-01T23:00:00+00:00", "TIMEOUT"),
        ("rejected", "2026-01-02T00:00:00+00:00", "rejected"),
    ],
)
def test_a_report_that_the_time_is_over_is_a_timeout(code: str, at: str, expected: str) -> None:
    report = msgspec.structs.replace(REPORT, error_code=code, timestamp=datetime.fromisoformat(at))
    change = after(first(), report)
    assert change is not None
    error = change.row.shown.error
    assert isinstance(error, TaskError)
    assert error.code == expected


def test_what_a_policy_or_a_person_declines_is_rejected() -> None:
    for code in ("unauthorized", "untrusted_instruction", "approval_rejected", "approval_timeout"):
        change = after(first(), msgspec.structs.replace(REPORT, error_code=code))
        assert change is not None
        assert change.row.shown.status == "rejected"


def test_artifacts_beyond_the_limit_are_listed_as_cut_off() -> None:
    limits = TaskLimits(artifact_bytes=10)
    one = after(first(), TaskArtifact(artifact_id="r", index=0, content="12345678"), limits)
    assert one is not None
    two = after(one.row, TaskArtifact(artifact_id="r", index=1, content="12345678", append=True), limits)
    assert two is not None
    (entry,) = two.row.shown.artifacts
    assert (entry.size, entry.truncated) == (8, True)
    assert two.parts == ()


def test_a_gap_between_the_parts_of_an_artifact_is_counted() -> None:
    one = after(first(), TaskArtifact(artifact_id="r", index=0, content="a"))
    assert one is not None
    three = after(one.row, TaskArtifact(artifact_id="r", index=2, content="c", append=True))
    assert three is not None
    assert three.row.shown.lost == 1


def test_a_repeated_part_changes_nothing() -> None:
    part = TaskArtifact(artifact_id="r", index=0, content="a", append=True)
    one = after(first(), part)
    assert one is not None
    again = after(one.row, part)
    assert again is not None
    assert (again.row.shown.artifacts, again.parts) == (one.row.shown.artifacts, ())


@given(st.text(max_size=5_000))
def test_foreign_texts_are_bounded(text: str) -> None:
    over = ended(first(), "failed", error=error_of("FAILED", text))
    assert isinstance(over.row.shown.error, msgspec.Struct)
    assert len(over.row.shown.error.message) <= 2_000
