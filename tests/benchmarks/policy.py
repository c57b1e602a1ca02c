"""What a decision costs: `python tests/benchmarks/policy.py [--rules 200]`.

Prints microseconds per decision of a policy, for facts that were decided before and for facts that are new each time,
the time to read and index the file, and the time of a check.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import msgspec

from bus.trust.policy.check import check_policy
from bus.trust.policy.decision import decide_request
from bus.trust.policy.facts import Request
from bus.trust.policy.file import parse_policy
from bus.trust.policy.rules import PolicyRules

ASKED = Request(
    action="handle",
    actor="worker-7@svc",
    message_type="area-7.task.request",
    major=1,
    namespace="prod",
    group="worker-7",
    resource="src/area-7/main.py",
    side_effect="write",
    level="user_request",
    classification="internal",
    tags=frozenset({"eu"}),
    signed=True,
    algorithm="asymmetric",
    via=("planner@svc", "ann@home"),
    via_complete=True,
    first=False,
    performative="request",
    lift_to=None,
    now_ms=0,
)

_BLOCK = """
[[agents]]
id = "worker-{number}@svc"
owner = "team-{team}"
capabilities = ["area-{number}"]

[[rules]]
id = "publish-{number}"
effect = "allow"
action = "publish"
capabilities = "area-{number}"
types = ["area-{number}.**", "status.update"]

[[rules]]
id = "handle-{number}"
effect = "allow"
action = ["handle", "read"]
agents = "worker-{number}@svc"
types = "area-{number}.*.request"
resources = "src/area-{number}/**"
[rules.when]
trust_at_least = "user_request"
classification_at_most = "confidential"

[[rules]]
id = "deny-{number}"
effect = "deny"
action = ["publish", "handle"]
types = "area-{number}.**"
when.tags_all = "frozen-{number}"

[[rules]]
id = "approve-{number}"
effect = "need"
action = "handle"
types = "area-{number}.deploy.**"
require_approval = "human"
approvers = "*@home"
"""


def policy_text(count: int) -> str:
    """A policy of *count* rules: mostly who may publish and handle what, some denials and approvals."""
    return "".join(_BLOCK.format(number=number, team=number % 7) for number in range(count // 4))


def cost_us(function: Callable[[Request], object], requests: list[Request]) -> float:
    """The least time of five rounds, per request."""
    best = float("inf")
    for _ in range(5):
        gc.collect()
        started = time.perf_counter()
        for request in requests:
            function(request)
        best = min(best, (time.perf_counter() - started) / len(requests))
    return best * 1e6


def fresh(count: int) -> list[Request]:
    """Requests that differ, of types and agents that repeat as in life."""
    return [
        msgspec.structs.replace(
            ASKED,
            actor=f"worker-{number % 50}@svc",
            message_type=f"area-{number % 50}.task.request",
            resource=f"src/area-{number % 50}/file-{number}.py",
        )
        for number in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=int, default=200)
    count = parser.parse_args().rules
    text = policy_text(count)
    started = time.perf_counter()
    rules: PolicyRules = parse_policy(text, name="benchmark")
    decide_request(rules, ASKED)
    print(f"{len(rules.rules)} rules read and indexed in {(time.perf_counter() - started) * 1e3:.1f} ms")
    print(f"decided before: {cost_us(lambda request: decide_request(rules, request), [ASKED] * 20_000):.2f} us")
    print(f"new facts:      {cost_us(lambda request: decide_request(rules, request), fresh(20_000)):.2f} us")
    started = time.perf_counter()
    check_policy(rules)
    print(f"check:          {(time.perf_counter() - started) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
