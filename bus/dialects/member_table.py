"""A format as tables: one row for each member, walked both ways. Pure.

Owns the kinds of rows. `MemberTable.read` takes the members of a foreign object, in the order of its rows, into a dict
by the names that they have here; `MemberTable.write` writes them again from such a dict. *facts* holds the values of
the surrounding message, by the names of the envelope. The value of an absent member, the values that are not written,
and a form may each be a function of *facts*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from bus.dialects.faults import MISSING
from bus.dialects.forms import LIST, OBJECT, VALUE, Form
from bus.dialects.keeping import ANYTHING, ANYTHING_OR_NULL, Source, Target
from bus.protocol.envelope import Agent

MessageFacts: TypeAlias = dict[str, Any]
MemberForm: TypeAlias = Form[Any] | Callable[[MessageFacts], Form[Any]]


class MemberRow:
    """One member of a format. *name* is its foreign name, *field* our name; either may be missing.

    A member that the kinds of rows below cannot express has a class of its own in its dialect.
    """

    name = ""
    field = ""
    form: MemberForm = VALUE
    location = ""
    """Its pointer, if it is in another object of the message."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        """Take the member into *data*."""
        raise NotImplementedError

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        """Write the member from *data*."""

    def form_for(self, facts: MessageFacts) -> Form[Any]:
        """Return its form in this message."""
        return self.form if isinstance(self.form, Form) else self.form(facts)

    def locations(self, base: str, here: str) -> dict[str, str]:
        """Return the pointers of its fields, *here* in data -> the foreign pointers, below *base*."""
        return {f"{here}/{self.field}": self.location or f"{base}/{self.name}"} if self.field else {}


class Optional(MemberRow):
    """A member that may be missing.

    *absent* stands for it then, and *omit* are the values that are not written. *noted*: its absence is, and means
    anything. *derive* makes up a field that is missing. *at*: the pointer of the object it stands in, if another.
    """

    def __init__(
        self,
        name: str,
        form: MemberForm = VALUE,
        field: str = "",
        *,
        absent: Any = None,
        omit: Any = (),
        noted: bool = False,
        derive: Callable[[MessageFacts, Mapping[str, Any]], Any] | None = None,
        at: str = "",
    ) -> None:
        self.name, self.form, self.field = name, form, field or name
        self.absent, self.omit, self.noted, self.derive, self.at = absent, omit, noted, derive, at
        self.location = f"{at}/{name}" if at else ""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        source = facts[self.at] if self.at else source
        if self.noted:
            source.note_absent(self.name)
        absent, omit = _provided(self.absent, facts), _provided(self.omit, facts)
        found = source.optional(self.name, self.form_for(facts), absent=absent, omit=omit)
        if found is None and self.derive is not None and (derived := self.derive(facts, data)) is not None:
            source.notes.derive(data, self.field, derived)
        elif found is not None:
            data[self.field] = found

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        target = facts[self.at] if self.at else target
        value = data.get(self.field)
        if self.derive is not None and facts["opened"].is_derived(f"/{self.field}", self.derive(facts, data)):
            value = None
        absent = ANYTHING_OR_NULL if self.noted else _provided(self.absent, facts)
        target.put(self.name, self.form_for(facts), value, absent=absent, omit=_provided(self.omit, facts))


class Required(MemberRow):
    """A required member. *default*: the default that replaces it; *origin*: the pointer of a value that may not be
    expressible."""

    def __init__(
        self, name: str, form: MemberForm = VALUE, field: str = "", *, default: str = "", origin: str = ""
    ) -> None:
        self.name, self.form, self.field = name, form, field or name
        self.default, self.origin = default, origin

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        default = getattr(facts["defaults"], self.default) if self.default else None
        data[self.field] = source.required(self.name, self.form_for(facts), default)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        absent = ANYTHING if self.default else MISSING
        if self.origin:
            target.put_sayable(self.name, self.form_for(facts), data.get(self.field), self.origin, absent=absent)
        else:
            target.put(self.name, self.form_for(facts), data.get(self.field), absent=absent)


class AgentId(Required):
    """The id of an agent, for whom one of the defaults may stand. It is written from `<field>_id`."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        default = getattr(facts["defaults"], self.default)
        is_absent = not source.has(self.name) and default is not None and default.id is not None
        identity = source.required(self.name, self.form_for(facts), default.id if is_absent else None)
        data[self.field] = default if is_absent else Agent(id=identity)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        super().write(target, {self.field: _provided(data[f"{self.field}_id"], facts)}, facts)


class Kept(MemberRow):
    """A member without a field. *otherwise* is written if no value was kept; with *noted* its absence is kept, too."""

    def __init__(
        self, name: str, form: MemberForm, field: str = "", *, otherwise: Any = MISSING, noted: bool = False
    ) -> None:
        self.name, self.form, self.field, self.otherwise, self.noted = name, form, field, otherwise, noted

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        if self.noted:
            source.note_absent(self.name)
        found = source.keep(self.name, self.form_for(facts))
        if self.field and found is not None:
            data[self.field] = found

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:  # noqa: ARG002
        target.put_kept(self.name, self.form_for(facts), _provided(self.otherwise, facts))

    def locations(self, base: str, here: str) -> dict[str, str]:  # noqa: ARG002
        return {}


