"""The authority of dialect `evidence`: three foreign shapes, joined into our one. Pure.

Owns joining them: lists of globs and commands in the envelope, the list of actions that need approval (under either of
two names), and the flags of a handoff (`may_modify_files`). The joined form is split again only where joining the parts
gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.dialects.evidence.spellings import TEXTS, texts_in
from bus.dialects.faults import shown
from bus.dialects.forms import FLAG, OBJECT, TEXT
from bus.dialects.keeping import ABSENT, Notes, Source, Target
from bus.errors import ContractError, DialectError
from bus.protocol.canonical import escape_pointer_token
from bus.protocol.envelope import Authority
from bus.protocol.envelope_rules import check_authority

__all__ = ["HandoffFlags", "kept_flags", "read_authority", "read_flags", "write_authority", "write_flags"]

_COMMANDS: Final = {"may_run_tests": "run_tests", "may_push_branch": "push_branch", "may_open_pr": "open_pr"}
_FLAGS: Final = ("may_modify_files", *_COMMANDS)
_PLAIN: Final = ("decision_right", "max_side_effect")
_JOINED: Final = ("can_write", "can_execute", "cannot_execute", "requires_human_approval")
_LISTS: Final = ("can_read", *_JOINED)
_OTHER_NAME: Final = "requires_approval_for"
_ELSEWHERE: Final = (*_PLAIN, *_LISTS, _OTHER_NAME)
_EVERYTHING: Final = ("**",)

Lists = dict[str, tuple[str, ...] | None]


class HandoffFlags(msgspec.Struct, frozen=True):
    """The flags in the data of a handoff that concern authority."""

    flags: Mapping[str, bool] = {}
    scope: tuple[str, ...] = ()
    """The affected files; empty means all."""
    forbidden: tuple[str, ...] = ()
    """Actions that are forbidden."""


NO_FLAGS: Final = HandoffFlags()


def read_flags(payload: dict[str, Any], pointer: str, notes: Notes) -> dict[str, bool]:
    """Take the flags out of the *payload* of a handoff; they are kept."""
    location = f"{pointer}/authority"
    if "authority" not in payload:
        return {}
    members = payload.pop("authority")
    if members is None or members == {}:
        notes.kept[location] = members
        return {}
    flags = {}
    for name, value in OBJECT.demand(members, location).items():
        if name in _FLAGS:
            flags[name] = FLAG.demand(value, f"{location}/{name}")
        elif name in _ELSEWHERE:
            raise DialectError(f"{location}/{name}", shown(value), "unknown member: it belongs in /authority")
        notes.kept[f"{location}/{escape_pointer_token(name)}"] = value
    return flags


def write_flags(stated: dict[str, Any], pointer: str, kept: Mapping[str, Any], *, is_same: bool) -> None:
    """Write the kept flags into the payload *stated*, if they still have the same meaning."""
    location = f"{pointer}/authority"
    members = {}
    for foreign, value in kept.items():
        name = foreign.removeprefix(f"{location}/")
        if name == foreign or "/" in name:
            continue
        name = name.replace("~1", "/").replace("~0", "~")
        if name in _FLAGS:
            if is_same and isinstance(value, bool):
                members[name] = value
        elif name not in _ELSEWHERE:
            members[name] = value
    if members:
        stated["authority"] = members
    elif kept.get(location, location) in (None, {}):
        stated["authority"] = kept[location]


def kept_flags(pointer: str, kept: Mapping[str, Any]) -> dict[str, bool]:
    """Return the kept flags."""
    found = {name: kept.get(f"{pointer}/authority/{name}") for name in _FLAGS}
    return {name: value for name, value in found.items() if isinstance(value, bool)}


def _join(lists: Lists, requested: tuple[str, ...], handoff: HandoffFlags) -> Lists:
    """Return the lists joined with the values of the other members."""
    joined = dict(lists)
    flags = handoff.flags
    if flags.get("may_modify_files") is False:
        joined["can_write"] = ()
    elif flags.get("may_modify_files") and lists["can_write"] is None:
        joined["can_write"] = handoff.scope or _EVERYTHING
    allowed = [command for flag, command in _COMMANDS.items() if flags.get(flag) is True]
    denied = [command for flag, command in _COMMANDS.items() if flags.get(flag) is False]
    for name, more in (
        ("can_execute", allowed),
        ("cannot_execute", [*denied, *handoff.forbidden]),
        ("requires_human_approval", requested),
    ):
        provided = lists[name] or ()
        new = tuple(dict.fromkeys(text for text in more if text not in provided))
        if new:
            joined[name] = (*provided, *new)
    return joined


def read_authority(source: Source | None, notes: Notes, handoff: HandoffFlags = NO_FLAGS) -> Authority | None:
    """Return the authority from envelope and data; None if neither has one."""
    plain: dict[str, str | None] = {}
    lists: Lists = dict.fromkeys(_LISTS)
    requested: tuple[str, ...] = ()
    if source is not None:
        for name in source.names():
            if name in _FLAGS:
                raise source.fault(name, source.peek(name), "unknown member: it belongs in the payload of a handoff")
        plain = {name: source.optional(name, TEXT) for name in _PLAIN}
        lists = {name: source.optional(name, TEXTS) for name in _LISTS}
        requested = source.keep(_OTHER_NAME, TEXTS) or ()
        source.keep_rest()
    joined = _join(lists, requested, handoff)
    for name in _JOINED:
        if joined[name] != (original := lists[name]):
            notes.kept.setdefault(f"/authority/{name}", ABSENT if original is None else list(original))
    stated = {name: value for name, value in {**plain, **joined}.items() if value is not None}
    if not stated:
        return None
    authority = msgspec.convert(stated, Authority)
    try:
        check_authority(msgspec.to_builtins(authority), "/authority")
    except ContractError as error:
        raise DialectError(error.pointer, error.text, "an authority as the envelope takes it") from None
    return authority


def write_authority(
    target: Target, authority: Authority | None, kept: Mapping[str, Any], handoff: HandoffFlags = NO_FLAGS
) -> bool:
    """Write the authority into *target*; return whether the flags of the *handoff* express their part of it."""
    lists: Lists = {name: getattr(authority, name, None) for name in _LISTS}
    before = {name: kept[f"/authority/{name}"] for name in _JOINED if f"/authority/{name}" in kept}
    apart: Lists = {**lists, **{name: texts_in(value) for name, value in before.items()}}
    requested = texts_in(kept.get(f"/authority/{_OTHER_NAME}")) or ()
    is_same = _join(apart, requested, handoff) == lists
    for name in _PLAIN:
        target.put(name, TEXT, getattr(authority, name, None))
    for name in _LISTS:
        target.put(name, TEXTS, (apart if is_same else lists)[name])
    target.names.update(_FLAGS)
    if is_same:
        target.put_kept(_OTHER_NAME, TEXTS)
    else:
        target.names.add(_OTHER_NAME)
    return is_same
