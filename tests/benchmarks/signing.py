"""What signatures cost: sealing and judging signed and unsigned messages, side by side, in microseconds per message.

make test ARGS=--version; .venv-test/bin/python tests/benchmarks/signing.py
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.transports.base import Assignment, Record
from bus.trust.keys.generated_keys import GeneratedKeys
from bus.trust.keys.signature_algorithms import ed25519_checker
from consumers.app.app import App
from consumers.delivery.group_plan import make_plan
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.resilience.retry_clock import RetryClock
from consumers.delivery.state.partition import Partition
from producers.sealing.options import Outgoing
from producers.sealing.sealer import make_sealer
from sealbus import payload

_COUNT = 2000
_ROUNDS = 5


@payload("bench.signed", version="1.0.0")
class Signed(msgspec.Struct):
    number: int
    text: str


def us_per_call(work: Callable[[int], Any]) -> float:
    """Return the median of several rounds, in microseconds of processor time; each call has a number of its own."""
    found = []
    for turn in range(_ROUNDS):
        began = time.process_time()
        for number in range(turn * _COUNT, (turn + 1) * _COUNT):
            work(number)
        found.append((time.process_time() - began) / _COUNT * 1e6)
    return statistics.median(found)


def judged(app: App, records: list[Record]) -> float:
    """Return what judging *records* costs."""
    settings, clock = load(env={}, file=None).settings, SystemClock()
    plan = make_plan(app.declaration, settings)
    verifier = RecordVerifier(plan.view, clock, RetryClock(clock, own=True), plan.tiers)
    partition = Partition(Assignment("agents.bench.signed", 0, 1), expected_type="bench.signed", own=False, tier=None)
    now_ms = clock.now_ms()
    for record in records[-10:]:
        assert verifier.judge(record, partition, now_ms) is not None
    return us_per_call(lambda number: verifier.judge(records[number], partition, now_ms))


def main() -> None:
    settings, clock = load(env={}, file=None).settings, SystemClock()
    keys = GeneratedKeys(clock.now_ms, b"bench")
    signer = keys.signer("bench@svc")
    plain = make_sealer(settings, "bench@svc", clock=clock)
    signing = make_sealer(settings, "bench@svc", clock=clock, signer=signer)
    draft = Outgoing(Signed(number=1, text="x" * 700))
    raw = signer.sign(b"y" * 600)
    check = ed25519_checker(signer.public)
    figures = {
        "Ed25519 sign": us_per_call(lambda _: signer.sign(b"y" * 600)),
        "Ed25519 verify": us_per_call(lambda _: check(raw, b"y" * 600)),
        "seal unsigned": us_per_call(lambda _: plain.seal(draft)),
        "seal signed": us_per_call(lambda _: signing.seal(draft)),
    }
    for name, sealer in (("unsigned", plain), ("signed", signing)):
        sealed = [sealer.seal(draft).record for _ in range(_COUNT * _ROUNDS)]
        records = [
            Record(each.topic, 0, at, clock.now_ms(), each.key, each.value, each.headers)
            for at, each in enumerate(sealed)
        ]
        app = App("bench@svc", verifier=keys if name == "signed" else None)

        @app.on(Signed)
        async def handle(_: Signed) -> None: ...

        figures[f"judge {name}"] = judged(app, records)
    for name, value in figures.items():
        print(f"{name:16} {value:7.1f} us")
    for what, algorithm in (("seal", "sign"), ("judge", "verify")):
        more = figures[f"{what} signed"] - figures[f"Ed25519 {algorithm}"] - figures[f"{what} unsigned"]
        print(f"{what}: beyond the algorithm {more:+.1f} us, {more / figures[f'{what} unsigned']:+.0%} of unsigned")


if __name__ == "__main__":
    main()
