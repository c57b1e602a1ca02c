"""A Pydantic model described as a Struct: its shadow, which has the same fields, limits and tags.

Owns the translation. A shadow never holds a payload: it gives msgspec's view of the type (size, cost, schema, fields),
and data are validated against it before the model sees them (`bus.payloads.pydantic_models`). Forms known only to
pydantic, such as URLs, are plain JSON types in the shadow.

Dataclasses and TypedDicts inside a model have shadows, too, because they may contain models.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import re
import typing
import uuid
from collections.abc import Iterable, Mapping
from itertools import combinations
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union

import annotated_types
import msgspec
import pydantic
from msgspec import UNSET, Meta, UnsetType
from pydantic.fields import FieldInfo
from pydantic.functional_serializers import PlainSerializer, WrapSerializer
from pydantic.types import Base64Encoder, EncodedBytes, EncodedStr, Json

from bus.payloads.checked_json import Json as OwnJson
from bus.payloads.checked_json import is_checked_json
from bus.payloads.costly_patterns import MAX_TEXT, find_pattern_fault
from bus.payloads.no_payload import is_typed_dict
from bus.payloads.rules import All, Either, Has, Rule
from bus.payloads.union_members import MemberFields, are_apart, find_tag, fixed_values

__all__ = ["Shadow", "make_shadow"]

_TYPE_MARK: Final = "x-sealbus-type"
"""The member of a schema that says how a text is read (`bus.schemas.decoder_marks`)."""


def _read_as(kind: Any, name: str) -> Any:
    """Return *kind* with a schema that says it is read as *name*."""
    return Annotated[kind, Meta(extra_json_schema={_TYPE_MARK: name})]


_PLAIN: Final = frozenset(
    {
        Any,
        NoneType,
        bool,
        int,
        float,
        str,
        datetime.datetime,
        datetime.date,
        datetime.time,
        datetime.timedelta,
        uuid.UUID,
        decimal.Decimal,
    }
)
_SPECIAL: Final[dict[Any, Any]] = {
    object: Any,
    pydantic.JsonValue: Any,
    pydantic.AwareDatetime: Annotated[datetime.datetime, Meta(tz=True)],
    pydantic.NaiveDatetime: Annotated[datetime.datetime, Meta(tz=False)],
    pydantic.PastDatetime: _read_as(datetime.datetime, "datetime in the past"),
    pydantic.FutureDatetime: _read_as(datetime.datetime, "datetime in the future"),
    pydantic.PastDate: _read_as(datetime.date, "date in the past"),
    pydantic.FutureDate: _read_as(datetime.date, "date in the future"),
}
_LISTS: Final = (list, collections.deque, collections.abc.Sequence, collections.abc.MutableSequence)
_SETS: Final = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_DICTS: Final = (
    dict,
    collections.abc.Mapping,
    collections.abc.MutableMapping,
    collections.OrderedDict,
    collections.defaultdict,
)
_TEXTS: Final = (
    str,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    decimal.Decimal,
    bytes,
)
_AS_TEXT: Final[Any] = Json
_SECRETS: Final = (pydantic.SecretStr, pydantic.SecretBytes, pydantic.types.Secret)
_JSON: Final[dict[str, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
    "array": list[Any],
    "object": dict[str, Any],
}
_BOUNDS: Final = {
    annotated_types.Gt: "gt",
    annotated_types.Ge: "ge",
    annotated_types.Lt: "lt",
    annotated_types.Le: "le",
    annotated_types.MultipleOf: "multiple_of",
    annotated_types.MinLen: "min_length",
    annotated_types.MaxLen: "max_length",
}
_NUMERIC: Final = ("gt", "ge", "lt", "le", "multiple_of")
_LENGTHS: Final = ("min_length", "max_length")
_FACTORIES: Final = (list, dict, set, frozenset, tuple)
_ATOMS: Final = (bool, int, float, str, enum.Enum, *_TEXTS)


class _Member(NamedTuple):
    """A field of a class, however the class says it."""

    name: str
    annotation: Any
    metadata: tuple[Any, ...] = ()
    info: FieldInfo | None = None
    required: bool = True
    may_miss: bool = False
    """Without a default, and not required: of a TypedDict."""
    default: Any = UNSET


class Shadow(NamedTuple):
    """What describes a model."""

    described: type[msgspec.Struct]
    is_ambiguous: bool
    """Whether data may fit several members of a union, so that only the model decides what they become."""


def make_shadow(cls: type[pydantic.BaseModel]) -> Shadow:
    """Return what describes *cls*, whose annotations are resolved.

    Raises TypeError, with the field and what to write instead, for what has no form in JSON that all languages read
    alike.
    """
    shadows = _Shadows()
    described = shadows.of_root(cls) if issubclass(cls, pydantic.RootModel) else shadows.of_class(cls)
    return Shadow(described, shadows.is_ambiguous)


class _Shadows:
    """The shadows below one model, each class once."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, str, Any], type[msgspec.Struct]] = {}
        self._names: set[str] = set()
        self._open: list[Any] = []
        """The named aliases that are being followed: one that leads to itself is any JSON."""
        self.is_ambiguous = False
        self._is_linear = True
        """Whether the class at hand matches patterns in linear time, as pydantic's own library does."""

    def of_root(self, cls: type[pydantic.RootModel[Any]]) -> type[msgspec.Struct]:
        """Return the shadow of a root model whose data are an object of known fields. Raises TypeError."""
        classes = _classes_in(cls)
        if not classes:
            raise TypeError(
                f"data is an object, and {cls.__qualname__} is a RootModel of another kind: write a BaseModel with one "
                "field"
            )
        if len(classes) == 1:
            return self.of_class(classes[0])
        members = [_fields_in_data(each) for each in classes]
        if not are_apart(members):
            self._check_ambiguous(members, cls.__qualname__)
        return self._merged(classes, members)

    def _check_ambiguous(self, members: list[MemberFields], location: str) -> None:
        """Note that only the model decides which of *members* data are; raise TypeError if it cannot either."""
        if any(one.annotations == two.annotations for one, two in combinations(members, 2)):
            raise TypeError(f"{location}: {_TELL_APART}")
        self.is_ambiguous = True

    def of_class(self, cls: Any, tag_field: str = "", tag: Any = None) -> type[msgspec.Struct]:
        """Return the shadow of *cls*; as a member of a union that *tag_field* discriminates, the one with *tag*."""
        like = cls, tag_field, tag
        if like in self._made:
            return self._made[like]
        if not getattr(cls, "__pydantic_complete__", True):
            cls.model_rebuild()
        members = [member for member in _members_of(cls) if not tag_field or member.name != tag_field]
        names = {member.name: name for member in members if (name := _name_in_data(cls, member)) != member.name}
        tag_name = next((_name_in_data(cls, each) for each in _members_of(cls) if each.name == tag_field), None)
        shadow = msgspec.defstruct(
            self._free(cls.__name__),
            [_field(member) for member in members],
            kw_only=True,
            rename=names or None,
            tag_field=tag_name,
            tag=tag,
            module=cls.__module__,
            namespace={"__doc__": cls.__doc__ if _has_words(cls) else None},
            forbid_unknown_fields=getattr(cls, "model_config", {}).get("extra") == "forbid",
        )
        # Only now that it is known: a class may contain itself.
        self._made[like] = shadow
        shadow.__annotations__ = {member.name: self._annotation(cls, member) for member in members}
        return shadow

    def _free(self, wanted: str) -> str:
        # The name of a generic model has brackets.
        wanted = name = re.sub(r"\W+", "_", wanted).strip("_")
        number = 2
        while name in self._names:
            name, number = f"{wanted}_{number}", number + 1
        self._names.add(name)
        return name

    def _annotation(self, cls: type[Any], member: _Member) -> Any:
        location = f"{cls.__qualname__}.{member.name}"
        self._is_linear = getattr(cls, "model_config", {}).get("regex_engine") != "python-re"
        serializer = _serializer_of(cls, member.name)
        if serializer is not None:
            described = self._written(serializer, location)
        else:
            described = self._described(member.annotation, member.metadata, location, _discriminator(member.info))
        words = member.info.description if member.info is not None else None
        if words:
            described = Annotated[described, Meta(description=words)]
        return described | UnsetType if member.may_miss else described

    def _written(self, returns: Any, location: str) -> Any:
        """Return the type that a user's serializer writes: its *returns* annotation, as far as that is known."""
        known = returns is not None and "Undefined" not in type(returns).__name__
        return self._described(returns, (), location) if known else Any

    def _described(self, kind: Any, metadata: Iterable[Any], location: str, discriminator: Any = None) -> Any:
        """Return *kind* as msgspec takes it, with the limits in *metadata*."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is Annotated:
            inner, *more = arguments
            return self._described(inner, [*more, *metadata], location, discriminator)
        flat = list(_flattened(metadata))
        discriminator = discriminator or next(filter(None, map(_discriminator, flat)), None)
        for each in flat:
            if isinstance(each, PlainSerializer | WrapSerializer):
                return self._written(each.return_type, location)
            if isinstance(each, EncodedBytes) and each.encoder is Base64Encoder:
                return bytes
            if is_checked_json(each):
                self.is_ambiguous = self.is_ambiguous or kind is not Any
                return OwnJson if kind is Any else Any
            if each is _AS_TEXT or isinstance(each, _AS_TEXT):
                return _read_as(str, "JSON in text")
            if isinstance(each, EncodedBytes | EncodedStr):
                return _read_as(str, f"{each.encoder.__name__} of {getattr(kind, '__name__', kind)}")
        if origin in (Union, UnionType):
            return self._union(arguments, flat, location, discriminator)
        if (alias := getattr(kind, "__value__", None)) is not None and not isinstance(kind, type):
            return self._alias(kind, alias, flat, location, discriminator)
        limits = _limits(flat, is_linear=self._is_linear)
        return _limited(_narrowed(self._unlimited(kind, origin, arguments, location), flat), limits)

    def _alias(self, kind: Any, value: Any, metadata: list[Any], location: str, discriminator: Any) -> Any:
        if kind in _SPECIAL:
            return _SPECIAL[kind]
        if kind in self._open:
            return Any
        self._open.append(kind)
        try:
            return self._described(value, metadata, location, discriminator)
        finally:
            self._open.pop()

    def _unlimited(self, kind: Any, origin: Any, arguments: tuple[Any, ...], location: str) -> Any:
        if origin is Literal:
            return _literal(arguments)
        if _is_among(kind, _PLAIN):
            return kind
        if _is_among(kind, _SPECIAL):
            return _SPECIAL[kind]
        if isinstance(kind, TypeVar):
            return self._described(kind.__bound__ or Any, (), location)
        if (real := getattr(kind, "__supertype__", None)) is not None:
            return self._described(real, (), location)
        container = self._container(origin or kind, arguments, location)
        if container is not None:
            return container
        if isinstance(kind, type):
            return self._named(kind, location)
        return _by_schema(kind, location)

    def _container(self, origin: Any, arguments: tuple[Any, ...], location: str) -> Any:
        parts = [part if part is ... else self._described(part, (), location) for part in arguments]
        if origin is tuple:
            return tuple[tuple(parts)] if parts else list[Any]  # type: ignore[misc]
        if origin in _LISTS:
            return list[parts[0] if parts else Any]  # type: ignore[misc]
        if origin in _SETS:
            return set[parts[0] if parts else Any]  # type: ignore[misc]
        if origin is collections.Counter:
            return dict[parts[0] if parts else str, int]  # type: ignore[misc]
        if origin in _DICTS:
            return dict[tuple(parts) if parts else (str, Any)]  # type: ignore[misc]
        return None

    def _named(self, cls: Any, location: str) -> Any:
        if issubclass(cls, pydantic.RootModel):
            return self._described(cls.model_fields["root"].annotation, cls.model_fields["root"].metadata, location)
        if issubclass(cls, pydantic.BaseModel) or dataclasses.is_dataclass(cls) or is_typed_dict(cls):
            return self.of_class(cls)
        if issubclass(cls, enum.Enum):
            return cls
        if issubclass(cls, _SECRETS):
            raise TypeError(
                f"{location}: a secret is written as asterisks, and cannot be read back: write str, or better the name "
                "under which receivers find the secret"
            )
        if cls is bytes:
            raise TypeError(
                f"{location}: bytes of a Pydantic model are written as UTF-8, which not all bytes are: "
                "write Base64Bytes, as everybody else reads them"
            )
        return _by_schema(cls, location)

    def _union(self, members: Iterable[Any], metadata: list[Any], location: str, discriminator: Any) -> Any:
        kinds = list(_members_of_union(members, discriminator))
        several = [cls for kind in kinds for cls in _classes_in(kind)]
        classes = list(dict.fromkeys(several))
        # A function decides what data become, or the same class is there twice: alone, and in a root model.
        self.is_ambiguous = self.is_ambiguous or callable(discriminator) or len(classes) < len(several)
        united = []
        if isinstance(discriminator, str):
            self._check_tags(classes, discriminator, location)
        if len(classes) > 1 or isinstance(discriminator, str):
            kinds = [kind for kind in kinds if not _classes_in(kind)]
            united = self._told_apart(classes, location, discriminator)
        found = [*united, *(self._described(kind, (), location) for kind in kinds)]
        texts = [kind for kind in found if _is_text(kind)]
        if len(texts) > 1 and not all(typing.get_origin(kind) is Literal for kind in texts):
            # Pydantic tells them apart by their text; msgspec does not, and in JSON all are text.
            found = [_one_of_texts(texts), *(kind for kind in found if kind not in texts)]
            self.is_ambiguous = True
        if sum(map(_is_object, found)) > max(1, len(united)):
            raise TypeError(f"{location}: {_TELL_APART}")
        if sum(map(_is_array, found)) > 1:
            raise TypeError(f"{location}: a union of several lists: write one list of a union")
        limits = _limits(metadata, is_linear=self._is_linear)
        return Union[tuple(_limited(kind, limits) for kind in found)]  # noqa: UP007 - made of a list

    def _told_apart(self, classes: list[Any], location: str, discriminator: Any) -> list[type[msgspec.Struct]]:
        """Return the shadows of a union of *classes*, by its *discriminator* where that is a field.

        Raises TypeError where their data cannot be told apart.
        """
        members = [_fields_in_data(cls) for cls in classes]
        tag_field = find_tag(members)
        if isinstance(discriminator, str):
            own = next(member for member in _members_of(classes[0]) if member.name == discriminator)
            tag_field = _name_in_data(classes[0], own)
        tags = (
            [] if tag_field is None else [fixed_values(member.annotations.get(tag_field)) or () for member in members]
        )
        values = [value for each in tags for _, value in each]
        if values and len(set(values)) == len(values) and len({type(value) for value in values} | {bool}) == _ONE_KIND:
            names = [
                next(member.name for member in _members_of(cls) if _name_in_data(cls, member) == tag_field)
                for cls in classes
            ]
            return [
                self.of_class(cls, name, tag)
                for cls, name, each in zip(classes, names, tags, strict=True)
                for tag in sorted(value for _, value in each)
            ]
        if not are_apart(members):
            self._check_ambiguous(members, location)
        return [self._merged(classes, members)]

    def _merged(self, classes: list[Any], members: list[MemberFields]) -> type[msgspec.Struct]:
        """Return one shadow for data of any of *classes*: msgspec reads only one untagged class in a union."""
        like = tuple(classes), "", None
        if like in self._made:
            return self._made[like]
        found: dict[str, list[tuple[Any, _Member]]] = {}
        for cls in classes:
            for member in _members_of(cls):
                found.setdefault(_name_in_data(cls, member), []).append((cls, member))
        names = {own: name for name, owners in found.items() if (own := owners[0][1].name) != name}
        required = frozenset.intersection(*(member.required for member in members))
        rule = Rule(
            "has the required fields of one of " + ", ".join(cls.__name__ for cls in classes),
            "",
            Either(tuple(All(tuple(Has(name, null=True) for name in sorted(each.required))) for each in members)),
        )
        shadow = msgspec.defstruct(
            self._free("_or_".join(cls.__name__ for cls in classes)[:_MAX_NAME]),
            [
                _field(_Member(owners[0][1].name, Any, required=name in required, may_miss=name not in required))
                for name, owners in found.items()
            ],
            kw_only=True,
            rename=names or None,
            module=classes[0].__module__,
            namespace={"__doc__": None, "__rules__": (rule,)},
            forbid_unknown_fields=all(getattr(cls, "model_config", {}).get("extra") == "forbid" for cls in classes),
        )
        self._made[like] = shadow
        shadow.__annotations__ = {
            owners[0][1].name: self._shared(owners) if name in required else self._shared(owners) | UnsetType
            for name, owners in found.items()
        }
        return shadow

    def _shared(self, owners: list[tuple[Any, _Member]]) -> Any:
        """Return what describes one field of several classes."""
        described: list[Any] = []
        for cls, member in owners:
            each = self._annotation(cls, member._replace(may_miss=False))
            if not any(each == known for known in described):
                described.append(each)
        if len(described) == 1:
            return described[0]
        kinds = [member.annotation for _, member in owners]
        if not any(_serializer_of(cls, member.name) for cls, member in owners):
            try:
                return self._union(kinds, [], owners[0][0].__qualname__, None)
            except TypeError:
                pass
        # The model still checks it.
        return Any

    @staticmethod
    def _check_tags(classes: list[Any], discriminator: str, location: str) -> None:
        for cls in classes:
            member = next((each for each in _members_of(cls) if each.name == discriminator), None)
            if member is None or fixed_values(member.annotation) is None:
                raise TypeError(f"{location}: {cls.__qualname__}.{discriminator} must be a Literal: {_TELL_APART}")


_ONE_KIND: Final = 2
"""Tags of msgspec are all text, or all integers; flags are neither."""
_TELL_APART: Final = (
    "a union of several objects needs a member that distinguishes them: give each model a field such as "
    '`kind: Literal["a"]` with a value of its own, or write Annotated[..., CheckedJson()] to carry it as any JSON'
)
_MAX_NAME: Final = 80


def _literal(values: tuple[Any, ...]) -> Any:
    """Return a Literal of *values*, with what data have for members of enumerations."""
    plain = tuple(value.value if isinstance(value, enum.Enum) else value for value in values)
    if all(isinstance(value, str | int | NoneType) for value in plain):
        return Literal[plain]
    kinds = {type(value) for value in plain}
    # msgspec has no literals of these; the model checks the value.
    described = Union[tuple(kinds)] if kinds <= _LITERAL_KINDS else Any  # noqa: UP007 - made of a set
    return Annotated[described, Meta(extra_json_schema={"enum": list(plain)})]


_LITERAL_KINDS: Final = {bool, int, float, str, NoneType}


def _classes_in(kind: Any) -> list[Any]:
    """Return the classes with fields that *kind*, a member of a union, stands for; none if it is anything else."""
    while True:
        if typing.get_origin(kind) is Annotated:
            inner, *metadata = typing.get_args(kind)
            if any(isinstance(each, PlainSerializer | WrapSerializer) or is_checked_json(each) for each in metadata):
                return []
            kind = inner
        elif (alias := getattr(kind, "__value__", None)) is not None and not isinstance(kind, type):
            kind = alias
        elif isinstance(kind, type) and issubclass(kind, pydantic.RootModel):
            kind = kind.model_fields["root"].annotation
        else:
            break
    if typing.get_origin(kind) in (Union, UnionType):
        found = [_classes_in(member) for member in typing.get_args(kind)]
        return [cls for each in found for cls in each] if all(found) else []
    if not isinstance(kind, type):
        return []
    is_class = issubclass(kind, pydantic.BaseModel) or dataclasses.is_dataclass(kind) or is_typed_dict(kind)
    return [kind] if is_class else []


def _fields_in_data(cls: Any) -> MemberFields:
    members = [(_name_in_data(cls, member), member) for member in _members_of(cls)]
    return MemberFields(
        {name: member.annotation for name, member in members},
        frozenset(name for name, member in members if member.required),
        keeps_others=getattr(cls, "model_config", {}).get("extra") == "allow",
    )


def _is_among(kind: Any, known: Any) -> bool:
    try:
        return kind in known
    except TypeError:  # a type that has no hash, such as a Literal of a list
        return False


def _members_of(cls: Any) -> list[_Member]:
    """Return the fields of *cls*: a model, a dataclass or a TypedDict."""
    infos: Mapping[str, FieldInfo] | None = getattr(cls, "__pydantic_fields__", None)
    if infos is None and hasattr(cls, "model_fields"):
        infos = cls.model_fields
    if infos is not None:
        return [_of_info(name, info) for name, info in infos.items() if not _is_left_out(info)]
    hints = typing.get_type_hints(cls, include_extras=True)
    if is_typed_dict(cls):
        bare = {name: _bare(hint) for name, hint in hints.items()}
        return [
            _Member(name, hint, required=name in cls.__required_keys__, may_miss=name not in cls.__required_keys__)
            for name, hint in bare.items()
        ]
    return [
        _Member(
            field.name,
            hints[field.name],
            required=field.default is field.default_factory is dataclasses.MISSING,
            default=None if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(cls)
    ]


def _of_info(name: str, info: FieldInfo) -> _Member:
    required = info.is_required()
    default = UNSET if required else info.default_factory if info.default_factory is not None else info.default
    return _Member(name, info.annotation, tuple(info.metadata), info, required, default=default)


def _is_left_out(info: FieldInfo) -> bool:
    # A required one is written by nobody and refused by everybody, which the first publish says.
    return info.exclude is True and not info.is_required()


def _bare(hint: Any) -> Any:
    """Return the type inside a TypedDict's Required[...], NotRequired[...] or ReadOnly[...]."""
    while "Required" in str(typing.get_origin(hint)) or "ReadOnly" in str(typing.get_origin(hint)):
        hint = typing.get_args(hint)[0]
    return hint


