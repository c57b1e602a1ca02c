"""TaskService: the process of one task, from its request to its end.

Owns the built-in saga `task` (design part three 23): one row, written with whatever happens to the task. A message
about a task belongs to the row that its correlation names, whoever it is addressed to; the file of credentials is not
asked. What the gateway itself sends is in a row before it leaves, and is sent again until the log has it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from bus import failpoints
from bus.clock import Clock
from bus.errors import BusError, ContractError
from bus.protocol import canonical, sealing
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms, parse_ms
from bus.redaction import cut
from bus.telemetry.logs import get_logger
from bus.topics.names import message_topic
from bus.transports.base import Appended, NewRecord
from bus.vocabulary.bus import WaitDue
from bus.vocabulary.task import TaskCancel, TaskClarified
from consumers.delivery.inbox.base import Write
from consumers.delivery.inbox.row_encoding import decode_outputs, encode_outputs
from consumers.delivery.settling.dispositions import refused
from consumers.delivery.settling.outcome import Done, Outcome
from consumers.delivery.state.delivery import Accepted
from consumers.processes.sagas.process import Hold, NewerCode, Process, Wait
from consumers.processes.sagas.process_group import ProcessGroup
from consumers.processes.sagas.rules import CANCEL_WAIT
from consumers.processes.sagas.store import NewWait, ProcessChange, ProcessStore
from consumers.processes.tasks.rows import TaskOpening, TaskRows
from consumers.processes.tasks.snapshot import (
    TASK_SAGA,
    TASK_SHAPE,
    TaskChange,
    TaskLimits,
    TaskRow,
    TaskSnapshot,
    cancelled,
    cursor_after,
    ended,
    error_of,
    is_answered_so,
    pack_task,
    resumed,
    stepped,
    timed_out,
    told,
    unpack_task,
)
from producers.outcomes import PublishRejected
from producers.publisher import Publisher
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import sealed_as
from producers.sealing.sealer import Sealer

__all__ = ["AppendUnconfirmed", "NewTask", "OpenedTask", "TaskGone", "TaskMoved", "TaskService"]

ANSWER: Final = "answer"
APPEND: Final = "append"
_CANCEL: Final = "cancel"
_AGAIN_MS: Final = 5_000
"""After so long what the log has not acknowledged is appended again."""
OVERDUE_MS: Final = 10_000
"""So long after the end of its request a task has failed; so long after it was cancelled its end is not confirmed."""
_PART_BYTES: Final = 262_144
_MAX_ANSWER: Final = 262_144
"""Larger answers to requests in a dialect are shown as results alone."""
_SLOW_S: Final = 3.0
_DOUBT_S: Final = 30.0
"""An append that failed longer ago proves nothing where none was tried since."""
_MAX_WHY: Final = 500
_SKIPPED: Final = Done(ran=False)

_log = get_logger("tasks")


class TaskGone(Exception):  # noqa: N818 - a verdict
    """There is no such task of this credential."""


class TaskMoved(Exception):  # noqa: N818 - a verdict
    """The task is in another state than the caller's: *snapshot* is the present one."""

    def __init__(self, snapshot: TaskSnapshot, text: str, *, is_stale: bool = False) -> None:
        super().__init__(text)
        self.snapshot = snapshot
        self.text = text
        self.is_stale = is_stale


class AppendUnconfirmed(Exception):  # noqa: N818 - a verdict
    """The step is stored, and whether the log has its message is not known yet: it is appended again."""

    def __init__(self, snapshot: TaskSnapshot) -> None:
        super().__init__(f"task {snapshot.id} is stored, and the log has not acknowledged its message yet")
        self.snapshot = snapshot


class NewTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task to open for *credential*, as *agent*."""

    task_id: str
    credential: str
    agent: str
    """The sender of its request."""
    to: str
    draft: Outgoing
    content_hash: str
    max_open: int
    """Open tasks of the credential."""
    data: bytes | None = None
    """The canonical data of the request, with members that its type does not know."""
    dialect: str = ""
    names: Mapping[str, str] = {}
    key_at: str = ""
    """Where in the request its key is."""


class OpenedTask(msgspec.Struct, frozen=True):
    """A task after it was opened or answered; *is_repeat*: that was done before."""

    snapshot: TaskSnapshot
    is_repeat: bool


class _Asked(msgspec.Struct, frozen=True):
    """A step that sends *records*: *name* says for what, *armed* are waits without their ids."""

    name: str
    change: TaskChange
    records: Sequence[NewRecord]
    armed: Sequence[NewWait] = ()


class TaskService:
    """The tasks of one group."""

    hears = True
    """Progress in the mailbox is about its processes, too."""

    def __init__(
        self,
        store: ProcessStore,
        *,
        group: ProcessGroup,
        publisher: Publisher,
        clock: Clock,
        limits: TaskLimits,
        keep_ms: int,
        sealer_of: Callable[[str], Sealer],
        changed: Callable[[Process], object],
        unconfirmed: Callable[[], object] = lambda: None,
    ) -> None:
        """*sealer_of* returns what seals for an agent that has opened a task.

        *changed* is called with each row that was written here, *unconfirmed* for each append not acknowledged.
        """
        self.store = store
        self.group = group
        self.publisher = publisher
        self._clock = clock
        self._limits = limits
        self._keep_ms = keep_ms
        self._sealer_of = sealer_of
        self._changed = changed
        self._unconfirmed = unconfirmed
        self.rows = TaskRows(store, clock, namespace=group.namespace, group=group.name)
        self._acknowledged: list[str] = []
        self._numbers = itertools.count()
        self._under_way: dict[int, float] = {}
        """When each append began that the log has not answered."""
        self._failed_s: float | None = None
        """When the last append ended, if it was not acknowledged."""
        self._sending: set[asyncio.Task[None]] = set()
        self._forgetting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Make the tables of tasks where they are missing. Raises InboxError, ConfigurationError."""
        await self.rows.open_tables()

    # What clients do.

    async def open(self, new: NewTask, *, timeout_s: float) -> OpenedTask:
        """Open a task, or find the one that its key has opened.

        Raises PublishRejected, BusError: nothing was opened. Raises `ContractError` (`idempotency_conflict`) for other
        content under its key, `TooManyOpen`, and AppendUnconfirmed: it is open.
        """
        sealed = self._sealer_of(new.agent).seal(new.draft, SealRequest(accepts_progress=True, data=new.data))
        message = sealed.message
        await self.publisher.prepare_topics({sealed.record.topic})
        process, row = self._first_row(new, message)
        waits = (
            NewWait(
                id=message.message_id,
                name=ANSWER,
                after_ms=max(0, (parse_ms(message.routing.expires_at) or 0) - self._clock.now_ms()) + OVERDUE_MS,
                addressee=new.to,
                seal=message.seal,
                many=True,
            ),
            NewWait(id=self._append_id(process.id, APPEND, 1), name=APPEND, after_ms=_AGAIN_MS),
        )
        change = ProcessChange(before=None, after=process, armed=waits, keep_ms=self._keep_ms)
        if not await self.rows.open(TaskOpening(change, new.credential, new.max_open)):
            return await self._repeated(new, process)
        failpoints.reach("opened")
        self._changed(process)
        if not await self._append(sealed.records, waits[1].id, timeout_s):
            raise AppendUnconfirmed(row.shown)
        failpoints.reach("appended")
        return OpenedTask(row.shown, is_repeat=False)

    def _first_row(self, new: NewTask, message: Message) -> tuple[Process, TaskRow]:
        now_ms = self._clock.now_ms()
        shown = TaskSnapshot(
            id=new.task_id,
            status="submitted",
            generation=1,
            cursor="",
            to=new.to,
            type=message.message_type,
            conversation_id=message.metadata.conversation_id,
            opened_at=format_ms(now_ms),
            expires_at=message.routing.expires_at,
            content_hash=new.content_hash,
        )
        shown = msgspec.structs.replace(shown, cursor=cursor_after("", shown))
        row = TaskRow(shown=shown, dialect=new.dialect, names=dict(new.names))
        process = Process(
            id=self.id_of(new.credential, new.task_id),
            namespace=self.group.namespace,
            group=self.group.name,
            saga=TASK_SAGA,
            key=new.task_id,
            version=1,
            status="open",
            shape=TASK_SHAPE,
            state=pack_task(row),
            opener=message.value,
            trust="user_request",
            owner=new.credential,
            sender=message.metadata.sender.id or "",
            task_id=new.task_id,
            opened_ms=now_ms,
            changed_ms=now_ms,
        )
        return process, row

    async def _repeated(self, new: NewTask, process: Process) -> OpenedTask:
        found = await self.find(new.credential, new.task_id)
        if found is None:
            raise BusError(f"task {process.key} was opened and is gone: ask again")
        if found.content_hash != new.content_hash:
            raise ContractError(
                "the key was used for other content: use another one",
                new.key_at,
                "idempotency_conflict",
            )
        return OpenedTask(found, is_repeat=True)

    async def find(self, credential: str, task_id: str) -> TaskSnapshot | None:
        """Return the task of *credential*; None where it has none of that id."""
        process = await self.store.find(self.id_of(credential, task_id))
        return None if process is None else unpack_task(process).shown

    def id_of(self, credential: str, task_id: str) -> bytes:
        """Return the id of the row."""
        return self.store.ids.process(TASK_SAGA, credential, task_id)

    async def answer(
        self,
        credential: str,
        task_id: str,
        said: TaskClarified,
        *,
        key: str | None = None,
        if_match: str | None = None,
        timeout_s: float = 5,
    ) -> OpenedTask:
        """Answer the open question of a task; the same answer again, or its *key*, changes nothing.

        Raises TaskGone, TaskMoved, AppendUnconfirmed, PublishRejected, and ContractError (`idempotency_conflict`).
        """
        content = canonical.digest(canonical.encode([said.answers, said.inputs]))

        def make(process: Process, row: TaskRow) -> _Asked:
            if not row.question:
                raise TaskMoved(
                    row.shown, "the question was answered otherwise" if row.answered else "no question is open"
                )
            question = sealing.parse(row.question)
            if (asked := len(_data_of(question)["questions"])) != len(said.answers):
                # The agent would refuse it, and the question would seem to be answered.
                raise ContractError(
                    f"{len(said.answers)} answers to {asked} questions: one for each", "/answers", "schema_violation"
                )
            draft = Outgoing(
                said,
                to=question.metadata.sender.id,
                task_id=task_id,
                ttl_s=max(1.0, ((parse_ms(question.routing.expires_at) or 0) - self._clock.now_ms()) / 1000),
                idempotency_key=f"{task_id}:{question.message_id}",
            )
            request = SealRequest(cause=question, answers=True, topic=question.routing.reply_to)
            sealed = self._sealer_of(process.sender).seal(draft, request)
            return _Asked("input", resumed(row, content, key), sealed.records)

        def repeats(row: TaskRow) -> bool:
            return is_answered_so(row, content, key)

        return await self._act(credential, task_id, make, repeats, if_match=if_match, timeout_s=timeout_s)

    async def cancel(
        self,
        credential: str,
        task_id: str,
        cancel: TaskCancel,
        *,
        if_match: str | None = None,
        timeout_s: float = 5,
    ) -> TaskSnapshot:
        """Ask the agent of a task to end it. Raises what `answer` raises."""

        def make(process: Process, row: TaskRow) -> _Asked:
            if row.cancel_asked:
                raise TaskMoved(row.shown, "it is being cancelled already")
            return self._cancelling(process, row, cancel)

        done = await self._act(credential, task_id, make, lambda _: False, if_match=if_match, timeout_s=timeout_s)
        return done.snapshot

    def _cancelling(self, process: Process, row: TaskRow, cancel: TaskCancel) -> _Asked:
        """Return what asks the agent of a task to end it. Raises PublishRejected."""
        request = sealing.parse(process.opener)
        # Addressed to nobody: whoever has the message learns of it, whichever agent that is.
        draft = Outgoing(
            cancel,
            task_id=request.message_id,
            parent_task_id=process.key,
            conversation_id=request.metadata.conversation_id,
        )
        sealed = self._sealer_of(process.sender).seal(draft)
        over = NewWait(id="", name=_CANCEL, after_ms=OVERDUE_MS)
        return _Asked("cancelling", cancelled(row, cancel.explanation or ""), sealed.records, (over,))

    async def _act(
        self,
        credential: str,
        task_id: str,
        make: Callable[[Process, TaskRow], _Asked],
        repeats: Callable[[TaskRow], bool],
        *,
        if_match: str | None,
        timeout_s: float,
    ) -> OpenedTask:
        """Write what *make* changes and what it sends in one transaction, then send it, unless it *repeats*."""
        while True:
            process = await self.store.find(self.id_of(credential, task_id))
            if process is None:
                raise TaskGone
            row = unpack_task(process)
            if repeats(row):
                # Whatever the task has come to since: its client asks whether this came.
                return OpenedTask(row.shown, is_repeat=True)
            if if_match is not None and if_match != row.shown.cursor:
                raise TaskMoved(row.shown, "it has changed since", is_stale=True)
            if row.shown.is_over:
                raise TaskMoved(row.shown, "it has ended")
            asked = make(process, row)
            written, append = self._sending_step(process, asked)
            if not await self.store.change(written):
                continue
            shown = unpack_task(written.after).shown
            self._changed(written.after)
            if not await self._append(asked.records, append, timeout_s):
                raise AppendUnconfirmed(shown)
            return OpenedTask(shown, is_repeat=False)

    def _sending_step(self, process: Process, asked: _Asked) -> tuple[ProcessChange, str]:
        """Return the step of *asked*, with what it sends, and the id of the wait that sends it again."""
        version = process.version + 1
        waiting = f"{APPEND}-{asked.name}"
        append = NewWait(id=self._append_id(process.id, waiting, version), name=waiting, after_ms=_AGAIN_MS)
        hold = Hold(process=process.id, seal=waiting, record=encode_outputs(asked.records))
        others = self._armed(process, asked)
        written = self._written(process, asked.change, armed=(append, *others), holds=(hold,))
        return written, append.id

    def _armed(self, process: Process, asked: _Asked) -> list[NewWait]:
        """Return the waits of the step of *asked*, with their ids."""
        version = process.version + 1
        return [
            msgspec.structs.replace(wait, id=self.store.ids.timer(process.id, wait.name, version))
            for wait in asked.armed
        ]

    async def cancel_all(self, credential: str, why: str) -> int:
        """Ask the agents of the open tasks of *credential* to end them, each in a transaction; return how many.

        A task that was being cancelled before is not counted: it ends without this.
        """
        count, seen = 0, b""
        while rows := await self.rows.open_after(credential, seen):
            for process in rows:
                count += await self._cancel_for(process, why)
            seen = rows[-1].id
        return count

    async def _cancel_for(self, process: Process | None, why: str) -> bool:
        """Cancel the task of *process*; False: it ends or has ended, or newer code has written it."""
        while process is not None and process.status == "open":
            try:
                row = unpack_task(process)
            except NewerCode:
                return False
            if row.cancel_asked:
                return False
            asked, append = None, ""
            try:
                asked = self._cancelling(process, row, TaskCancel(reason_code="NOT_NEEDED", explanation=why, grace_s=5))
                written, append = self._sending_step(process, asked)
            except PublishRejected as error:
                # Nobody may speak for its agent any more: the row ends, and its agent hears nothing.
                _log.warning("task.cancel_not_sent", task=process.key, error=str(error))
                over = ended(row, "cancelled", error=error_of("CANCELLED", why), confirmed=False)
                written = self._written(process, over)
            if await self.store.change(written):
                self._changed(written.after)
                if asked is not None:
                    # Many are sent at once, and none is waited for: the row sends it again.
                    self._soon(self._append_again(asked.records, append))
                return True
            process = await self.store.find(process.id)
        return False

    # What comes to the mailbox.

    async def mailed(
        self, wait: Wait, process: Process, delivery: Accepted
    ) -> tuple[ProcessChange, Sequence[NewRecord]] | Outcome:
        """Take the step of what came about *wait*."""
        row = unpack_task(process)
        if process.status != "open":
            return _SKIPPED
        if isinstance(delivery.payload, WaitDue):
            return await self._due(wait, process, row)
        message = delivery.message
        if (fault := _fault_of(message, wait, process)) is not None:
            return _SKIPPED if message.is_progress else refused(fault)
        if isinstance(delivery.payload, ContractError):
            if message.is_progress:
                return _SKIPPED
            refusal = delivery.payload
            error = error_of(refusal.reason or "rejected", f"its answer was refused: {refusal.text}")
            return self._written(process, ended(row, "failed", error=error)), ()
        change = told(row, message, delivery.payload, _data_of(message), self._limits)
        if change is None:
            return _SKIPPED
        if row.dialect and change.row.shown.is_over and len(message.value) <= _MAX_ANSWER:
            change = msgspec.structs.replace(change, row=msgspec.structs.replace(change.row, answer=message.value))
        return self._written(process, change), ()

    async def _due(
        self, wait: Wait, process: Process, row: TaskRow
    ) -> tuple[ProcessChange, Sequence[NewRecord]] | Outcome:
        if wait.name == ANSWER:
            return self._written(process, timed_out(row)), ()
        if wait.name == _CANCEL:
            text = f"{row.cancel_why or 'it was cancelled'}, and its agent has not confirmed that it has ended"
            over = ended(row, "cancelled", error=error_of("CANCELLED", text), confirmed=False)
            return self._written(process, over), ()
        if wait.name == CANCEL_WAIT:
            return self._cancelled_by_operator(process, row, f"cancelled by an operator: {wait.note}")
        if wait.name.startswith(APPEND):
            again = NewWait(
                id=self._append_id(process.id, wait.name, process.version + 1), name=wait.name, after_ms=_AGAIN_MS
            )
            records = await self._records_of(wait, process)
            change = self._plain_change(process, row, armed=(again,), acted=wait.id)
            self._soon(self._append_again(records, again.id))
            return change, ()
        return _SKIPPED

    def _cancelled_by_operator(
        self, process: Process, row: TaskRow, why: str
    ) -> tuple[ProcessChange, Sequence[NewRecord]]:
        if not row.cancel_asked:
            cancel = TaskCancel(reason_code="NOT_NEEDED", explanation=cut(why, _MAX_WHY), grace_s=5)
            try:
                asked = self._cancelling(process, row, cancel)
            except PublishRejected as error:
                _log.warning("task.cancel_not_sent", task=process.key, error=str(error))
            else:
                # The step's own outputs are sent again until the log has them.
                armed = self._armed(process, asked)
                return self._written(process, asked.change, armed=armed, ended=(CANCEL_WAIT,)), asked.records
        over = ended(row, "cancelled", error=error_of("CANCELLED", why), confirmed=False)
        return self._written(process, over), ()

    async def cancelled(
        self,
        process: Process,  # noqa: ARG002 - the form of a built-in saga
        by: str,  # noqa: ARG002
        why: str,  # noqa: ARG002
    ) -> tuple[ProcessChange, Sequence[NewRecord]] | None:
        """Ignore it: the group hears of no cancellation."""
        return None

    def written(self, change: ProcessChange) -> None:
        """Tell of a step that is durable."""
        failpoints.reach("answered")
        self._changed(change.after)

    # Rows.

    def _written(
        self,
        process: Process,
        change: TaskChange,
        *,
        armed: Sequence[NewWait] = (),
        holds: Sequence[Hold] = (),
        ended: Collection[str] = (),
    ) -> ProcessChange:
        """Return the next row of *process*, and whatever is stored with it; the waits *ended* go."""
        version, is_over = process.version + 1, change.row.shown.is_over
        until_ms = self._clock.now_ms() + self._keep_ms if is_over else None
        change = stepped(change, version, kept_until_ms=until_ms)
        after = msgspec.structs.replace(
            process,
            version=version,
            status="finished" if is_over else "open",
            shape=TASK_SHAPE,
            state=pack_task(change.row),
        )
        return ProcessChange(
            before=process,
            after=after,
            keep_ms=self._keep_ms,
            armed=() if is_over else armed,
            ended=ended,
            holds=() if is_over else holds,
            frees_holds=is_over,
            beside=tuple(_writes_of(process.id, change)),
        )

    def _plain_change(self, process: Process, row: TaskRow, *, armed: Sequence[NewWait], acted: str) -> ProcessChange:
        """Return a change that shows nothing new."""
        after = msgspec.structs.replace(process, version=process.version + 1, state=pack_task(row))
        return ProcessChange(before=process, after=after, keep_ms=self._keep_ms, armed=armed, acted=acted)

    def _append_id(self, process: bytes, name: str, version: int) -> str:
        return self.store.ids.timer(process, name, version)

    # Sending.

    async def _records_of(self, wait: Wait, process: Process) -> Sequence[NewRecord]:
        """Return the records that *wait* sends again: the very bytes of the first time."""
        if wait.name == APPEND:
            request = sealing.parse(process.opener)
            return sealed_as(request, message_topic(self.group.namespace, request.message_type)).records
        holds = await self.store.holds_of(process.id)
        return [record for hold in holds if hold.seal == wait.name for record in decode_outputs(hold.record)]

    async def _append(self, records: Sequence[NewRecord], wait: str, timeout_s: float) -> bool:
        """Append *records*; once the log has them, *wait* goes. False: it is not known whether the log has them."""
        begun_s, number = self._clock.monotonic_s(), next(self._numbers)
        self._under_way[number] = begun_s
        try:
            outcomes = await (await self.publisher.queue(records, {records[0].topic}, timeout_s=timeout_s))
            is_acknowledged = all(isinstance(outcome, Appended) for outcome in outcomes)
        except BusError as error:
            _log.warning("task.not_appended", error=str(error), again_in_s=_AGAIN_MS / 1000)
            is_acknowledged = False
        finally:
            del self._under_way[number]
        self._failed_s = None if is_acknowledged else self._clock.monotonic_s()
        if not is_acknowledged:
            self._unconfirmed()
            return False
        self._acknowledged.append(wait)
        if self._forgetting is None or self._forgetting.done():
            self._forgetting = asyncio.get_running_loop().create_task(self._forget_appended())
        return True

    def append_fault(self) -> str:
        """Return why the log seems to take no appends; "" while nothing is known against it."""
        now_s = self._clock.monotonic_s()
        if self._failed_s is not None and now_s - self._failed_s < _DOUBT_S:
            return "the log did not acknowledge the last append"
        waits_s = now_s - min(self._under_way.values(), default=now_s)
        return f"an append has waited for {waits_s:.0f} s" if waits_s > _SLOW_S else ""

    async def _append_again(self, records: Sequence[NewRecord], wait: str) -> None:
        if records:
            await self._append(records, wait, self.publisher.settings.publish.timeout_s)

    async def _forget_appended(self) -> None:
        """Delete the waits of what the log has acknowledged, many at once."""
        await self._clock.sleep(0.05)
        while self._acknowledged:
            waits, self._acknowledged = self._acknowledged, []
            try:
                await self.rows.forget_waits(waits)
            except BusError as error:
                # They are appended again, and handled once all the same.
                _log.warning("task.waits_stay", error=str(error), count=len(waits))

    def _soon(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def close(self) -> None:
        """End what is under way."""
        tasks: Collection[asyncio.Task[None]] = [
            *self._sending,
            *([] if self._forgetting is None else [self._forgetting]),
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=5)


def _fault_of(message: Message, wait: Wait, process: Process) -> ContractError | None:
    """Return why *message* is not about the task of *process*; None if it is."""
    parents = message.verification.parents
    if not parents or parents[0] != wait.seal:
        return ContractError(
            "it answers what was asked, and the request is not its first parent",
            "/verification/parents",
            "unauthorized",
        )
    if wait.addressee is not None and message.metadata.sender.id != wait.addressee:
        return ContractError(
            f"{wait.addressee} was asked, but another agent answers", "/metadata/sender/id", "unauthorized"
        )
    recipient = message.metadata.recipient
    if recipient is None or recipient.id != process.sender:
        return ContractError("it is not addressed to who asked", "/metadata/recipient/id", "unauthorized")
    return None


def _data_of(message: Message) -> Any:
    return msgspec.json.decode(message.value)["data"]


def _writes_of(process: bytes, change: TaskChange) -> Sequence[Write]:
    """Return what stores the parts of *change*."""
    writes = []
    for part in change.parts:
        if part.replaces:
            writes.append(
                Write(
                    "DELETE FROM sealbus_task_artifacts WHERE process = $1 AND artifact = $2", (process, part.artifact)
                )
            )
        for number, start in enumerate(range(0, max(1, len(part.data)), _PART_BYTES)):
            place = part.index * 1_000 + number
            writes.append(
                Write(
                    "INSERT INTO sealbus_task_artifacts (process, artifact, part, data) VALUES ($1, $2, $3, $4) "
                    "ON CONFLICT (process, artifact, part) DO UPDATE SET data = excluded.data",
                    (process, part.artifact, place, part.data[start : start + _PART_BYTES]),
                )
            )
    return writes
