"""StepRunner: one step per event: find the process, run the method, and return the changes to write.

Owns the verdicts of design part two 16.4: which process an event reaches, whether it is early, late, or never legal,
and the one transaction that changes process, waits and the event's own row together.
`consumers.delivery.handling.executor` commits it and settles the offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from bus.clock import Clock
from bus.errors import ContractError, Reject, RetryLater
from bus.protocol import canonical, sealing
from bus.protocol.sealing import Message
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.transports.base import NewRecord
from bus.trust.effective_labels import EffectiveLabels
from bus.vocabulary.bus import WaitDue
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.task import TaskCancel, TaskClarification
from consumers.deadletters.records import Failure
from consumers.delivery.handling.runner import CallMethod, StepTaken
from consumers.delivery.inbox.base import Written, principal_of
from consumers.delivery.settling.dispositions import refusal, refused, wait_in_tiers
from consumers.delivery.settling.outcome import Dead, Done, Outcome
from consumers.delivery.settling.outputs import report_of, seal_outputs, wants_report
from consumers.delivery.state.delivery import Accepted
from consumers.processes.sagas.context import AskFailed, SagaContext, StepDone, StepEvent, labels_for
from consumers.processes.sagas.early_events import EarlyEvents
from consumers.processes.sagas.history import PartOutcome, StepTaking, history_after
from consumers.processes.sagas.process import Memory, NewerCode, Process, Wait, pack, unpack
from consumers.processes.sagas.process_group import ProcessGroup
from consumers.processes.sagas.rules import CANCEL_WAIT, EventRule, SagaRules
from consumers.processes.sagas.store import ProcessChange, ProcessStore
from producers.publisher import Publisher
from producers.sealing.sealed_record import SealedRecord

__all__ = ["StepRunner"]

_MAX_KEY: Final = 512
"""Characters of a process's key: every store has an index over it."""
_MAX_AT_ONCE: Final = 1_000
_REFUSALS: Final = frozenset({"rejected", "unauthorized", "untrusted_instruction", "approval_rejected"})

_log = get_logger("sagas")

SKIPPED_EVENT: Final = Done(ran=False)


class BuiltIn(Protocol):
    """A saga of the bus itself, whose steps are not a user's methods."""

    hears: bool
    """Whether it takes progress."""

    async def mailed(
        self, wait: Wait, process: Process, delivery: Accepted
    ) -> tuple[ProcessChange, Sequence[NewRecord]] | Outcome:
        """Take the step of what came to the mailbox about *wait*."""

    async def cancelled(self, process: Process, by: str, why: str) -> tuple[ProcessChange, Sequence[NewRecord]] | None:
        """Take the step of a cancellation by the requester; None where there is nothing to cancel any more."""

    def written(self, change: ProcessChange) -> None:
        """Hear of a step that is durable."""


class _Early(Exception):  # noqa: N818 - a verdict
    """The event may become legal later, when its process has come or moved on."""


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that cancelled a process, and the reason."""

    code: str
    why: str = ""
    passes_on: TaskCancel | None = None
    """The cancellation to send to the agents that were asked."""
    requested: tuple[str, ...] = ()
    is_told: bool = False
    """Whether to notify the requester; not if it has cancelled the process itself."""


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of one process: the method to run, and its arguments."""

    rules: SagaRules
    process: Process | None
    """None: it is opened."""
    key: str
    method: str | None
    """None: only the bus itself acts on the event."""
    payload: Any = None
    """None for methods without payload."""
    wait: Wait | None = None
    """The wait that the event answers or ends."""
    ends_wait: bool = False
    failure: AskFailed | None = None
    cancelled: Cancelled | None = None
    """Set if the process was cancelled."""


class _Built(msgspec.Struct, frozen=True):
    """The step of a built-in saga."""

    change: ProcessChange
    outputs: Sequence[NewRecord]