def _name_in_data(cls: Any, member: _Member) -> str:
    """Return how data name *member*. Raises TypeError where it is read under another name than it is written."""
    info = member.info
    if info is None:
        return member.name
    written = info.serialization_alias or info.alias or member.name
    read = info.validation_alias or info.alias or member.name
    names = [name for name in getattr(read, "choices", [read]) if isinstance(name, str)]
    if written not in names:
        raise TypeError(
            f"{cls.__qualname__}.{member.name} is written as {written!r} and read as {read!r}: give it one alias, "
            "Field(alias=...), for all agents share the name"
        )
    return written


def _field(member: _Member) -> Any:
    """Return *member* as `defstruct` takes it, of any type for the time being."""
    if member.may_miss:
        return member.name, Any, UNSET
    if member.required:
        return member.name, Any
    default = member.default
    if isinstance(default, list | dict | set) and not default:
        return member.name, Any, msgspec.field(default_factory=type(default))
    if _is_fixed(default):
        return member.name, Any, default
    if default in _FACTORIES:
        return member.name, Any, msgspec.field(default_factory=default)
    # Any other default is the model's own affair, and a factory may count how often it is asked.
    return member.name, Any, msgspec.field(default_factory=_unknown)


def _is_fixed(default: Any) -> bool:
    """Return whether *default* can be shared: a value that does not change."""
    parts = default if isinstance(default, tuple) else (default,)
    return all(part is None or isinstance(part, _ATOMS) for part in parts)


