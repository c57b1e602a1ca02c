"""The payloads of dialect 004, member by member. Pure.

Owns the table of each kind of payload. `bus.dialects.seed004` reads and writes the message around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bus.dialects.data_check import Places
from bus.dialects.faults import MISSING, shown
from bus.dialects.forms import FLAG, LIST, OBJECT, TEXT, VALUE, Form, UnfitValueError, one_of
from bus.dialects.keeping import Notes, Source, Target
from bus.dialects.opened_message import OpenedMessage
from bus.dialects.typed_content import says_all, write_typed
from bus.errors import DialectError
from bus.protocol.timestamps import format_ms

__all__ = ["KINDS", "PLACES", "READERS", "TYPED_PLACES", "TYPES", "MessageRest", "task_in_data", "write_payload"]

TYPES: Final = {
    "task_request": "task.request",
    "task_response": "task.result",
    "status_update": "status.update",
    "error": "error.reported",
    "heartbeat": "agent.heartbeat",
}
KINDS: Final = {name: kind for kind, name in TYPES.items()}


def task_in_data(opened: OpenedMessage, kind: str) -> str | None:
    """Return the task that the data of a message of *kind* name."""
    field = {"status_update": "task_id", "error": "source_task_id"}.get(kind)
    return opened.data.get(field) if field is not None else None


class MessageRest:
    """What the payloads take from the rest of the message."""

    def __init__(self, notes: Notes, sender: str, sent_ms: int, task_id: str | None, details: Source | None) -> None:
        self.notes = notes
        self.sender = sender
        self.sent_ms = sent_ms
        self.task_id = task_id
        self.details = details

    def source(self, payload: Any) -> Source:
        """Return *payload* as an object to read."""
        if payload.__class__ is not dict:
            raise DialectError("/payload", shown(payload), OBJECT.expected)
        if not payload:
            self.notes.kept["/payload"] = {}
        return Source(payload, "/payload", self.notes, nulls=True)


_REQUEST: Final = {"task_type": "task_type", "goal": "goal", "acceptance_criteria": "acceptance_criteria"}


def _read_request(payload: Any, rest: MessageRest) -> dict[str, Any]:
    if payload.__class__ is str and payload:
        rest.notes.kept["/payload"] = payload
        return {"goal": payload}
    source, data = rest.source(payload), dict[str, Any]()
    source.take(data, _REQUEST)
    if "goal" not in data:
        if "task_type" not in data:
            raise source.fault("goal", MISSING, "a goal or a task_type")
        rest.notes.derive(data, "goal", data["task_type"])
    if inputs := source.rest():
        data["inputs"] = inputs
    return data


def _write_request(opened: OpenedMessage, target: Target) -> bool:
    data = opened.data
    inputs = data.get("inputs", {})
    if not says_all(data, (*_REQUEST, "inputs")) or inputs.keys() & _REQUEST.keys():
        return False
    if data.keys() == {"goal"} and opened.kept.get("/payload") == data["goal"]:
        target.put_plain("payload", data["goal"])
        return True
    part = target.inside("payload", is_open=False)
    is_derived = opened.is_derived("/goal", data.get("task_type"))
    part.put_all({**data, "goal": None} if is_derived else data, _REQUEST)
    for name, value in inputs.items():
        part.put_plain(name, value)
    return True


_RESPONSE: Final = {"status": "status", "summary": "summary", "error": "error"}
_FINDING: Final = {
    "message": "claim",
    "type": "type",
    "file": "file",
    "line": "line",
    "severity": "severity",
    "confidence": "confidence",
    "evidence_refs": "evidence_refs",
}
_STATUS: Final = one_of(("completed", "failed", "cancelled"))
_NO_ERROR: Final = {"code": "FAILED", "message": "failed"}


def _read_response(payload: Any, rest: MessageRest) -> dict[str, Any]:
    source = rest.source(payload)
    data: dict[str, Any] = {"status": source.required("status", _STATUS)}
    source.take(data, {"summary": "summary", "error": "error"})
    if data["status"] == "failed" and "error" not in data:
        rest.notes.derive(data, "error", {**_NO_ERROR})
    if source.has("findings") and (findings := _read_findings(source)) is not None:
        data["findings"] = findings
    if output := source.rest():
        data["output"] = output
    return data


def _read_findings(source: Source) -> list[dict[str, Any]] | None:
    if source.peek("findings") is None:
        source.optional("findings", LIST)
        return None
    findings = []
    for item in source.items("findings"):
        finding: dict[str, Any] = {}
        item.take(finding, _FINDING)
        item.keep_rest()
        findings.append(finding)
    return findings


def _write_response(opened: OpenedMessage, target: Target) -> bool:
    data = opened.data
    output, findings = data.get("output", {}), data.get("findings")
    if not says_all(data, (*_RESPONSE, "findings", "output")) or output.keys() & {*_RESPONSE, "findings"}:
        return False
    if any("message" in finding for finding in findings or ()):
        return False
    part = target.inside("payload", is_open=False)
    part.put("status", _STATUS, data["status"])
    part.put("summary", VALUE, data.get("summary"))
    part.put("error", VALUE, None if opened.is_derived("/error", _NO_ERROR) else data.get("error"))
    part.put("findings", LIST, None) if findings is None else _write_findings(part, findings)
    for name, value in output.items():
        part.put_plain(name, value)
    return True


def _write_findings(part: Target, findings: list[dict[str, Any]]) -> None:
    for item, finding in zip(part.items("findings", len(findings), is_open=True), findings, strict=True):
        item.put_all(finding, _FINDING)
        for name in finding.keys() - set(_FINDING.values()):
            item.put_plain(name, finding[name])


_UPDATE: Final = {"phase": "phase", "notes": "notes"}


def _read_percent(value: Any) -> int:
    if value.__class__ not in (int, float) or not 0 <= value <= 100:  # noqa: PLR2004 - percent
        raise UnfitValueError
    return int(value)


_PERCENT: Final = Form("a number from 0 to 100", _read_percent, lambda whole_percent: whole_percent)


def _read_update(payload: Any, rest: MessageRest) -> dict[str, Any]:
    source = rest.source(payload)
    data: dict[str, Any] = {"task_id": rest.task_id}
    source.take(data, _UPDATE)
    progress = source.optional("percent_complete", _PERCENT)
    if progress is not None:
        data["progress_pct"] = progress
    rest.notes.derive(data, "new_status", "running")
    rest.notes.derive(data, "timestamp", format_ms(rest.sent_ms))
    source.keep_rest()
    return data


def _write_update(opened: OpenedMessage, target: Target) -> bool:
    data = opened.data
    if not says_all(data, (*_UPDATE, "task_id", "progress_pct", "new_status", "timestamp")):
        return False
    if data["new_status"] != "running" or opened.metadata.task_id not in (None, data["task_id"]):
        return False
    part = target.inside("payload")
    part.put_all(data, _UPDATE)
    part.put("percent_complete", _PERCENT, data.get("progress_pct"))
    return True


def _read_details(value: Any) -> dict[str, Any]:
    return {"text": value} if value.__class__ is str else OBJECT.read(value)


def _write_details(details: dict[str, Any]) -> Any:
    return details["text"] if details.keys() == {"text"} and isinstance(details["text"], str) else details


_DETAILS: Final = Form("an object or a text", _read_details, _write_details)


def _read_error(payload: Any, rest: MessageRest) -> dict[str, Any]:
    source = rest.source(payload)
    data: dict[str, Any] = {
        "error_code": source.required("code", TEXT),
        "error_message": source.required("message", TEXT),
    }
    rest.notes.derive(data, "source_agent", rest.sender)
    rest.notes.derive(data, "timestamp", format_ms(rest.sent_ms))
    details = source.optional("details", _DETAILS)
    if details is not None:
        data["details"] = details
    if rest.task_id is not None:
        data["source_task_id"] = rest.task_id
    if rest.details is not None:
        retryable = rest.details.optional("retryable", FLAG)
        if retryable is not None:
            data["retryable"] = retryable
    source.keep_rest()
    return data


def _write_error(opened: OpenedMessage, target: Target) -> bool:
    """Say an error; what only helps to read it, such as its severity, is left out."""
    part = target.inside("payload")
    part.put("code", TEXT, opened.data["error_code"])
    part.put("message", TEXT, opened.data["error_message"])
    part.put("details", _DETAILS, opened.data.get("details"))
    return True


_HEARTBEAT: Final = {"status": "status", "active_tasks": "active_tasks", "cpu": "cpu", "memory": "memory_mb"}


def _read_heartbeat(payload: Any, rest: MessageRest) -> dict[str, Any]:
    source, data = rest.source(payload), dict[str, Any]()
    source.take(data, _HEARTBEAT)
    source.keep_rest()
    return data


def _write_heartbeat(opened: OpenedMessage, target: Target) -> bool:
    if not says_all(opened.data, _HEARTBEAT.values()):
        return False
    part = target.inside("payload")
    part.put_all(opened.data, _HEARTBEAT)
    return True


READERS: Final[dict[str, Callable[[Any, MessageRest], dict[str, Any]]]] = {
    "task_request": _read_request,
    "task_response": _read_response,
    "status_update": _read_update,
    "error": _read_error,
    "heartbeat": _read_heartbeat,
}
_WRITERS: Final[dict[str, Callable[[OpenedMessage, Target], bool]]] = {
    "task_request": _write_request,
    "task_response": _write_response,
    "status_update": _write_update,
    "error": _write_error,
    "heartbeat": _write_heartbeat,
}
TYPED_PLACES: Final[Places] = {"": "/payload/data"}
# A field that is not named here has the name of its member.
PLACES: Final[dict[str, Places]] = {
    "task_request": {"": "/payload", "/inputs": "/payload"},
    "task_response": {"": "/payload", "/output": "/payload", "/findings/*/claim": "/payload/findings/*/message"},
    "status_update": {"": "/payload", "/progress_pct": "/payload/percent_complete", "/task_id": "/metadata/task_id"},
    "error": {
        "": "/payload",
        "/error_code": "/payload/code",
        "/error_message": "/payload/message",
        "/retryable": "/metadata/retryable",
        "/source_task_id": "/metadata/task_id",
    },
    "heartbeat": {"": "/payload", "/memory_mb": "/payload/memory"},
}


def write_payload(opened: OpenedMessage, target: Target) -> str:
    """Write the payload; return the kind of the message."""
    metadata = opened.metadata
    kind = KINDS.get(metadata.message_type)
    if kind is not None and not opened.was_typed("/payload/type") and _WRITERS[kind](opened, target):
        return kind
    target.put_plain("payload", write_typed(metadata.message_type, metadata.schema_version, opened.data))
    return "task_request" if opened.is_directive else "task_response"
