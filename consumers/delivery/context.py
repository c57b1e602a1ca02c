"""Context: what a handler gets besides its payload: the message, its deadline, and ways to send.

Owns collecting outputs that leave with the outcome (`send`), sending at once (`send_now`) and asking another agent
(`request`). Everything sent has the handled message as its cause, and its correlation and conversation. Sealing is in
`producers.publisher`, waiting for answers in `producers.requests.requester`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, Unpack

import msgspec

from bus.errors import ApprovalRefused, ContractError, DeadlineError, EventLoopError, MissingSetting
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import encode_payload, payload_type
from bus.protocol import sealing
from bus.trust.effective_labels import EffectiveLabels
from bus.trust.policy.decision import Deny, NeedsApproval
from bus.vocabulary.task import TaskClarification, TaskClarified
from consumers.delivery.approval_given import ApprovalGiven
from consumers.delivery.handler_errors import TaskCancelled
from consumers.delivery.inbox.base import Transaction
from consumers.delivery.inbox.conversation import ConversationMemory, MemoryItem, MemoryRow
from consumers.delivery.inbox.remembered_steps import RememberedSteps, StepDesk, StepStore
from consumers.delivery.inbox.step_call import OperatorAnswer, StepCall, stored_arguments
from consumers.delivery.inbox.step_identity import step_id
from consumers.delivery.settling.outputs import Output, seal_progress, status_of
from producers.outcomes import PublishRejected, Receipt
from producers.publisher import Publisher
from producers.requests.progress import OnProgress, make_watch
from producers.requests.requester import Requester
from producers.sealing.options import Options, Outgoing, RequestOptions, outgoing_of
from producers.sealing.run_labels import RunLabels
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import SealedRecord

if TYPE_CHECKING:
    from bus.artifacts.store import ArtifactStore
    from consumers.delivery.derived_ids import DerivedIds
    from consumers.delivery.progress_sender import ProgressSender, RunProgress

__all__ = ["Context"]

_Reply = TypeVar("_Reply", bound=Payload)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Queued:
    """Lets `send` be awaited or not: its work is done either way."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


