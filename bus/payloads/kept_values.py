"""Values that are stored as JSON between runs: results and arguments of steps, checkpoints, the states of sagas.

Owns which types can be stored (those of payloads and their combinations), and converting values to JSON and back. An
unsuitable type is refused before there is a value of it. Pure. Limits and storage are elsewhere.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import inspect

from bus.errors import ContractError, text_of
from bus.payloads.described_types import walk
from bus.payloads.exact_values import exactness_check
from bus.payloads.no_payload import is_model, is_typed_dict
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.protocol.validation_errors import translate

if TYPE_CHECKING:
    from bus.payloads.pydantic_models import ModelPart

__all__ = ["KeptType", "is_plain", "kept_type", "plain_from", "plain_of", "with_floats"]

_KEYS: Final = (
    inspect.AnyType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.FloatType,
    inspect.IntType,
    inspect.LiteralType,
    inspect.StrType,
    inspect.TimeDeltaType,
    inspect.TimeType,
    inspect.UUIDType,
)
_BASES: Final[tuple[type[Any], ...]] = (str, int, float, bytes)
"""Base classes whose subclasses msgspec does not write: it accepts only instances of exactly these classes."""


class KeptType:
    """One type of stored values: a class or another annotation. Raises ContractError for other types."""

    __slots__ = ("_check", "_kind", "_makes_dicts", "_whole")

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._makes_dicts = is_typed_dict(kind)
        self._whole: ModelPart | None = None
        """A part that only pydantic can read, such as a union of models."""
        self._check: Callable[[Any], None] | None = None
        """Raises ContractError for values that JSON cannot carry exactly."""
        try:
            self._resolve()
        except ContractError:
            raise
        except Exception as error:
            raise ContractError(f"{_named(kind)} cannot be stored: {text_of(error)}", "type") from error

    def _resolve(self) -> None:
        try:
            described = inspect.type_info(self._kind)
        except TypeError:
            if not _mentions_model(self._kind, set()):
                raise
            self._whole = _model_part(self._kind)
            return
        if (fault := next(_faults(described), None)) is not None:
            raise ContractError(f"{_named(self._kind)} cannot be stored: {fault}", "type")
        self._check = exactness_check(self._kind)

    def plain(self, value: Any) -> Any:
        """Return *value* as plain JSON values; keys are strings. Raises ContractError."""
        try:
            if self._check is not None:
                self._check(value)
            return _texted(_plain(value if self._whole is None else self._whole.plain(value)))
        except ContractError as error:
            raise _without_base(error) from error
        except Exception as error:
            # A model's own code may raise anything.
            raise ContractError(f"has no form in JSON: {text_of(error)}") from error

    def read(self, plain: Any) -> Any:
        """Return the value that *plain* was made of. Raises ContractError."""
        try:
            if self._whole is not None:
                return self._whole.read(plain)
            made = msgspec.convert(plain, self._kind, str_keys=True, dec_hook=_read_part)
        except ContractError as error:
            raise _without_base(error) from error
        except msgspec.ValidationError as error:
            raise translate(error) from error
        except Exception as error:
            raise ContractError(f"{_named(self._kind)} could not be built: {text_of(error)}") from error
        # A TypedDict that is marked knows its message type.
        return self._kind(made) if self._makes_dicts else made


def kept_type(kind: Any) -> KeptType:
    """Return how values of *kind* are stored. None means Any: values come back as dicts and lists.

    Raises ContractError for a type that cannot be stored. Its cause is a NameError if an annotation is not defined yet.
    """
    try:
        return _known(Any if kind is None else kind)
    except TypeError:  # it has no hash, such as a Literal of a list
        return KeptType(kind)


@lru_cache(maxsize=256)
def _known(kind: Any) -> KeptType:
    return KeptType(kind)


def plain_of(value: Any) -> Any:
    """Return *value*, of whatever type, as what JSON has.

    Raises ContractError. Its cause is a TypeError where something in it is of a class that JSON does not have.
    """
    return _ANYTHING.plain(value)


def plain_from(text: bytes) -> Any:
    """Return what canonical JSON *text* holds. A whole number that is too large for an int was a float.

    Raises msgspec.DecodeError.
    """
    return with_floats(msgspec.json.decode(text))


def is_plain(value: Any) -> bool:
    """Tell whether *value* is what JSON text is read as: it is of no class of a program's own."""
    if type(value) is dict:
        return all(type(key) is str and is_plain(below) for key, below in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


def _faults(described: Any) -> Iterator[str]:
    """Yield the parts of a type that cannot be stored, each with a replacement."""
    for location, kind in walk(described):
        where = f"{location}: " if location else ""
        if isinstance(kind, inspect.CustomType):
            if is_model(kind.cls):
                _part_of(kind.cls)
            elif kind.cls is not object:
                yield (
                    f"{where}{getattr(kind.cls, '__qualname__', kind.cls)} is none of the types that JSON is read as: "
                    "write a Struct, a dataclass, a TypedDict or a Pydantic model"
                )
        elif isinstance(kind, inspect.RawType | inspect.ExtType):
            yield f"{where}{type(kind).__name__.removesuffix('Type')} cannot be stored: write Any"
        elif isinstance(kind, inspect.DictType):
            for key in _members(kind.key_type):
                if not isinstance(key, _KEYS):
                    yield f"{where}keys of a dict are text or numbers: write a list of pairs, list[tuple[key, value]]"


def _members(kind: Any) -> list[Any]:
    if isinstance(kind, inspect.Metadata):
        return _members(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [below for member in kind.types for below in _members(member)]
    return [kind]


def _mentions_model(kind: Any, seen: set[int]) -> bool:
    """Tell whether *kind* is a model, or made of one in a way that pydantic understands."""
    if id(kind) in seen:
        return False
    seen.add(id(kind))
    if isinstance(kind, type) and is_model(kind):
        return True
    below = list(typing.get_args(kind))
    if is_typed_dict(kind) or (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        below += typing.get_type_hints(kind, include_extras=True).values()
    return any(_mentions_model(each, seen) for each in below)


def _plain(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, enc_hook=_write_part, order="sorted")
    except TypeError:
        # Sets of what can't be compared have no order of their own; any order is a list all the same.
        return msgspec.to_builtins(value, enc_hook=_write_part)


def _write_part(value: Any) -> Any:
    """Return a value that msgspec can write for *value*, a value of an unknown type."""
    cls: Any = type(value)
    if is_model(cls):
        try:
            part = _part_of(cls)
        except TypeError:
            # Nobody could read it back as the model; what it holds is kept all the same.
            return value.model_dump(mode="python", by_alias=True, round_trip=True, warnings=False)
        return part.plain(value)
    for base in _BASES:
        if isinstance(value, base):
            return base(value)
    raise TypeError(f"{cls.__qualname__} has no JSON form")


def _read_part(kind: Any, plain: Any) -> Any:
    """Return what msgspec cannot read, a model. Raises ValueError, to which msgspec adds the place."""
    if not is_model(kind):
        return plain
    try:
        return _part_of(kind).read(plain)
    except msgspec.ValidationError as error:
        raise ValueError(str(translate(error))) from error
    except ContractError as error:
        raise ValueError(str(_without_base(error))) from error


@lru_cache(maxsize=256)
def _part_of(model: Hashable) -> ModelPart:
    return _model_part(model)


def _model_part(kind: Any) -> ModelPart:
    """Return how a model, or a type that mentions one, is written and read. Raises TypeError."""
    # Only now: a program without models need not have pydantic.
    from bus.payloads.pydantic_models import ModelPart

    return ModelPart(kind)


def with_floats(plain: Any) -> Any:
    """Return *plain* with each whole number that is too large for an int as the float that it was."""
    if isinstance(plain, dict):
        return {key: with_floats(below) for key, below in plain.items()}
    if isinstance(plain, list):
        return [with_floats(item) for item in plain]
    is_float = isinstance(plain, int) and not -SAFE_INTEGER <= plain <= SAFE_INTEGER
    return float(plain) if is_float else plain


def _without_base(error: ContractError) -> ContractError:
    """Return *error*, which has a pointer into data, for a value outside a message."""
    return ContractError(error.text, error.pointer.removeprefix("/data"))


def _texted(plain: Any) -> Any:
    """Return *plain* with keys that are numbers as text. Raises TypeError for other keys, and for two that are one."""
    if isinstance(plain, dict):
        texted = {key if isinstance(key, str) else _text_of_key(key): _texted(below) for key, below in plain.items()}
        if len(texted) < len(plain):
            raise TypeError("two keys of a dict are the same text")
        return texted
    return [_texted(item) for item in plain] if isinstance(plain, list | tuple) else plain


def _text_of_key(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, int | float):
        raise TypeError(f"a key of a dict is {type(key).__name__}, no text")
    (text,) = msgspec.to_builtins({key: None}, str_keys=True)
    return str(text)


def _named(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)[:200]


_ANYTHING: Final = KeptType(Any)
