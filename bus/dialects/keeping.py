"""Read foreign objects and write them again without loss: members without a canonical field are kept. Pure.

Owns `x_dialect`, the mark in the data of a message that came from a dialect:
`{"of": "004", "kept": {foreign pointer: value}, "derived": [pointer into data]}`.

`Source` reads the members of a foreign object by their forms and keeps each spelling that `Target` would not write
again. `Target` writes a kept spelling only where reading it gives the canonical value, so a forged mark cannot change
the meaning of a foreign message. A kept value of `ABSENT` means that the member was absent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

import orjson

from bus.dialects.faults import MISSING, Missing, kind_shown, shown
from bus.dialects.forms import LIST, OBJECT, Form
from bus.errors import DialectError
from bus.protocol.canonical import escape_pointer_token

_T = TypeVar("_T")
IsOpen: TypeAlias = bool | Callable[[str, Any], bool]

MARK: Final = "x_dialect"
"""The member of data that people see and no program but these codecs reads."""
ABSENT: Final = {"absent": True}
ANYTHING: Final = Missing()
"""As `absent` of `Target.put`: an absent member may stand for any value, because defaults supplied it."""
ANYTHING_OR_NULL: Final = Missing()
"""The same of an optional member, which may be null as well."""
_MAX_BYTES: Final = 32_768
_NOT_PLAIN: Final = Missing()


class Notes:
    """Notes taken while a foreign message is read."""

    __slots__ = ("derived", "kept")

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.derived: list[str] = []

    def absent(self, pointer: str) -> None:
        """Note that the member at *pointer* was not there, though something stands for it."""
        self.kept[pointer] = ABSENT

    def derive(self, data: dict[str, Any], name: str, value: object) -> None:
        """Make up the required field *name* of *data*, which the foreign message does not have."""
        data[name] = value
        self.derived.append(f"/{name}")

    def marked(self, data: dict[str, Any], dialect: str) -> dict[str, Any]:
        """Put the mark of *dialect* into *data*; raise DialectError if the kept values exceed the limit of a
        message."""
        mark: dict[str, Any] = {"of": dialect}
        if self.kept:
            mark["kept"] = self.kept
        if self.derived:
            mark["derived"] = self.derived
        if self.kept and (size := len(orjson.dumps(mark))) > _MAX_BYTES:
            largest = max(self.kept, key=lambda pointer: len(orjson.dumps(self.kept[pointer])))
            raise DialectError(
                largest,
                f"{size} bytes that have no place in a message, most of them here",
                f"at most {_MAX_BYTES}; what is large goes by reference",
            )
        data[MARK] = mark
        return data


class Source:
    """A foreign object that is being read: each member is taken once, by its form.

    *pointer* locates it in the foreign message. *nulls*: an optional member may be null, which means no value and is
    kept.
    """

    __slots__ = ("_members", "notes", "nulls", "pointer")

    def __init__(self, members: Mapping[str, Any], pointer: str, notes: Notes, *, nulls: bool = False) -> None:
        self._members = dict(members)
        self.pointer = pointer
        self.notes = notes
        self.nulls = nulls

    def has(self, name: str) -> bool:
        """Tell whether the member *name* is there and not taken."""
        return name in self._members

    def peek(self, name: str) -> Any:
        """Return the member *name* without taking it; MISSING if it is not there."""
        return self._members.get(name, MISSING)

    def required(self, name: str, form: Form[_T], default: _T | None = None) -> _T:
        """Take the member *name*. If it is missing, return *default* and note it as absent."""
        value = self._members.pop(name, MISSING)
        if value is MISSING:
            if default is None:
                raise self.fault(name, MISSING, form.expected)
            self.notes.absent(self.location(name))
            return default
        return self._read(name, form, value, ())

    def optional(self, name: str, form: Form[Any], *, absent: Any = None, omit: Collection[Any] = ()) -> Any:
        """Take the member *name*; *absent* is what stands for it where it is not there.

        *omit* are the canonical values for which `Target.put` writes nothing, None among them.
        """
        value = self._members.pop(name, MISSING)
        if value is MISSING:
            if absent is not None and absent not in omit:
                self.notes.absent(self.location(name))
            return absent
        if value is None and self.nulls:
            self.notes.kept[self.location(name)] = None
            return absent
        return self._read(name, form, value, omit)

    def inside(self, name: str) -> Source:
        """Take the object *name*."""
        return self._inside(name, self.required(name, OBJECT))

    def optional_inside(self, name: str) -> Source | None:
        """Take the object *name*, if it is there."""
        members = self.optional(name, OBJECT)
        return None if members is None else self._inside(name, members)

    def note_absent(self, name: str) -> None:
        """Note that the member *name* is absent, if it is, though something stands for it."""
        if name not in self._members:
            self.notes.absent(self.location(name))

    def items(self, name: str) -> Iterator[Source]:
        """Take the list *name* of objects."""
        location = self.location(name)
        for index, item in enumerate(self.required(name, LIST)):
            if item.__class__ is not dict:
                raise DialectError(f"{location}/{index}", shown(item), OBJECT.expected)
            yield Source(item, f"{location}/{index}", self.notes, nulls=self.nulls)

    def keep(self, name: str, form: Form[_T]) -> _T | None:
        """Take the member *name*, which has no canonical place, and keep it."""
        value = self._members.pop(name, MISSING)
        if value is MISSING:
            return None
        if value == ABSENT:
            raise self.fault(name, value, f"{form.expected}, and not the sign for none")
        self.notes.kept[self.location(name)] = value
        return None if value is None and self.nulls else self._demand(name, form, value)

    def names(self) -> list[str]:
        """Return the names of the members that were not taken."""
        return list(self._members)

    def rest(self) -> dict[str, Any]:
        """Take every member that was not taken."""
        members, self._members = self._members, {}
        return members

    def keep_rest(self) -> None:
        """Keep every member that was not taken."""
        self.notes.kept.update({self.location(name): value for name, value in self.rest().items()})

    def refuse_rest(self) -> None:
        """Raise DialectError for a member that was not taken."""
        for name, value in self._members.items():
            raise DialectError(self.location(name), kind_shown(value), "no such member")

    def fault(self, name: str, found: object, expected: str, reason: str = "malformed") -> DialectError:
        """Return the error about the member *name*."""
        return DialectError(self.location(name), shown(found), expected, reason)

    def location(self, name: str) -> str:
        """Return the pointer of the member *name*."""
        return f"{self.pointer}/{escape_pointer_token(name)}"

    def _inside(self, name: str, members: dict[str, Any]) -> Source:
        if not members:
            self.notes.kept[self.location(name)] = {}
        return Source(members, self.location(name), self.notes, nulls=self.nulls)

    def _read(self, name: str, form: Form[_T], value: Any, omit: Collection[Any]) -> _T:
        found = self._demand(name, form, value)
        if (form.write is not None and form.write(found) != value) or (omit and found in omit):
            self.notes.kept[self.location(name)] = value
        return found

    def _demand(self, name: str, form: Form[_T], value: Any) -> _T:
        found = form.reads(value)
        # The pointer is made for an error alone.
        return form.demand(value, self.location(name)) if found is MISSING else cast("_T", found)


class Target:
    """A foreign object that is being written; `finish` of the outermost one gives the message.

    *kept* maps foreign pointers to the values that the message's mark kept. *is_open* decides whether kept members
    without a canonical field are written: a bool, or a function of name and value.
    """

    __slots__ = ("_kept", "_parts", "is_absent", "is_open", "members", "names", "nulls", "pointer")

    def __init__(
        self,
        kept: dict[str, Any],
        pointer: str = "",
        *,
        is_open: IsOpen = False,
        nulls: bool = False,
        parts: dict[str, Target] | None = None,
    ) -> None:
        self._kept = kept
        self.members: dict[str, Any] = {}
        self.names: set[str] = set()
        self._parts = {} if parts is None else parts
        self._parts[pointer] = self
        self.is_absent = False
        self.pointer = pointer
        self.is_open = is_open
        self.nulls = nulls

    def put(
        self, name: str, form: Form[_T], value: _T | None, *, absent: Any = MISSING, omit: Collection[Any] = ()
    ) -> None:
        """Write *value* as the member *name*, in its kept spelling where that has the same meaning.

        None and the values in *omit* are not written. *absent* is the value that an absent member stands for.
        """
        self.names.add(name)
        if self._kept:
            kept = self._kept.pop(self.location(name), MISSING)
            if kept is not MISSING and (spelled := self._spelled(form, value, kept, absent)) is not _NOT_PLAIN:
                if spelled is not MISSING:
                    self.members[name] = spelled
                return
        if value is not None and value not in omit:
            self.members[name] = value if form.write is None else form.write(value)

    def put_sayable(self, name: str, form: Form[_T], value: _T | None, origin: str, *, absent: Any = MISSING) -> None:
        """Write *value* as `put` does; raise DialectError if it has not the form. *origin*: its place there."""
        if value is None or form.reads(form.written(value)) is MISSING:
            raise DialectError(origin, shown(MISSING if value is None else value), f"{form.expected}, to be said here")
        self.put(name, form, value, absent=absent)

    def put_kept(self, name: str, form: Form[Any], otherwise: Any = MISSING) -> None:
        """Write the kept value of member *name*, which has no canonical field; without one write *otherwise*."""
        self.names.add(name)
        kept = self._kept.pop(self.location(name), MISSING)
        if kept == ABSENT:
            return
        if kept is not MISSING and ((kept is None and self.nulls) or form.reads(kept) is not MISSING):
            self.members[name] = kept
        elif otherwise is not MISSING:
            self.members[name] = otherwise

    def put_plain(self, name: str, value: Any) -> None:
        """Write *value* as the member *name* and nothing else."""
        self.names.add(name)
        self.members[name] = value

    def inside(self, name: str, *, may_lack: bool = False, is_open: IsOpen | None = None) -> Target:
        """Return the object *name*, which is written if it gets a member or was kept empty.

        *may_lack*: defaults can replace it. *is_open* is by default that of this object.
        """
        self.names.add(name)
        part = self._part(self.location(name), is_open)
        kept = self._kept.pop(part.pointer, MISSING) if self._kept else MISSING
        if kept == ABSENT:
            part.is_absent = may_lack
        elif kept == {}:
            self.members[name] = part.members
        elif kept is None and self.nulls:
            self.members[name] = None
        return part

    def items(self, name: str, count: int, *, is_open: IsOpen | None = None) -> list[Target]:
        """Return *count* objects that are the list *name*."""
        location = self.location(name)
        parts = [self._part(f"{location}/{index}", is_open) for index in range(count)]
        self.put_plain(name, [part.members for part in parts])
        return parts

    def _part(self, pointer: str, is_open: IsOpen | None) -> Target:
        is_open = self.is_open if is_open is None else is_open
        return Target(self._kept, pointer, is_open=is_open, nulls=self.nulls, parts=self._parts)

    def location(self, name: str) -> str:
        """Return the pointer of the member *name*."""
        return f"{self.pointer}/{escape_pointer_token(name)}"

    def finish(self) -> dict[str, Any]:
        """Return the message: all objects, with the kept members that have no canonical field."""
        for pointer, value in self._kept.items():
            if not pointer.startswith("/"):
                continue
            parent, _, token = pointer.rpartition("/")
            part = self._parts.get(parent)
            name = token.replace("~1", "/").replace("~0", "~")
            if part is None or name in part.names:
                continue
            if part.is_open(name, value) if callable(part.is_open) else part.is_open:
                part.members[name] = value
        # The parts were made from the outside in; a part joins when what is inside it has joined.
        for pointer, part in reversed(self._parts.items()):
            parent, _, token = pointer.rpartition("/")
            outer = self._parts.get(parent)
            if part is not self and outer is not None and part.members and not part.is_absent:
                outer.members[token] = part.members
        return self.members

    def _spelled(self, form: Form[Any], value: Any, kept: Any, absent: Any) -> Any:
        """Return the kept spelling; MISSING if absent; _NOT_PLAIN if the kept value means another value."""
        if kept == ABSENT:
            is_nothing = absent in (ANYTHING, ANYTHING_OR_NULL) or (absent is not MISSING and absent == value)
            return MISSING if is_nothing else _NOT_PLAIN
        if kept is None and self.nulls:
            is_nothing = absent is ANYTHING_OR_NULL or absent == value or (absent is MISSING and value is None)
            return None if is_nothing else _NOT_PLAIN
        return kept if value is not None and is_kept_spelling(form, kept, value) else _NOT_PLAIN


def is_kept_spelling(form: Form[Any], kept: Any, value: Any) -> bool:
    """Return whether *form* reads the kept spelling as *value*."""
    return _is_same(form.reads(kept), value)


def _is_same(found: Any, value: Any) -> bool:
    """Tell whether two JSON values are one; to Python, true and 1 are equal inside containers, too."""
    if value.__class__ is dict or value.__class__ is list:
        return found.__class__ is value.__class__ and _sorted_json(found) == _sorted_json(value)
    return found.__class__ is value.__class__ and bool(found == value)


def _sorted_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def split_mark(data: dict[str, Any], dialect: str) -> tuple[dict[str, Any], frozenset[str]]:
    """Remove the mark from *data*; return its kept values and derived pointers if it is of *dialect*.

    The mark is untrusted input: parts of another form are ignored.
    """
    mark = data.pop(MARK, None)
    if not isinstance(mark, dict) or mark.get("of") != dialect:
        return {}, frozenset()
    kept, derived = mark.get("kept"), mark.get("derived")
    pointers = derived if isinstance(derived, list) else ()
    return kept if isinstance(kept, dict) else {}, frozenset(text for text in pointers if isinstance(text, str))
