"""TaskSnapshot: a task as its client sees it, and how each message about it changes it. Pure.

Owns the states of a task (design part three 23.4) and its cursor. `consumers.processes.tasks.service` decides which
messages count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from bus.errors import ContractError
from bus.protocol import canonical
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms, parse_ms
from bus.redaction import cut
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.error_codes import lookup
from bus.vocabulary.parts import Ref
from bus.vocabulary.task import (
    StatusUpdate,
    TaskAccepted,
    TaskArtifact,
    TaskClarification,
    TaskRejected,
    TaskResult,
)
from consumers.processes.sagas.process import Ending, Process, unpack_plain

__all__ = [
    "RESULT",
    "TASK_SAGA",
    "TASK_SHAPE",
    "ArtifactEntry",
    "ArtifactPart",
    "TaskChange",
    "TaskError",
    "TaskLimits",
    "TaskRow",
    "TaskSnapshot",
    "TaskState",
    "cancelled",
    "content_hash_of",
    "cursor_after",
    "cursor_fits",
    "ended",
    "is_answered_so",
    "pack_task",
    "resumed",
    "timed_out",
    "told",
    "unpack_task",
]

TASK_SAGA: Final = "task"
TASK_SHAPE: Final = "1.0.0"
RESULT: Final = "result"
"""The id of the artifact in which a result lies that is too large for the snapshot."""
TaskState: TypeAlias = Literal[
    "submitted",
    "working",
    "waiting_for_approval",
    "input_required",
    "completed",
    "failed",
    "rejected",
    "cancelled",
]
ENDS: Final = frozenset({"completed", "failed", "rejected", "cancelled"})

_CURSOR_DIGITS: Final = 8
_MAX_TEXT: Final = 2_000
_MAX_LISTED: Final = 64
_MAX_QUESTIONS: Final = 8
_MAX_OPTIONS: Final = 32
_MAX_OPTION: Final = 200
_ROUNDING_MS: Final = 1_000
"""So much earlier than the end of a request its run may be cut."""
_MAX_ANSWER_KEYS: Final = 8
_MAX_NAME: Final = 256
_MAX_URI: Final = 1_024
_ENDING: Final = {"completed": "completed", "cancelled": "cancelled"}
_DECLINED: Final = frozenset({"unauthorized", "untrusted_instruction"})


class TaskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a task is kept, in bytes."""

    result_bytes: int = 16_384
    """A larger result is an artifact."""
    artifact_bytes: int = 16 * 1_048_576
    """Of all artifacts of a task."""


class ArtifactEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact of a task, without its bytes."""

    id: str
    index: int
    """The number of its last part."""
    size: int
    """Bytes that are kept, or that its Ref says."""
    sha256: str | msgspec.UnsetType = msgspec.UNSET
    """Of all its bytes, once its last part is there."""
    media_type: str | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    ref: str | msgspec.UnsetType = msgspec.UNSET
    """Where its content lies, if it is not here."""
    truncated: bool | msgspec.UnsetType = msgspec.UNSET
    """True: not all of it is kept."""


class ArtifactPart(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes to store: those of part *index* of *artifact*; *replaces*: earlier parts go."""

    artifact: str
    index: int
    data: bytes
    replaces: bool = False


class TaskError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task has no result."""

    code: str
    error_class: str = msgspec.field(name="class")
    message: str
    retryable: bool = False
    hint: str | msgspec.UnsetType = msgspec.UNSET


class TaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A task as its client sees it."""

    id: str
    status: TaskState
    generation: int
    """It only grows; numbers may be skipped."""
    cursor: str
    """Proves which states its holder has seen: generation, and digits of a hash over all of them."""
    to: str
    type: str
    """The message type of the request."""
    conversation_id: str
    opened_at: str
    expires_at: str
    content_hash: str
    """Of recipient, type and data of the request: a repeat under its key has the same."""
    artifacts: tuple[ArtifactEntry, ...] = ()
    kept_until: str | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET
    """What the agent last said of its work."""
    progress_pct: int | msgspec.UnsetType = msgspec.UNSET
    question_id: str | msgspec.UnsetType = msgspec.UNSET
    """The message that asks: a later question has another one."""
    questions: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    options: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    approval_id: str | msgspec.UnsetType = msgspec.UNSET
    confirmed: bool | msgspec.UnsetType = msgspec.UNSET
    """Of a cancelled task: whether the agent has confirmed its end."""
    error: TaskError | msgspec.UnsetType = msgspec.UNSET
    result: Any = msgspec.UNSET
    """The data of the answer; a large one is the artifact `result`."""
    lost: int | msgspec.UnsetType = msgspec.UNSET
    """Messages about the task that could not be applied."""

    @property
    def is_over(self) -> bool:
        """Whether nothing changes it any more."""
        return self.status in ENDS


class TaskRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of the process of a task: what is shown, and what the bus needs besides."""

    shown: TaskSnapshot
    question: bytes = b""
    """The sealed `task.clarification` that is open."""
    dialect: str = ""
    """The dialect of its request; "": it came as a task."""
    names: dict[str, str] = {}
    """Ids of the request on the bus -> the ids that its client knows them by."""
    answer: bytes = b""
    """The sealed answer, of a request in a dialect."""
    answered: str = ""
    """The hash of what its newest question was answered with; "": it is open, or it is not known."""
    answer_keys: dict[str, str] = {}
    """By idempotency key: the hash of the answer that came under it."""
    cancel_asked: bool = False
    cancel_why: str = ""
    """Why it is cancelled, where that was not its client's wish."""
    ending: Ending | None = None


class TaskChange(msgspec.Struct, frozen=True, kw_only=True):
    """The next row of a task, and the bytes to store with it."""

    row: TaskRow
    parts: tuple[ArtifactPart, ...] = ()


def content_hash_of(to: str, message_type: str, data: Any) -> str:
    """Return the hash by which a repeat is told from other content. Raises ContractError for what JSON cannot hold."""
    return canonical.digest(canonical.encode([to, message_type, data]))


def cursor_after(before: str, snapshot: TaskSnapshot) -> str:
    """Return the cursor of *snapshot*, whose predecessor had the cursor *before*."""
    plain = msgspec.to_builtins(msgspec.structs.replace(snapshot, cursor=""))
    digest = hashlib.sha256(before.encode() + canonical.encode(plain)).hexdigest()
    return f"{snapshot.generation}-{digest[:_CURSOR_DIGITS]}"


def cursor_fits(cursor: str, shown: TaskSnapshot) -> bool:
    """Return whether *cursor*, or a bare generation, may be of the past or present of the task *shown*."""
    number, _, digits = cursor.partition("-")
    if not (number.isdecimal() and len(number) < 16):  # noqa: PLR2004
        return False
    if int(number) == shown.generation:
        return not digits or cursor == shown.cursor
    return int(number) < shown.generation


def pack_task(row: TaskRow) -> bytes:
    """Return *row* as it is stored."""
    return msgspec.json.encode(row)


def unpack_task(process: Process) -> TaskRow:
    """Return the state of *process*. Raises NewerCode where a later version has written it."""
    return unpack_plain(process, TASK_SHAPE, TaskRow)


# Changes: each returns the next row without its generation and cursor, or None where nothing is shown of it.


def told(row: TaskRow, message: Message, payload: Any, data: Any, limits: TaskLimits) -> TaskChange | None:
    """Return *row* after *message*, which counts as one about its task; *data* is its plain content.

    None: nothing of it is shown.
    """
    if isinstance(payload, TaskAccepted):
        return _with(row, status="working", message=_text(payload.understood_goal))
    if isinstance(payload, StatusUpdate):
        return _progressed(row, payload)
    if isinstance(payload, TaskClarification):
        asked = _with(
            row,
            status="input_required",
            question_id=message.message_id,
            questions=tuple(_text(each) for each in payload.questions[:_MAX_QUESTIONS]),
            options=tuple(cut(each, _MAX_OPTION) for each in payload.options[:_MAX_OPTIONS]) or msgspec.UNSET,
        )
        return TaskChange(row=msgspec.structs.replace(asked.row, question=message.value, answered=""))
    if isinstance(payload, TaskArtifact):
        return _artifact(row, payload, limits)
    return None if message.is_progress else _answered(row, payload, data, limits)