def _unknown() -> Any:
    """Stand for a default that only the model knows."""
    return UNSET


def _serializer_of(cls: Any, name: str) -> Any:
    """Return the annotated return type of the serializer of field *name*; None if the field has none."""
    decorators = getattr(cls, "__pydantic_decorators__", None)
    for each in getattr(decorators, "field_serializers", {}).values():
        if name in each.info.fields or "*" in each.info.fields:
            return _returned(each)
    return None


def _returned(decorator: Any) -> Any:
    if isinstance(decorator.info.return_type, type):
        return decorator.info.return_type
    function = getattr(decorator.func, "__func__", decorator.func)
    try:
        return typing.get_type_hints(function, include_extras=True).get("return", Any)
    except (NameError, TypeError):
        return Any


def _discriminator(provided: Any) -> Any:
    """Return the member name or function that discriminates a union; None if there is none."""
    found = getattr(provided, "discriminator", None)
    return found.discriminator if isinstance(found, pydantic.Discriminator) else found


def _flattened(metadata: Iterable[Any]) -> Iterable[Any]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield each
            yield from _flattened(each.metadata)
        elif isinstance(each, annotated_types.GroupedMetadata):
            yield from _flattened(each)
        elif each is not None:
            yield each


def _limits(metadata: Iterable[Any], *, is_linear: bool) -> dict[str, Any]:
    """Return the arguments of Meta. *is_linear*: the model checks patterns in linear time."""
    found: dict[str, Any] = {}
    for each in metadata:
        if (name := _BOUNDS.get(type(each))) is not None:
            found[name] = getattr(each, name)
        pattern = getattr(each, "pattern", None)
        text = getattr(pattern, "pattern", pattern)
        if isinstance(text, str) and _is_pattern(text):
            found["pattern"] = text
            # A compiled pattern is matched by Python.
            if is_linear and isinstance(pattern, str) and not _is_cheap(text, metadata):
                found["extra_json_schema"] = {"pattern": found.pop("pattern")}
    return {name: value for name, value in found.items() if value is not None}


