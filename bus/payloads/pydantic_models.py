"""Pydantic models as payload classes: reading and writing them with the behaviour of Structs.

Data first pass the model's shadow (`bus.payloads.pydantic_shadows`), by msgspec: a wrong type or a missing field is
refused with the same text and pointer as for a Struct, before any user code runs. Then the model validates the same
text, with its own validators and limits. So pydantic need not be strict (which would break validators in mode
"before"), and strings are still never coerced to numbers.
"""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pydantic
import pydantic_core
from msgspec import inspect

from bus.errors import ContractError
from bus.payloads.described_types import walk
from bus.payloads.pydantic_shadows import make_shadow
from bus.payloads.reading import Reader
from bus.payloads.scalar_spellings import respelling
from bus.protocol.canonical import escape_pointer_token

__all__ = ["ModelForm", "ModelPart"]

_VERSION: Final = tuple(int(part) for part in pydantic.VERSION.split(".")[:2])
# Data have the alias; older versions have no choice of the name unless the model says so.
_BY_ALIAS: Final[dict[str, Any]] = {"by_alias": True, "by_name": False} if _VERSION >= (2, 11) else {}
_RESPELT: Final = (
    inspect.TimeDeltaType,
    inspect.DateTimeType,
    inspect.TimeType,
    inspect.DecimalType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.AnyType,
)
"""Types that pydantic may spell differently from msgspec."""
_RESPELT_VALUES: Final = (datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal)
_MAX_TOLD: Final = 400


class ModelForm:
    """A model that is marked as *name*."""

    def __init__(self, cls: type[Any], name: str) -> None:
        self.cls = cls
        self._name = name
        self._described: type[msgspec.Struct] | None = None
        self.is_ambiguous = False
        self._is_respelt = self._is_open = False

    def describe(self) -> type[Any]:
        if self._described is None:
            self.cls.model_rebuild()
            try:
                described, self.is_ambiguous = make_shadow(self.cls)
            except TypeError as error:
                if not issubclass(self.cls, pydantic.RootModel):
                    raise
                raise TypeError(f"@payload({self._name!r}): {error}") from None
            kinds = [kind for _, kind in walk(inspect.type_info(described))]
            self._is_respelt = any(isinstance(kind, _RESPELT) for kind in kinds)
            self._is_open = any(isinstance(kind, inspect.AnyType) for kind in kinds) or _keeps_others(self.cls)
            self._described = described
        return self._described

    def reader(self, described: type[Any]) -> _ModelReader:
        return _ModelReader(self.cls, described)

    def plain(self, subject: Any, *, str_keys: bool = False) -> object:  # noqa: ARG002 - keys are text anyway
        # Data that validate give the same model again: fields that are computed from others are left out.
        written = subject.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
        if not (self._is_open or self._is_respelt):
            return written
        values = subject.model_dump(mode="python", by_alias=True, round_trip=True, warnings=False)
        if self._is_open:
            _check_open(values, "")
        return _spelt(written, values)

    def check_again(self, subject: Any, again: Any) -> None:
        if self.is_ambiguous and (fault := _first_other(subject, again, "")) is not None:
            raise fault


class ModelPart:
    """A model inside another type, or a *kind* that only pydantic can read, such as a union of models.

    Raises TypeError for a type that no payload can contain.
    """

    def __init__(self, kind: Any) -> None:
        self._is_whole = isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
        self._is_whole = self._is_whole and not issubclass(kind, pydantic.RootModel)
        try:
            cls = kind if self._is_whole else pydantic.create_model("Kept", value=(kind, ...))
            self._form = ModelForm(cls, cls.__qualname__)
            self._reader = self._form.reader(self._form.describe())
        except (TypeError, pydantic.PydanticUserError) as error:
            raise TypeError(str(error).partition("\n")[0].removeprefix("Kept.value: ")) from None

    def plain(self, value: Any) -> Any:
        """Return *value* as what JSON has. Raises what pydantic raises, and ContractError."""
        if self._is_whole:
            written: Any = self._form.plain(value)
        else:
            written = dict(self._form.plain(self._form.cls.model_construct(value=value)))["value"]  # type: ignore[call-overload]
        if self._form.is_ambiguous and (fault := _first_other(value, self.read(written), "")) is not None:
            raise ContractError(fault.text, fault.pointer.removeprefix("/data"))
        return written

    def read(self, plain: Any) -> Any:
        """Return what *plain* was made of. Raises what msgspec raises, and ContractError."""
        _check_open(plain, "")
        if self._is_whole:
            return self._reader.read(msgspec.json.encode(plain))
        return self._reader.read(msgspec.json.encode({"value": plain})).value


class _ModelReader:
    """Reads JSON text as the shadow, to check its types, then as the model."""

    def __init__(self, cls: type[Any], described: type[Any]) -> None:
        gate = Reader(described)
        self._cls = cls
        self._gate = gate
        self._respell = respelling(described)

    def read(self, data: bytes) -> Any:
        """Read short text."""
        self._gate.read(data)
        return self._build(data)

    def read_long(self, data: bytes) -> Any:
        """Read text of any length."""
        self._gate.read_long(data)
        return self._build(data)

    def _build(self, data: bytes) -> Any:
        if self._respell is not None:
            data = self._respell(data)
        try:
            return self._cls.model_validate_json(data, **_BY_ALIAS)
        except pydantic.ValidationError as error:
            refusal = _translated(error, data)
        # Raised here: pydantic's error holds the data.
        raise refusal