class Derived(MemberRow):
    """A field without a member, derived from the others. *noted*: mark it as derived; *location*: its source."""

    def __init__(
        self,
        field: str,
        make: Callable[[MessageFacts, Mapping[str, Any]], Any],
        *,
        noted: bool = True,
        location: str = "",
    ) -> None:
        self.field, self.make, self.noted, self.location = field, make, noted, location

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        value = self.make(facts, data)
        if self.noted:
            source.notes.derive(data, self.field, value)
        elif value is not None:
            data[self.field] = value

    def locations(self, base: str, here: str) -> dict[str, str]:
        return super().locations(base, here) if self.location else {}


class Rest(MemberRow):
    """All other members: collected in *field*, or without *field* kept or refused."""

    def __init__(self, field: str = "", *, refused: bool = False) -> None:
        self.field, self.refused = field, refused

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        if self.refused:
            source.refuse_rest()
        elif not self.field:
            source.keep_rest()
        elif members := source.rest():
            data[self.field] = members

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:  # noqa: ARG002
        for name, value in (data.get(self.field) or {}).items() if self.field else ():
            target.put_plain(name, value)

    def locations(self, base: str, here: str) -> dict[str, str]:
        return {f"{here}/{self.field}": base} if self.field else {}


KEPT: Final = Rest()
REFUSED: Final = Rest(refused=True)


class MemberTable:
    """The rows of an object."""

    def __init__(self, *rows: MemberRow) -> None:
        self.rows = rows
        self.names = {row.name for row in rows if row.name}
        self.fields = {row.field for row in rows if row.field}
        self.rest = next((row.field for row in rows if isinstance(row, Rest)), "")
        self.is_open = KEPT in rows
        self._locations: dict[str, dict[str, str]] = {}

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> MessageFacts:
        """Take all members into *data*, and return it."""
        for row in self.rows:
            row.read(source, data, facts)
        return data

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        """Write all members."""
        for row in self.rows:
            row.write(target, data, facts)

    def locations(self, base: str) -> Mapping[str, str]:
        """Return the pointers into data -> the foreign pointers, which are below *base*."""
        if base not in self._locations:
            self._locations[base] = {"": base, **self.below(base, "")}
        return self._locations[base]

    def below(self, base: str, here: str) -> dict[str, str]:
        """Return the same of the fields that are in the object *here*."""
        return {pointer: location for row in self.rows for pointer, location in row.locations(base, here).items()}

    def says_all(self, data: Mapping[str, Any]) -> bool:
        """Return whether the members express all of *data*, and none would be read as another."""
        if not data.keys() <= self.fields or (self.rest and (data.get(self.rest) or {}).keys() & self.names):
            return False
        return all(row.says_all(data[row.field]) for row in self.rows if isinstance(row, Items) and row.field in data)


class Inside(MemberRow):
    """An object within: of the same fields, or of those of the *field* that it is.

    *optional*: it may be missing; *default*: what of the defaults stands for it as a whole. *always*: its table is
    walked if it is missing, too, and who reads it keeps its rest.
    """

    def __init__(
        self,
        name: str,
        table: MemberTable,
        field: str = "",
        *,
        optional: bool = False,
        default: str = "",
        always: bool = False,
    ) -> None:
        self.name, self.table, self.field = name, table, field
        self.optional, self.default, self.always = optional or always, default, always

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        if self.default and not source.has(self.name):
            default = getattr(facts["defaults"], self.default)
            if default is not None:
                source.note_absent(self.name)
                data[self.default] = default
                return
        part = source.optional_inside(self.name) if self.optional else source.inside(self.name)
        if part is None and self.always:
            part = Source({}, source.location(self.name), source.notes, nulls=source.nulls)
        if part is not None:
            facts[part.pointer] = part
            inner = self.table.read(part, {} if self.field else data, facts)
            if self.field:
                data[self.field] = inner

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        inner = data.get(self.field) if self.field else data
        if inner is None:
            target.put(self.name, OBJECT, None)
            return
        part = target.inside(self.name, may_lack=bool(self.default), is_open=self.always or self.table.is_open)
        facts[part.pointer] = part
        self.table.write(part, inner, facts)

    def locations(self, base: str, here: str) -> dict[str, str]:
        return self.table.below(f"{base}/{self.name}", f"{here}/{self.field}" if self.field else here)


class Items(MemberRow):
    """A list of objects. An open table writes unknown fields unchanged."""

    def __init__(self, name: str, table: MemberTable, field: str = "", *, optional: bool = False) -> None:
        self.name, self.table, self.field, self.optional = name, table, field or name, optional

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        if self.optional and source.peek(self.name) in (MISSING, None):
            source.optional(self.name, LIST)
        else:
            data[self.field] = [self.table.read(item, {}, facts) for item in source.items(self.name)]

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        provided = data.get(self.field)
        if provided is None:
            target.put(self.name, LIST, None)
            return
        for part, item in zip(
            target.items(self.name, len(provided), is_open=self.table.is_open), provided, strict=True
        ):
            self.table.write(part, item, facts)
            for name in item.keys() - self.table.fields if self.table.is_open else ():
                part.put_plain(name, item[name])

    def says_all(self, items: list[dict[str, Any]] | None) -> bool:
        """Return whether the members express all of each of the *items*."""
        return not any((item.keys() - self.table.fields) & self.table.names for item in items or ())

    def locations(self, base: str, here: str) -> dict[str, str]:
        return self.table.below(f"{base}/{self.name}/*", f"{here}/{self.field}/*")


def _provided(value: Any, facts: MessageFacts) -> Any:
    return value(facts) if callable(value) else value
