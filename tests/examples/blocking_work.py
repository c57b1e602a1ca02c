"""Blocking work: an ordinary function runs in a thread of its own, so that it does not stop everything else.

sealbus run blocking_work:app --concurrency 8
"""

from __future__ import annotations

import hashlib
import time

import msgspec

from sealbus import App, Context, payload


@payload("digest.request")
class DigestRequest(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    rounds: int = 1000


@payload("digest.output")
class Digest(msgspec.Struct, frozen=True, kw_only=True):
    hex: str


@payload("digest.begun", risk="low")
class Begun(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int


app = App("digester@svc", types=[Begun])


@app.on(DigestRequest, blocking=True, timeout_s=60)
def digest(request: DigestRequest, context: Context) -> Digest:
    context.send(Begun(rounds=request.rounds))  # leaves when this succeeds
    found = request.text.encode()
    for _ in range(request.rounds):
        found = hashlib.sha256(found).digest()
    return Digest(hex=found.hex())


async def test_it_digests_beside_the_event_loop() -> None:
    async with app.test() as bus:
        started_s = time.monotonic()
        for number in range(4):
            await bus.publish(DigestRequest(text=str(number)))
        await bus.settle()
        bus.assert_all_handled()
        assert (len(bus.sent(Digest)), len(bus.sent(Begun))) == (4, 4)
        assert time.monotonic() - started_s < 10
