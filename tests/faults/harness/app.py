"""The application under test: handlers that behave as their message says and write what they did into the ledger.

Owns the behaviours. What they are expected to lead to is `checker`'s. `FAULT_BUG` names a deliberate bug to be built in
before the worker starts (`bugs`), `FAULT_CLOCK` a file with seconds by which this process's wall clock is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from harness import bugs, clocks
from harness.ledger import Ledger
from harness.messages import AGENT, GROUP, Answer, Behaviour, Free, Item, Need, Strict, Task, behaviour_of
from harness.product import STRICT_ORDER

from bus.protocol.canonical import digest
from bus.protocol.timestamps import parse_ms
from sealbus import App, Context, DependencyDown, Reject, Retry, RetryLater

__all__ = ["app"]

TIER_S = 2.0
_WORKER = os.environ.get("FAULT_WORKER", "worker")
_LEDGER = Ledger(Path(os.environ.get("FAULT_LEDGER", "ledger")))
_FLAG = Path(os.environ.get("FAULT_FLAG", "dependency-is-down"))
_RETRY = Retry(attempts=6, backoff="constant", base_s=0.05, cap_s=60.0)

clocks.bend(os.environ.get("FAULT_CLOCK", ""))
bugs.build_in(os.environ.get("FAULT_BUG", ""))
app = App(AGENT, group=GROUP, types=[Answer])


@app.on(Task, retry=_RETRY, timeout_s=120)
async def handle_task(item: Task, context: Context) -> Answer | None:
    return await _handle(item, context)


@app.on(Strict, retry=_RETRY, timeout_s=120, order=STRICT_ORDER)
async def handle_strict(item: Strict, context: Context) -> Answer | None:
    return await _handle(item, context)


@app.on(Free, retry=_RETRY, timeout_s=120, order="none")
async def handle_free(item: Free, context: Context) -> Answer | None:
    return await _handle(item, context)


@app.on(Need, retry=_RETRY, timeout_s=120)
async def handle_need(item: Need, context: Context) -> Answer | None:
    if _FLAG.exists():
        raise DependencyDown("the-database")
    return await _handle(item, context)


async def _handle(item: Item, context: Context) -> Answer | None:
    behaviour = behaviour_of(item.behaviour)
    await _suffer(item, context, behaviour)
    _note("effect", item, context)
    if behaviour.word == "answer":
        return Answer(number=item.number, worker=_WORKER, nonce=os.urandom(6).hex())
    return None


async def _suffer(item: Item, context: Context, behaviour: Behaviour) -> None:
    """Whatever *behaviour* puts before the effect."""
    before = _BEFORE.get(behaviour.word)
    if before is not None:
        await before(item, context, behaviour.amount)


async def _fail_in_lane(item: Item, context: Context, times: float) -> None:
    if _LEDGER.failures(context.message.message_id) < times:
        _note("failed", item, context)
        raise RuntimeError("fails in its lane")


async def _fail_into_tier(item: Item, context: Context, times: float) -> None:
    if _LEDGER.failures(context.message.message_id) < times:
        _note("failed", item, context)
        raise RetryLater(after_s=TIER_S)


async def _fail_always(item: Item, context: Context, _: float) -> None:
    await _fail_into_tier(item, context, math.inf)


async def _reject(*_: object) -> None:
    raise Reject("as asked")


async def _reject_until_repaired(*_: object) -> None:
    # An operator repairs what it complains about by removing the flag, then sends it back.
    if _FLAG.exists():
        raise Reject("not repaired yet")


async def _crash(item: Item, context: Context, _: float) -> None:
    _note("began", item, context)
    os._exit(13)


async def _be_slow(item: Item, context: Context, for_s: float) -> None:
    _note("began", item, context)
    try:
        await asyncio.sleep(for_s)
    except asyncio.CancelledError:
        _note("cut", item, context)
        raise


async def _block(item: Item, context: Context, for_s: float) -> None:
    """Hold the event loop, the first time only: whoever takes the message over is to get through."""
    _note("began", item, context)
    marker = _FLAG.with_name(f"blocked-{context.message.message_id}")
    if not marker.exists():
        marker.touch()
        time.sleep(for_s)  # noqa: ASYNC251 - that is the fault


async def _pay(_: Item, context: Context, after_s: float) -> None:
    """An effect in the inbox's own transaction."""
    await asyncio.sleep(after_s)
    message = context.message
    transaction = await context.transaction()
    await transaction.execute("CREATE TABLE IF NOT EXISTS payments (idempotency_key TEXT, message_id TEXT)")
    await transaction.execute(
        "INSERT INTO payments VALUES ($1, $2)", message.routing.idempotency_key, message.message_id
    )


async def _pay_whatever_comes(item: Item, context: Context, after_s: float) -> None:
    """The same, by a handler that does not listen when it is cancelled: it ends when others have long taken over."""
    ends_s = time.monotonic() + after_s
    while (left_s := ends_s - time.monotonic()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(left_s)
    await _pay(item, context, 0.0)


_BEFORE: dict[str, Callable[[Any, Context, float], Awaitable[None]]] = {
    "block": _block,
    "crash": _crash,
    "deafpay": _pay_whatever_comes,
    "lane": _fail_in_lane,
    "never": _fail_always,
    "pay": _pay,
    "reject": _reject,
    "slow": _be_slow,
    "slowpay": _pay,
    "tier": _fail_into_tier,
    "until": _reject_until_repaired,
}


def _note(kind: str, item: Item, context: Context) -> None:
    message = context.message
    _LEDGER.note(
        clocks.true_ms(),
        _WORKER,
        os.getpid(),
        kind,
        message.message_type,
        message.message_id,
        message.routing.idempotency_key or "",
        message.key.decode(),
        item.number,
        context.attempt,
        parse_ms(message.routing.expires_at) or 0,
        digest(message.value),
    )
