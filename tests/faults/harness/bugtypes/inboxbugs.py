"""Bugs of the inbox: what it remembers, for whom, and in which order.

Owns these patches. Each replaces one seam of the worker or of its inbox in this process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
from harness.bugs import Bug

from bus.protocol import sealing
from consumers.delivery.handling.claims import InboxClient
from consumers.delivery.handling.results import RunResults
from consumers.delivery.inbox import claim_rules as rules
from consumers.delivery.inbox import open as choosing
from consumers.delivery.inbox.base import AlreadyDone
from producers.sealing.sealed_record import sealed_as

__all__ = ["BUGS"]

_numbers = itertools.count()


def outputs_before_row() -> None:
    """Answers leave, and only then is it written down that the message is done."""
    finish = RunResults.store

    async def patched(self: RunResults, claim: Any, outputs: Sequence[Any], delivery: Any, *more: Any) -> bool:
        if outputs:
            await self._dispositions._send(outputs, delivery)
            await asyncio.sleep(0.1)
        return await finish(self, claim, outputs, delivery, *more)

    RunResults.store = patched


def fresh_bytes() -> None:
    """A repetition is answered with the same words in another message."""
    count_answer = InboxClient.count_answer

    def patched(self: InboxClient, claim: Any) -> Any:
        answer = count_answer(self, claim)
        return (
            AlreadyDone(tuple(_anew(output) for output in answer.outputs))
            if isinstance(answer, AlreadyDone)
            else answer
        )

    def _anew(output: Any) -> Any:
        message = sealing.parse(output.value)
        metadata = msgspec.structs.replace(message.metadata, message_id=f"{message.message_id}-{next(_numbers)}")
        parents = message.verification.parents or ()
        again = sealing.seal(
            message.data, metadata, message.routing, parents=parents, proof_chain=message.verification.proof_chain or ()
        )
        return sealed_as(again, output.topic).record

    InboxClient.count_answer = patched


def memory_only() -> None:
    opened = choosing.open_inbox

    def patched(_: str, **options: Any) -> Any:
        return opened("memory://", **options)

    choosing.open_inbox = patched


def lease_ignored() -> None:
    decide = rules.decide_claim

    def patched(row: Any, asker: Any, _: float | None) -> Any:
        return decide(row, asker._replace(running=False), -1.0)

    rules.decide_claim = patched


def stale_token() -> None:
    def patched(row: Any, *, owner: int, token: int, outputs: bytes) -> Any:
        return (
            None
            if row is None
            else msgspec.structs.replace(rules._freed(row), state="done", owner=owner, token=token, outputs=outputs)
        )

    rules.finished = patched


def key_ignored() -> None:
    InboxClient.key_of = lambda *_: None


def deaths_forgotten() -> None:
    rules._died = lambda row: msgspec.structs.replace(row, state="free", owner=rules.NOBODY, alone=False)


def claim_is_done() -> None:
    """What was begun counts as done."""
    claimed = rules._claimed

    def patched(row: Any, asker: Any) -> Any:
        decision = claimed(row, asker)
        return decision._replace(row=msgspec.structs.replace(decision.row, state="done"))  # type: ignore[type-var]

    rules._claimed = patched
    finished = rules.finished

    def again(row: Any, *, owner: int, token: int, outputs: bytes) -> Any:
        begun = None if row is None else msgspec.structs.replace(row, state="claimed")
        return finished(begun, owner=owner, token=token, outputs=outputs)

    rules.finished = again


def failure_is_done() -> None:
    """A run that failed and is given back counts as done."""

    async def release(self: InboxClient, claim: Any) -> None:
        if claim.transaction is not None:
            await claim.transaction.rollback()
        await self.inbox.finish(claim.key, claim.token, ())

    InboxClient.release = release


_TWICE = ("16-duplicates",)
BUGS = [
    Bug(
        "outputs-before-row",
        "answers leave before the result is durable",
        outputs_before_row,
        ("7-kill", "16-duplicates-kill"),
        ("ANSWERS",),
    ),
    Bug("fresh-bytes", "a repetition is answered with another message", fresh_bytes, _TWICE, ("ANSWERS", "I2")),
    Bug("memory-only", "what is done is remembered in memory only", memory_only, ("16-duplicates-kill",), ("I3",)),
    Bug("lease-ignored", "a message is claimed although a live worker has it", lease_ignored, _TWICE, ("I3",)),
    Bug(
        "stale-token",
        "a result is taken from a worker that was overtaken",
        stale_token,
        ("9-freeze",),
        ("I3", "ANSWERS"),
    ),
    Bug("key-ignored", "idempotency keys are not looked at", key_ignored, _TWICE, ("I3",)),
    Bug(
        "deaths-forgotten",
        "nobody counts whom a message has killed",
        deaths_forgotten,
        ("11-crash-loop",),
        ("I1", "I8"),
    ),
    Bug("claim-is-done", "a mark without a result counts as done", claim_is_done, ("7-kill",), ("I1", "I3", "ANSWERS")),
    Bug("failure-is-done", "a run that failed counts as done", failure_is_done, ("7-kill",), ("I1",)),
]
