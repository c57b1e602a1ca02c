"""End a process by hand, where no worker knows its saga any more."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from bus.errors import BusError
from bus.redaction import cut
from consumers.processes.sagas.history import history_in, interrupted
from consumers.processes.sagas.process import Ending, Memory, Process, pack
from consumers.processes.sagas.store import ProcessChange, ProcessStore

__all__ = ["end_process", "process_with_id"]


_MAX_WHY: Final = 400


async def end_process(
    store: ProcessStore, found: Process, why: str, *, keep_ms: int, now_ms: int, keeps: Collection[str] = ()
) -> bool:
    """End *found* by hand; of its state the members in *keeps* stay. Return False if it has changed meanwhile."""
    ending = Ending(outcome="cancelled", reason=cut(why, _MAX_WHY), where="sealbus workflow cancel")
    try:
        data = msgspec.json.decode(found.state or b"{}", type=Memory).data
    except msgspec.DecodeError:
        # The state of a built-in saga, or of newer code.
        data = {}
    memory = Memory(
        data={name: value for name, value in data.items() if name in keeps},
        ending=ending,
        history=interrupted(history_in(found.state), now_ms),
    )
    after = msgspec.structs.replace(found, version=found.version + 1, status="finished", state=pack(memory))
    return await store.change(ProcessChange(before=found, after=after, keep_ms=keep_ms))


async def process_with_id(store: ProcessStore, digits: str) -> Process:
    """Return the workflow whose id begins with *digits*, or that is known by that key. Raises BusError."""
    found = await store.named(digits)
    if len(found) == 1:
        return found[0]
    if not found:
        raise BusError(f"no workflow {digits!r}: `sealbus workflow list --all` shows them")
    raise BusError(f"{digits!r} begins the ids of several workflows: give more digits")