class StepRunner:
    """Takes the steps of one group."""

    def __init__(
        self,
        sagas: Sequence[SagaRules],
        store: ProcessStore,
        *,
        group: ProcessGroup,
        publisher: Publisher,
        clock: Clock,
        metrics: Metrics,
        early: EarlyEvents,
        built_in: Mapping[str, BuiltIn] = MappingProxyType({}),
    ) -> None:
        self.store = store
        self.crowded: frozenset[str] = frozenset()
        """Senders at their limit of open processes: messages that would open another one wait."""
        self._early = early
        self._built_in = built_in
        self._sagas: Mapping[str, SagaRules] = {rules.name: rules for rules in sagas}
        self._by_type: dict[str, list[SagaRules]] = {}
        for rules in sorted(sagas, key=lambda rules: rules.name):
            for name in rules.topics:
                self._by_type.setdefault(name, []).append(rules)
        self._group = group
        self._publisher = publisher
        self._clock = clock
        self._counted = metrics.saga_steps
        self._progress = metrics.progress

    async def take(self, delivery: Accepted, run: CallMethod) -> StepTaken | Outcome:
        """Take the step of *delivery*, or return its outcome without one.

        The caller stores what it writes with the end of the event's row. A process that has moved since it was read is
        read again: a step may run any number of times.
        """
        try:
            events = await self._events_of(delivery)
        except _Early:
            return self._early.outcome_of(delivery)
        except NewerCode:
            return self._waits(delivery, "early")
        except ContractError as error:
            if _is_heard(delivery):
                return self._passed_over(delivery, "refused")
            return refused(error.with_traceback(None))
        if not isinstance(events, Sequence):
            return events
        if self._opens_too_many(events, delivery):
            return self._waits(delivery, "crowded")
        changes: list[ProcessChange] = []
        outputs: list[NewRecord] = []
        try:
            for event in events:
                change, sent = (
                    (event.change, event.outputs)
                    if isinstance(event, _Built)
                    else await self._step(event, delivery, run)
                )
                changes.append(change)
                outputs += sent
        except NewerCode:
            # Its state is of a later version.
            return self._waits(delivery, "early")
        return StepTaken(outputs, self.store.writes_of(changes), partial(self._ended_as, changes))

    def _ended_as(self, changes: Sequence[ProcessChange], written: Written) -> None:
        if written == "written":
            self.store.written(changes)
            self._count(changes, "stepped")
            for change in changes:
                if (built := self._built_in.get(change.after.saga)) is not None:
                    built.written(change)
        elif written == "moved":
            self._count(changes, "conflict")

    def _waits(self, delivery: Accepted, why: str) -> Outcome:
        """Let *delivery* wait without an attempt, for other code or for room; progress does not wait."""
        if _is_heard(delivery):
            return self._passed_over(delivery, "passed")
        self._counted.labels(self._group.name, "other", why).inc()
        return wait_in_tiers(delivery, self._group.tiers, self._left_s(delivery))

    def _passed_over(self, delivery: Accepted, outcome: str) -> Outcome:
        """Count progress that takes no step; it leaves no row."""
        self._progress.labels(outcome).inc()
        _log.debug("saga.progress", outcome=outcome, type=delivery.message.message_type)
        return SKIPPED_EVENT

    def _opens_too_many(self, events: Sequence[_Event | _Built], delivery: Accepted) -> bool:
        if not self.crowded or self._principal_of(delivery.message) not in self.crowded:
            return False
        return any(isinstance(event, _Event) and event.process is None for event in events)

    # Whose event it is.

    async def _events_of(self, delivery: Accepted) -> Sequence[_Event | _Built] | Outcome:
        if delivery.subscription.is_mailbox:
            return await self._mailed(delivery)
        if isinstance(delivery.payload, TaskCancel) and delivery.message.message_type not in self._by_type:
            return await self._cancelled(delivery, delivery.payload) or SKIPPED_EVENT
        events: list[_Event] = []
        refusal: Dead | None = None
        for rules in self._by_type[delivery.message.message_type]:
            spread = rules.events.get(delivery.message.message_type)
            if spread is not None and spread.every:
                events += await self._all_reached(rules, spread, delivery)
                continue
            found = await self._reached(rules, delivery)
            if isinstance(found, _Event):
                events.append(found)
            elif isinstance(found, Dead):
                refusal = found
        return events or refusal or SKIPPED_EVENT

    async def _cancelled(self, delivery: Accepted, cancel: TaskCancel) -> Sequence[_Event | _Built]:
        """Return the events that a task.cancel causes in the processes of its task opened by its sender."""
        message = delivery.message
        task_id, sender = message.metadata.task_id or "", message.metadata.sender.id or ""
        events: list[_Event | _Built] = []
        for process in await self._processes_of(task_id, message):
            if (built := self._built_in.get(process.saga)) is not None:
                taken = await built.cancelled(process, sender, f"CANCELLED: {cancel.reason_code}")
                events += [] if taken is None else [_Built(*taken)]
                continue
            cancelled = Cancelled(code=cancel.reason_code, passes_on=cancel if cancel.cascade else None)
            events.append(await self._ended(process, cancelled))
        return events

    async def _processes_of(self, task_id: str, cancel: Message) -> list[Process]:
        """Return the open processes of the task *task_id*, or of the request with that id, which *cancel* ends."""
        principal, whole = self._principal_of(cancel), cancel.metadata.parent_task_id
        found = await self.store.of_task(task_id, principal)
        if whole is not None and whole != task_id:
            # One request of a task is cancelled: the rest of the task goes on.
            others = await self.store.of_task(whole, principal)
            found += [each for each in others if sealing.parse(each.opener).message_id == task_id]
        return found

    async def _ended(self, process: Process, cancelled: Cancelled, wait: Wait | None = None) -> _Event:
        """Return the end of *process*, which was cancelled. Raises NewerCode."""
        rules = self._rules_of(process)
        waits = await self.store.waits_of(process.id)
        requested = tuple(each.addressee for each in waits if each.seal is not None and each.addressee is not None)
        return _Event(
            rules=rules,
            process=process,
            key=process.key,
            method=rules.cancelled,
            wait=wait,
            ends_wait=wait is not None,
            cancelled=msgspec.structs.replace(cancelled, requested=requested),
        )

    def _rules_of(self, process: Process) -> SagaRules:
        """Return the rules of *process*. Raises NewerCode where another worker of the group may know them."""
        rules = self._sagas.get(process.saga)
        if rules is None:
            raise NewerCode
        return rules

    def _principal_of(self, message: Message) -> str:
        return principal_of(message, has_keys=self._publisher.sealer.admission.has_keys)

    async def _all_reached(self, rules: SagaRules, rule: EventRule, delivery: Accepted) -> list[_Event]:
        """Return the events of *delivery* in every open process of *rules*, except those its sender takes no part
        in."""
        found = await self.store.processes(saga=rules.name, status="open", max_rows=_MAX_AT_ONCE + 1)
        if len(found) > _MAX_AT_ONCE:
            raise RetryLater(f"{rules.name} has more than {_MAX_AT_ONCE} open processes: an event cannot reach all")
        events = []
        for process in found:
            opened = self._unpacked(rules, process)
            phase = str(getattr(opened[1], "phase", ""))
            if (not rule.at or phase in rule.at) and self._is_party(rule, process, opened[0], delivery.message):
                payload = delivery.payload
                events.append(
                    _Event(rules=rules, process=process, key=process.key, method=rule.method, payload=payload)
                )
        return events

    async def _reached(self, rules: SagaRules, delivery: Accepted) -> _Event | Dead | None:
        """Return the event of *delivery* in its process of *rules*; None if it is skipped. Raises _Early."""
        name = delivery.message.message_type
        starter, spontaneous = rules.starters.get(name), rules.events.get(name)
        location = starter or spontaneous
        assert location is not None  # noqa: S101 - its type is one of the saga's
        key = delivery.message.message_id if location.key is None else _key_at(delivery.message, location.key)
        owner = "" if rules.shares_keys else self._principal_of(delivery.message)
        process: Process | Dead | None = await self.store.find(self.store.ids.process(rules.name, owner, key))
        if process is None and starter is not None:
            return _Event(rules=rules, process=None, key=key, method=starter.method, payload=delivery.payload)
        if process is None and spontaneous is not None:
            process = await self._others(rules, spontaneous, key, delivery.message)
        if process is None:
            return self._missing(spontaneous)
        if isinstance(process, Dead):
            return process
        if process.status == "finished":
            return refusal("conversation_closed", f"{rules.name} {key!r:.80} is finished", location.key)
        if spontaneous is None:
            return refusal("invalid_transition", f"{rules.name} {key!r:.80} is open already", location.key)
        opened = self._unpacked(rules, process)
        self._check_party(spontaneous, process, opened[0], delivery.message)
        phase = str(getattr(opened[1], "phase", ""))
        if not rules.knows_phase(phase):
            raise NewerCode
        if spontaneous.at and phase not in spontaneous.at:
            if rules.can_reach(phase, spontaneous.at):
                raise _Early
            return refusal("invalid_transition", f"{name} is not legal in {phase!r}, nor in any phase that follows")
        return _Event(rules=rules, process=process, key=key, method=spontaneous.method, payload=delivery.payload)

    async def _others(self, rules: SagaRules, rule: EventRule, key: str, message: Message) -> Process | Dead | None:
        """Return the only open process with *key* that *message* may reach, whoever opened it.

        If no process admits the message, return an open one that refuses its sender, else a finished one.
        """
        known = await self.store.of_key(rules.name, key, max_rows=_MAX_AT_ONCE)
        opened = [process for process in known if process.status == "open"]
        admitted = [each for each in opened if self._is_party(rule, each, self._unpacked(rules, each)[0], message)]
        if len(admitted) > 1:
            text = f"{len(admitted)} processes of {rules.name} are known by {key!r:.80}, of several owners"
            return refusal("invalid_transition", text, rule.key or "")
        return next(iter((*admitted, *opened, *known)), None)

    def _missing(self, rule: EventRule | None) -> Dead | None:
        missing = "wait" if rule is None else rule.missing
        if missing == "wait":
            raise _Early
        if missing == "skip":
            return None
        return refusal("invalid_transition", "no such workflow", None if rule is None else rule.key)

    def _check_party(self, rule: EventRule, process: Process, memory: Memory, message: Message) -> None:
        """Only parties of a process move it (CV1): an id of a conversation alone opens nothing."""
        if not self._is_party(rule, process, memory, message):
            sender = message.metadata.sender.id or ""
            raise ContractError(
                f"{sender} did not take part in this process: it did not open it, and was neither asked nor answered. "
                "@on_message(..., admits='anyone') accepts every sender that the policy allows",
                "/metadata/sender/id",
                "unauthorized",
            )

    def _is_party(self, rule: EventRule, process: Process, memory: Memory, message: Message) -> bool:
        sender = message.metadata.sender.id or ""
        if rule.admits == "anyone" or sender in memory.parties:
            return True
        return self._principal_of(message) == process.sender

    async def _mailed(self, delivery: Accepted) -> Sequence[_Event | _Built] | Outcome:
        message = delivery.message
        is_nudge = isinstance(delivery.payload, WaitDue)
        named = delivery.payload.wait if isinstance(delivery.payload, WaitDue) else message.metadata.correlation_id
        found = None if named is None else await self.store.find_wait(named)
        if found is None:
            return self._passed_over(delivery, "late") if _is_heard(delivery) else self._late(message)
        wait, process, now_ms = found
        is_shown = _is_heard(delivery) and not self._asks_back(process, wait, delivery)
        if is_shown and not self._hears(process, wait, message):
            return self._passed_over(delivery, "passed")
        if is_nudge and wait.due_ms > now_ms:
            await self.store.not_yet(wait.id)
            return SKIPPED_EVENT
        if (built := self._built_in.get(process.saga)) is not None:
            taken = await built.mailed(wait, process, delivery)
            return [_Built(*taken)] if isinstance(taken, tuple) else taken
        if is_nudge and wait.name == CANCEL_WAIT:
            cancelled = Cancelled(
                code="CANCELLED", why=wait.note, passes_on=TaskCancel(reason_code="CANCELLED"), is_told=True
            )
            return [await self._ended(process, cancelled, wait)]
        rules = self._rules_of(process)
        if not rules.knows_wait(wait.name):
            raise NewerCode
        return [self._due(rules, process, wait)] if is_nudge else self._replied(rules, process, wait, delivery)

    def _hears(self, process: Process, wait: Wait, progress: Message) -> bool:
        """Return whether a method takes *progress* of *wait*, and the process has steps left for it."""
        if (built := self._built_in.get(process.saga)) is not None:
            return built.hears
        rules = self._sagas.get(process.saga)
        rule = None if rules is None else rules.answer_to(wait.name, progress.message_type)
        return rules is not None and rule is not None and not rule.ends and process.version <= rules.max_steps // 2

    def _asks_back(self, process: Process, wait: Wait, delivery: Accepted) -> bool:
        """Return whether *delivery* is a question that no method of *process* takes: nobody would answer it."""
        rules, message = self._sagas.get(process.saga), delivery.message
        if rules is None or not isinstance(delivery.payload, TaskClarification) or message.routing.reply_to is None:
            return False
        return rules.answer_to(wait.name, message.message_type) is None

    def _replied(
        self, rules: SagaRules, process: Process, wait: Wait, delivery: Accepted
    ) -> Sequence[_Event | _Built] | Outcome:
        """Return the event of an answer in *process*, if it is accepted. Raises ContractError."""
        message = delivery.message
        if not _rests_on(message, wait):
            if isinstance(delivery.payload, ErrorReported):
                return self._late(message)
            raise ContractError(
                "it answers what was asked, and the request is not its first parent",
                "/verification/parents",
                "unauthorized",
            )
        if wait.addressee is not None and message.metadata.sender.id != wait.addressee:
            raise ContractError(
                f"{wait.addressee} was asked, but another agent answers", "/metadata/sender/id", "unauthorized"
            )
        return self._answered(rules, process, wait, delivery)

    def _answered(self, rules: SagaRules, process: Process, wait: Wait, delivery: Accepted) -> list[_Event] | Outcome:
        name = delivery.message.message_type
        rule = rules.answer_to(wait.name, name)
        if rule is not None:
            return [
                _Event(
                    rules=rules,
                    process=process,
                    key=process.key,
                    method=rule.method,
                    payload=delivery.payload,
                    wait=wait,
                    ends_wait=rule.ends and not wait.many,
                )
            ]
        if wait.many and isinstance(delivery.payload, ErrorReported | TaskClarification):
            # One of many has failed; the others may still answer.
            return SKIPPED_EVENT
        if isinstance(delivery.payload, TaskClarification):
            asked = "; ".join(delivery.payload.questions)
            by = delivery.message.metadata.sender.id or ""
            failure = AskFailed(kind="refused", reason="clarification_needed", text=asked, by=by)
            return [self._ask_failed(rules, process, wait, failure)]
        if isinstance(delivery.payload, ErrorReported):
            report = delivery.payload
            said_no = report.error_code in _REFUSALS
            failure = AskFailed(
                kind="refused" if said_no else "died",
                reason=report.error_code,
                text=report.error_message,
                by=delivery.message.metadata.sender.id or "",
            )
            return [self._ask_failed(rules, process, wait, failure)]
        # This code takes no such answer to it.
        raise NewerCode

    def _due(self, rules: SagaRules, process: Process, wait: Wait) -> _Event:
        if wait.seal is not None and not wait.many:
            return self._ask_failed(rules, process, wait, AskFailed(kind="silent", by=wait.addressee or ""))
        method = rules.due_method(wait.name)
        if method is None:
            raise NewerCode
        return _Event(rules=rules, process=process, key=process.key, method=method, wait=wait, ends_wait=True)

    def _ask_failed(self, rules: SagaRules, process: Process, wait: Wait, failure: AskFailed) -> _Event:
        method = rules.failed_method(wait.name)
        if method is None:
            raise NewerCode
        return _Event(
            rules=rules,
            process=process,
            key=process.key,
            method=method,
            wait=wait,
            ends_wait=True,
            failure=failure,
        )

    # The step itself.

    async def _step(
        self, event: _Event, delivery: Accepted, run: CallMethod
    ) -> tuple[ProcessChange, Sequence[NewRecord]]:
        """Run the method of *event* on a copy of the state; return the changes and the messages to send."""
        rules, process, message = event.rules, event.process, delivery.message
        opener = message if process is None else sealing.parse(process.opener)
        memory, state = (Memory(), rules.state()) if process is None else self._unpacked(rules, process)
        principal = self._principal_of(opener)
        owner = "" if rules.shares_keys else principal
        identity = self.store.ids.process(rules.name, owner, event.key) if process is None else process.id
        version = 1 if process is None else process.version + 1
        if version > rules.max_steps:
            raise ContractError(
                f"{rules.name} {event.key!r:.80} has taken {rules.max_steps} steps", "/data", "rejected"
            )
        admission = self._publisher.sealer.admission
        before = _labels_of(process, memory)
        labels = labels_for(message, opener, admission, before)
        ended = {event.wait.name} if event.wait is not None and event.ends_wait else set()
        done = StepDone(
            sealed=[],
            armed={},
            ended=ended,
            asks={name: retained for name, retained in memory.asks.items() if name not in ended},
            rounds=dict(memory.rounds),
            parties=dict.fromkeys(memory.parties or ((opener.metadata.sender.id or ""),)),
        )
        if event.wait is not None and event.wait.seal is not None and not isinstance(delivery.payload, WaitDue):
            done.parties[message.metadata.sender.id or ""] = None
        about = StepEvent(
            message=message,
            opener=opener,
            process=identity,
            version=version,
            method=event.method or "",
            failure=event.failure,
            wait_name="" if event.wait is None else event.wait.name,
            append_ms=delivery.sealed_ms if delivery.partition.own else delivery.record.timestamp_ms,
            is_cancelled=event.cancelled is not None,
        )
        context = SagaContext(
            about,
            rules=rules,
            ids=self.store.ids,
            run=labels,
            apart=labels_for(opener, opener, admission, EffectiveLabels(level="platform_policy")),
            done=done,
            publisher=self._publisher,
            group=self._group,
        )
        returned = None
        ask = None if event.wait is None or event.failure is None else memory.asks.get(event.wait.name)
        if event.wait is not None and ask is not None:
            kind = self._group.kind_of(ask.message_type)
            if kind is None:
                raise RetryLater(f"{ask.message_type} is to be sent and not known here: name it in App(types=[...])")
            context.ask_next(event.wait.name, ask, kind)
        elif event.method is not None:
            saga = rules.cls()
            saga.state = state
            arguments = (context,) if event.payload is None else (event.payload, context)
            try:
                returned = await run(getattr(saga, event.method), arguments)
            finally:
                context.over = True
            state = saga.state
        sealed = list(done.sealed)
        if event.cancelled is not None:
            context.over = False
            sealed = self._over(event.cancelled, context, done, opener)
        sealed += seal_outputs(self._publisher, message, (), returned, self._group.registry, run=labels)
        is_over, plain = done.ending is not None, _plain(rules, state)
        # With another addressee to ask, the method does not run.
        ran = event.method if event.method is not None and ask is None else ""
        memory = Memory(
            data={name: value for name, value in plain.items() if name in rules.cls.keeps} if is_over else plain,
            asks={} if is_over else done.asks,
            rounds={} if is_over else done.rounds,
            parties=() if is_over else tuple(done.parties),
            classification=labels.current.classification,
            tags=tuple(sorted(labels.current.tags)),
            ending=done.ending,
            history=history_after(memory.history, _step_taking(event, ran, done, self._clock.now_ms())),
        )
        after = Process(
            id=identity,
            namespace=self._group.namespace,
            group=self._group.name,
            saga=rules.name,
            key=event.key,
            version=version,
            status="finished" if is_over else "open",
            shape=rules.version,
            state=pack(memory),
            opener=opener.value,
            trust=labels.current.level,
            owner=owner if process is None else process.owner,
            sender=principal if process is None else process.sender,
            task_id=opener.metadata.task_id or opener.message_id,
        )
        acted = None if event.wait is None else event.wait.id
        change = ProcessChange(
            before=process,
            after=after,
            keep_ms=self._group.keep_ms,
            armed=() if is_over else tuple(done.armed.values()),
            ended=done.ended,
            acted=acted,
        )
        return change, [record for each in sealed for record in each.records]

    def _over(self, cancelled: Cancelled, context: SagaContext, done: StepDone, opener: Message) -> list[SealedRecord]:
        """End the process of *context* after its @on_cancel method; return the messages to send."""
        if cancelled.passes_on is not None:
            context.pass_on(cancelled.passes_on, cancelled.requested)
        if done.ending is None:
            context.finish("cancelled", cancelled.why or cancelled.code)
        sealed = list(done.sealed)
        reply_to = opener.routing.reply_to
        is_answered = any(record.topic == reply_to for each in sealed for record in each.records)
        if cancelled.is_told and wants_report(opener, "rejected") and not is_answered:
            failure = Failure(reason="rejected", error="Cancelled", exception=Reject(f"cancelled: {cancelled.why}"))
            sealed.append(report_of(self._publisher, opener, failure, self._group.agent_id, group=self._group.name))
        return sealed

    def _unpacked(self, rules: SagaRules, process: Process) -> tuple[Memory, Any]:
        found = unpack(rules, process)
        if found is None:
            raise NewerCode
        return found

    def _left_s(self, delivery: Accepted) -> float:
        return (delivery.expires_ms - self._clock.now_ms()) / 1000

    def _late(self, message: Message) -> Outcome:
        self._counted.labels(self._group.name, "other", "late").inc()
        _log.info("saga.late", type=message.message_type, message_id=message.message_id)
        return SKIPPED_EVENT

    def _count(self, changes: Sequence[ProcessChange], outcome: str) -> None:
        for change in changes:
            self._counted.labels(self._group.name, change.after.saga, outcome).inc()


