"""RememberedSteps: the results of a run's steps, stored beside the inbox's row so that later runs need not call again.

Owns the stored form of a result, its size limit, sharing one call among concurrent callers, and the trust level of a
result: a stored result has the level that the run had when it was written. A result that cannot be stored is still
returned to its run, and a mark is stored instead. A guarded step is written as begun, with its arguments, before its
call; `StepDesk` says whether it may begin. `consumers.delivery.inbox.step_identity` decides which calls are the same,
`bus.payloads.kept_values` which values can be stored.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import CodeType
from typing import Any, Final, NoReturn, Protocol

import msgspec

from bus import failpoints
from bus.errors import ContractError, DependencyDown, HandlerError, NotDone, RetryLater, StepInDoubt, text_of
from bus.payloads.kept_values import KeptType, is_plain, kept_type, plain_from, plain_of
from bus.protocol import canonical
from bus.telemetry.logs import get_logger
from bus.trust.effective_labels import EffectiveLabels
from bus.vocabulary.task import TaskClarification
from consumers.delivery.approval_given import ApprovalGiven
from consumers.delivery.inbox.base import Write, Written
from consumers.delivery.inbox.step_call import OperatorAnswer, StepCall, given_again, stored_arguments
from consumers.delivery.inbox.step_identity import code_of, step_id
from producers.sealing.run_labels import RunLabels

__all__ = [
    "KeptResult",
    "MAX_RESULT_BYTES",
    "MAX_STEP_BYTES",
    "RememberedSteps",
    "StepDesk",
    "StepPermit",
    "StepStore",
    "kept_results",
]

MAX_STEP_BYTES: Final = 262_144
"""Of one stored row."""
MAX_RESULT_BYTES: Final = 8_388_608
"""Of a stored result, which may fill several rows."""
_PART: Final = "~part/"
"""How the names of the rows begin that have the parts of a large result."""
_CHECKPOINT: Final = "~checkpoint"
_NOTHING: Final = object()

_log = get_logger("steps")
_WITHIN: Final[ContextVar[tuple[tuple[object, str], ...]]] = ContextVar("steps", default=())
"""The steps whose functions the present task is in."""


class StepStore(Protocol):
    """The step store of one run, under its claim."""

    async def read(self) -> Mapping[str, bytes]:
        """Return the results that earlier runs of the message have stored."""

    async def write(self, name: str, data: bytes) -> bool:
        """Keep *data*; False: another worker has the message by now."""

    async def write_with(self, name: str, data: bytes, writes: Sequence[Write]) -> Written:
        """Keep *data* together with *writes*, or nothing at all."""


class StepPermit(msgspec.Struct, frozen=True):
    """A step may begin: what is written together with its beginning, and is told once it is durable."""

    writes: Sequence[Write] = ()
    begun: Callable[[], Awaitable[None]] | None = None


class StepDesk(Protocol):
    """Decides whether the guarded steps of one run may begin."""

    is_held: bool
    """Whether the run has asked for a decision, and ends as held."""

    async def permit(self, call: StepCall, step: str, arguments: Mapping[str, Any]) -> StepPermit | None:
        """Return the permit for the step of that id; None if it needs none.

        Raises ApprovalRefused, or RunHeld where a decision is awaited.
        """

    async def begun_before(self, step: str) -> None:
        """Tell again that the approval of *step* is used up: the run that began it may have ended before it told."""

    async def approve(self, name: str, step: str, arguments: Mapping[str, Any], approval: Any) -> ApprovalGiven:
        """Return the approval of an effect that is no function. Raises ApprovalRefused, RunHeld."""

    async def ask(self, call: StepCall, step: str, arguments: Mapping[str, Any]) -> bool:
        """Ask for the approval of a step that has not begun; return whether it waits."""

    async def clarify(self, question: TaskClarification, step: str, timeout_s: float | None) -> bytes:
        """Return the sealed answer of the requester to *question*.

        Raises ClarificationMissing, or RunHeld where it is awaited.
        """

    def hold_run(self) -> NoReturn:
        """End the run as held. Raises RunHeld."""


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """The stored entry of a name: the result as JSON, and the run's labels at that time."""

    version: str
    """The version of the app, for a checkpoint, which only this version resumes; empty for a step."""
    result: bytes
    level: str
    classification: str
    unkept: str = ""
    """Why there is no stored result, although the call was made and its run got the result."""
    phase: str = ""
    """"begun": the call was or is being made, and there is no result; "ready": it may be made, and had no effect so
    far; empty: there is a result."""
    arguments: bytes = b""
    """The arguments of a guarded step, as canonical JSON."""
    parts: int = 0
    """The number of further rows that its result fills."""
    orders: tuple[str, ...] = ()
    """The ids of the operators' orders by which it was called again."""


