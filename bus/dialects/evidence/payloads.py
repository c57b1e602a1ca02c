"""The payloads of dialect `evidence`, where a type differs from data in more than spelling. Pure.

Owns the table rows that are special to one type, in both directions. All other members follow the shape of the type
(`bus.dialects.evidence.spellings`). *facts* holds the values of the surrounding message; its `base` is the pointer of
the payload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from bus.dialects.data_check import kind_of
from bus.dialects.evidence.authority import HandoffFlags, kept_flags, read_flags
from bus.dialects.evidence.spellings import OUTPUT_SCHEMA, locations_for, shape_for
from bus.dialects.faults import MISSING, kind_shown, shown
from bus.dialects.keeping import ABSENT, MARK, is_kept_spelling
from bus.dialects.member_table import MessageFacts
from bus.dialects.payload_shapes import read_members, write_members
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol.timestamps import format_ms
from bus.vocabulary.approval import hash_of

__all__ = ["NO_NETWORK", "SPECIAL_TYPES", "kept_handoff", "kind_for", "read_evidence", "write_evidence"]

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


def read_evidence(payload: Members, facts: MessageFacts) -> tuple[Members, dict[str, str]]:
    """Return the data of a *payload* and their pointers; raise DialectError if it is invalid.

    Members that belong to the envelope go to *facts*: `idempotency_key`, `policy_tags`, `handoff`.
    """
    members, base, kind = dict(payload), facts["base"], facts["kind"]
    if MARK in members:
        facts["notes"].kept[f"{base}/{MARK}"] = members.pop(MARK)
    facts |= {"places": dict(locations_for(kind, base)), "policy_tags": (), "handoff": HandoffFlags()}
    special = SPECIAL_TYPES.get(kind.name, _PLAIN)
    data = special.read(members, facts)
    for name, make in special.derived.items():
        if name not in data and (value := make(facts, data)) is not None:
            facts["notes"].derive(data, name, value)
    return data, facts["places"]


def _read_plain(members: Mapping[str, Any], facts: MessageFacts) -> Members:
    return read_members(shape_for(facts["kind"]), members, facts["base"], facts["notes"].kept)


def write_evidence(facts: MessageFacts) -> Members:
    """Return the payload for the data of a message; raise DialectError for data that would mean something else."""
    opened, kind, name = facts["opened"], facts["kind"], facts["message_type"]
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
    made_up = {field for field, make in derived if opened.is_derived(f"/{field}", make(facts, opened.data))}
    data = {field: value for field, value in opened.data.items() if field not in made_up}
    members = special.write(data, facts)
    if (mark := _was(facts, MARK)) is not MISSING:
        members[MARK] = mark
    return members


def _write_plain(data: Mapping[str, Any], facts: MessageFacts) -> Members:
    return write_members(shape_for(facts["kind"]), data, facts["base"], facts["kept"])


def _was(facts: MessageFacts, name: str) -> Any:
    """Return the kept value of the member *name*, or MISSING."""
    return facts["kept"].get(f"{facts['base']}/{name}", MISSING)


def _meaning_other(pointer: str, value: object) -> DialectError:
    return DialectError(pointer, kind_shown(value), "no member that means another there")


# --- tasks ------------------------------------------------------------------------------------------------------------

_OUTPUT: Final = "output_schema"
_RUNTIME: Final = "max_runtime_seconds"
_OFFLINE: Final = "no_external_network"
_BOUND: Final = "max_wall_clock_seconds"


def _read_task(members: Members, facts: MessageFacts) -> Members:
    kept, location = facts["notes"].kept, f"{facts['base']}/{_OUTPUT}"
    provided = members.pop(_OUTPUT, MISSING)
    if provided is None:
        kept[location] = None
    elif provided is not MISSING and "return_contract" in members:
        raise DialectError(location, shown(provided), "no such member beside return_contract")
    _read_bounds(members, facts)
    data = _read_plain(members, facts)
    if provided is not None and provided is not MISSING:
        data["return_contract"] = OUTPUT_SCHEMA.demand(provided, location)
        facts["places"]["/return_contract"] = location
    elif "return_contract" in data and location not in kept:
        kept[location] = ABSENT
    return data


def _read_bounds(members: Members, facts: MessageFacts) -> None:
    """Move the bounds among the constraints that have a place of their own."""
    constraints, budget = members.get("constraints"), members.get("budget")
    if constraints.__class__ is not dict:
        return
    kept, location = facts["notes"].kept, f"{facts['base']}/constraints"
    left = dict(constraints)
    if left.get(_OFFLINE) is True:
        kept[f"{location}/{_OFFLINE}"] = left.pop(_OFFLINE)
        facts["policy_tags"] = (NO_NETWORK,)
    has_room = budget is None or (budget.__class__ is dict and _BOUND not in budget)
    if left.get(_RUNTIME) is not None and has_room:
        kept[f"{location}/{_RUNTIME}"] = left[_RUNTIME]
        if budget is None:
            kept[f"{facts['base']}/budget"] = None if "budget" in members else ABSENT
        members["budget"] = {**(budget or {}), _BOUND: left.pop(_RUNTIME)}
        facts["places"][f"/budget/{_BOUND}"] = f"{location}/{_RUNTIME}"
    if left or not constraints:
        members["constraints"] = left
    else:
        del members["constraints"]


def _write_task(data: Members, facts: MessageFacts) -> Members:
    contract, was = data.get("return_contract"), _was(facts, _OUTPUT)
    is_short = contract is not None and was is not None and was != ABSENT and _is_short_contract(contract)
    if is_short:
        del data["return_contract"]
    moved = _write_bounds(data, facts)
    members = _write_plain(data, facts)
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


def _write_bounds(data: Members, facts: MessageFacts) -> Members:
    """Take the bounds that stood among the constraints out of *data*; return them."""
    moved: Members = {}
    tags = facts["security"].policy_tags if facts["security"] is not None else None
    constraints, budget = data.get("constraints", {}), data.get("budget")
    if _was(facts, f"constraints/{_OFFLINE}") is True and NO_NETWORK in (tags or ()) and _OFFLINE not in constraints:
        moved[_OFFLINE] = True
    runtime = _was(facts, f"constraints/{_RUNTIME}")
    is_bounded = budget.__class__ is dict and _BOUND in budget and _RUNTIME not in constraints
    if is_bounded and budget is not None and runtime.__class__ is not bool and runtime == budget[_BOUND]:
        moved[_RUNTIME] = runtime
        rest = {name: value for name, value in budget.items() if name != _BOUND}
        if rest or _was(facts, "budget") not in (None, ABSENT):
            data["budget"] = rest
        else:
            del data["budget"]
    return moved


def _read_accepted(members: Members, facts: MessageFacts) -> Members:
    location, provided = f"{facts['base']}/accepted", members.pop("accepted", MISSING)
    if provided is None or provided is MISSING:
        facts["notes"].kept[location] = ABSENT if provided is MISSING else None
    elif provided is not True:
        raise DialectError(
            location, shown(provided), f"true: what is not accepted is {facts['kind'].name[:-8]}rejected"
        )
    return _read_plain(members, facts)


def _write_accepted(data: Members, facts: MessageFacts) -> Members:
    was = _was(facts, "accepted")
    accepted: Members = {} if was == ABSENT else {"accepted": None if was is None else True}
    return _write_plain(data, facts) | accepted


# --- handoffs ---------------------------------------------------------------------------------------------------------


def _read_handoff(members: Members, facts: MessageFacts) -> Members:
    flags = read_flags(members, facts["base"], facts["notes"])
    data = _read_plain(members, facts)
    facts["handoff"] = _handoff_of(data, flags)
    return data


def _handoff_of(data: Mapping[str, Any], flags: Mapping[str, bool]) -> HandoffFlags:
    """Return the authority in the *data* of a handoff and the *flags* beside them."""
    scope = data.get("scope")
    include = scope.get("include") if isinstance(scope, dict) else None
    return HandoffFlags(flags, _only_texts(include), _only_texts(data.get("forbidden_actions")))


def _only_texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def kept_handoff(facts: MessageFacts) -> HandoffFlags:
    """Return the authority in the data of a message and its kept flags."""
    if facts["message_type"] != "handoff.request":
        return HandoffFlags()
    return _handoff_of(facts["opened"].data, kept_flags(facts["base"], facts["kept"]))


# --- reviews, approvals, errors ---------------------------------------------------------------------------------------


def _write_review(data: Members, facts: MessageFacts) -> Members:
    # By its comments a reader there tells the first version from the next.
    first: Members = {"comments": []} if facts["kind"].major == 1 else {}
    return first | _write_plain(data, facts)


def _read_request(members: Members, facts: MessageFacts) -> Members:
    """Read a request for an approval; the approved hash is that of the action in our form."""
    base = facts["base"]
    if "action_hash" in members:
        raise DialectError(f"{base}/action_hash", shown(members["action_hash"]), "unknown member: it belongs in action")
    action, claimed = members.get("action"), MISSING
    if action.__class__ is dict:
        members["action"] = {**action}
        claimed = members["action"].pop("action_hash", MISSING)
        if claimed is not MISSING and claimed is not None and claimed.__class__ is not str:
            raise DialectError(f"{base}/action/action_hash", shown(claimed), "a text")
    data = _read_plain(members, facts)
    if data.get("action").__class__ is dict:
        data["action_hash"] = hash_of(data["action"])
        if claimed != data["action_hash"]:
            facts["notes"].kept[f"{base}/action/action_hash"] = ABSENT if claimed is MISSING else claimed
    return data


def _write_request(data: Members, facts: MessageFacts) -> Members:
    """Write a request for an approval. A foreign hash is written back unchanged; it has no effect here."""
    if facts["schema_version"].partition(".")[0] == "1":
        raise DialectError("/metadata/schema_version", facts["schema_version"], "2.0.0, to be said here")
    action = data["action"]
    if "action_hash" in action:
        raise _meaning_other("/data/action/action_hash", action["action_hash"])
    action_hash = data.pop("action_hash")
    members = _write_plain(data, facts)
    again = read_members(shape_for(facts["kind"]), {"action": members["action"]}, facts["base"], {})
    if again["action"] != action:
        raise DialectError(
            "/data/action", kind_shown(action), "an action without null members, which this dialect cannot express"
        )
    was = _was(facts, "action/action_hash")
    if was is None or isinstance(was, str):
        members["action"]["action_hash"] = was
    elif was != ABSENT:
        members["action"]["action_hash"] = action_hash
    return members


_RECOVERABLE: Final = "recoverable"


def _read_error(members: Members, facts: MessageFacts) -> Members:
    data = _read_plain(members, facts)
    if members.get("severity") == _RECOVERABLE and "retryable" not in data:
        facts["notes"].kept.setdefault(f"{facts['base']}/retryable", ABSENT)
        data["retryable"] = True
    return data


def _write_error(data: Members, facts: MessageFacts) -> Members:
    is_recoverable = _was(facts, "severity") == _RECOVERABLE and data.get("severity") == "error"
    if is_recoverable and "retryable" not in data:
        # A reader there would take it for retryable.
        kept = {pointer: value for pointer, value in facts["kept"].items() if value != _RECOVERABLE}
        facts = {**facts, "kept": kept}
    elif is_recoverable and data["retryable"] is True and _was(facts, "retryable") in (None, ABSENT):
        del data["retryable"]
    if data.get("source_agent") == facts["sender"].id:
        data["source_agent"] = facts["aliases"].get(data["source_agent"], data["source_agent"])
    return _write_plain(data, facts)


def _described(_stated: MessageFacts, data: Mapping[str, Any]) -> Any:
    action = data.get("action")
    return action.get("description") if isinstance(action, dict) else None


# --- pull requests and issues -----------------------------------------------------------------------------------------

_KEY: Final = "idempotency_key"


def _read_pull_request(members: Members, facts: MessageFacts) -> Members:
    """Read a request whose key is in its payload, in its envelope, or in both."""
    if facts["base"]:
        provided, location, kept = members.pop(_KEY, MISSING), f"{facts['base']}/{_KEY}", facts["notes"].kept
        outer = facts.get(_KEY)
        if provided is None or provided is MISSING:
            kept[location] = ABSENT if provided is MISSING else None
        elif provided.__class__ is not str:
            raise DialectError(location, shown(provided), "a text")
        elif outer not in (None, provided):
            raise DialectError(location, shown(provided), f"{outer}, as in /{_KEY}")
        else:
            kept |= {f"/{_KEY}": provided} if outer is not None else {}
            facts[_KEY] = provided
    return _read_plain(members, facts)


def _write_pull_request(data: Members, facts: MessageFacts) -> Members:
    members, was, key = _write_plain(data, facts), _was(facts, _KEY), facts[_KEY]
    if facts["base"] and (was is None or (was != ABSENT and key is not None)):
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


def _read_issue(members: Members, facts: MessageFacts) -> Members:
    """Read an issue; an issue reported by a user is outside content and cannot give instructions."""
    report, base = members.pop(_REPORT, MISSING), facts["base"]
    data = _read_plain(members, facts)
    if report.__class__ is str:
        data[_REPORT] = _content_of(report, data.get("issue_ref"))
        facts["places"] |= {f"/{_REPORT}": f"{base}/{_REPORT}", f"/{_REPORT}/source": f"{base}/issue_ref"}
    elif report is not MISSING:
        data |= _read_plain({_REPORT: report}, facts)
        if data.get(_REPORT) == _content_of(_text_in(report), data.get("issue_ref")):
            facts["notes"].kept[f"{base}/{_REPORT}"] = {}
    return data


def _text_in(report: Any) -> str:
    text = report.get("content") if isinstance(report, dict) else None
    return text if isinstance(text, str) else ""


def _write_issue(data: Members, facts: MessageFacts) -> Members:
    members, report = _write_plain(data, facts), data[_REPORT]
    text = _text_in(report)
    if report == _content_of(text, data["issue_ref"]) and _was(facts, _REPORT) != {}:
        members[_REPORT] = text
    return members


# --- the table --------------------------------------------------------------------------------------------------------


class SpecialType(msgspec.Struct, frozen=True):
    """A type whose conversion needs functions of its own, besides the table of members."""

    read: Callable[[Members, MessageFacts], Members] = _read_plain
    write: Callable[[Members, MessageFacts], Members] = _write_plain
    reserved: tuple[str, ...] = ()
    """Members that are not fields here and have a foreign meaning."""
    derived: Mapping[str, Callable[[MessageFacts, Mapping[str, Any]], Any]] = {}
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
        derived={"approval_id": lambda facts, _data: facts["message_id"], "reason": _described},
    ),
    "approval.decision": SpecialType(
        derived={"approval_id": lambda facts, _data: facts["correlation_id"] or facts["conversation_id"]}
    ),
    "error.reported": SpecialType(
        _read_error,
        _write_error,
        derived={
            "error_message": lambda _stated, data: data.get("failed_operation") or data.get("error_code"),
            "source_agent": lambda facts, _data: facts["sender"].id or "",
            "timestamp": lambda facts, _data: format_ms(facts["sent_at_ms"]),
        },
    ),
    "pr.create.request": SpecialType(_read_pull_request, _write_pull_request, (_KEY,)),
    "issue.intake": SpecialType(_read_issue, _write_issue),
}
