"""RememberedSteps: the results of a run's steps, stored beside the inbox's row so that later runs need not call again.

Owns the stored form of a result, its size limit, sharing one call among concurrent callers, and the trust level of a
result: a stored result has the level that the run had when it was written. A result that cannot be stored is still
returned to its run, and a mark is stored instead. `consumers.delivery.inbox.step_identity` decides which calls are the
same, `bus.payloads.kept_values` which values can be stored.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from types import CodeType
from typing import Any, Final, Protocol

import msgspec

from bus.errors import ContractError, text_of
from bus.payloads.kept_values import KeptType, is_plain, kept_type, plain_from, plain_of
from bus.protocol import canonical
from bus.telemetry.logs import get_logger
from bus.trust.effective_labels import EffectiveLabels
from consumers.delivery.inbox.step_identity import code_of, step_id
from producers.sealing.run_labels import RunLabels

__all__ = ["MAX_STEP_BYTES", "RememberedSteps", "StepStore"]

MAX_STEP_BYTES: Final = 262_144
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


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """The stored entry of a name: the result as JSON, and the run's labels at that time."""

    version: str
    """The version of the app, for a checkpoint, which only this version resumes; empty for a step."""
    result: bytes
    level: str
    classification: str
    unkept: str = ""
    """Why there is no stored result, although the call was made and its run got the result."""


class RememberedSteps:
    """The steps of one run; *version* is the app's, by which checkpoints count."""

    def __init__(self, store: StepStore, run: RunLabels, *, version: str) -> None:
        self._store = store
        self._run = run
        self._version = version
        self._known: dict[str, _Kept] | None = None
        self._reading = asyncio.Lock()
        self._turns: dict[str, asyncio.Lock] = {}
        self._codes: dict[str, CodeType | None] = {}
        self._returned: dict[str, Any] = {}
        """Results of this run that could not be stored; repeated calls in this run get them again."""
        self._writing: set[asyncio.Future[bool]] = set()
        self.used = False
        """Whether anything was stored, and has to be deleted with the result."""

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
        *,
        key: object,
        kind: Any,
    ) -> Any:
        """Return what *function* returned in this run or an earlier one of the message with the same arguments."""
        identity = self._identify(name, function, arguments, named, key=key)
        return await self._once(identity, functools.partial(function, *arguments, **named), kept_type(kind))

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

    async def _once(self, identity: str, call: Callable[..., Any], stored: KeptType) -> Any:
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
            if known is not None and (found := self._read(identity, known, stored)) is not _NOTHING:
                return found
            before = _WITHIN.set((*within, (self, identity)))
            try:
                result = await _called(call)
            finally:
                _WITHIN.reset(before)
            return await self._keep_result(identity, result, stored)

    def _read(self, identity: str, known: _Kept, stored: KeptType) -> Any:
        """Return the stored result, and count it among the texts that the run has read; _NOTHING if there is none."""
        if known.unkept:
            _log.warning("steps.called_again", step=identity, detail=known.unkept)
            return _NOTHING
        try:
            found = stored.read(plain_from(known.result)[0])
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
        if len(data) > MAX_STEP_BYTES:
            return await self._give(identity, result, _too_large(data))
        try:
            # The first run gets what a later one would.
            again = stored.read(plain_from(data)[0])
        except ContractError as error:
            if is_plain(result):
                # What should have become of it is a mistake of the function, as if it had raised.
                name = identity.rpartition("/")[0]
                raise ValueError(f"what the step {name!r} returned is not of its type: {error}") from error
            return await self._give(identity, result, f"cannot be read back: {error}")
        await self._keep(identity, data)
        return again

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
                self._known = {name: known for name, data in stored.items() if (known := _unpacked(name, data))}
                self.used = self.used or bool(stored)
            return self._known

    async def _keep(self, name: str, data: bytes, *, version: str = "", unkept: str = "") -> None:
        labels = self._run.current
        stored = _Kept(version, data, labels.level, labels.classification, unkept)
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


def _too_large(data: bytes) -> str:
    return f"takes {len(data)} bytes, at most {MAX_STEP_BYTES} are stored: store it elsewhere, and return its location"