class KeptResult(msgspec.Struct, frozen=True):
    """The stored result of one step, as others may show it."""

    step: str
    """Its name."""
    level: str
    """How far its run was trusted when it was stored."""
    value: Any
    """As JSON has it; None where *unkept* tells why there is none."""
    unkept: str = ""


def kept_results(stored: Mapping[str, bytes]) -> list[KeptResult]:
    """Return the results among the *stored* rows of a run, by the names of their steps; no checkpoint."""
    found = []
    for name, data in sorted(stored.items()):
        known = None if name.startswith((_PART, _CHECKPOINT)) else _unpacked(name, data)
        if known is None or known.phase:
            continue
        step, unkept, value = name.rpartition("/")[0], known.unkept, None
        if not unkept:
            try:
                value = plain_from(_whole(name, known, stored))[0]
            except (KeyError, ValueError, LookupError, TypeError) as error:
                unkept = f"it cannot be read: {text_of(error)}"
        found.append(KeptResult(step, known.level, value, unkept))
    return found


def _whole(name: str, known: _Kept, parts: Mapping[str, bytes]) -> bytes:
    """Return the stored result of all its rows. Raises KeyError."""
    return b"".join([known.result, *(parts[_part_name(name, at)] for at in range(1, known.parts + 1))])


class RememberedSteps:
    """The steps of one run; *version* is the app's, by which checkpoints count."""

    def __init__(
        self,
        store: StepStore,
        run: RunLabels,
        *,
        version: str,
        desk: StepDesk | None = None,
        before_call: Callable[[], object] = bool,
        answer: OperatorAnswer | None = None,
    ) -> None:
        self._store = store
        self._run = run
        self._version = version
        self._desk = desk
        self._answer = answer
        self._before_call = before_call
        """Called before each call of a function; it raises where none is to be made any more."""
        self._parts: dict[str, bytes] = {}
        self._known: dict[str, _Kept] | None = None
        self._reading = asyncio.Lock()
        self._turns: dict[str, asyncio.Lock] = {}
        self._codes: dict[str, CodeType | None] = {}
        self._returned: dict[str, Any] = {}
        """Results of this run that could not be stored; repeated calls in this run get them again."""
        self._writing: set[asyncio.Future[bool]] = set()
        self.used = False
        """Whether anything was stored, and has to be deleted with the result."""

    async def step(self, call: StepCall) -> Any:
        """Return what the function returned in this run or an earlier one of the message with the same arguments."""
        identity = self.identify(call)
        function = functools.partial(call.function, *call.arguments, **call.named)
        guard = call if call.is_guarded or call.is_tool else None
        return await self._once(identity, function, kept_type(call.kind), guard)

    def identify(self, call: StepCall) -> str:
        """Return the id of the step that *call* is. Raises ContractError where it could be taken for another one."""
        return self._identify(call.name, call.function, call.arguments, call.named, key=call.key)

    async def has_begun(self, step: str) -> bool:
        """Return whether the guarded step has a result, or has begun."""
        return step in await self._all()

    async def steps(
        self,
        name: str,
        functions: Iterable[Callable[..., Any]],
        *,
        keys: Iterable[object] | None,
        limit: int,
        kind: Any,
    ) -> list[Any]:
        """Return the results of *functions*, at most *limit* of them at work at once; each is a step of its own.

        All are called, also when one fails. One error is raised as it is, several as a group.
        """
        if limit < 1:
            raise ContractError(f"{limit} is not more than 0", "limit")
        functions = [*functions]
        provided = [None] * len(functions) if keys is None else [*keys]
        if len(provided) != len(functions):
            raise ContractError(f"{len(provided)} keys for {len(functions)} functions: give one for each", "keys")
        identities = [
            self._identify(name, function, key=key, give="keys=[...], one for each function,")
            for function, key in zip(functions, provided, strict=True)
        ]
        stored = kept_type(kind)
        room = asyncio.Semaphore(limit)

        async def one(identity: str, function: Callable[..., Any]) -> Any:
            async with room:
                return await self._once(identity, function, stored)

        calls: dict[str, Callable[..., Any]] = {}
        for identity, function in zip(identities, functions, strict=True):
            calls.setdefault(identity, function)
        tasks = {identity: asyncio.create_task(one(identity, function)) for identity, function in calls.items()}
        # Where the run itself is cut, this cancels them all, and waits for that.
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        _raise_errors(name, tasks.values())
        return [tasks[identity].result() for identity in identities]

    async def checkpoint(self, value: Any) -> None:
        """Store *value* for later runs of the message by the same version of the app.

        If the value is too large or outside JSON, the previous checkpoint stays and the run continues. Raises
        ContractError for a value whose class has no JSON form.
        """
        try:
            data = canonical.encode([plain_of(value)])
        except ContractError as error:
            if isinstance(error.__cause__, TypeError):
                raise ContractError(f"a checkpoint {error.text}", "value") from error
            _log.warning("steps.not_kept", step="checkpoint", detail=text_of(error))
            return
        if len(data) > MAX_STEP_BYTES:
            _log.warning("steps.not_kept", step="checkpoint", detail=_too_large(data))
            return
        await self._keep(_CHECKPOINT, data, version=self._version)

    async def resumed(self, kind: Any) -> Any:
        """Return the last checkpoint of an earlier run; None without one, or where another version has made it."""
        stored = kept_type(kind)
        known = (await self._all()).get(_CHECKPOINT)
        if known is None or known.version != self._version:
            return None
        found = self._read("checkpoint", known, stored)
        return None if found is _NOTHING else found

    def _identify(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...] = (),
        named: Mapping[str, Any] | None = None,
        *,
        key: object,
        give: str = "key=...",
    ) -> str:
        """Return the id of the step. Raises ContractError where it could be taken for another one."""
        identity = step_id(name, function, arguments, named, key=key, give=give)
        if key is None:
            code = code_of(function)
            if self._codes.setdefault(identity, code) != code:
                raise ContractError(
                    f"the step {name!r} is called with two functions of one name: state by {give} which calls are the "
                    "same",
                    "key",
                )
        return identity

    async def _once(
        self, identity: str, call: Callable[..., Any], stored: KeptType, guard: StepCall | None = None
    ) -> Any:
        """Return the step's result, stored or returned before; else call the function. Concurrent callers wait for that
        call.

        If the call fails or is cancelled, the next waiting caller makes its own call.
        """
        within = _WITHIN.get()
        if (self, identity) in within:
            raise ContractError(f"the step {identity!r} calls itself and would never end: give it a key", "key")
        async with self._turns.setdefault(identity, asyncio.Lock()):
            if identity in self._returned:
                return self._returned[identity]
            known = (await self._all()).get(identity)
            if known is not None and not known.phase and (found := self._read(identity, known, stored)) is not _NOTHING:
                return found
            self._before_call()
            before = _WITHIN.set((*within, (self, identity)))
            try:
                if guard is not None:
                    call, found = await self._begin(identity, guard, known)
                    if found is not _NOTHING:
                        return await self._keep_result(identity, found, stored)
                result = await self._called_guarded(identity, call, guard)
            finally:
                _WITHIN.reset(before)
            return await self._keep_result(identity, result, stored)

    async def _called_guarded(self, identity: str, call: Callable[..., Any], guard: StepCall | None) -> Any:
        """Call a function; where a guarded one says that it had no effect, it may be called again."""
        try:
            return await _called(call)
        except NotDone:
            if guard is not None and (known := (await self._all()).get(identity)) is not None:
                await self._store_entry(identity, msgspec.structs.replace(known, phase="ready"))
            raise

    async def _begin(self, identity: str, call: StepCall, known: _Kept | None) -> tuple[Callable[..., Any], Any]:
        """Write that the step has begun; return what to call, with the stored arguments, or a result that was found.

        Raises ApprovalRefused, RunHeld, StepInDoubt. Where the store does not confirm it, the call is not made.
        """
        if known is not None and known.arguments:
            return await self._begin_again(identity, call, known)
        # Without arguments it was never written as begun: there is only the mark that its result was not kept.
        arguments = stored_arguments(call)
        data = canonical.encode(arguments)
        if len(data) > MAX_STEP_BYTES:
            raise ContractError(
                f"the arguments of the step {call.name!r} take {len(data)} bytes, at most {MAX_STEP_BYTES} are stored",
                "arguments",
            )
        while True:
            permit = None if self._desk is None else await self._desk.permit(call, identity, arguments)
            if permit is None and not call.once:
                return functools.partial(call.function, *call.arguments, **call.named), _NOTHING
            permit = permit or StepPermit()
            written = await self._store_begun(identity, data, permit.writes)
            if written == "written":
                break
            if written == "stale":
                raise RetryLater("another worker has taken the message over")
        failpoints.reach("consumed" if permit.writes else "begun")
        if permit.begun is not None:
            await permit.begun()
        return given_again(call, call.function, data), _NOTHING

    async def _begin_again(self, identity: str, call: StepCall, known: _Kept) -> tuple[Callable[..., Any], Any]:
        """Do `_begin` for a step that an earlier run has begun: under the same approval, with the same arguments."""
        if known.phase == "begun" and self._desk is not None and (call.is_tool or call.approve is not None):
            await self._desk.begun_before(identity)
        if known.phase != "ready":
            found = await self._in_doubt(identity, call, known)
            if found is not _NOTHING:
                return call.function, found
        orders = known.orders
        if known.phase != "ready" and self._answer is not None and await self._is_answered(identity, known):
            orders = (*orders, self._answer.order)
        begun = msgspec.structs.replace(known, phase="begun", unkept="", orders=orders)
        if begun != known:
            await self._store_entry(identity, begun)
            failpoints.reach("begun")
        return given_again(call, call.function, known.arguments), _NOTHING

    async def _in_doubt(self, identity: str, call: StepCall, known: _Kept) -> Any:
        """Return the result that `reconcile` finds for a step that has begun; _NOTHING if it is to be called."""
        is_known_phase = known.phase in ("begun", "")
        if not call.once and is_known_phase:
            return _NOTHING
        if self._answer is not None and await self._is_answered(identity, known):
            if not self._answer.had_effect:
                return _NOTHING
            self._run.read_at(self._answer.labels)
            return self._answer.result
        if call.reconcile is None or not is_known_phase:
            why = f"its result could not be kept: {known.unkept}" if known.unkept else "it has no result"
            refused = "" if self._answer is None else self._answer.refused
            untold = f"; the answer that came with the redrive is refused: {refused}" if refused else ""
            raise StepInDoubt(
                f"the step {call.name!r} has begun in an earlier run, and {why}: it is unknown whether it had its "
                f"effect ({identity}){untold}",
                identity,
            )
        try:
            return await _called(given_again(call, call.reconcile, known.arguments))
        except NotDone:
            return _NOTHING
        except StepInDoubt as error:
            raise StepInDoubt(f"{error} ({identity})", identity) from error
        except (HandlerError, ContractError):
            raise
        except Exception as error:
            raise DependencyDown(call.name, f"reconcile failed: {type(error).__name__}: {text_of(error)}") from error

    async def _is_answered(self, identity: str, known: _Kept) -> bool:
        """Return whether the operator's answer is about this step, and was not used before."""
        answer = self._answer
        if answer is None or answer.refused or answer.order in known.orders:
            return False
        if answer.step is not None:
            return answer.step == identity
        begun = [step for step, each in (await self._all()).items() if each.phase == "begun"]
        if len(begun) > 1:
            raise StepInDoubt(
                f"{len(begun)} steps have begun and have no result: --step names the one that is meant: "
                f"{', '.join(sorted(begun))}",
                identity,
            )
        return True

    async def _store_begun(self, identity: str, arguments: bytes, writes: Sequence[Write]) -> Written:
        labels = self._run.current
        entry = _Kept("", b"", labels.level, labels.classification, phase="begun", arguments=arguments)
        self.used = True
        written = await self._store.write_with(identity, msgspec.msgpack.encode(entry), writes)
        if written == "written":
            (await self._all())[identity] = entry
        return written

    async def _store_entry(self, identity: str, entry: _Kept) -> None:
        """Store *entry* before anything follows from it. Raises RetryLater where another worker has the message."""
        if not await self._write(identity, msgspec.msgpack.encode(entry)):
            raise RetryLater("another worker has taken the message over")
        (await self._all())[identity] = entry

    def _read(self, identity: str, known: _Kept, stored: KeptType) -> Any:
        """Return the stored result, and count it among the texts that the run has read; _NOTHING if there is none."""
        if known.unkept:
            _log.warning("steps.called_again", step=identity, detail=known.unkept)
            return _NOTHING
        try:
            found = stored.read(plain_from(_whole(identity, known, self._parts))[0])
        except Exception as error:  # noqa: BLE001 - written by other code, or damaged
            _log.warning("steps.unreadable", step=identity, detail=text_of(error))
            return _NOTHING
        self._run.read_at(EffectiveLabels(level=known.level, classification=known.classification))
        return found

    async def _keep_result(self, identity: str, result: Any, stored: KeptType) -> Any:
        """Store *result*; return it as a later run would get it, or unchanged if it cannot be stored."""
        try:
            data = canonical.encode([stored.plain(result)])
        except ContractError as error:
            return await self._give(identity, result, text_of(error))
        if len(data) > MAX_RESULT_BYTES:
            return await self._give(identity, result, _too_large(data, MAX_RESULT_BYTES))
        try:
            # The first run gets what a later one would.
            again = stored.read(plain_from(data)[0])
        except ContractError as error:
            if is_plain(result):
                # What should have become of it is a mistake of the function, as if it had raised.
                name = identity.rpartition("/")[0]
                raise ValueError(f"what the step {name!r} returned is not of its type: {error}") from error
            return await self._give(identity, result, f"cannot be read back: {error}")
        await self._keep_parts(identity, data)
        if failpoints.is_armed:
            failpoints.reach("kept")
        return again

    async def _keep_parts(self, identity: str, data: bytes) -> None:
        """Store *data*; the first row last: until then there is no result."""
        rows = [data[at : at + MAX_STEP_BYTES] for at in range(0, len(data), MAX_STEP_BYTES)]
        for at, row in enumerate(rows[1:], 1):
            name = _part_name(identity, at)
            await self._write(name, row)
            self._parts[name] = row
        await self._keep(identity, rows[0], parts=len(rows) - 1)

    async def _give(self, identity: str, result: Any, why: str) -> Any:
        """Return *result*, which cannot be stored, and store a mark instead."""
        _log.warning("steps.not_kept", step=identity, detail=f"{why}; a later run of the message calls it again")
        self._returned[identity] = result
        await self._keep(identity, b"", unkept=why)
        return result

    async def _all(self) -> dict[str, _Kept]:
        async with self._reading:
            if self._known is None:
                stored = await self._store.read()
                self._parts |= {name: data for name, data in stored.items() if name.startswith(_PART)}
                self._known = {
                    name: known
                    for name, data in stored.items()
                    if not name.startswith(_PART) and (known := _unpacked(name, data))
                }
                self.used = self.used or bool(stored)
            return self._known

    async def _keep(self, name: str, data: bytes, *, version: str = "", unkept: str = "", parts: int = 0) -> None:
        labels = self._run.current
        before = (await self._all()).get(name)
        arguments = b"" if before is None else before.arguments
        stored = _Kept(version, data, labels.level, labels.classification, unkept, arguments=arguments, parts=parts)
        self.used = True
        if not await self._write(name, msgspec.msgpack.encode(stored)):
            # Its result will not count either; the worker that has the message now makes the step itself.
            _log.warning("steps.not_kept", step=name, detail="another worker has taken the message over")
        (await self._all())[name] = stored

    async def _write(self, name: str, data: bytes) -> bool:
        """Write *data*, also where the run is cut meanwhile: it is paid for."""
        writing = asyncio.ensure_future(self._store.write(name, data))
        self._writing.add(writing)
        writing.add_done_callback(self._written)
        return await asyncio.shield(writing)

    def _written(self, writing: asyncio.Future[bool]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            # Who was cut does not ask for it.
            writing.exception()


def _raise_errors(name: str, tasks: Collection[asyncio.Task[Any]]) -> None:
    """Raise what *tasks*, which have ended, have raised."""
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} of {len(tasks)} steps {name!r} have failed", errors)


def _unpacked(name: str, data: bytes) -> _Kept | None:
    """Return the entry stored in *data*; None if it cannot be read, which counts as absent."""
    try:
        return msgspec.msgpack.decode(data, type=_Kept)
    except (ValueError, RecursionError) as error:
        _log.warning("steps.unreadable", step=name, detail=text_of(error))
        return None


async def _called(function: Callable[..., Any]) -> Any:
    """Call *function*; an ordinary one in a thread, for it may take long."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None)):  # noqa: B004
        return await function()
    result = await asyncio.to_thread(function)
    return await result if isinstance(result, Awaitable) else result


def _part_name(identity: str, at: int) -> str:
    return f"{_PART}{identity}/{at}"


def _too_large(data: bytes, most: int = MAX_STEP_BYTES) -> str:
    return f"takes {len(data)} bytes, at most {most} are stored: store it elsewhere, and return its location"