def _on_its_loop(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Refuse a call from another thread or loop at once: its coroutine would wait there for what happens here."""

    @functools.wraps(method)
    def called(*arguments: _P.args, **named: _P.kwargs) -> _T:
        context = arguments[0]
        assert isinstance(context, Context)  # noqa: S101 - it is a method of it
        context.check_loop(method.__name__)
        made = method(*arguments, **named)
        if isinstance(made, CoroutineType):
            context.owed.append(made)
        return made

    return called


_QUEUED = _Queued()
_CLARIFY: Final = "clarify"
_MAX_QUESTIONS: Final = 8
_LARGE: Final = 65_536
_PLAIN: Final = frozenset({"key", "to", "priority", "ttl_s", "idempotency_key", "task_id", "correlation_id", "delay_s"})
"""Options without effect on trust or authority: only the payload itself can make such a send fail."""


class RunClaim(Protocol):
    """The inbox's services for a run that has a claim on its message."""

    @property
    def steps(self) -> StepStore:
        """The store for the results of the run's steps."""

    @property
    def has_transaction(self) -> bool:
        """Whether a transaction of the run is open."""

    @property
    def holds_writer(self) -> bool:
        """Whether an open transaction of the run blocks all other writers."""

    @property
    def answer(self) -> OperatorAnswer | None:
        """What an operator says about a step of the message, which was sent back."""

    def memory(self, conversation: str) -> MemoryRow:
        """Return the row of *conversation* for this agent and the sender of the message."""

    async def begin(self) -> Transaction:
        """Open the run's transaction, the same one each time. Raises InboxError, GaveUpError."""


class Context:
    """One run of a handler. Do not keep it after the handler returns.

    @app.on(Order)
    async def book(order: Order, context: Context) -> None:
        context.send(Booked(sku=order.sku), key=order.sku)      # leaves when the run succeeds
        await context.progress("packing", pct=40)               # leaves now, to whoever waits for the answer
    """

    __slots__ = (
        "_asker",
        "_claim",
        "_clock",
        "_deadline_s",
        "_desk",
        "_has_inbox",
        "_is_cancelled",
        "_loop",
        "_publisher",
        "_requests",
        "_task",
        "_version",
        "approval",
        "attempt",
        "ids",
        "memory",
        "message",
        "outputs",
        "over",
        "owed",
        "progress_sender",
        "redrives",
        "remembered",
        "run",
        "said",
    )

    def __init__(
        self,
        run: RunLabels,
        *,
        deadline_s: float,
        publisher: Publisher,
        requests: Requester,
        claim: RunClaim | None,
        has_inbox: bool = False,
        approval: ApprovalGiven | None = None,
        is_cancelled: Callable[[], bool] = bool,
        version: str = "1.0.0",
        desk: StepDesk | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._desk = desk
        # Only who may ask has to be told from other tasks.
        self._task = self._asker = None if desk is None else asyncio.current_task()
        self.run = run
        """The messages and texts that this run has read."""
        self.message = run.message
        """The sealed message, which passed every gate."""
        self.attempt = run.attempt
        """The number of this run, from 1."""
        self.remembered: RememberedSteps | None = None
        """The stored steps of this run and earlier ones; None until first used."""
        self.memory: ConversationMemory | None = None
        """The memory of the conversation, once it was asked for."""
        self.outputs: list[Output] = []
        """The outputs that `send` has collected so far."""
        self.over = False
        """Whether the handler has ended, well or not."""
        self.owed: list[CoroutineType[Any, Any, Any]] = []
        """What its methods have returned to be awaited."""
        self.said: RunProgress | None = None
        """What the run has said of its progress; None if nothing."""
        self.progress_sender: ProgressSender | None = None
        """Sends the progress of all runs of the worker; None: that of this one alone."""
        self.redrives = 0
        """How often an operator has sent the message back."""
        self.ids: DerivedIds | None = None
        """The ids of what the run sends; None: each is new."""
        self.approval = approval
        """The approvers of this run and their conditions; None if it needed no approval."""
        self._deadline_s = deadline_s
        self._publisher = publisher
        self._requests = requests
        self._clock = publisher.clock
        self._claim = claim
        self._has_inbox = has_inbox
        self._is_cancelled = is_cancelled
        self._version = version

    def check_loop(self, name: str) -> None:
        """Raise EventLoopError where the method *name* is called outside the worker's event loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not self._loop:
            raise EventLoopError(
                f"context.{name} belongs to the worker's event loop and was called outside it: a blocking handler "
                "takes a `BlockingContext`, whose methods are plain calls; a coroutine is awaited in the handler itself"
            )

    @property
    def remaining_s(self) -> float:
        """Seconds until the handler is cut: the smaller of its timeout and the message's lifetime."""
        return max(0.0, self._deadline_s - self._clock.monotonic_s())

    @property
    def now_ms(self) -> int:
        """The time of this worker, which a test moves: Unix time in milliseconds."""
        return self._clock.now_ms()

    @property
    def cancelled(self) -> bool:
        """Whether the requester has cancelled the task (`task.cancel`): end soon, the handler is cut after its grace.

        while not context.cancelled:
            ...
        """
        return self._is_cancelled()

    @property
    def artifacts(self) -> ArtifactStore:
        """Where large content lies: messages refer to it by a `Ref` with its hash.

            ref = await context.artifacts.put(pdf, media_type="application/pdf")
            pdf = await context.artifacts.open(ref)

        Raises MissingSetting without `artifacts.url`.
        """
        return self._publisher.artifacts

    @property
    def labels(self) -> EffectiveLabels:
        """Trust level and sensitivity of everything that this run has read; `labels.path` shows the origin of the
        level."""
        return self.run.current

    def taint(self, level: str, source: str) -> None:
        """Declare that the handler has read outside content, at trust *level*, from *source*.

            page = await fetch(url)
            context.taint("untrusted_content", url)

        From now on everything that this run sends has at most that level, also messages queued before. Raises
        ContractError for an unknown level.
        """
        self.run.taint(level, source)

    def send(self, payload: Payload, **options: Unpack[Options]) -> _Queued:
        """Queue *payload*, as it is now, to leave when this run succeeds, and only then.

        Raises ContractError or UnknownTypeError at once for a payload that cannot be sealed, and ContractError after
        the handler has ended, when nothing leaves any more.
        """
        self._check_held()
        if self.over:
            raise ContractError(
                "the run has ended, so this message would never be sent: wait in the handler for the tasks it starts"
            )
        data, draft = encode_payload(payload), outgoing_of(payload, options)
        if len(data) > _LARGE or not _PLAIN.issuperset(options):
            # Here the handler can still mend it; later its whole run would count for nothing.
            self.check(payload, **options)
        self.outputs.append(Output(draft, data))
        return _QUEUED

    def check(self, payload: Payload, **options: Unpack[Options]) -> None:
        """Raise ContractError, with pointer and reason, if the bus would refuse to send *payload*. It sends nothing.

            try:
                context.check(answer)
            except ContractError as error:
                answer = shorten(answer, error.pointer)

        The payload is sealed as by `send`, with everything that this run has read so far; form, size, schema and
        authority are checked. The result of a handler is checked in the same way before the run is settled.
        """
        try:
            self._publisher.sealer.seal(outgoing_of(payload, options), SealRequest(cause=self.message, run=self.run))
        except PublishRejected as error:
            raise (error.__cause__ if isinstance(error.__cause__, ContractError) else error) from None

    @_on_its_loop
    async def send_now(self, payload: Payload, *, to_requester: bool = False, **options: Unpack[Options]) -> Receipt:
        """Publish *payload* at once, even if this run fails later.

            await context.send_now(Chapter(number=3, text=text), to_requester=True)

        *to_requester*: it is progress of the handled message. Whoever asked with `on_progress=`, by `submit` or by a
        saga with `@on_progress` gets it, before the answer; otherwise it goes to the topic of its type. None is merged
        or left out.

        Raises PublishRejected, PublishUnknown.
        """
        self._check_held()
        if to_requester:
            if self.said is not None:
                await self.said.left()
            sealed = self._sealed_progress(outgoing_of(payload, options), encode_payload(payload))()
            return await self._publisher.send(sealed, timeout_s=max(0.001, self.remaining_s))
        draft = outgoing_of(payload, options)
        if self._desk is not None and self.ids is not None:
            ids = self.ids.next("send_now", _addressee(draft.to), encode_payload(payload))
            key = draft.idempotency_key or ids.idempotency_key
            draft = msgspec.structs.replace(draft, message_id=ids.message_id, idempotency_key=key)
        sealed = self._publisher.sealer.seal(draft, SealRequest(cause=self.message, run=self.run))
        return await self._publisher.send(sealed, timeout_s=max(0.001, self.remaining_s))

    @_on_its_loop
    async def progress(self, text: str = "", *, pct: float | None = None) -> None:
        """Say how far the work is, in words for people and in percent: a `status.update` for the requester.

            await context.progress("reading", pct=40)

        It goes where `send_now(..., to_requester=True)` sends its payload, and never waits for the log. At most five a
        second leave: the last one wins, and it leaves before the answer. One that cannot be sent is counted and logged,
        and fails nothing. A text is cut at 4,000 characters. For progress of your own types use `send_now`.

        A *pct* outside of 0 to 100 is the nearest of both. Raises ContractError for one that is no number, and after
        the handler has ended.
        """
        self._check_held()
        if self.over:
            raise ContractError("the run has ended: its requester has the answer, and takes no progress any more")
        update = status_of(self.message, text, pct, now_ms=self._clock.now_ms())
        if self.said is None:
            from consumers.delivery.progress_sender import ProgressSender

            self.said = (self.progress_sender or ProgressSender(self._publisher)).of_run()
        self.said.say(self._sealed_progress(outgoing_of(update, {}), encode_payload(update)))

    def _sealed_progress(self, draft: Outgoing, data: bytes) -> Callable[[], SealedRecord]:
        """Return a function that seals *draft* when it leaves, under ids that are made now."""
        if self.ids is not None:
            addressee = self.message.metadata.sender.id or ""
            ids = self.ids.next("progress", addressee, data)
            draft = msgspec.structs.replace(draft, message_id=ids.message_id, idempotency_key=ids.idempotency_key)
        return functools.partial(seal_progress, self._publisher, self.message, draft, run=self.run)

    @_on_its_loop
    async def request(
        self,
        payload: Payload,
        reply: type[_Reply],
        *,
        timeout_s: float = 30.0,
        idle_s: float | None = None,
        on_progress: OnProgress | None = None,
        progress_types: Sequence[type[Payload]] = (),
        **options: Unpack[RequestOptions],
    ) -> _Reply:
        """Ask another agent at once and wait for its answer, a *reply*.

            quote = await context.request(QuoteRequest(sku=order.sku), Quote, timeout_s=20)

        It waits at most *timeout_s* seconds, by default 30 here and 60 in `Bus.request`, and never beyond this run's
        own deadline. *idle_s*, *on_progress* and *progress_types* are those of `Bus.request`; the run has read what
        *on_progress* gets.

        Raises as `Bus.request`. A run that waits is not at work: another handler runs instead, and this one goes on
        when there is room again (`worker.concurrency`, `worker.max_waiting`). So an app may ask types that it handles
        itself, in the same conversation, too. Raises ContractError while this run's transaction is open: it would stay
        open for as long as the answer takes, and the asked handler may need its database session, or its locks.
        """
        self._check_held()
        if self._claim is not None and self._claim.has_transaction:
            raise ContractError(
                "context.request would keep this run's transaction open while it waits, and others wait for its "
                "database session or its locks. Call request first, and open the transaction last",
                "request",
            )
        watch = make_watch(on_progress, idle_s, progress_types)
        timeout_s = min(timeout_s, self.remaining_s)
        if timeout_s <= 0:
            error = DeadlineError("no time is left to this run")
            raise PublishRejected(f"not sent: {error}", error)
        if self._desk is not None and self.ids is not None and options.get("idempotency_key") is None:
            # A run that begins anew asks again; the callee knows the question by its key, and works once.
            ids = self.ids.next("request", _addressee(options.get("to")), encode_payload(payload))
            options["idempotency_key"] = ids.idempotency_key
        return await self._requests.ask(payload, reply, timeout_s=timeout_s, run=self.run, watch=watch, **options)

    @_on_its_loop
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        approve: Any = None,
        once: bool = False,
        reconcile: Callable[..., Any] | None = None,
        key: object = None,
        type: Any = None,  # noqa: A002 - the word for it
        **named: Any,
    ) -> Any:
        """Return the result of `function(*arguments)`; a retry of the message reuses the stored result.

            plan = await context.step("plan", call_model, prompt)
            url = await context.step("push", push, branch, approve=Approval(by="human"), once=True)

        The result is stored beside the inbox's row, under *name*, the function's qualified name and the values of its
        arguments. A later run of this message gets it back, with the trust level that the run had. *key* replaces
        function and arguments as identity. Lambdas, closures, methods of objects, and arguments without a JSON form
        need a *key*. An ordinary function runs in a thread. An exception is not stored. A concurrent call of the same
        step waits for the first one, and calls the function itself if that fails.

        *type*: the class of the result: any payload class, or a combination such as a list of them. Without it the
        result is plain dicts and lists, also the first time. A result that cannot be stored (more than 8 MiB, or not
        JSON) is returned with a warning in the log, and a later run calls the function again.

        *approve*: an `Approval`. The run ends here, without a worker waiting, until it is decided, for days if need be.
        A later run then calls the function with exactly the arguments that were approved. The handler is declared with
        `asks=True`, and only its own task may ask.

        *once*: a call that has begun and has no result is not repeated: `StepInDoubt` is raised, unless *reconcile*,
        called with the same arguments, returns the result, or raises `NotDone`: then the function is called.

        Raises ContractError before the call if the step has no unique identity, or if *type* cannot be stored. Raises
        ValueError for plain data that are not of *type*, and the errors of `transaction` without an inbox or a key.
        Raises ApprovalRefused where the step may not run. Raises TaskCancelled where the task is cancelled.
        """
        return await self.take_step(
            StepCall(
                name=name,
                function=function,
                arguments=arguments,
                named=named,
                key=key,
                kind=type,
                approve=approve,
                once=once,
                reconcile=reconcile,
            )
        )

    async def take_step(self, call: StepCall) -> Any:
        """Return the result of *call*, as `step` does."""
        self._check_held()
        call.check()
        if call.is_guarded or call.is_tool:
            check_guarded_name(call.name)
        if call.approve is not None:
            self._check_asker("a step with approve=")
        elif call.is_tool and self._desk is None:
            self._check_use(call.name)
        self._check_writer("step")
        return await self._remembering().step(call)

    @_on_its_loop
    async def approve(
        self, name: str, arguments: Mapping[str, Any], approval: Any, *, key: object = None
    ) -> ApprovalGiven:
        """Return the approval of an effect that is no function, such as a permission for another program.

            given = await context.approve("shell", {"command": "make deploy"}, Approval(by="human"))

        It is asked for as by `step`, shows people *name* and *arguments*, and is used up with the result of this run.
        Nothing ties what the handler does afterwards to what was agreed: where the effect is a function, use
        `step(approve=)`. Raises ApprovalRefused.
        """
        self._check_held()
        check_guarded_name(name)
        desk = self._check_asker("context.approve")
        call = StepCall(name=name, function=_given, arguments=(dict(arguments),))
        shown = stored_arguments(call)["arguments"]
        identity = step_id(name, _given, key=[name, shown] if key is None else key)
        return await desk.approve(name, identity, shown, approval)

    @_on_its_loop
    async def clarify(
        self,
        questions: Sequence[str],
        *,
        options: Sequence[str] = (),
        understood_goal: str | None = None,
        timeout_s: float | None = None,
        key: object = None,
    ) -> TaskClarified:
        """Ask whoever sent the message, and return the answer.

            said = await context.clarify(["Which branch?"], options=["main", "dev"])
            branch = said.answers[0]

        One to eight *questions*; the answers have their order. *options* are answers that the handler could work with;
        any other is taken, too. The run ends here, without a worker waiting, until the answer is there, for at most
        *timeout_s* seconds, by default as long as the message lives. A later run gets the kept answer, and reads it at
        the level of its message. Equal questions of one message are asked once; *key* tells them apart.

        The handler is declared with `asks=True`, and only its own task may ask. Raises ClarificationMissing without an
        answer in time. Raises ContractError for a requester that cannot be asked: one that takes no progress.
        """
        self._check_held()
        if not self.message.takes_progress:
            raise ContractError(
                "its requester cannot be asked: that takes bus.submit, request(on_progress=...), or a saga with "
                "@on_progress",
                "/routing/accepts_progress",
            )
        desk = self._check_asker("context.clarify")
        question = _question(questions, options, understood_goal)
        identity = [list(question.questions), list(question.options), understood_goal] if key is None else key
        step = step_id(_CLARIFY, _asked, key=identity)

        async def answer() -> str:
            return (await desk.clarify(question, step, timeout_s)).decode()

        sealed = await self.take_step(StepCall(name=_CLARIFY, function=answer, key=identity))
        message = sealing.parse(sealed.encode())
        self.run.take_in(message)
        said = payload_type(TaskClarified).open(message)
        assert isinstance(said, TaskClarified)  # noqa: S101 - of that very type
        return said

    async def ask_for(self, calls: Sequence[StepCall]) -> None:
        """Ask for the approvals of all *calls* at once; the run ends here while one of them is not decided.

        A refused one is told by `take_step`. For adapters of frameworks that ask for several at once.
        """
        self._check_held()
        desk = self._check_asker("approve=")
        remembered = self._remembering()
        is_waiting = False
        for call in calls:
            check_guarded_name(call.name)
            step = remembered.identify(call)
            if not await remembered.has_begun(step):
                is_waiting |= await desk.ask(call, step, stored_arguments(call))
        if is_waiting:
            desk.hold_run()

    @_on_its_loop
    async def steps(
        self,
        name: str,
        functions: Iterable[Callable[..., Any]],
        *,
        keys: Iterable[object] | None = None,
        limit: int = 4,
        type: Any = None,  # noqa: A002 - the word for it
    ) -> list[Any]:
        """Return the results of *functions*, each run as a `step`, with at most *limit* at once.

            notes = await context.steps("search", [partial(search, query) for query in plan["queries"]], limit=4)

        A later run may pass them in another order. Two equal steps are called once. *keys*: the identity of each
        function, if its name and arguments are not enough.

        All are called and their results stored, even if one fails. Then the error is raised; several errors as an
        ExceptionGroup.
        """
        self._check_held()
        self._check_writer("steps")
        return await self._remembering().steps(name, functions, keys=keys, limit=limit, kind=type)

    @_on_its_loop
    async def checkpoint(self, value: Any) -> None:
        """Store *value* for a later run of this message, where `resumed` returns it.

        A value above 256 KiB or outside JSON is not stored: a warning is logged, and the previous checkpoint stays.
        Raises ContractError for a value whose class has no JSON form.
        """
        self._check_writer("checkpoint")
        await self._remembering().checkpoint(value)

    @_on_its_loop
    async def resumed(self, type: Any = None) -> Any:  # noqa: A002 - the word for it
        """Return the last `checkpoint` of an earlier run of this message by this version of the app, or None.

        *type* is that of the value, as in `step`. One that cannot be read as it counts as none.
        """
        self._check_writer("resumed")
        return await self._remembering().resumed(type)

    @_on_its_loop
    async def conversation(self) -> ConversationMemory:
        """Return what was said and answered before in the conversation of the message, with its sender.

            memory = await context.conversation()
            memory.add("user", request.goal)

        It is read as a step. What the handler adds is kept with the result of the run, at most 64 KiB in all: the
        oldest items go first. Its level is the least that ever went in. Raises as `transaction` without an inbox or a
        key.
        """
        self._check_held()
        if self.memory is None:
            claim = self._claim
            if claim is None:
                raise self._has_no_row("memory is stored in the inbox", "memory is stored in the inbox, and")
            message = self.message
            row = claim.memory(message.metadata.conversation_id or message.message_id)

            async def read() -> list[dict[str, Any]]:
                items, labels = await row.read()
                if labels is not None:
                    self.run.read_at(labels)
                return [{"role": each.role, "content": each.content} for each in items]

            call = StepCall(name="conversation", function=read, key="conversation")
            items = [MemoryItem(each["role"], each["content"]) for each in await self.take_step(call)]
            self.memory = ConversationMemory(items, row)
        return self.memory

    def is_older(self, seen: int) -> bool:
        """Tell whether the message's `sequence` comes before *seen*: for a receiver that wants last-writer-wins."""
        sequence = self.message.metadata.sequence
        return sequence is not None and sequence < seen

    def check_awaited(self) -> None:
        """Raise TypeError for a call that was never awaited: it did nothing, and the run must not look as if it had."""
        forgotten = [each for each in self.owed if inspect.getcoroutinestate(each) == inspect.CORO_CREATED]
        for each in forgotten:
            each.close()
        if forgotten:
            name = f"context.{forgotten[0].__name__}"
            raise TypeError(f"{name}(...) was not awaited, so it did nothing: write `await {name}(...)`")

    def lent(self, task: asyncio.Task[Any] | None) -> None:
        """Let *task*, which the handler's own thread waits for, ask for approvals."""
        self._asker = task

    def _check_held(self) -> None:
        """Raise RunHeld again where the run has asked for a decision."""
        if self._desk is not None and self._desk.is_held:
            self._desk.hold_run()

    def _check_asker(self, what: str) -> StepDesk:
        """Return the desk. Raises ContractError where the present code may not ask."""
        if self._desk is None:
            if self._claim is None and not self._has_inbox:
                raise self._has_no_row("approvals of steps are stored in the inbox", "")
            raise ContractError(
                f"{what} ends the run until a decision: declare the handler with asks=True, as in @app.on(..., "
                "asks=True)",
                "approve",
            )
        if asyncio.current_task() not in (self._task, self._asker):
            raise ContractError(
                f"{what} is only for the handler's own task, which ends here until a decision: call it outside "
                "gather, TaskGroup, create_task and wait_for",
                "approve",
            )
        if self._claim is not None and self._claim.has_transaction:
            raise ContractError(
                f"{what} would lose what context.transaction() has written: open the transaction after the decision, "
                "or do the effect in a step",
                "approve",
            )
        return self._desk

    def _check_use(self, tool: str) -> None:
        """Raise ApprovalRefused for a tool that the policy does not let be used here without an approval."""
        decision = self.run.admission.decide_use(tool, self.message, None, None, self.run.current)
        if isinstance(decision, Deny):
            raise ApprovalRefused(f"rule {decision.rule} of the policy does not allow {tool} here", "unauthorized")
        if isinstance(decision, NeedsApproval):
            raise ContractError(
                f"rule {decision.rule} of the policy wants an approval for {tool}: declare the handler with asks=True",
                "approve",
            )

    def _check_cancelled(self) -> None:
        if self._is_cancelled():
            raise TaskCancelled

    def _check_writer(self, name: str) -> None:
        """Raise ContractError if *name* would wait for this run's own transaction, which blocks the writer of a SQLite
        file."""
        if self._claim is not None and self._claim.holds_writer:
            raise ContractError(
                f"context.{name} would never return: this run's transaction is open, and on SQLite it blocks all "
                f"other writes. Call {name} first, and open the transaction last",
                name,
            )

    def _remembering(self) -> RememberedSteps:
        if self.remembered is None:
            if self._claim is None:
                raise self._has_no_row("steps are recorded in the inbox", "steps are recorded in the inbox, and")
            self.remembered = RememberedSteps(
                self._claim.steps,
                self.run,
                version=self._version,
                desk=self._desk,
                before_call=self._check_cancelled,
                answer=self._claim.answer,
            )
        return self.remembered

    def _has_no_row(self, needs: str, lacks: str) -> ContractError | MissingSetting:
        """Return why there is no row to write to: no inbox, which *needs* explains, or no row of the message."""
        if not self._has_inbox:
            return MissingSetting("inbox.url", f"{needs}: give inbox.url a store (on Kafka, postgresql://...)")
        return ContractError(
            f"give the handler dedup='always': {lacks} this message has no idempotency key, so it has no row there",
            "/routing/idempotency_key",
        )

    @_on_its_loop
    async def transaction(self) -> Transaction:
        """Return the inbox's own transaction, the same one each time.

        Writes in it are durable if and only if this run counts as done.

        It is committed when the handler returns and rolled back when it raises. A run that another worker has overtaken
        writes nothing. So an effect in the same database happens once, however often the message is delivered. While
        the database is unreachable this call waits, within the time of the run. Raises ContractError for a message
        without an idempotency key (dedup='always' needs none), MissingSetting without an inbox, InboxError once the run
        has ended.
        """
        if self._claim is None:
            raise self._has_no_row("context.transaction() needs an inbox", "the transaction is one of the inbox, and")
        return await self._claim.begin()


def _addressee(to: object) -> str:
    """Return whom a message is for, as text."""
    return str(getattr(to, "id", None) or getattr(to, "role", None) or to or "")


def _question(questions: Sequence[str], options: Sequence[str], understood_goal: str | None) -> TaskClarification:
    """Return what is asked. Raises ContractError for what is no list of texts, or too long."""
    for name, texts in (("questions", questions), ("options", options)):
        if isinstance(texts, str) or not all(isinstance(text, str) and text for text in texts):
            raise ContractError("is a list of texts, none of them empty", name)
    if not 0 < len(questions) <= _MAX_QUESTIONS:
        raise ContractError(f"{len(questions)} questions: one to {_MAX_QUESTIONS} are asked at once", "questions")
    return TaskClarification(questions=tuple(questions), options=tuple(options), understood_goal=understood_goal)


_GUARDED_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def check_guarded_name(name: object) -> None:
    """Raise ContractError for a name that people, policies and model APIs could not all carry."""
    if not isinstance(name, str) or _GUARDED_NAME.fullmatch(name) is None:
        raise ContractError(f"illegal name {name!r:.80}: 1 to 64 of A-Z a-z 0-9 '.' '_' '-'", "name")


def _asked() -> None:
    """Stand for the requester's answer, which is no function."""


def _given(arguments: Mapping[str, Any]) -> None:
    """Stand for an effect that is no function."""
