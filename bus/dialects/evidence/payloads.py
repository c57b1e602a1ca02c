"""The payloads of dialect `evidence`, where a type differs from data in more than spelling. Pure.

Owns the rows of the table that are special to one type, there and back. Everything else goes by the shape of the type
(`bus.dialects.evidence.spellings`). *said* is what the message around says; its `base` is the pointer of the payload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from bus.dialects.data_check import kind_of
from bus.dialects.evidence.authority import HandoffFlags, kept_flags, read_flags
from bus.dialects.evidence.spellings import OUTPUT_SCHEMA, places_for, shape_for
from bus.dialects.faults import MISSING, kind_shown, shown
from bus.dialects.keeping import ABSENT, MARK, is_kept_spelling
from bus.dialects.member_table import Said
from bus.dialects.payload_shapes import read_members, write_members
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol.timestamps import format_ms
from bus.vocabulary.approval import hash_of

__all__ = ["NO_NETWORK", "SPECIAL_TYPES", "kept_handoff", "kind_for", "read_payload", "write_payload"]

NO_NETWORK: Final = "no_network"
"""The policy tag for a task without a network."""
Members = dict[str, Any]


def kind_for(kind: PayloadType, payload: Mapping[str, Any], base: str, types: Registry) -> PayloadType:
    """Return the version of *kind* that *payload* is of: the newest, or that of a review by comments alone."""
    if kind.name != "review.result" or "comments" not in payload:
        return kind
    if "items" in payload:
        raise DialectError(f"{base}/comments", kind_shown(payload["comments"]), "no such member beside items")
    return kind_of(types, kind.name, "1.0.0") or kind


def read_payload(payload: Members, said: Said) -> tuple[Members, dict[str, str]]:
    """Return the data that the *payload* of a message says, and their places; raise DialectError.

    What a payload says of its envelope goes to *said*: `idempotency_key`, `policy_tags`, `handoff`.
    """
    members, base, kind = dict(payload), said["base"], said["kind"]
    if MARK in members:
        said["notes"].kept[f"{base}/{MARK}"] = members.pop(MARK)
    said |= {"places": dict(places_for(kind, base)), "policy_tags": (), "handoff": HandoffFlags()}
    special = SPECIAL_TYPES.get(kind.name, _PLAIN)
    data = special.read(members, said)
    for name, make in special.derived.items():
        if name not in data and (value := make(said, data)) is not None:
            said["notes"].derive(data, name, value)
    return data, said["places"]


def _read_plain(members: Mapping[str, Any], said: Said) -> Members:
    return read_members(shape_for(said["kind"]), members, said["base"], said["notes"].kept)


def write_payload(said: Said) -> Members:
    """Return the payload that says the data of a message; raise DialectError for data that would say something else."""
    opened, kind, name = said["opened"], said["kind"], said["message_type"]
    special = SPECIAL_TYPES.get(name, _PLAIN)
    reserved = special.reserved
    if kind is not None and name == "review.result":
        reserved = ("items" if kind.major == 1 else "comments",)
    for member in reserved:
        if member in opened.data:
            raise _meaning_other(f"/data/{member}", opened.data[member])
    if kind is None:
        return dict(opened.data)
    derived = special.derived.items()
    made_up = {field for field, make in derived if opened.is_derived(f"/{field}", make(said, opened.data))}
    data = {field: value for field, value in opened.data.items() if field not in made_up}
    members = special.write(data, said)
    if (mark := _was(said, MARK)) is not MISSING:
        members[MARK] = mark
    return members


def _write_plain(data: Mapping[str, Any], said: Said) -> Members:
    return write_members(shape_for(said["kind"]), data, said["base"], said["kept"])


def _was(said: Said, name: str) -> Any:
    """Return what was kept of the member *name*; MISSING for nothing."""
    return said["kept"].get(f"{said['base']}/{name}", MISSING)


def _meaning_other(pointer: str, value: object) -> DialectError:
    return DialectError(pointer, kind_shown(value), "no member that means another there")


# --- tasks ------------------------------------------------------------------------------------------------------------

_OUTPUT: Final = "output_schema"
_RUNTIME: Final = "max_runtime_seconds"
_OFFLINE: Final = "no_external_network"
_BOUND: Final = "max_wall_clock_seconds"


def _read_task(members: Members, said: Said) -> Members:
    kept, place = said["notes"].kept, f"{said['base']}/{_OUTPUT}"
    given = members.pop(_OUTPUT, MISSING)
    if given is None:
        kept[place] = None
    elif given is not MISSING and "return_contract" in members:
        raise DialectError(place, shown(given), "no such member beside return_contract")
    _read_bounds(members, said)
    data = _read_plain(members, said)
    if given is not None and given is not MISSING:
        data["return_contract"] = OUTPUT_SCHEMA.demand(given, place)
        said["places"]["/return_contract"] = place
    elif "return_contract" in data and place not in kept:
        kept[place] = ABSENT
    return data


def _read_bounds(members: Members, said: Said) -> None:
    """Move the bounds among the constraints that have a place of their own."""
    constraints, budget = members.get("constraints"), members.get("budget")
    if constraints.__class__ is not dict:
        return
    kept, place = said["notes"].kept, f"{said['base']}/constraints"
    left = dict(constraints)
    if left.get(_OFFLINE) is True:
        kept[f"{place}/{_OFFLINE}"] = left.pop(_OFFLINE)
        said["policy_tags"] = (NO_NETWORK,)
    has_room = budget is None or (budget.__class__ is dict and _BOUND not in budget)
    if left.get(_RUNTIME) is not None and has_room:
        kept[f"{place}/{_RUNTIME}"] = left[_RUNTIME]
        if budget is None:
            kept[f"{said['base']}/budget"] = None if "budget" in members else ABSENT
        members["budget"] = {**(budget or {}), _BOUND: left.pop(_RUNTIME)}
        said["places"][f"/budget/{_BOUND}"] = f"{place}/{_RUNTIME}"
    if left or not constraints:
        members["constraints"] = left
    else:
        del members["constraints"]


def _write_task(data: Members, said: Said) -> Members:
    contract, was = data.get("return_contract"), _was(said, _OUTPUT)
    is_short = contract is not None and was is not None and was != ABSENT and _is_short_contract(contract)
    if is_short:
        del data["return_contract"]
    moved = _write_bounds(data, said)
    members = _write_plain(data, said)
    if is_short and contract is not None:
        is_kept = was is not MISSING and is_kept_spelling(OUTPUT_SCHEMA, was, contract)
        members[_OUTPUT] = was if is_kept else OUTPUT_SCHEMA.written(contract)
    elif was is None:
        members[_OUTPUT] = None
    if moved:
        members["constraints"] = {**(members.get("constraints") or {}), **moved}
    return members


def _is_short_contract(contract: Any) -> bool:
    """Tell whether *contract* names a type and a major version of it, and nothing else."""
    if contract.__class__ is not dict or contract.keys() != {"expected_message_type", "schema"}:
        return False
    if contract["schema"].__class__ is not str:
        return False
    return is_kept_spelling(OUTPUT_SCHEMA, OUTPUT_SCHEMA.written(contract), contract)


def _write_bounds(data: Members, said: Said) -> Members:
    """Take the bounds that stood among the constraints out of *data*; return them."""
    moved: Members = {}
    tags = said["security"].policy_tags if said["security"] is not None else None
    constraints, budget = data.get("constraints", {}), data.get("budget")
    if _was(said, f"constraints/{_OFFLINE}") is True and NO_NETWORK in (tags or ()) and _OFFLINE not in constraints:
        moved[_OFFLINE] = True
    runtime = _was(said, f"constraints/{_RUNTIME}")
    is_bounded = budget.__class__ is dict and _BOUND in budget and _RUNTIME not in constraints
    if is_bounded and budget is not None and runtime.__class__ is not bool and runtime == budget[_BOUND]:
        moved[_RUNTIME] = runtime
        rest = {name: value for name, value in budget.items() if name != _BOUND}
        if rest or _was(said, "budget") not in (None, ABSENT):
            data["budget"] = rest
        else:
            del data["budget"]
    return moved


def _read_accepted(members: Members, said: Said) -> Members:
    place, given = f"{said['base']}/accepted", members.pop("accepted", MISSING)
    if given is None or given is MISSING:
        said["notes"].kept[place] = ABSENT if given is MISSING else None
    elif given is not True:
        raise DialectError(place, shown(given), f"true: what is not accepted is {said['kind'].name[:-8]}rejected")
    return _read_plain(members, said)


def _write_accepted(data: Members, said: Said) -> Members:
    was = _was(said, "accepted")
    accepted: Members = {} if was == ABSENT else {"accepted": None if was is None else True}
    return _write_plain(data, said) | accepted


# --- handoffs ---------------------------------------------------------------------------------------------------------


def _read_handoff(members: Members, said: Said) -> Members:
    flags = read_flags(members, said["base"], said["notes"])
    data = _read_plain(members, said)
    said["handoff"] = _handoff_of(data, flags)
    return data


def _handoff_of(data: Mapping[str, Any], flags: Mapping[str, bool]) -> HandoffFlags:
    """Return what the *data* of a handoff and the *flags* beside them say about authority."""
    scope = data.get("scope")
    include = scope.get("include") if isinstance(scope, dict) else None
    return HandoffFlags(flags, _only_texts(include), _only_texts(data.get("forbidden_actions")))


def _only_texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def kept_handoff(said: Said) -> HandoffFlags:
    """Return what the data of a message and the flags that were kept say about authority."""
    if said["message_type"] != "handoff.request":
        return HandoffFlags()
    return _handoff_of(said["opened"].data, kept_flags(said["base"], said["kept"]))


# --- reviews, approvals, errors ---------------------------------------------------------------------------------------


def _write_review(data: Members, said: Said) -> Members:
    # By its comments a reader there tells the first version from the next.
    first: Members = {"comments": []} if said["kind"].major == 1 else {}
    return first | _write_plain(data, said)


def _read_request(members: Members, said: Said) -> Members:
    """Read a request for an approval; what is approved is the hash of the action as it is here."""
    base = said["base"]
    if "action_hash" in members:
        raise DialectError(f"{base}/action_hash", shown(members["action_hash"]), "no such member: it stands in action")
    action, claimed = members.get("action"), MISSING
    if action.__class__ is dict:
        members["action"] = {**action}
        claimed = members["action"].pop("action_hash", MISSING)
        if claimed is not MISSING and claimed is not None and claimed.__class__ is not str:
            raise DialectError(f"{base}/action/action_hash", shown(claimed), "a text")
    data = _read_plain(members, said)
    if data.get("action").__class__ is dict:
        data["action_hash"] = hash_of(data["action"])
        if claimed != data["action_hash"]:
            said["notes"].kept[f"{base}/action/action_hash"] = ABSENT if claimed is MISSING else claimed
    return data


def _write_request(data: Members, said: Said) -> Members:
    """Say a request for an approval. A foreign hash comes back as it was; it binds nothing here."""
    if said["schema_version"].partition(".")[0] == "1":
        raise DialectError("/metadata/schema_version", said["schema_version"], "2.0.0, to be said here")
    action = data["action"]
    if "action_hash" in action:
        raise _meaning_other("/data/action/action_hash", action["action_hash"])
    action_hash = data.pop("action_hash")
    members = _write_plain(data, said)
    again = read_members(shape_for(said["kind"]), {"action": members["action"]}, said["base"], {})
    if again["action"] != action:
        raise DialectError("/data/action", kind_shown(action), "an action without nulls, to be said here")
    was = _was(said, "action/action_hash")
    if was is None or isinstance(was, str):
        members["action"]["action_hash"] = was
    elif was != ABSENT:
        members["action"]["action_hash"] = action_hash
    return members


_RECOVERABLE: Final = "recoverable"


def _read_error(members: Members, said: Said) -> Members:
    data = _read_plain(members, said)
    if members.get("severity") == _RECOVERABLE and "retryable" not in data:
        said["notes"].kept.setdefault(f"{said['base']}/retryable", ABSENT)
        data["retryable"] = True
    return data


def _write_error(data: Members, said: Said) -> Members:
    is_recoverable = _was(said, "severity") == _RECOVERABLE and data.get("severity") == "error"
    if is_recoverable and "retryable" not in data:
        # A reader there would take it for retryable.
        kept = {pointer: value for pointer, value in said["kept"].items() if value != _RECOVERABLE}
        said = {**said, "kept": kept}
    elif is_recoverable and data["retryable"] is True and _was(said, "retryable") in (None, ABSENT):
        del data["retryable"]
    if data.get("source_agent") == said["sender"].id:
        data["source_agent"] = said["aliases"].get(data["source_agent"], data["source_agent"])
    return _write_plain(data, said)


def _described(_said: Said, data: Mapping[str, Any]) -> Any:
    action = data.get("action")
    return action.get("description") if isinstance(action, dict) else None


# --- pull requests and issues -----------------------------------------------------------------------------------------

_KEY: Final = "idempotency_key"


def _read_pull_request(members: Members, said: Said) -> Members:
    """Read a request, whose key stands in its payload, in its envelope, or in both."""
    if said["base"]:
        given, place, kept = members.pop(_KEY, MISSING), f"{said['base']}/{_KEY}", said["notes"].kept
        outer = said.get(_KEY)
        if given is None or given is MISSING:
            kept[place] = ABSENT if given is MISSING else None
        elif given.__class__ is not str:
            raise DialectError(place, shown(given), "a text")
        elif outer not in (None, given):
            raise DialectError(place, shown(given), f"{outer}, as in /{_KEY}")
        else:
            kept |= {f"/{_KEY}": given} if outer is not None else {}
            said[_KEY] = given
    return _read_plain(members, said)


def _write_pull_request(data: Members, said: Said) -> Members:
    members, was, key = _write_plain(data, said), _was(said, _KEY), said[_KEY]
    if said["base"] and (was is None or (was != ABSENT and key is not None)):
        members[_KEY] = None if was is None else key
    return members


_REPORT: Final = "user_report"


def _content_of(report: str, issue: Any) -> Members:
    return {
        "content_type": _REPORT,
        "source": issue.get("uri") if isinstance(issue, dict) else issue,
        "trust_level": "untrusted_content",
        "content": report,
    }


def _read_issue(members: Members, said: Said) -> Members:
    """Read an issue; what a user reported is content from outside, which instructs nobody."""
    report, base = members.pop(_REPORT, MISSING), said["base"]
    data = _read_plain(members, said)
    if report.__class__ is str:
        data[_REPORT] = _content_of(report, data.get("issue_ref"))
        said["places"] |= {f"/{_REPORT}": f"{base}/{_REPORT}", f"/{_REPORT}/source": f"{base}/issue_ref"}
    elif report is not MISSING:
        data |= _read_plain({_REPORT: report}, said)
        if data.get(_REPORT) == _content_of(_text_in(report), data.get("issue_ref")):
            said["notes"].kept[f"{base}/{_REPORT}"] = {}
    return data


def _text_in(report: Any) -> str:
    text = report.get("content") if isinstance(report, dict) else None
    return text if isinstance(text, str) else ""


def _write_issue(data: Members, said: Said) -> Members:
    members, report = _write_plain(data, said), data[_REPORT]
    text = _text_in(report)
    if report == _content_of(text, data["issue_ref"]) and _was(said, _REPORT) != {}:
        members[_REPORT] = text
    return members


# --- the table --------------------------------------------------------------------------------------------------------


class SpecialType(msgspec.Struct, frozen=True):
    """A type that is read and written by more than its shape."""

    read: Callable[[Members, Said], Members] = _read_plain
    write: Callable[[Members, Said], Members] = _write_plain
    reserved: tuple[str, ...] = ()
    """Members that are no fields here and mean something there."""
    derived: Mapping[str, Callable[[Said, Mapping[str, Any]], Any]] = {}
    """Fields that are made up where the format has none, of the message around and of the other fields."""


_PLAIN: Final = SpecialType()
SPECIAL_TYPES: Final[Mapping[str, SpecialType]] = {
    "task.request": SpecialType(_read_task, _write_task, (_OUTPUT,)),
    "task.accepted": SpecialType(_read_accepted, _write_accepted, ("accepted",)),
    "handoff.accepted": SpecialType(_read_accepted, _write_accepted, ("accepted",)),
    "handoff.request": SpecialType(_read_handoff, reserved=("authority",)),
    "review.result": SpecialType(write=_write_review),
    "approval.request": SpecialType(
        _read_request,
        _write_request,
        derived={"approval_id": lambda said, _data: said["message_id"], "reason": _described},
    ),
    "approval.decision": SpecialType(
        derived={"approval_id": lambda said, _data: said["correlation_id"] or said["conversation_id"]}
    ),
    "error.reported": SpecialType(
        _read_error,
        _write_error,
        derived={
            "error_message": lambda _said, data: data.get("failed_operation") or data.get("error_code"),
            "source_agent": lambda said, _data: said["sender"].id or "",
            "timestamp": lambda said, _data: format_ms(said["sent_at_ms"]),
        },
    ),
    "pr.create.request": SpecialType(_read_pull_request, _write_pull_request, (_KEY,)),
    "issue.intake": SpecialType(_read_issue, _write_issue),
}