def _answered(row: TaskRow, payload: Any, data: Any, limits: TaskLimits) -> TaskChange:
    """Return *row* after its answer."""
    if isinstance(payload, TaskRejected):
        error = error_of(payload.reason_code, payload.explanation)
        return ended(row, "rejected", error=error)
    if isinstance(payload, ErrorReported):
        return _reported(row, payload)
    if isinstance(payload, TaskResult) and payload.status != "completed":
        said = payload.error
        if payload.status == "cancelled":
            return ended(row, "cancelled", error=error_of("CANCELLED", payload.summary or "the agent has cancelled it"))
        text = "failed" if said is None else said.message
        return ended(row, "failed", error=error_of("FAILED" if said is None else said.code, text), result=data)
    if isinstance(payload, TaskResult) and payload.artifacts:
        row = _with_refs(row, payload.artifacts)
    size = len(canonical.encode(data))
    if size <= limits.result_bytes:
        return ended(row, "completed", result=data)
    return _large_result(row, data, limits, row.shown)


def _with_refs(row: TaskRow, refs: Sequence[Ref]) -> TaskRow:
    """Return *row* with the contents that its result refers to, which lie elsewhere."""
    entries = [
        ArtifactEntry(
            id=f"ref-{number}",
            index=0,
            size=ref.size or 0,
            sha256=msgspec.UNSET if ref.sha256 is None else ref.sha256.removeprefix("sha256:"),
            media_type=msgspec.UNSET if ref.media_type is None else cut(ref.media_type, _MAX_NAME),
            ref=cut(ref.uri, _MAX_URI),
        )
        for number, ref in enumerate(refs[:_MAX_LISTED])
    ]
    return _with(row, artifacts=(*row.shown.artifacts, *entries)).row


def is_answered_so(row: TaskRow, content: str, key: str | None) -> bool:
    """Return whether the answer with the hash *content* came before, under *key* or to the newest question.

    Raises ContractError where the key was used for another answer.
    """
    if key is None:
        return row.answered == content
    known = row.answer_keys.get(key)
    if known not in (None, content):
        raise ContractError("the key was used for another answer: use another one", "", "idempotency_conflict")
    return known is not None or row.answered == content


def resumed(row: TaskRow, content: str, key: str | None) -> TaskChange:
    """Return *row* after its questions were answered by what has the hash *content*, under *key*."""
    change = _with(row, status="working", question_id=msgspec.UNSET, questions=msgspec.UNSET, options=msgspec.UNSET)
    keys = {**row.answer_keys, **({} if key is None else {key: content})}
    kept = dict(list(keys.items())[-_MAX_ANSWER_KEYS:])
    return TaskChange(row=msgspec.structs.replace(change.row, question=b"", answered=content, answer_keys=kept))


def cancelled(row: TaskRow, why: str = "") -> TaskChange:
    """Return *row* after it was asked to be cancelled: it ends when the agent confirms that, or soon after."""
    return TaskChange(row=msgspec.structs.replace(row, cancel_asked=True, cancel_why=why))


def ended(
    row: TaskRow,
    status: TaskState,
    *,
    error: TaskError | None = None,
    result: Any = msgspec.UNSET,
    confirmed: bool = True,
) -> TaskChange:
    """Return *row* at its end. Whatever else ends a task that was to be cancelled but its result, it is cancelled."""
    if row.cancel_asked and status != "completed":
        status = "cancelled"
    shown = msgspec.structs.replace(
        row.shown,
        status=status,
        error=msgspec.UNSET if error is None else error,
        result=result,
        confirmed=confirmed if status == "cancelled" else msgspec.UNSET,
        question_id=msgspec.UNSET,
        questions=msgspec.UNSET,
        options=msgspec.UNSET,
        approval_id=msgspec.UNSET,
        # What it waited for is past.
        message=row.shown.message if row.shown.status == "working" else msgspec.UNSET,
    )
    outcome: Any = _ENDING.get(status, "failed")
    if error is not None and error.code == "TIMEOUT" and status == "failed":
        outcome = "timed_out"
    return TaskChange(
        row=msgspec.structs.replace(
            row,
            shown=shown,
            question=b"",
            ending=Ending(outcome=outcome, reason="" if error is None else error.code),
        )
    )


