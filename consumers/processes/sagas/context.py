"""SagaContext: the operations of one step of a process, collected until the step is committed.

Owns sealing the messages of a step. Their cause is the message that opened the process, so hops count the depth of
delegation and not the length of the work. Their labels include those of everything that ever went into the state. A
step must have no other effects: to use a model, a tool or a database, it sends a request to an agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, TypedDict, Unpack, get_args

import msgspec

from bus.errors import ContractError
from bus.payloads.class_forms import Payload
from bus.payloads.kept_values import plain_from
from bus.payloads.payload_types import PayloadType, encode_payload, payload_type
from bus.protocol import canonical
from bus.protocol.envelope import Agent, Authority, Performative, Security
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.redaction import cut
from bus.trust.admission import Admission
from bus.trust.effective_labels import EffectiveLabels, joined
from bus.vocabulary.task import TaskClarified
from consumers.delivery.settling.outputs import outgoing_answer, seal_progress, status_of
from consumers.processes.sagas.process import Ending, Ids, KeptAsk, ProcessOutcome
from consumers.processes.sagas.process_group import ProcessGroup
from consumers.processes.sagas.rules import EVERY_NAME, SagaRules
from consumers.processes.sagas.store import NewWait
from producers.publisher import Publisher
from producers.requests.in_turn import GRACE_S
from producers.sealing.options import Options, Outgoing, outgoing_of
from producers.sealing.run_labels import RunLabels
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import SealedRecord

__all__ = ["AskFailed", "AskOptions", "SagaContext", "StepDone", "labels_for"]

_QUESTION: Final = "task.clarification"
LONGEST_TIMER_S: Final = 366 * 86_400.0
_SEQUENCE_STEP: Final = 1_000
_MAX_REASON: Final = 400
_KEPT_OPTIONS: Final = ("key", "priority", "task_id", "parent_task_id", "run_id", "intent", "idempotency_key")


class AskOptions(TypedDict, total=False):
    """Keyword options of `SagaContext.ask`, all optional, with the same meaning as in `publish`."""

    key: str
    priority: int | str
    task_id: str
    parent_task_id: str
    run_id: str
    intent: str
    idempotency_key: str
    authority: Authority
    security: Security
    critical_fields: tuple[str, ...]
    performative: Performative
    max_hops: int
    traceparent: str
    rests_on: tuple[Message, ...]


class AskFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request has failed: the last addressee refused it, dead-lettered it, or sent no answer in time.

    @on_failure("work")
    async def next_best(self, context):
        if context.failure.kind == "silent": ...
    """

    kind: Literal["refused", "died", "silent", "cancelled"]
    reason: str = ""
    """The reason of the report, such as `rejected` or `expired`; empty for silence."""
    text: str = ""
    by: str = ""
    """The agent that reported it."""


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a step."""

    message: Message
    opener: Message
    """The message that opened the process."""
    process: bytes
    """The id of the process."""
    version: int
    method: str
    """The method that runs; empty where only the bus does something."""
    failure: AskFailed | None = None
    wait_name: str = ""
    append_ms: int = 0
    is_cancelled: bool = False


class StepDone(msgspec.Struct, kw_only=True):
    """The messages and changes that a step has collected."""

    sealed: list[SealedRecord]
    armed: dict[str, NewWait]
    ended: set[str]
    asks: dict[str, KeptAsk]
    rounds: dict[str, int]
    parties: dict[str, None]
    ending: Ending | None = None
    """The end of the process, if this step ended it."""


class SagaContext:
    """One step of a process. Do not keep it after the method returns.

    @on_start(OrderPlaced)
    async def placed(self, order, context):
        context.ask("price", QuoteRequest(sku=order.sku), to="prices@svc", answer_by_s=30)
        context.timer("reminder", after_s=3600)
    """

    __slots__ = (
        "_apart",
        "_done",
        "_event",
        "_group",
        "_ids",
        "_publisher",
        "_rules",
        "_run",
        "over",
    )

    def __init__(
        self,
        event: StepEvent,
        *,
        rules: SagaRules,
        ids: Ids,
        run: RunLabels,
        apart: RunLabels,
        done: StepDone,
        publisher: Publisher,
        group: ProcessGroup,
    ) -> None:
        self._event = event
        self._rules = rules
        self._ids = ids
        self._run = run
        self._apart = apart
        self._done = done
        self._publisher = publisher
        self._group = group
        self.over = False

    @property
    def message(self) -> Message:
        """The message that this step handles."""
        return self._event.message

    @property
    def version(self) -> int:
        """The number of this step, from 1."""
        return self._event.version

    @property
    def failure(self) -> AskFailed | None:
        """Why the ask has failed, in a method that `@on_failure` marks."""
        return self._event.failure

    @property
    def wait_name(self) -> str:
        """The name of this step's request or timer; empty if it has none."""
        return self._event.wait_name

    @property
    def append_ms(self) -> int:
        """When the log has taken the message, in milliseconds since 1970."""
        return self._event.append_ms

    @property
    def is_cancelled(self) -> bool:
        """Whether this step ends a process that was cancelled."""
        return self._event.is_cancelled

    @property
    def opener(self) -> Message:
        """The message that opened the process."""
        return self._event.opener

    @property
    def task_id(self) -> str:
        """The task that the process works on: its opener's, or the opener itself."""
        return self._event.opener.metadata.task_id or self._event.opener.message_id

    @property
    def now_ms(self) -> int:
        """The worker's clock, in milliseconds since 1970. A step may run again with a later one."""
        return self._publisher.clock.now_ms()

    @property
    def labels(self) -> EffectiveLabels:
        """How far all that went into the state can be trusted, and how sensitive it is."""
        return self._run.current

    def ask(
        self,
        name: str,
        payload: Payload,
        *,
        answer_by_s: float,
        to: str | Agent | Sequence[str] | None = None,
        many: bool = False,
        uses: tuple[()] | None = None,
        **options: Unpack[AskOptions],
    ) -> None:
        """Send a request to an agent; `@on_answer(name, ...)` gets the answer, `@on_failure(name)` a refusal, death or
        timeout.

            context.ask("work", Award(...), to=["first@svc", "second@svc"], answer_by_s=600)

        *to*: an agent, a role (`Agent(role="reviewer")`), or several ids that are asked in turn, each with an equal
        share of *answer_by_s* seconds; by default every group that subscribes to the type. *many*: any number of
        answers, then `@on_timer(name)`. *uses*: `()` declares that *payload* contains nothing from any answer; it then
        has the trust level of the opening message. A second request under the same name replaces the first.

        Raises ContractError for a request whose end no method handles.
        """
        self._check_open()
        self._check_ask(name, many=many)
        others: tuple[str, ...] = ()
        if to is not None and not isinstance(to, str | Agent):
            first, *rest = to
            others, to = tuple(rest), first
        if others and self._group.kind_of(payload_type(payload).name) is None:
            raise ContractError(
                f"{payload_type(payload).name} is sent to several in turn, perhaps by another worker: name it in "
                "App(types=[...])",
                "to",
            )
        share_s = answer_by_s / (len(others) + 1)
        if others:
            self._done.asks[name] = _kept_ask(payload, others, share_s, options, apart=uses is not None)
        else:
            self._done.asks.pop(name, None)
        run = self._run if uses is None else self._apart
        provided: dict[str, Any] = {**options, "to": to}
        self._ask(name, outgoing_of(payload, provided), share_s, many=many, run=run)

    def send(self, payload: Payload, *, uses: tuple[()] | None = None, **options: Unpack[Options]) -> None:
        """Send *payload* when the step is committed; see `ask` for *uses*."""
        self._check_open()
        draft = outgoing_of(payload, options)
        self._note_party(draft.to)
        run = self._run if uses is None else self._apart
        self._add(self._publisher.sealer.seal(self._counted(draft), SealRequest(cause=self._event.opener, run=run)))

    def answer(self, payload: Payload, **options: Unpack[Options]) -> None:
        """Answer the message that opened the process, whose sender waits for it."""
        self._check_open()
        draft = outgoing_answer(self._event.opener, outgoing_of(payload, options) if options else payload)
        self._add(
            self._publisher.sealer.seal(
                draft,
                SealRequest(
                    cause=self._event.opener, answers=True, topic=self._event.opener.routing.reply_to, run=self._run
                ),
            )
        )

    def progress(self, text: str = "", *, pct: float | None = None) -> None:
        """Say to the requester of the process how far it is, when the step is committed; see `Context.progress`."""
        self._check_open()
        update = status_of(self._event.opener, text, pct, now_ms=self.now_ms)
        sealed = seal_progress(self._publisher, self._event.opener, self._counted(Outgoing(update)), run=self._run)
        self._add(sealed)

    def answer_question(self, answers: Sequence[str], *, inputs: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Answer what an agent that was asked asks back, in a method `@on_progress(name, TaskClarification)`.

        Raises ContractError in a method that handles no such question.
        """
        self._check_open()
        question = self._event.message
        if question.message_type != _QUESTION or question.routing.reply_to is None:
            raise ContractError(f"{question.message_type} asks nothing that could be answered", "answers")
        left_ms = (parse_ms(question.routing.expires_at) or 0) - self.now_ms
        draft = Outgoing(
            TaskClarified(answers=tuple(answers), inputs=dict(inputs)),
            to=question.metadata.sender.id,
            ttl_s=max(1, left_ms) / 1000,
        )
        request = SealRequest(
            cause=question, answers=True, topic=question.routing.reply_to, both_versions=False, run=self._run
        )
        self._add(self._publisher.sealer.seal(self._counted(draft), request))

    def timer(self, name: str, after_s: float) -> None:
        """Run `@on_timer(name)` in *after_s* seconds, up to a year. Setting the same name again restarts it."""
        self._check_open()
        if not 0 <= after_s <= LONGEST_TIMER_S:
            raise ContractError(f"{after_s} s is not 0 to a year", "after_s")
        if self._rules.due_method(name) is None:
            raise ContractError(f"no method handles the timer {name!r}: write a method @on_timer({name!r})", "name")
        self._done.ended.discard(name)
        identity = self._ids.timer(self._event.process, name, self.version)
        self._done.armed[name] = NewWait(id=identity, name=name, after_ms=round(after_s * 1000))

    def cancel(self, name: str) -> None:
        """Stop waiting for *name*, a timer or a request; the asked agent may still work on it."""
        self._check_open()
        self._done.armed.pop(name, None)
        self._done.asks.pop(name, None)
        self._done.ended.add(name)

    def finish(self, outcome: ProcessOutcome | None = None, reason: str = "") -> None:
        """End the process: its waits are deleted, and later messages for it are refused.

            context.finish()                            # completed
            context.finish("failed", "no carrier left")

        *outcome* and *reason* are stored as long as the row; `sealbus workflow`, the console and the metrics show
        them. The default is cancelled in a step about a cancellation, timed_out after a missing answer, failed after
        another failure, and completed otherwise.
        """
        self._check_open()
        if outcome is None and self._done.ending is not None:
            return
        if outcome is None:
            outcome, ended_text = self._ends_as()
            reason = reason or ended_text
        elif outcome not in get_args(ProcessOutcome):
            raise ContractError(f"{outcome!r} is not an outcome: {', '.join(get_args(ProcessOutcome))}", "outcome")
        self._done.ending = Ending(outcome=outcome, reason=cut(reason, _MAX_REASON), where=self._event.method)

    def _ends_as(self) -> tuple[ProcessOutcome, str]:
        if self.is_cancelled:
            return "cancelled", ""
        failure = self.failure
        if failure is None:
            return "completed", ""
        ended_text = f"{self.wait_name}: {failure.kind} {failure.reason}".rstrip()
        return ("timed_out" if failure.kind == "silent" else "failed"), ended_text

    def pass_on(self, cancel: Payload, to: Sequence[str]) -> None:
        """Tell *to* that the task is cancelled, too."""
        for agent in dict.fromkeys(to):
            draft = Outgoing(cancel, to=agent, task_id=self.task_id)
            self._add(
                self._publisher.sealer.seal(self._counted(draft), SealRequest(cause=self._event.opener, run=self._run))
            )

    def ask_next(self, name: str, ask: KeptAsk, kind: PayloadType) -> None:
        """Ask the next addressee of *ask*, with the stored request."""
        first, *rest = ask.to
        if rest:
            self._done.asks[name] = msgspec.structs.replace(ask, to=tuple(rest))
        run = self._apart if ask.apart else self._run
        draft = Outgoing(kind.decode(canonical.encode(ask.data)), to=first, **ask.options)
        self._ask(name, draft, ask.share_s, many=False, run=run)

    def _ask(self, name: str, draft: Outgoing, answer_by_s: float, *, many: bool, run: RunLabels) -> None:
        count = self._done.rounds.get(name, 0) + 1
        key = draft.idempotency_key or self._ids.ask_key(self._event.process, name, count)
        draft = msgspec.structs.replace(
            self._counted(draft), ttl_s=answer_by_s, reply_to=self._group.mailbox, idempotency_key=key
        )
        hears = self._rules.takes_progress_of(name)
        request = SealRequest(cause=self._event.opener, run=run, both_versions=False, accepts_progress=hears)
        sealed = self._publisher.sealer.seal(draft, request)
        self._done.rounds[name] = count
        self._note_party(draft.to)
        self._done.ended.discard(name)
        self._done.armed[name] = NewWait(
            id=sealed.message_id,
            name=name,
            after_ms=round((answer_by_s + GRACE_S) * 1000),
            addressee=draft.to if isinstance(draft.to, str) else None if draft.to is None else draft.to.id,
            seal=sealed.message.seal,
            many=many,
        )
        self._add(sealed)

    def _add(self, sealed: SealedRecord) -> None:
        self._done.sealed.append(sealed)

    def _counted(self, draft: Outgoing) -> Outgoing:
        """Return *draft* with its number among the process's messages: the step, and the index in it."""
        if draft.sequence is not None:
            return draft
        number = self.version * _SEQUENCE_STEP + min(len(self._done.sealed), _SEQUENCE_STEP - 1)
        return msgspec.structs.replace(draft, sequence=number)

    def _note_party(self, to: str | Agent | None) -> None:
        identity = to if isinstance(to, str) else None if to is None else to.id
        if identity is not None:
            self._done.parties[identity] = None

    def _check_ask(self, name: str, *, many: bool) -> None:
        if not any(known in (name, EVERY_NAME) for known, _ in self._rules.answers):
            raise ContractError(f"no method takes the answer: write one @on_answer({name!r}, ...)", "name")
        ending, heard = ("@on_timer", self._rules.due_method) if many else ("@on_failure", self._rules.failed_method)
        if heard(name) is None:
            raise ContractError(f"no method handles the end of {name!r}: write a method {ending}({name!r})", "name")

    def _check_open(self) -> None:
        if self.over:
            raise ContractError("the step has ended: send before its method returns")


def labels_for(message: Message, opener: Message, admission: Admission, before: EffectiveLabels) -> RunLabels:
    """Return the labels of a step that handles *message*, of a process whose state has those of *before*."""
    run = RunLabels(opener, admission)
    if message.seal != opener.seal:
        run.take_in(message)
    if joined([run.current, before]) != run.current:
        run.read_at(before)
    return run


def _kept_ask(
    payload: Payload, others: tuple[str, ...], share_s: float, options: AskOptions, *, apart: bool
) -> KeptAsk:
    kind = payload_type(payload)
    stored_options: dict[str, Any] = {name: value for name, value in options.items() if name in _KEPT_OPTIONS}
    if len(stored_options) < len(options):
        foreign = sorted(set(options) - set(stored_options))
        raise ContractError(f"with several addressees {', '.join(foreign)} cannot be given", foreign[0])
    return KeptAsk(
        message_type=kind.name,
        version=kind.version,
        data=plain_from(encode_payload(payload)),
        to=others,
        share_s=share_s,
        options=stored_options,
        apart=apart,
    )
