"""Blackboard: shared values with versions. One process per key; its history is the log.

    state          event                                          then
    version v      blackboard.write, expected version is v        v + 1, blackboard.written
    version v      blackboard.write, another version expected     v, blackboard.conflict
    version v      blackboard.read                                v, blackboard.value with the level it was written at
    version v      the time of a value is over                    v + 1, without a value

One group owns a board. The right to write a key is part of the policy: rules name keys by the resource, and `owners`
limits writers by prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, ClassVar, Final

import msgspec

from bus.errors import Reject
from bus.trust.policy.globs import compile_globs
from bus.vocabulary.blackboard import (
    BlackboardConflict,
    BlackboardRead,
    BlackboardValue,
    BlackboardWrite,
    BlackboardWritten,
)
from bus.vocabulary.parts import Ref
from consumers.processes.sagas.context import SagaContext
from consumers.processes.sagas.rules import Saga, on_message, on_start, on_timer

__all__ = ["Blackboard", "BoardState"]

_MAX_KEPT: Final = 16
"""Older versions that a read may ask for; the log has all of them."""


class BoardState(msgspec.Struct, kw_only=True):
    """One key."""

    key: str = ""
    version: int = 0
    now: dict[str, Any] = {}
    """The value as sent in blackboard.value; empty if there is none."""
    before: list[dict[str, Any]] = []


class Blackboard(Saga[BoardState], version="1.0.0"):
    """A blackboard that other agents write and read; every write names the version that it has seen.

        class Board(Blackboard, version="1.0.0", name="blackboard"):
            owners = {"findings/": ["researcher@svc"], "": ["*@svc"]}

        app.add(Board)

    *owners*: prefix of keys -> globs of the agents that may write there; the longest prefix counts. Empty: everybody
    whom the policy lets.
    """

    owners: ClassVar[Mapping[str, Sequence[str]]] = MappingProxyType({})

    @on_start(BlackboardWrite, key="/data/key", shared_key=True)
    async def first_write(self, write: BlackboardWrite, context: SagaContext) -> BlackboardWritten | BlackboardConflict:
        return self._write(write, context)

    @on_message(BlackboardWrite, key="/data/key", admits="anyone")
    async def write(self, write: BlackboardWrite, context: SagaContext) -> BlackboardWritten | BlackboardConflict:
        return self._write(write, context)

    @on_start(BlackboardRead, key="/data/key", shared_key=True)
    async def first_read(self, read: BlackboardRead, context: SagaContext) -> BlackboardValue:
        return self._read(read)

    @on_message(BlackboardRead, key="/data/key", admits="anyone")
    async def read(self, read: BlackboardRead, context: SagaContext) -> BlackboardValue:
        return self._read(read)

    @on_timer("keep")
    async def forget(self, context: SagaContext) -> None:
        self._turn({})

    def _write(self, write: BlackboardWrite, context: SagaContext) -> BlackboardWritten | BlackboardConflict:
        state, writer = self.state, context.message.metadata.sender.id or ""
        self._check_owner(write.key, writer)
        state.key = write.key
        if write.expected_version != state.version:
            return BlackboardConflict(
                key=write.key,
                expected_version=write.expected_version,
                current_version=state.version,
                written_by=state.now.get("written_by"),
            )
        written: dict[str, Any] = {
            "written_by": writer,
            "written_at": datetime.fromtimestamp(context.now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "written": context.message.seal,
            "trust_level": context.labels.level,
        }
        if write.delete:
            self._turn({})
        else:
            content = {"ref": msgspec.to_builtins(write.ref)} if write.ref is not None else {"value": write.value}
            self._turn(content | written)
        if write.keep_s is not None:
            context.timer("keep", write.keep_s)
        return BlackboardWritten(key=write.key, version=state.version)

    def _turn(self, content: dict[str, Any]) -> None:
        state = self.state
        if state.now:
            state.before = [{"version": state.version, **state.now}, *state.before][:_MAX_KEPT]
        state.version, state.now = state.version + 1, content

    def _read(self, read: BlackboardRead) -> BlackboardValue:
        state = self.state
        state.key = read.key
        wanted, version = state.now, state.version
        if read.version is not None and read.version != state.version:
            older = next((each for each in state.before if each["version"] == read.version), None)
            if older is None:
                raise Reject(f"version {read.version} of {read.key} is not stored here; read it from the log")
            wanted, version = {name: value for name, value in older.items() if name != "version"}, read.version
        provided: dict[str, Any] = dict(wanted)
        if (ref := provided.pop("ref", None)) is not None:
            provided["ref"] = msgspec.convert(ref, Ref)
        if (at := provided.pop("written_at", None)) is not None:
            provided["written_at"] = datetime.fromisoformat(at)
        if not wanted:
            version = 0 if state.version == 0 else version
        return BlackboardValue(key=read.key, version=version, history=tuple(state.before[: read.history]), **provided)

    def _check_owner(self, key: str, writer: str) -> None:
        if not self.owners:
            return
        prefix = max((each for each in self.owners if key.startswith(each)), key=len, default=None)
        if prefix is None or not compile_globs(tuple(self.owners[prefix])).match(writer):
            raise Reject(f"{writer} does not own {key}")
