"""Bugs in publishing: an outcome that is not true, an id that does not stay.

Owns these patches. Each replaces one seam of the publisher in this process.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from harness.bugs import Bug

from bus.protocol import sealing
from producers.outcomes import Receipt
from producers.publisher import Publisher
from producers.sealing.sealed_record import SealedRecord, sealed_as

__all__ = ["BUGS"]

_running: set[asyncio.Task[Any]] = set()


def new_id_on_resend() -> None:
    send = Publisher.send
    sent: set[str] = set()

    async def patched(self: Publisher, sealed: SealedRecord, *, timeout_s: float | None = None) -> Receipt:
        if sealed.message_id in sent:
            message = sealed.message
            metadata = msgspec.structs.replace(message.metadata, message_id=f"{message.message_id}-again")
            sealed = sealed_as(sealing.seal(message.data, metadata, message.routing), sealed.record.topic)
        sent.add(sealed.message_id)
        return await send(self, sealed, timeout_s=timeout_s)

    Publisher.send = patched


def accepted_before_acknowledged() -> None:
    send = Publisher.send

    async def patched(self: Publisher, sealed: SealedRecord, *, timeout_s: float | None = None) -> Receipt:
        async def late() -> None:
            await asyncio.sleep(0.3)
            await send(self, sealed, timeout_s=timeout_s)

        task = asyncio.get_running_loop().create_task(late())
        _running.add(task)
        task.add_done_callback(_running.discard)
        return Receipt(sealed.message_id, sealed.record.topic, 0, 0, 0)

    Publisher.send = patched


BUGS = [
    Bug("new-id-on-resend", "a message that is sent again gets another id", new_id_on_resend, ("7-kill",), ("I2",)),
    Bug(
        "accepted-before-acknowledged",
        "a receipt is given before the log has answered",
        accepted_before_acknowledged,
        ("6-publisher",),
        ("I1",),
    ),
]
