"""Large results: what a `task.result` has beyond the limit of a message goes into the artifact store.

The requester gets a reference with its hash among the result's `artifacts`, and opens it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from bus.payloads.payload_types import encode_payload
from bus.redaction import cut
from bus.telemetry.logs import get_logger

if TYPE_CHECKING:
    from producers.publisher import Publisher

__all__ = ["RESULT_TYPE", "moved_out"]

RESULT_TYPE: Final = "TaskResult"
"""The name of the class whose values may be moved out."""
_ENVELOPE_BYTES: Final = 65_536
"""What the rest of the message may take."""
_SUMMARY: Final = 2_000

_log = get_logger("artifacts")


async def moved_out(returned: Any, publisher: Publisher) -> Any:
    """Return *returned*, what a handler returned; a `TaskResult` over the limit without its output and long summary.

    Where no artifact store is set it is returned as it is, and refused as too large later.
    """
    from bus.artifacts.store import has_artifacts
    from bus.vocabulary.task import TaskResult

    limit = publisher.settings.publish.max_message_bytes - _ENVELOPE_BYTES
    if not isinstance(returned, TaskResult) or not has_artifacts(publisher.settings):
        return returned
    if len(encode_payload(returned)) <= limit:
        return returned
    moved = {name: value for name in ("output", "summary", "findings") if (value := getattr(returned, name))}
    ref = await publisher.artifacts.put(msgspec.json.encode(moved), media_type="application/json")
    _log.info("artifacts.result_moved", bytes=ref.size, uri=ref.uri)
    return msgspec.structs.replace(
        returned,
        output=None,
        findings=(),
        summary=None if returned.summary is None else cut(returned.summary, _SUMMARY),
        artifacts=(*returned.artifacts, ref),
    )