def _is_cheap(text: str, metadata: Iterable[Any]) -> bool:
    """Return whether msgspec may match the pattern *text*, too."""
    lengths = [each.max_length for each in metadata if isinstance(each, annotated_types.MaxLen)]
    return bool(lengths) and min(lengths) <= MAX_TEXT and find_pattern_fault(text) is None


def _one_of_texts(kinds: list[Any]) -> Any:
    """Return str, with a schema that says which of *kinds* a text may be read as."""
    bare = [typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind for kind in kinds]
    names = sorted({getattr(kind, "__name__", None) or str(kind) for kind in bare})
    return str if "str" in names else _read_as(str, " or ".join(names))


def _narrowed(described: Any, metadata: list[Any]) -> Any:
    """Return *described* with a schema that names the marks of pydantic's own types, such as the version of a UUID."""
    marks = sorted(repr(each) for each in metadata if isinstance(each, _NARROWING))
    return _read_as(described, " ".join(marks)) if marks else described


_NARROWING: Final = (pydantic.types.UuidVersion, pydantic.types.PathType)


def _is_pattern(text: str) -> bool:
    """Return whether Python reads *text*: pydantic's own patterns are of another library, whose matching is linear."""
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _limited(kind: Any, limits: dict[str, Any]) -> Any:
    """Return *kind* with those of *limits* that msgspec can check; pydantic checks all of them."""
    origin = typing.get_origin(kind)
    base = typing.get_args(kind)[0] if origin is Annotated else origin or kind
    names: tuple[str, ...] = ()
    if base in (int, float):
        names = _NUMERIC if base is int else _NUMERIC[:4]
    elif base is str:
        names = (*_LENGTHS, "pattern", "extra_json_schema")
    elif base in (bytes, list, set, dict):
        names = _LENGTHS
    taken = {name: limits[name] for name in names if name in limits and _fits(base, name, limits[name])}
    for strict, weak, stronger in (("gt", "ge", max), ("lt", "le", min)):
        if strict in taken and weak in taken:
            # msgspec takes one of the two.
            del taken[strict if stronger(taken[strict], taken[weak]) != taken[strict] else weak]
    return Annotated[kind, Meta(**taken)] if taken else kind


