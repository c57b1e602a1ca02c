"""The states of a task as messages of the dialect `frameworks`: `status_update` and `error`. Pure.

These are no sealed messages: the gateway tells its client of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.protocol.timestamps import format_ms
from consumers.processes.tasks.snapshot import TaskSnapshot

__all__ = ["status_frame"]

_ROUTING: Final = {
    "timeout": "60s",
    "retry_policy": {"max_retries": 0, "backoff": "linear"},
    "delivery_mode": "async",
}


def status_frame(shown: TaskSnapshot, names: Mapping[str, str], *, to: str, now_ms: float) -> dict[str, Any]:
    """Return the message that tells *to* of *shown*, with the ids that it knows."""
    is_error = shown.error is not msgspec.UNSET
    payload: dict[str, Any]
    if isinstance(shown.error, msgspec.Struct):
        payload = {"code": shown.error.code, "message": shown.error.message}
    else:
        payload = {"phase": shown.status}
        if shown.progress_pct is not msgspec.UNSET:
            payload["percent_complete"] = shown.progress_pct
        if shown.message is not msgspec.UNSET:
            payload["notes"] = shown.message
        if shown.questions is not msgspec.UNSET:
            payload["questions"] = shown.questions
    return {
        "message_id": f"msg_{shown.id}_{shown.generation}",
        "timestamp": format_ms(round(now_ms)),
        "sender": {"agent_id": shown.to, "framework": "sealbus"},
        "recipient": {"agent_id": to, "framework": "sealbus"},
        "message_type": "error" if is_error else "status_update",
        "priority": "medium",
        "payload": payload,
        "routing": _ROUTING,
        "metadata": {"task_id": names.get(shown.id, shown.id)},
    }
