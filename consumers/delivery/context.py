"""Context: what a handler gets besides its payload: the message, its deadline, and ways to send.

Owns collecting outputs that leave with the outcome (`send`), sending at once (`send_now`) and asking another agent
(`request`). Everything sent has the handled message as its cause, and its correlation and conversation. Sealing is in
`producers.publisher`, waiting for answers in `producers.requests.requester`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, ParamSpec, Protocol, TypeVar, Unpack

from bus.errors import ContractError, DeadlineError, EventLoopError, MissingSetting
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import encode_payload
from bus.trust.effective_labels import EffectiveLabels
from consumers.delivery.approval_given import ApprovalGiven
from consumers.delivery.inbox.base import Transaction
from consumers.delivery.inbox.remembered_steps import RememberedSteps, StepStore
from consumers.delivery.settling.outputs import Output
from producers.outcomes import PublishRejected, Receipt
from producers.publisher import Publisher
from producers.requests.requester import Requester
from producers.sealing.options import Options, RequestOptions, outgoing_of
from producers.sealing.run_labels import RunLabels
from producers.sealing.seal_request import SealRequest

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
        return method(*arguments, **named)

    return called


_QUEUED = _Queued()
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

    async def begin(self) -> Transaction:
        """Open the run's transaction, the same one each time. Raises InboxError, GaveUpError."""


class Context:
    """One run of a handler. Do not keep it after the handler returns.

    @app.on(Order)
    async def book(order: Order, context: Context) -> None:
        context.send(Booked(sku=order.sku), key=order.sku)      # leaves when the run succeeds
        await context.send_now(Progress(percent=10))            # leaves now
    """

    __slots__ = (
        "_claim",
        "_clock",
        "_deadline_s",
        "_has_inbox",
        "_is_cancelled",
        "_loop",
        "_publisher",
        "_requests",
        "_version",
        "approval",
        "attempt",
        "message",
        "outputs",
        "over",
        "remembered",
        "run",
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
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.run = run
        """The messages and texts that this run has read."""
        self.message = run.message
        """The sealed message, which passed every gate."""
        self.attempt = run.attempt
        """The number of this run, from 1."""
        self.remembered: RememberedSteps | None = None
        """The stored steps of this run and earlier ones; None until first used."""
        self.outputs: list[Output] = []
        """The outputs that `send` has collected so far."""
        self.over = False
        """Whether the handler has ended, well or not."""
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
    def cancelled(self) -> bool:
        """Whether the requester has cancelled the task (`task.cancel`): end soon, the handler is cut after its grace.

        while not context.cancelled:
            ...
        """
        return self._is_cancelled()

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
    async def send_now(self, payload: Payload, **options: Unpack[Options]) -> Receipt:
        """Publish *payload* at once, for example to report progress, even if this run fails later.

        Raises PublishRejected, PublishUnknown.
        """
        sealed = self._publisher.sealer.seal(
            outgoing_of(payload, options), SealRequest(cause=self.message, run=self.run)
        )
        return await self._publisher.send(sealed, timeout_s=max(0.001, self.remaining_s))

    @_on_its_loop
    async def request(
        self,
        payload: Payload,
        reply: type[_Reply],
        *,
        timeout_s: float = 30.0,
        **options: Unpack[RequestOptions],
    ) -> _Reply:
        """Ask another agent at once and wait for its answer, a *reply*.

            quote = await context.request(QuoteRequest(sku=order.sku), Quote, timeout_s=20)

        It waits at most *timeout_s* seconds, by default 30 here and 60 in `Bus.request`, and never beyond this run's
        own deadline.

        Raises as `Bus.request`. A run that waits is not at work: another handler runs instead, and this one goes on
        when there is room again (`worker.concurrency`, `worker.max_waiting`). So an app may ask types that it handles
        itself, in the same conversation, too. Raises ContractError while this run's transaction is open: it would stay
        open for as long as the answer takes, and the asked handler may need its database session, or its locks.
        """
        if self._claim is not None and self._claim.has_transaction:
            raise ContractError(
                "context.request would keep this run's transaction open while it waits, and others wait for its "
                "database session or its locks. Call request first, and open the transaction last",
                "request",
            )
        timeout_s = min(timeout_s, self.remaining_s)
        if timeout_s <= 0:
            error = DeadlineError("no time is left to this run")
            raise PublishRejected(f"not sent: {error}", error)
        return await self._requests.ask(payload, reply, timeout_s=timeout_s, run=self.run, **options)

    @_on_its_loop
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        key: object = None,
        type: Any = None,  # noqa: A002 - the word for it
        **named: Any,
    ) -> Any:
        """Return the result of `function(*arguments)`; a retry of the message reuses the stored result.

            plan = await context.step("plan", call_model, prompt)

        The result is stored beside the inbox's row, under *name*, the function's qualified name and the values of its
        arguments. A later run of this message gets it back, with the trust level that the run had. *key* replaces
        function and arguments as identity. Lambdas, closures, methods of objects, and arguments without a JSON form
        need a *key*. An ordinary function runs in a thread. An exception is not stored. A concurrent call of the same
        step waits for the first one, and calls the function itself if that fails.

        *type*: the class of the result: any payload class, or a combination such as a list of them. Without it the
        result is plain dicts and lists, also the first time. A result that cannot be stored (more than 256 KiB, or not
        JSON) is returned with a warning in the log, and a later run calls the function again.

        Raises ContractError before the call if the step has no unique identity, or if *type* cannot be stored. Raises
        ValueError for plain data that are not of *type*, and the errors of `transaction` without an inbox or a key.
        """
        self._check_writer("step")
        return await self._remembering().step(name, function, arguments, named, key=key, kind=type)

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

    def is_older(self, seen: int) -> bool:
        """Tell whether the message's `sequence` comes before *seen*: for a receiver that wants last-writer-wins."""
        sequence = self.message.metadata.sequence
        return sequence is not None and sequence < seen

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
            self.remembered = RememberedSteps(self._claim.steps, self.run, version=self._version)
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
