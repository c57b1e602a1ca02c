"""Read payloads whose members have the names of our fields, and write them again. Pure.

Owns the differences that remain where the names agree: an explicit null, another spelling of a value (a string for a
reference), a renamed member. Each type has one shape. A spelling that reading normalises is kept by its foreign
pointer, and written again only where reading it gives the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import inspect

from bus.dialects.faults import MISSING, kind_shown
from bus.dialects.forms import Form
from bus.dialects.keeping import ABSENT, is_kept_spelling
from bus.errors import DialectError
from bus.protocol.canonical import escape_pointer_token

__all__ = ["FormOf", "Renames", "PayloadShape", "locations_of", "read_members", "payload_shape_of", "write_members"]

FormOf: TypeAlias = Callable[[str, inspect.Type, Any], Form[Any] | None]
"""(Pointer into data without indexes, type, class around it) -> the form of what is spelled otherwise; None: as it is.
"""
Renames: TypeAlias = Mapping[str, Mapping[str, str]]
"""Pointer of an object in data -> foreign names -> our names."""
NO_RENAMES: Final[Renames] = MappingProxyType({})


class NamedMember(msgspec.Struct, frozen=True):
    """One field: its name there and here, and how its value differs."""

    name: str
    field: str
    form: Form[Any] | None
    """The form of the value, or of each item."""
    inside: PayloadShape | None
    """The shape of the object, or of each item."""
    is_list: bool
    drops_null: bool

    @property
    def is_plain(self) -> bool:
        return self.form is None and self.inside is None


class PayloadShape(msgspec.Struct, frozen=True):
    """The fields of one object, by their names there and by their names here."""

    there: dict[str, NamedMember]
    here: dict[str, NamedMember]


def payload_shape_of(described: Any, form_of: FormOf | None = None, renames: Renames = NO_RENAMES) -> PayloadShape:
    """Make the shape of data of the type *described*, which msgspec can describe."""
    shape = _shape(inspect.type_info(described), "", form_of or _no_form, renames, ())
    return shape or PayloadShape({}, {})


def _no_form(_pointer: str, _kind: inspect.Type, _owner: Any) -> None:
    return None


def _shape(
    kind: inspect.Type, pointer: str, form_of: FormOf, renames: Renames, around: tuple[Any, ...]
) -> PayloadShape | None:
    if not isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType) or kind.cls in around:
        return None  # what contains itself is read to its first repetition
    around = (*around, kind.cls)
    foreign = {ours: theirs for theirs, ours in renames.get(pointer, {}).items()}
    members = []
    for field in kind.fields:
        name = field.encode_name
        inner, is_list = _inner(field.type)
        location = f"{pointer}/{name}"
        form = form_of(location, inner, kind.cls)
        members.append(
            NamedMember(
                name=foreign.get(name, name),
                field=name,
                form=form,
                inside=_shape(inner, location, form_of, renames, around) if form is None else None,
                is_list=is_list,
                drops_null=_drops_null(field),
            )
        )
    return PayloadShape({member.name: member for member in members}, {member.field: member for member in members})


def _inner(kind: inspect.Type) -> tuple[inspect.Type, bool]:
    """Return the type inside *kind*, without null: itself, or its items."""
    kind = _provided(kind)
    if isinstance(kind, inspect.VarTupleType | inspect.ListType):
        return _provided(kind.item_type), True
    return kind, False


def _provided(kind: inspect.Type) -> inspect.Type:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        provided = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
        if len(provided) == 1:
            return _provided(provided[0])
    return kind


def _drops_null(field: inspect.Field) -> bool:
    """Return whether null and absence of *field* mean the same."""
    if field.required:
        return False
    kind = field.type.type if isinstance(field.type, inspect.Metadata) else field.type
    if isinstance(kind, inspect.AnyType):
        return False
    takes_null = isinstance(kind, inspect.NoneType) or (
        isinstance(kind, inspect.UnionType)
        and any(isinstance(part, inspect.NoneType | inspect.AnyType) for part in kind.types)
    )
    return not takes_null or field.default is None


def locations_of(shape: PayloadShape, base: str, pointer: str = "") -> dict[str, str]:
    """Return the places of renamed fields: pointers into data -> foreign pointers below *base*."""
    locations = {pointer: base}
    for member in shape.here.values():
        below = f"{base}/{member.name}" + ("/*" if member.is_list else "")
        here = f"{pointer}/{member.field}" + ("/*" if member.is_list else "")
        if member.name != member.field:
            locations[f"{pointer}/{member.field}"] = f"{base}/{member.name}"
        if member.inside is not None:
            inner = locations_of(member.inside, below, here)
            locations |= inner if len(inner) > 1 else {}
    return locations


# --- reading ----------------------------------------------------------------------------------------------------------


def read_members(shape: PayloadShape, members: Mapping[str, Any], pointer: str, kept: dict[str, Any]) -> dict[str, Any]:
    """Return the data of the foreign *members* at *pointer*; note normalised spellings in *kept*.

    A renamed field is also accepted under our name; a message with both names is refused. Members that are not fields
    are passed on.
    """
    data: dict[str, Any] = {}
    for name, value in members.items():
        member = shape.there.get(name)
        if member is None and name in shape.here:
            member = shape.here[name]
            if member.name in members:
                raise DialectError(f"{pointer}/{name}", kind_shown(value), f"no such member beside {member.name}")
            kept[f"{pointer}/{_token(member.name)}"] = ABSENT
        if member is None:
            data[name] = value
        elif value is None and member.drops_null:
            kept[f"{pointer}/{_token(name)}"] = None
        elif member.is_plain:
            data[member.field] = value
        else:
            reading = partial(_read_one, member, kept)
            data[member.field] = _in_each(member, value, (f"{pointer}/{_token(name)}",), reading)
    return data


def _in_each(member: NamedMember, value: Any, locations: tuple[str, ...], walk: Callable[..., Any]) -> Any:
    """Apply *walk* to the value, or to each item, and return the result; *locations* are the pointers of it."""
    if not member.is_list:
        return walk(value, *locations)
    if value.__class__ is not list:
        return value  # the type says what is wrong with it
    return [walk(item, *(f"{location}/{index}" for location in locations)) for index, item in enumerate(value)]


def _read_one(member: NamedMember, kept: dict[str, Any], value: Any, pointer: str) -> Any:
    form = member.form
    if form is None:
        inside = member.inside
        return value if inside is None or value.__class__ is not dict else read_members(inside, value, pointer, kept)
    found = form.demand(value, pointer)
    if form.written(found) != value:
        kept[pointer] = value
    return found


# --- writing ----------------------------------------------------------------------------------------------------------


def write_members(
    shape: PayloadShape, data: Mapping[str, Any], pointer: str, kept: Mapping[str, Any], origin: str = "/data"
) -> dict[str, Any]:
    """Return the foreign members that express *data*, for the object at *pointer*.

    *origin* is the pointer of *data*. Raises DialectError for a member that is not a field here but would be one there.
    """
    stated: dict[str, Any] = {}
    for name, value in data.items():
        member = shape.here.get(name)
        if member is None:
            if name in shape.there:
                raise DialectError(f"{origin}/{_token(name)}", kind_shown(value), "no member that means another there")
            stated[name] = value
            continue
        provided = _name_there(member, pointer, kept)
        locations = f"{pointer}/{_token(provided)}", f"{origin}/{_token(name)}"
        stated[provided] = (
            value if member.is_plain else _in_each(member, value, locations, partial(_write_one, member, kept))
        )
    for member in shape.there.values() if kept else ():
        # A null that says nothing is written where nothing is said.
        if member.drops_null and member.field not in data:
            provided = _name_there(member, pointer, kept)
            if kept.get(f"{pointer}/{_token(provided)}", MISSING) is None:
                stated[provided] = None
    return stated


def _name_there(member: NamedMember, pointer: str, kept: Mapping[str, Any]) -> str:
    """Return the foreign name of *member*, or ours, under which it was."""
    return member.field if kept.get(f"{pointer}/{_token(member.name)}") == ABSENT else member.name


def _write_one(member: NamedMember, kept: Mapping[str, Any], value: Any, pointer: str, origin: str) -> Any:
    form = member.form
    if form is None:
        inside = member.inside
        if inside is None or value.__class__ is not dict:
            return value
        return write_members(inside, value, pointer, kept, origin)
    spelling = kept.get(pointer, MISSING)
    if value is None or (spelling is not MISSING and is_kept_spelling(form, spelling, value)):
        return None if value is None else spelling
    return form.written(value)


def _token(name: str) -> str:
    return escape_pointer_token(name) if "/" in name or "~" in name else name
