"""How many messages of 1 KB one core converts in a second, in each dialect and each way, and how many payloads it
reads and judges by their rules: `python tests/benchmarks/dialects.py [--seconds 1]`.

A message is decoded from bytes, and encoded from the sealed message to a dict. Prints one row each, and whether it
keeps to its goal: 5,000 conversions a second, 20,000 payloads a second.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bus.dialects import Claims, Foreign, dialect
from bus.dialects.foreign import ForeignOptions
from bus.dialects.sealing import seal_foreign
from bus.payloads.rules import check_rules
from bus.protocol import canonical
from bus.protocol.envelope import Agent, Security
from bus.protocol.sealing import Message
from bus.vocabulary import BUILT_IN
from bus.vocabulary.approval import hash_of

SIZE = 1024
CONVERSIONS, PAYLOADS = 5_000, 20_000
IDS = ("7e1a6b3e-3a74-4c7a-8c6f-2e21b8f59f44", "2fbb2e8b-1c6a-4a53-a2b9-f90d15c7f9f7")
SENT_MS = 1_767_225_600_000
FINDINGS = [
    {"type": "bug", "claim": "dereferenced without a check", "file": f"src/mapper_{line}.py", "line": line}
    for line in (42, 67)
]
REFS = [{"uri": f"artifact://test-output/{number}"} for number in (712, 713)]
INPUTS = {"repository": "org/backend-service", "pr_number": 1842, "files": ["a.py", "b.py"], "ratio": 0.25, "deep": [1]}
ACTION = {"type": "deploy", "description": "put release 7 into production", "ref": {"uri": "diff://patch-1842"}}
SCOPE = {"include": ["src/**"], "exclude": ["infra/**"]}
WORK = {
    "goal": "Find the root cause of the failing test",
    "inputs": INPUTS,
    "scope": SCOPE,
    "acceptance_criteria": ["file and line", "no change of code"],
    "budget": {"max_tokens": 20_000, "max_tool_calls": 20},
}
# Type -> data and the member that is padded.
DATA: dict[str, tuple[dict[str, Any], str]] = {
    "task.request": ({**WORK, "return_contract": {"expected_message_type": "x", "schema": "x@1"}}, "goal"),
    "task.handoff": (
        {
            "task_id": "task-1",
            "from_agent": "planner-1",
            "to_agent": "worker-1",
            "task_spec": {"action": "draft_review", "input": {**INPUTS, "findings": FINDINGS}},
            "x_note": "",
        },
        "x_note",
    ),
    "task.result": ({"status": "completed", "summary": "", "findings": FINDINGS, "evidence_refs": REFS}, "summary"),
    "method.request": ({"method": "create_project", "parameters": {**INPUTS}, "x_note": ""}, "x_note"),
    "act.request": ({"content": {**INPUTS, "findings": FINDINGS}, "attachments": REFS, "x_note": ""}, "x_note"),
    "event.observed": (
        {"event": "merged", "subject": "s", "occurred_at": "2026-01-31T12:00:00.000Z", "data": INPUTS},
        "subject",
    ),
    "review.result": (
        {
            "verdict": "changes_requested",
            "summary": "",
            "items": [{"severity": "high", "category": "correctness", "finding": "f", "blocking": True}] * 3,
            "required_actions": [{"type": "add_test", "reason": "none covers it"}],
        },
        "summary",
    ),
    "approval.request": (
        {
            "approval_id": "release-7",
            "action": ACTION,
            "action_hash": hash_of(ACTION),
            "reason": "r",
            "risk_assessment": {"risk_level": "medium"},
            "evidence_refs": REFS,
        },
        "reason",
    ),
    "evidence.observed": (
        {"claim": "c", "evidence": [{"type": "log", "ref": REFS[0], "excerpt": "e", "confidence": 0.9}] * 3},
        "claim",
    ),
}
SAID_AS = {
    "layered": "task.handoff",
    "evidence": "task.request",
    "plain-ids": "method.request",
    "speech-acts": "act.request",
    "frameworks": "task.request",
    "cloudevents": "event.observed",
}


def padded(name: str, room: int) -> dict[str, Any]:
    """Data of type *name*, to which *room* characters are added."""
    data, member = DATA[name]
    return {**data, member: data[member] + "x" * room}


def sealed(name: str, room: int) -> Message:
    kind = BUILT_IN.get(name)
    assert kind is not None
    options = ForeignOptions(
        message_id=IDS[0],
        to=Agent(id="worker-1", type="agent", role="tester"),
        conversation_id="conversation-1",
        correlation_id=IDS[1],
        task_id="task-1",
        priority=7,
        security=Security(trust_level="user_request", policy_tags=("no_network",)),
        expires_at_ms=SENT_MS + 90_000,
    )
    claims = Claims(sender=Agent(id="planner-1", type="agent", version="1.4.2"), sent_at_ms=SENT_MS)
    foreign = Foreign(type=name, version=kind.version, data=padded(name, room), options=options, claims=claims)
    return seal_foreign(foreign, namespace="lab")


def layered(room: int) -> bytes:
    """A message of `layered` in its four layers, with a hash of its data."""
    data = {
        "content": {"action": "draft_code_review", "findings": FINDINGS, "note": "x" * room},
        "parameters": {"target_length": "concise", "format": "markdown"},
        "results": None,
        "artifacts": [],
    }
    metadata = {
        "message_id": "msg-8f3a1b2c",
        "task_id": "task-1",
        "correlation_id": "corr-1",
        "sender_agent_id": "planner-1",
        "sender_agent_version": "2.1.0",
        "receiver_agent_id": "worker-1",
        "timestamp": "2026-01-31T12:00:00.482Z",
        "ttl_seconds": 600,
    }
    verification = {
        "schema_version": "2.1.0",
        "content_hash": canonical.digest(canonical.encode(data)),
        "content_hash_algorithm": "sha256",
        "agent_signature": None,
    }
    routing = {"priority": "high", "max_retries": 2, "retry_backoff": "exponential", "idempotency_key": "idem-1"}
    message = {"data": data, "metadata": metadata, "verification": verification, "routing": routing}
    return json.dumps(message, separators=(",", ":")).encode()


def rate(work: Callable[[], object], seconds: float) -> float:
    """Calls of *work* in a second of processor time."""
    work()
    count, started_s = 0, time.process_time()
    while (took_s := time.process_time() - started_s) < seconds:
        for _ in range(50):
            work()
        count += 50
    return count / took_s


def conversions() -> Iterator[tuple[str, str, bytes, Message]]:
    for name, kind in SAID_AS.items():
        codec = dialect(name)

        def size(room: int, name: str = name, kind: str = kind) -> int:
            return len(canonical.encode(dialect(name).encode(sealed(kind, room))))

        room = max(0, SIZE - size(0))
        value = canonical.encode(codec.encode(sealed(kind, room)))
        yield name, kind, value, seal_foreign(codec.decode(value), namespace="lab")
    value = layered(SIZE - len(layered(0)))
    yield "layered", "in layers", value, seal_foreign(dialect("layered").decode(value), namespace="lab")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0, help="of processor time for each figure")
    seconds = parser.parse_args().seconds
    print(f"{'dialect':12} {'type':18} {'bytes':>6} {'decode/s':>10} {'encode/s':>10}  goal {CONVERSIONS}")
    for name, kind, value, message in conversions():
        codec = dialect(name)
        decoded = rate(lambda codec=codec, value=value: codec.decode(value), seconds)  # type: ignore[misc]
        encoded = rate(lambda codec=codec, message=message: codec.encode(message), seconds)  # type: ignore[misc]
        verdict = "ok" if min(decoded, encoded) >= CONVERSIONS else "too slow"
        print(f"{name:12} {kind:18} {len(value):6} {decoded:10.0f} {encoded:10.0f}  {verdict}")
    print(f"\n{'type':31} {'bytes':>6} {'read and judged/s':>21}  goal {PAYLOADS}")
    for kind_name in DATA:
        kind = BUILT_IN.get(kind_name)
        assert kind is not None
        room = max(0, SIZE - len(canonical.encode(padded(kind_name, 0))))
        data = canonical.encode(padded(kind_name, room))

        def judge(kind: Any = kind, data: bytes = data) -> None:
            check_rules(kind.rules, kind.decode(data), data)

        judged = rate(judge, seconds)
        print(f"{kind_name:31} {len(data):6} {judged:21.0f}  {'ok' if judged >= PAYLOADS else 'too slow'}")


if __name__ == "__main__":
    main()