def _step_taking(event: _Event, method: str, done: StepDone, at_ms: int) -> StepTaking:
    """Return what *done* adds to the history of its process; *method* is the one that ran, if any."""
    name = ""
    outcome: PartOutcome = ""
    if event.wait is not None and event.ends_wait:
        is_timer = event.wait.seal is None or event.wait.many
        name = event.wait.name
        outcome = event.failure.kind if event.failure is not None else "due" if is_timer else "answered"
    armed = () if done.ending is not None else done.armed.values()
    return StepTaking(
        method=method,
        at_ms=at_ms,
        wait_name=name,
        wait_outcome=outcome,
        armed={each.name: ("timer" if each.seal is None else "request", each.addressee or "") for each in armed},
        dropped=done.ended - {name},
        is_over=done.ending is not None,
    )


def _labels_of(process: Process | None, memory: Memory) -> EffectiveLabels:
    if process is None:
        return EffectiveLabels(level="platform_policy", classification="public")
    return EffectiveLabels(
        level=process.trust,
        classification=memory.classification,
        tags=frozenset(memory.tags),
        path=(f"the state of {process.saga} has what came at {process.trust}",),
    )


def _is_heard(delivery: Accepted) -> bool:
    """Return whether *delivery* came to the mailbox as progress."""
    return delivery.subscription.is_mailbox and delivery.message.is_progress


def _rests_on(message: Message, wait: Wait) -> bool:
    parents = message.verification.parents
    return bool(parents) and parents is not None and parents[0] == wait.seal


def _key_at(message: Message, pointer: str) -> str:
    """Return the string or number at *pointer* in the envelope. Raises ContractError if there is none."""
    value: Any = msgspec.json.decode(message.value)
    for name in canonical.pointer_tokens(pointer):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise ContractError("the key field is missing", pointer, "schema_violation")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ContractError("the key field must be a string or an integer", pointer, "schema_violation")
    text = str(value)
    if len(text) > _MAX_KEY:
        raise ContractError(f"the key field has at most {_MAX_KEY} characters", pointer, "schema_violation")
    return text


def _plain(rules: SagaRules, state: Any) -> dict[str, Any]:
    """Return *state* in its stored form. Raises ContractError if no later step could read it."""
    try:
        plain = rules.kept_state.plain(state)
        if not isinstance(plain, dict):
            raise ContractError(f"it is a {type(state).__name__}")
        rules.kept_state.read(plain)
    except ContractError as error:
        raise ContractError(
            f"the state of {rules.name} is not a {rules.state.__name__} that can be stored: {error.text}",
            f"/state{error.pointer}",
        ) from error
    return plain