def _translated(error: pydantic.ValidationError, data: bytes) -> ContractError:
    """Return the first of what pydantic found, with the pointer of its field."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    text = first["msg"]
    if first["type"] in ("value_error", "assertion_error"):
        text = text.partition(", ")[2] or text
    pointer = _pointer(first["loc"], msgspec.json.decode(data), is_missing=first["type"] == "missing")
    return ContractError(text[:1].lower() + text[1:_MAX_TOLD], f"/data{pointer}", "schema_violation")


def _pointer(loc: tuple[int | str, ...], content: Any, *, is_missing: bool) -> str:
    """Return *loc* as a JSON pointer into *content*. Pydantic also names members of unions, which data do not have."""
    pointer = ""
    for location, step in enumerate(loc):
        if isinstance(content, dict) and str(step) in content:
            content = content[str(step)]
        elif isinstance(content, list) and isinstance(step, int) and 0 <= step < len(content):
            content = content[step]
        elif not (is_missing and location == len(loc) - 1):
            continue
        pointer += f"/{escape_pointer_token(str(step))}"
    return pointer


def _keeps_others(cls: type[Any]) -> bool:
    return bool(cls.model_config.get("extra") == "allow")


def _spelt(written: Any, value: Any) -> Any:
    """Return *written*, the JSON form of *value*, with times and durations as msgspec spells them, and sets in order.

    Pydantic writes a duration of 365 days as P1Y, which not every reader understands. Output of a user's serializer is
    unchanged.
    """
    if isinstance(value, _RESPELT_VALUES):
        return msgspec.to_builtins(value) if written == pydantic_core.to_jsonable_python(value) else written
    if isinstance(written, dict) and isinstance(value, dict) and len(written) == len(value):
        pairs = zip(written.items(), value.values(), strict=True)
        return {name: _spelt(part, below) for (name, part), below in pairs}
    if isinstance(written, list) and isinstance(value, set | frozenset):
        return sorted(written) if len({type(part) for part in written}) == 1 else written
    if isinstance(written, list) and isinstance(value, Sequence) and len(written) == len(value):
        return [_spelt(part, below) for part, below in zip(written, value, strict=True)]
    return written


def _first_other(value: Any, again: Any, pointer: str) -> ContractError | None:
    """Return the fault of the first part of *value* that was read *again* as a part of another class."""
    if isinstance(value, pydantic.BaseModel):
        if type(value) is not type(again):
            return _told_otherwise(value, again, pointer)
        fields = type(value).__pydantic_fields__
        parts = [
            (fields[name].serialization_alias or fields[name].alias or name, below, again.__dict__.get(name, below))
            for name, below in value.__dict__.items()
            if name in fields and not fields[name].exclude
        ]
        is_root = isinstance(value, pydantic.RootModel)
        found = (
            _first_other(one, two, pointer if is_root else f"{pointer}/{escape_pointer_token(name)}")
            for name, one, two in parts
        )
    elif isinstance(value, dict):
        if not isinstance(again, dict):
            return _told_otherwise(value, again, pointer)
        found = (
            _first_other(below, again[name], f"{pointer}/{escape_pointer_token(str(name))}")
            for name, below in value.items()
            if name in again
        )
    elif isinstance(value, list | tuple):
        if not isinstance(again, list | tuple) or len(value) != len(again):
            return _told_otherwise(value, again, pointer)
        found = (_first_other(*two, f"{pointer}/{index}") for index, two in enumerate(zip(value, again, strict=True)))
    elif isinstance(value, (str, datetime.date, uuid.UUID, *_RESPELT_VALUES)):
        same = isinstance(again, type(value)) or isinstance(value, type(again))
        return None if same else _told_otherwise(value, again, pointer)
    else:
        return None
    return next((fault for fault in found if fault is not None), None)


def _told_otherwise(value: Any, again: Any, pointer: str) -> ContractError:
    return ContractError(
        f"would be read as {type(again).__qualname__}, not as {type(value).__qualname__}, because its data fit both: "
        f"write a {type(again).__qualname__}, or give each member of the union a field with a Literal of its own",
        f"/data{pointer}",
        "schema_violation",
    )


def _check_open(value: Any, pointer: str) -> None:
    """Raise ContractError for numbers outside JSON, and for keys that are not strings.

    Pydantic would write such numbers as null, and such keys as their string form.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ContractError(f"{value} is not a JSON number", pointer)
    if isinstance(value, dict):
        for key, below in value.items():
            if isinstance(key, int | float | tuple | None) and not isinstance(key, str):
                raise ContractError(f"a key is {type(key).__name__}, no text", pointer)
            _check_open(below, f"{pointer}/{escape_pointer_token(str(key))}")
    elif isinstance(value, list | tuple):
        for location, below in enumerate(value):
            _check_open(below, f"{pointer}/{location}")