def stepped(change: TaskChange, generation: int, *, kept_until_ms: int | None = None) -> TaskChange:
    """Return *change* at its *generation*, with the cursor that follows from the row before it."""
    before = change.row.shown
    shown = msgspec.structs.replace(before, generation=generation)
    if kept_until_ms is not None:
        shown = msgspec.structs.replace(shown, kept_until=format_ms(kept_until_ms))
    shown = msgspec.structs.replace(shown, cursor=cursor_after(before.cursor, shown))
    return msgspec.structs.replace(change, row=msgspec.structs.replace(change.row, shown=shown))


def lost_one(row: TaskRow) -> TaskChange:
    """Return *row* after a message about its task that can never be applied."""
    count = 0 if row.shown.lost is msgspec.UNSET else row.shown.lost
    return _with(row, lost=count + 1)


def error_of(code: str, message: str) -> TaskError:
    """Return why a task has no result, with what the table says of *code*."""
    known = lookup(code)
    return TaskError(
        code=cut(code, _MAX_NAME),
        error_class=known.error_class,
        message=_text(message),
        retryable=known.is_retryable,
    )


def _with(row: TaskRow, **shown: Any) -> TaskChange:
    return TaskChange(row=msgspec.structs.replace(row, shown=msgspec.structs.replace(row.shown, **shown)))


def _progressed(row: TaskRow, update: StatusUpdate) -> TaskChange:
    said: dict[str, Any] = {}
    if update.new_status == "waiting_for_approval":
        approval = msgspec.UNSET if update.approval_id is None else update.approval_id
        said = {"status": "waiting_for_approval", "approval_id": approval}
    elif row.shown.status != "input_required":
        # A question stays open until it is answered, whatever else the agent does meanwhile.
        said = {"status": "working", "approval_id": msgspec.UNSET}
    text = update.message or update.notes or update.phase
    if text:
        said["message"] = _text(text)
    if update.progress_pct is not None:
        said["progress_pct"] = update.progress_pct
    return _with(row, **said)


def timed_out(row: TaskRow) -> TaskChange:
    """Return *row* at the end of its time, whoever noticed it first."""
    return ended(row, "failed", error=error_of("TIMEOUT", f"{row.shown.to} has not answered in its time"))


def _reported(row: TaskRow, report: ErrorReported) -> TaskChange:
    code, known = report.error_code, lookup(report.error_code)
    # An agent that is at work then, or has the request then, reports its own side of it.
    is_late = report.timestamp.timestamp() * 1000 >= (parse_ms(row.shown.expires_at) or 0) - _ROUNDING_MS
    if code == "expired" or (code == "retries_exhausted" and is_late):
        return timed_out(row)
    error = TaskError(
        code=cut(code, _MAX_NAME),
        error_class=report.error_class or known.error_class,
        # A code in front of the text would be read twice.
        message=_text(report.error_message.removeprefix(f"{code}: ")),
        retryable=known.is_retryable if report.retryable is None else report.retryable,
        hint=msgspec.UNSET if report.recovery_hint is None else _text(report.recovery_hint),
    )
    if code == "CANCELLED":
        return ended(row, "cancelled", error=error)
    is_declined = known.a2a == "REJECTED" or code in _DECLINED or code.startswith("approval_")
    return ended(row, "rejected" if is_declined else "failed", error=error)