def _fits(base: Any, name: str, limit: Any) -> bool:
    if name not in _NUMERIC:
        return True
    return isinstance(limit, int) if base is int else isinstance(limit, int | float)


def _members_of_union(members: Iterable[Any], discriminator: Any) -> Iterable[Any]:
    """Yield *members*, with those of unions among them in their place."""
    for member in members:
        kind, own = member, None
        while typing.get_origin(kind) is Annotated:
            kind, *more = typing.get_args(kind)
            own = own or next(filter(None, map(_discriminator, more)), None)
        if typing.get_origin(kind) in (Union, UnionType) and (own is None or own == discriminator):
            yield from _members_of_union(typing.get_args(kind), discriminator)
        else:
            yield kind if discriminator is not None else member


def _is_text(kind: Any) -> bool:
    base = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if typing.get_origin(base) is Literal:
        return any(isinstance(value, str) for value in typing.get_args(base))
    if isinstance(base, type) and issubclass(base, enum.Enum):
        return any(isinstance(member.value, str) for member in base)
    return base in _TEXTS


def _is_object(kind: Any) -> bool:
    base = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    return typing.get_origin(base) is dict or (isinstance(base, type) and issubclass(base, msgspec.Struct))


def _is_array(kind: Any) -> bool:
    base = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    return typing.get_origin(base) in (list, set, tuple)


def _by_schema(kind: Any, location: str) -> Any:
    """Return the JSON type as which pydantic writes *kind*."""
    try:
        schema = pydantic.TypeAdapter(kind).json_schema(mode="serialization")
    except (pydantic.PydanticUserError, pydantic.errors.PydanticInvalidForJsonSchema) as error:
        first_line = str(error).partition("\n")[0]
        raise TypeError(
            f"{location}: {getattr(kind, '__qualname__', kind)} has no form in JSON: {first_line}"
        ) from None
    name = schema.get("type")
    if not isinstance(name, str):
        return Any
    described = _JSON.get(name, Any)
    if name != "string":
        return described
    known: dict[str, Any] = {word: value for word, value in schema.items() if word in ("format", "contentEncoding")}
    # Two classes may share a format, and one without a format is not any text.
    known[_TYPE_MARK] = getattr(kind, "__qualname__", None) or str(kind)
    return Annotated[described, Meta(extra_json_schema=known)]


def _has_words(cls: Any) -> bool:
    # A dataclass without words has its signature for them.
    return bool(cls.__doc__) and not cls.__doc__.startswith(f"{cls.__name__}(")
