"""The payloads of dialect 001, where a type differs from data in more than spelling. Pure.

Owns the rows of the table that are special to one type, there and back. Everything else goes by the shape of the type
(`bus.dialects.seed001_forms`), `bus.dialects.seed001` reads and writes the message around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from bus.dialects.data_check import kind_of
from bus.dialects.faults import MISSING, kind_shown, shown
from bus.dialects.forms import UnfitValueError
from bus.dialects.keeping import ABSENT, MARK, Notes, is_kept_spelling
from bus.dialects.opened_message import OpenedMessage
from bus.dialects.payload_shapes import read_members, write_members
from bus.dialects.seed001_authority import HandoffFlags, kept_flags, read_flags
from bus.dialects.seed001_forms import OUTPUT_SCHEMA, places_for, shape_for
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol.timestamps import format_ms
from bus.vocabulary.approval import hash_of

__all__ = ["NO_NETWORK", "MessageAround", "PayloadAndRest", "kept_handoff", "kind_for", "read_payload", "write_payload"]

NO_NETWORK: Final = "no_network"
"""The policy tag for a task without a network."""


class MessageAround(msgspec.Struct, frozen=True):
    """What a payload takes from the message around it. *base* is the pointer of its members."""

    base: str
    notes: Notes
    message_id: str
    sender: str
    sent_ms: int
    correlation_id: str
    idempotency_key: str | None = None


class PayloadAndRest(msgspec.Struct):
    """What a payload says: data, and what is none of them."""

    data: dict[str, Any]
    places: dict[str, str]
    idempotency_key: str | None = None
    policy_tags: tuple[str, ...] = ()
    handoff: HandoffFlags = HandoffFlags()


def kind_for(kind: PayloadType, payload: Mapping[str, Any], base: str, types: Registry) -> PayloadType:
    """Return the version of *kind* that *payload* is of: the newest, or that of a review by comments alone."""
    if kind.name != "review.result" or "comments" not in payload:
        return kind
    if "items" in payload:
        raise DialectError(f"{base}/comments", kind_shown(payload["comments"]), "no such member beside items")
    return kind_of(types, kind.name, "1.0.0") or kind


def read_payload(kind: PayloadType, payload: dict[str, Any], head: MessageAround) -> PayloadAndRest:
    """Return what the *payload* of a message of *kind* says; raise DialectError."""
    members = dict(payload)
    if MARK in members:
        head.notes.kept[f"{head.base}/{MARK}"] = members.pop(MARK)
    read = PayloadAndRest({}, dict(places_for(kind, head.base)), head.idempotency_key)
    reader = _READERS.get(kind.name)
    if reader is None:
        read.data = _read_plain(kind, members, head)
    else:
        reader(kind, members, head, read)
    return read


def _read_plain(kind: PayloadType, members: Mapping[str, Any], head: MessageAround) -> dict[str, Any]:
    return read_members(shape_for(kind), members, head.base, head.notes.kept)


def write_payload(opened: OpenedMessage, base: str, aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the payload that says the data of *opened*, to stand at *base*.

    *aliases*: agent ids of ours -> ids there. Raises DialectError for data that would say something else there.
    """
    kind, name = opened.kind, opened.metadata.message_type
    for member in _RESERVED.get(name, ()):
        if member in opened.data:
            raise _meaning_other(f"/data/{member}", opened.data[member])
    if kind is None:
        return dict(opened.data)
    if name == "review.result":
        other = "items" if kind.major == 1 else "comments"
        if other in opened.data:
            raise _meaning_other(f"/data/{other}", opened.data[other])
    writer = _WRITERS.get(name)
    writing = PayloadWriting(opened, kind, base, aliases)
    said = writing.plain(opened.data) if writer is None else writer(writing)
    if (mark := opened.kept.get(f"{base}/{MARK}", MISSING)) is not MISSING:
        said[MARK] = mark
    return said


def _meaning_other(pointer: str, value: object) -> DialectError:
    return DialectError(pointer, kind_shown(value), "no member that means another there")


