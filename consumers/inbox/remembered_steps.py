"""RememberedSteps: what a run has paid for, kept beside the inbox's row so that no later run pays for it again.

Owns the form of what is kept, when it counts (the same name and the same arguments), its limit, and the level that
comes back with it: what a store gives back is as trusted as it was when it was written.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from bus.errors import ContractError
from bus.protocol import canonical
from bus.telemetry.logs import get_logger
from bus.trust.effective_labels import EffectiveLabels
from producers.sealing.run_labels import RunLabels

__all__ = ["MOST_BYTES", "RememberedSteps", "StepStore"]

MOST_BYTES: Final = 262_144
_CHECKPOINT: Final = "~checkpoint"
_MOST_NAME: Final = 128

_log = get_logger("steps")


class StepStore(Protocol):
    """Where one run remembers, under its claim."""

    async def read(self) -> Mapping[str, bytes]:
        """Return what earlier runs of the message have kept."""

    async def write(self, name: str, data: bytes) -> bool:
        """Keep *data*; False: another worker has the message by now."""


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """What is kept under a name: the hash of the arguments, the result as JSON, and the labels of the run then."""

    arguments: str
    result: bytes
    level: str
    classification: str


class RememberedSteps:
    """The steps of one run; *version* is the app's, by which checkpoints count."""

    def __init__(self, store: StepStore, run: RunLabels, *, version: str) -> None:
        self._store = store
        self._run = run
        self._version = version
        self._known: dict[str, _Kept] | None = None
        self._reading = asyncio.Lock()
        self.used = False
        """Whether anything was kept, and is to be forgotten with the result."""

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
        _check_name(name)
        asked = _hash_of(name, function, arguments, named, key)
        known = (await self._all()).get(name)
        if known is not None and known.arguments == asked:
            self._run.read_at(EffectiveLabels(level=known.level, classification=known.classification))
            return _read(known.result, kind)
        result = await _called(function, arguments, named)
        data = _json_of(name, result)
        await self._keep(name, asked, data)
        # The first run gets what a later one would.
        return _read(data, kind)

    async def steps(self, name: str, functions: Sequence[Callable[..., Any]], *, limit: int, kind: Any) -> list[Any]:
        """Return the results of *functions*, at most *limit* of them at work at once; each is a step of its own."""
        if limit < 1:
            raise ContractError(f"{limit} is not more than 0", "limit")
        room = asyncio.Semaphore(limit)

        async def one(number: int, function: Callable[..., Any]) -> Any:
            async with room:
                return await self.step(f"{name}.{number}", function, (), {}, key=None, kind=kind)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, function)) for number, function in enumerate(functions)]
        return [task.result() for task in tasks]

    async def checkpoint(self, value: Any) -> None:
        """Keep *value* for later runs of the message by the same version of the app."""
        await self._keep(_CHECKPOINT, self._version, _json_of("checkpoint", value))

    async def resumed(self, kind: Any) -> Any:
        """Return the last checkpoint of an earlier run; None without one, or where another version has made it."""
        known = (await self._all()).get(_CHECKPOINT)
        if known is None or known.arguments != self._version:
            return None
        self._run.read_at(EffectiveLabels(level=known.level, classification=known.classification))
        return _read(known.result, kind)

    async def _all(self) -> dict[str, _Kept]:
        async with self._reading:
            if self._known is None:
                kept = await self._store.read()
                self._known = {name: msgspec.msgpack.decode(data, type=_Kept) for name, data in kept.items()}
                self.used = bool(kept)
            return self._known

    async def _keep(self, name: str, arguments: str, data: bytes) -> None:
        labels = self._run.current
        kept = _Kept(arguments, data, labels.level, labels.classification)
        self.used = True
        if await self._store.write(name, msgspec.msgpack.encode(kept)):
            (await self._all())[name] = kept
        else:
            # Its result will not count either; the worker that has the message now makes the step itself.
            _log.warning("steps.not_kept", step=name, detail="another worker has taken the message over")


def _hash_of(
    name: str, function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any], key: object
) -> str:
    """Return the hash by which a call is the same as another."""
    if key is not None:
        given: Any = {"key": _plain(name, key)}
    else:
        while isinstance(function, functools.partial):
            arguments, named = (*function.args, *arguments), {**function.keywords, **named}
            function = function.func
        given = {"arguments": _plain(name, list(arguments)), "named": _plain(name, dict(named))}
    return hashlib.sha256(canonical.encode(given)).hexdigest()


def _plain(name: str, value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"an argument of the step {name!r} has no JSON form ({error}): say by key=... which calls are the same",
            "key",
        ) from error


async def _called(function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Call *function*; an ordinary one in a thread, for it may take long."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None)):  # noqa: B004
        return await function(*arguments, **named)
    result = await asyncio.to_thread(function, *arguments, **named)
    return await result if isinstance(result, Awaitable) else result


def _json_of(name: str, result: Any) -> bytes:
    try:
        data = canonical.encode([msgspec.to_builtins(result, str_keys=True)])
    except (TypeError, ValueError) as error:
        raise ContractError(f"the result of {name!r} has no JSON form: {error}", name) from error
    if len(data) > MOST_BYTES:
        raise ContractError(
            f"the result of {name!r} takes {len(data)} bytes, at most {MOST_BYTES} are kept: store it elsewhere, and "
            "return where it lies",
            name,
        )
    return data


def _read(data: bytes, kind: Any) -> Any:
    value = msgspec.json.decode(data)[0]
    return value if kind is None else msgspec.convert(value, kind)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME or name.startswith("~"):
        raise ContractError(f"illegal name of a step {name!r:.80}: 1 to {_MOST_NAME} characters", "name")