def _artifact(row: TaskRow, part: TaskArtifact, limits: TaskLimits) -> TaskChange:
    shown = row.shown
    known = {entry.id: entry for entry in shown.artifacts}
    before = known.get(part.artifact_id)
    if before is None and len(known) >= _MAX_LISTED:
        return lost_one(row)
    if before is not None and part.index <= before.index and not (part.index == 0 and not part.append):
        # A repeat of a part that is kept.
        return TaskChange(row=row)
    is_gap = part.index > (0 if before is None else before.index + 1)
    replaces = not part.append
    entry, parts = _kept_part(before, part, _room(shown, before, limits, replaces=replaces), replaces=replaces)
    known[part.artifact_id] = entry
    after = msgspec.structs.replace(shown, artifacts=tuple(known.values()))
    change = TaskChange(row=msgspec.structs.replace(row, shown=after), parts=parts)
    return msgspec.structs.replace(lost_one(change.row), parts=parts) if is_gap else change


def _room(shown: TaskSnapshot, before: ArtifactEntry | None, limits: TaskLimits, *, replaces: bool) -> int:
    used = sum(entry.size for entry in shown.artifacts if entry.ref is msgspec.UNSET)
    if replaces and before is not None and before.ref is msgspec.UNSET:
        used -= before.size
    return max(0, limits.artifact_bytes - used)


def _kept_part(
    before: ArtifactEntry | None, part: TaskArtifact, room: int, *, replaces: bool
) -> tuple[ArtifactEntry, tuple[ArtifactPart, ...]]:
    name = msgspec.UNSET if part.name is None else cut(part.name, _MAX_NAME)
    media = part.media_type or ("application/json" if part.data is not None else None)
    media_type = msgspec.UNSET if media is None else cut(media, _MAX_NAME)
    if part.ref is not None:
        return _entry_of_ref(part, part.ref, name, media_type), ()
    data = (part.content or "").encode() if part.data is None else canonical.encode(part.data)
    size = 0 if before is None or replaces or before.ref is not msgspec.UNSET else before.size
    was_cut = not replaces and before is not None and before.truncated is True
    fits = len(data) <= room and not was_cut
    entry = ArtifactEntry(
        id=part.artifact_id,
        index=part.index,
        size=size + (len(data) if fits else 0),
        media_type=media_type if before is None or media is not None else before.media_type,
        name=name if before is None or part.name is not None else before.name,
        sha256=hashlib.sha256(data).hexdigest() if fits and part.last and size == 0 else msgspec.UNSET,
        truncated=msgspec.UNSET if fits else True,
    )
    stored = (ArtifactPart(artifact=part.artifact_id, index=part.index, data=data, replaces=replaces),) if fits else ()
    return entry, stored


def _entry_of_ref(part: TaskArtifact, ref: Ref, name: Any, media_type: Any) -> ArtifactEntry:
    return ArtifactEntry(
        id=part.artifact_id,
        index=part.index,
        size=ref.size or 0,
        sha256=msgspec.UNSET if ref.sha256 is None else ref.sha256.removeprefix("sha256:"),
        media_type=media_type if ref.media_type is None else cut(ref.media_type, _MAX_NAME),
        name=name,
        ref=cut(ref.uri, _MAX_URI),
    )


def _large_result(row: TaskRow, data: Any, limits: TaskLimits, shown: TaskSnapshot) -> TaskChange:
    written = canonical.encode(data)
    fits = len(written) <= _room(shown, None, limits, replaces=True)
    entry = ArtifactEntry(
        id=RESULT,
        index=0,
        size=len(written) if fits else 0,
        sha256=hashlib.sha256(written).hexdigest(),
        media_type="application/json",
        truncated=msgspec.UNSET if fits else True,
    )
    others = tuple(each for each in shown.artifacts if each.id != RESULT)
    change = ended(
        msgspec.structs.replace(row, shown=msgspec.structs.replace(shown, artifacts=(*others, entry))), "completed"
    )
    parts = (ArtifactPart(artifact=RESULT, index=0, data=written, replaces=True),) if fits else ()
    return msgspec.structs.replace(change, parts=parts)


def _text(text: str) -> str:
    return cut(text, _MAX_TEXT)