class PayloadWriting:
    """What is needed to write one payload."""

    def __init__(self, opened: OpenedMessage, kind: PayloadType, base: str, aliases: Mapping[str, str]) -> None:
        self.opened = opened
        self.kind = kind
        self.base = base
        self.aliases = aliases
        self.kept = opened.kept

    def plain(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return *data* as the shape of the type says them."""
        return write_members(shape_for(self.kind), data, self.base, self.kept)

    def was(self, name: str) -> Any:
        """Return what was kept of the member *name*; MISSING for nothing."""
        return self.kept.get(f"{self.base}/{name}", MISSING)

    def without_derived(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Return the data without the fields that were made up as *values*."""
        derived = {name for name, value in values.items() if self.opened.is_derived(f"/{name}", value)}
        return {name: value for name, value in self.opened.data.items() if name not in derived}


# --- tasks ------------------------------------------------------------------------------------------------------------

_OUTPUT: Final = "output_schema"
_RUNTIME: Final = "max_runtime_seconds"
_OFFLINE: Final = "no_external_network"
_BOUND: Final = "max_wall_clock_seconds"


def _read_task(kind: PayloadType, members: dict[str, Any], head: MessageAround, read: PayloadAndRest) -> None:
    kept, base = head.notes.kept, head.base
    given = members.pop(_OUTPUT, MISSING)
    if given is None:
        kept[f"{base}/{_OUTPUT}"] = None
    elif given is not MISSING and "return_contract" in members:
        raise DialectError(f"{base}/{_OUTPUT}", shown(given), "no such member beside return_contract")
    _read_bounds(members, head, read)
    read.data = _read_plain(kind, members, head)
    if given is not None and given is not MISSING:
        try:
            read.data["return_contract"] = OUTPUT_SCHEMA.read(given)
        except UnfitValueError:
            raise DialectError(f"{base}/{_OUTPUT}", shown(given), OUTPUT_SCHEMA.expected) from None
        read.places["/return_contract"] = f"{base}/{_OUTPUT}"
    elif "return_contract" in read.data and f"{base}/{_OUTPUT}" not in kept:
        kept[f"{base}/{_OUTPUT}"] = ABSENT


def _read_bounds(members: dict[str, Any], head: MessageAround, read: PayloadAndRest) -> None:
    """Move the bounds among the constraints that have a place of their own."""
    constraints, budget = members.get("constraints"), members.get("budget")
    if constraints.__class__ is not dict:
        return
    kept, place = head.notes.kept, f"{head.base}/constraints"
    left = dict(constraints)
    if left.get(_OFFLINE) is True:
        kept[f"{place}/{_OFFLINE}"] = left.pop(_OFFLINE)
        read.policy_tags = (NO_NETWORK,)
    has_room = budget is None or (budget.__class__ is dict and _BOUND not in budget)
    if left.get(_RUNTIME) is not None and has_room:
        kept[f"{place}/{_RUNTIME}"] = left[_RUNTIME]
        if budget is None:
            kept[f"{head.base}/budget"] = None if "budget" in members else ABSENT
        members["budget"] = {**(budget or {}), _BOUND: left.pop(_RUNTIME)}
        read.places[f"/budget/{_BOUND}"] = f"{place}/{_RUNTIME}"
    if left or not constraints:
        members["constraints"] = left
    else:
        del members["constraints"]


def _write_task(writing: PayloadWriting) -> dict[str, Any]:
    data = dict(writing.opened.data)
    contract = data.get("return_contract")
    was = writing.was(_OUTPUT)
    is_short = contract is not None and was is not None and was != ABSENT and _is_short_contract(contract)
    if is_short:
        del data["return_contract"]
    moved = _write_bounds(writing, data)
    said = writing.plain(data)
    if is_short and contract is not None:
        is_kept = was is not MISSING and is_kept_spelling(OUTPUT_SCHEMA, was, contract)
        said[_OUTPUT] = was if is_kept else OUTPUT_SCHEMA.written(contract)
    elif was is None:
        said[_OUTPUT] = None
    if moved:
        said["constraints"] = {**(said.get("constraints") or {}), **moved}
    return said


def _is_short_contract(contract: Any) -> bool:
    """Tell whether *contract* names a type and a major version of it, and nothing else."""
    if contract.__class__ is not dict or contract.keys() != {"expected_message_type", "schema"}:
        return False
    if contract["schema"].__class__ is not str:
        return False
    return is_kept_spelling(OUTPUT_SCHEMA, OUTPUT_SCHEMA.written(contract), contract)


def _write_bounds(writing: PayloadWriting, data: dict[str, Any]) -> dict[str, Any]:
    """Take the bounds that stood among the constraints out of *data*; return them."""
    moved: dict[str, Any] = {}
    security = writing.opened.metadata.security
    tags = security.policy_tags if security is not None else None
    constraints = data.get("constraints", {})
    if writing.was(f"constraints/{_OFFLINE}") is True and NO_NETWORK in (tags or ()) and _OFFLINE not in constraints:
        moved[_OFFLINE] = True
    budget = data.get("budget")
    runtime = writing.was(f"constraints/{_RUNTIME}")
    if budget.__class__ is dict and _BOUND in budget and _RUNTIME not in constraints and _is_one(runtime, budget):
        moved[_RUNTIME] = runtime
        rest = {name: value for name, value in budget.items() if name != _BOUND}
        if rest or writing.was("budget") not in (None, ABSENT):
            data["budget"] = rest
        else:
            del data["budget"]
    return moved


def _is_one(runtime: Any, budget: Mapping[str, Any]) -> bool:
    return runtime.__class__ is not bool and bool(runtime == budget[_BOUND])


def _read_accepted(kind: PayloadType, members: dict[str, Any], head: MessageAround, read: PayloadAndRest) -> None:
    place = f"{head.base}/accepted"
    given = members.pop("accepted", MISSING)
    if given is None or given is MISSING:
        head.notes.kept[place] = ABSENT if given is MISSING else None
    elif given is not True:
        raise DialectError(place, shown(given), f"true: what is not accepted is {kind.name[:-8]}rejected")
    read.data = _read_plain(kind, members, head)


def _write_accepted(writing: PayloadWriting) -> dict[str, Any]:
    said = writing.plain(writing.opened.data)
    was = writing.was("accepted")
    if was is None:
        said["accepted"] = None
    elif was != ABSENT:
        said["accepted"] = True
    return said


# --- handoffs ---------------------------------------------------------------------------------------------------------


def _read_handoff(kind: PayloadType, members: dict[str, Any], head: MessageAround, read: PayloadAndRest) -> None:
    flags = read_flags(members, head.base, head.notes)
    read.data = _read_plain(kind, members, head)
    read.handoff = handoff_of(read.data, flags)


def handoff_of(data: Mapping[str, Any], flags: Mapping[str, bool]) -> HandoffFlags:
    """Return what the *data* of a handoff and the *flags* beside them say about authority."""
    scope = data.get("scope")
    include = scope.get("include") if isinstance(scope, dict) else None
    return HandoffFlags(flags, _only_texts(include), _only_texts(data.get("forbidden_actions")))


def _only_texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


# --- reviews, approvals, errors ---------------------------------------------------------------------------------------


def _write_review(writing: PayloadWriting) -> dict[str, Any]:
    said = writing.plain(writing.opened.data)
    if writing.kind.major == 1:
        # By its comments a reader there tells this version from the next.
        said.setdefault("comments", [])
    return said


def _read_request(kind: PayloadType, members: dict[str, Any], head: MessageAround, read: PayloadAndRest) -> None:
    """Read a request for an approval; what is approved is the hash of the action as it is here."""
    if "action_hash" in members:
        place = f"{head.base}/action_hash"
        raise DialectError(place, shown(members["action_hash"]), "no such member: it stands in action")
    action = members.get("action")
    claimed = MISSING
    if action.__class__ is dict:
        members["action"] = {**action}
        claimed = members["action"].pop("action_hash", MISSING)
        if claimed is not MISSING and claimed is not None and claimed.__class__ is not str:
            raise DialectError(f"{head.base}/action/action_hash", shown(claimed), "a text")
    data = read.data = _read_plain(kind, members, head)
    if data.get("action").__class__ is dict:
        data["action_hash"] = hash_of(data["action"])
        if claimed != data["action_hash"]:
            head.notes.kept[f"{head.base}/action/action_hash"] = ABSENT if claimed is MISSING else claimed
    if "approval_id" not in data:
        head.notes.derive(data, "approval_id", head.message_id)
    if "reason" not in data and (reason := _described(data)) is not None:
        head.notes.derive(data, "reason", reason)


def _described(data: Mapping[str, Any]) -> Any:
    action = data.get("action")
    return action.get("description") if isinstance(action, dict) else None


def _write_request(writing: PayloadWriting) -> dict[str, Any]:
    """Say a request for an approval. A foreign hash comes back as it was; it binds nothing here."""
    opened = writing.opened
    if opened.metadata.schema_version.partition(".")[0] == "1":
        raise DialectError("/metadata/schema_version", opened.metadata.schema_version, "2.0.0, to be said here")
    action = opened.data["action"]
    if "action_hash" in action:
        raise _meaning_other("/data/action/action_hash", action["action_hash"])
    data = writing.without_derived({"approval_id": opened.metadata.message_id, "reason": _described(opened.data)})
    del data["action_hash"]
    said = writing.plain(data)
    again = read_members(shape_for(writing.kind), {"action": said["action"]}, writing.base, {})
    if again["action"] != action:
        raise DialectError("/data/action", kind_shown(action), "an action without nulls, to be said here")
    was = writing.was("action/action_hash")
    if was is None or isinstance(was, str):
        said["action"]["action_hash"] = was
    elif was != ABSENT:
        said["action"]["action_hash"] = opened.data["action_hash"]
    return said


def _read_decision(kind: PayloadType, members: dict[str, Any], head: MessageAround, read: PayloadAndRest) -> None:
    read.data = _read_plain(kind, members, head)
    if "approval_id" not in read.data:
        head.notes.derive(read.data, "approval_id", head.correlation_id)


def _write_decision(writing: PayloadWriting) -> dict[str, Any]:
    metadata = writing.opened.metadata
    return writing.plain(writing.without_derived({"approval_id": metadata.correlation_id or metadata.conversation_id}))


_RECOVERABLE: Final = "recoverable"


def _read_error(kind: PayloadType, members: dict[str, Any], head: MessageAround, read: PayloadAndRest) -> None:
    data = read.data = _read_plain(kind, members, head)
    if members.get("severity") == _RECOVERABLE and "retryable" not in data:
        head.notes.kept.setdefault(f"{head.base}/retryable", ABSENT)
        data["retryable"] = True
    text = data.get("failed_operation") or data.get("error_code")
    if "error_message" not in data and text is not None:
        head.notes.derive(data, "error_message", text)
    if "source_agent" not in data:
        head.notes.derive(data, "source_agent", head.sender)
    if "timestamp" not in data:
        head.notes.derive(data, "timestamp", format_ms(head.sent_ms))


def _write_error(writing: PayloadWriting) -> dict[str, Any]:
    opened = writing.opened
    data = writing.without_derived(
        {
            "error_message": opened.data.get("failed_operation") or opened.data["error_code"],
            "source_agent": opened.metadata.sender.id,
            "timestamp": format_ms(opened.sent_ms),
        }
    )
    is_recoverable = writing.was("severity") == _RECOVERABLE and data.get("severity") == "error"
    if is_recoverable and "retryable" not in data:
        # A reader there would take it for retryable.
        writing.kept = {pointer: value for pointer, value in writing.kept.items() if value != _RECOVERABLE}
    elif is_recoverable and data["retryable"] is True and writing.was("retryable") in (None, ABSENT):
        del data["retryable"]
    if data.get("source_agent") == opened.metadata.sender.id:
        data["source_agent"] = writing.aliases.get(data["source_agent"], data["source_agent"])
    return writing.plain(data)


# --- pull requests and issues -----------------------------------------------------------------------------------------

_KEY: Final = "idempotency_key"


def _read_pull_request(kind: PayloadType, members: dict[str, Any], head: MessageAround, read: PayloadAndRest) -> None:
    if head.base:
        _read_key(members, head, read)
    read.data = _read_plain(kind, members, head)


def _read_key(members: dict[str, Any], head: MessageAround, read: PayloadAndRest) -> None:
    """Read the key of a request, which stands in its payload, in its envelope, or in both."""
    given, place = members.pop(_KEY, MISSING), f"{head.base}/{_KEY}"
    if given is None or given is MISSING:
        head.notes.kept[place] = ABSENT if given is MISSING else None
        return
    if given.__class__ is not str:
        raise DialectError(place, shown(given), "a text")
    if head.idempotency_key is not None:
        if given != head.idempotency_key:
            raise DialectError(place, shown(given), f"{head.idempotency_key}, as in /{_KEY}")
        head.notes.kept[f"/{_KEY}"] = given
    read.idempotency_key = given


def _write_pull_request(writing: PayloadWriting) -> dict[str, Any]:
    said = writing.plain(writing.opened.data)
    was = writing.was(_KEY)
    key = writing.opened.routing.idempotency_key
    if not writing.base:
        return said
    if was is None:
        said[_KEY] = None
    elif was != ABSENT and key is not None:
        said[_KEY] = key
    return said


_REPORT: Final = "user_report"


def _content_of(report: str, issue: Any) -> dict[str, Any]:
    return {
        "content_type": _REPORT,
        "source": issue.get("uri") if isinstance(issue, dict) else issue,
        "trust_level": "untrusted_content",
        "content": report,
    }


def _read_issue(kind: PayloadType, members: dict[str, Any], head: MessageAround, read: PayloadAndRest) -> None:
    """Read an issue; what a user reported is content from outside, which instructs nobody."""
    report = members.pop(_REPORT, MISSING)
    read.data = _read_plain(kind, members, head)
    if report is MISSING:
        return
    if report.__class__ is str:
        read.data[_REPORT] = _content_of(report, read.data.get("issue_ref"))
        read.places |= {f"/{_REPORT}": f"{head.base}/{_REPORT}", f"/{_REPORT}/source": f"{head.base}/issue_ref"}
        return
    read.data |= _read_plain(kind, {_REPORT: report}, head)
    if read.data.get(_REPORT) == _content_of(_text_in(report), read.data.get("issue_ref")):
        head.notes.kept[f"{head.base}/{_REPORT}"] = {}


def _text_in(report: Any) -> str:
    text = report.get("content") if isinstance(report, dict) else None
    return text if isinstance(text, str) else ""


def _write_issue(writing: PayloadWriting) -> dict[str, Any]:
    said = writing.plain(writing.opened.data)
    report = writing.opened.data[_REPORT]
    text = _text_in(report)
    if report == _content_of(text, writing.opened.data["issue_ref"]) and writing.was(_REPORT) != {}:
        said[_REPORT] = text
    return said


_Reader = Callable[[PayloadType, dict[str, Any], MessageAround, PayloadAndRest], None]
_READERS: Final[dict[str, _Reader]] = {
    "task.request": _read_task,
    "task.accepted": _read_accepted,
    "handoff.accepted": _read_accepted,
    "handoff.request": _read_handoff,
    "approval.request": _read_request,
    "approval.decision": _read_decision,
    "error.reported": _read_error,
    "pr.create.request": _read_pull_request,
    "issue.intake": _read_issue,
}
_WRITERS: Final[dict[str, Callable[[PayloadWriting], dict[str, Any]]]] = {
    "task.request": _write_task,
    "task.accepted": _write_accepted,
    "handoff.accepted": _write_accepted,
    "review.result": _write_review,
    "approval.request": _write_request,
    "approval.decision": _write_decision,
    "error.reported": _write_error,
    "pr.create.request": _write_pull_request,
    "issue.intake": _write_issue,
}
_RESERVED: Final[Mapping[str, tuple[str, ...]]] = {
    "task.request": (_OUTPUT,),
    "task.accepted": ("accepted",),
    "handoff.accepted": ("accepted",),
    "handoff.request": ("authority",),
    "pr.create.request": (_KEY,),
}
"""Members that are no fields here and mean something there."""


def kept_handoff(opened: OpenedMessage, base: str) -> HandoffFlags:
    """Return what the data of a message and the flags that were kept say about authority."""
    if opened.metadata.message_type != "handoff.request":
        return HandoffFlags()
    return handoff_of(opened.data, kept_flags(base, opened.kept))
