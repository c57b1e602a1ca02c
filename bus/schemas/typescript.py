"""Payload types as TypeScript with zod: one module that accepts and refuses what sealbus accepts and refuses.

Owns writing forms, parts and rules as zod 4 schemas. The types of values follow by `z.infer`. Pure but for
`write_package`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from bus.errors import ConfigurationError
from bus.payloads import rules
from bus.payloads.described_types import walk
from bus.payloads.payload_types import PayloadType
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.schemas.json_schema import Shape, shape_of

__all__ = ["typescript_of", "write_package"]

_PRELUDE: Final = Path(__file__).parent / "prelude.ts"
_PLAIN: Final[dict[type, str]] = {
    inspect.AnyType: "z.unknown()",
    inspect.BoolType: "z.boolean()",
    inspect.NoneType: "z.null()",
    inspect.BytesType: "z.base64()",
    inspect.UUIDType: "z.guid()",
    inspect.DateTimeType: 'z.string().refine(isInstant, "an RFC 3339 time with an offset")',
    inspect.DateType: "z.iso.date()",
    inspect.TimeType: "z.string()",
    inspect.TimeDeltaType: "z.string()",
    inspect.DecimalType: "z.string()",
}


def typescript_of(kinds: Iterable[PayloadType]) -> str:
    """Return the module with every one of *kinds*."""
    writer = _Writer()
    rows = [
        f"  {json.dumps(kind.name)}: {{ version: {json.dumps(kind.version)}, data: {writer.payload(kind)} }},"
        for kind in {kind.name: kind for kind in reversed(list(kinds))}.values()
    ]
    table = "/** Message type -> its version here, and the schema of its data. */\nexport const types = {\n"
    return "\n".join([_PRELUDE.read_text(), *writer.chunks, table + "\n".join(sorted(rows)) + "\n} as const;\n"])


def write_package(kinds: Iterable[PayloadType], folder: Path) -> Path:
    """Write the module to `sealbus.ts` in *folder*; raise ConfigurationError where that cannot be."""
    path = folder / "sealbus.ts"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(typescript_of(kinds))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    return path


class _Writer:
    """Writes each class once, before what uses it."""

    def __init__(self) -> None:
        self.chunks: list[str] = []
        self._names: dict[type, str] = {}
        self._open: set[type] = set()

    def payload(self, kind: PayloadType) -> str:
        """Write the class of *kind* and return its name."""
        described = inspect.type_info(kind.described)
        within = [part for field in described.fields for _, part in walk(field.type)]  # type: ignore[attr-defined]
        if not kind.rules or all(getattr(part, "cls", None) is not kind.described for part in within):
            return self._object(described, kind.rules)
        # It contains itself, and its rules are those of the payload alone.
        part, name = self._object(described), self._free(f"{kind.cls.__name__}Payload")
        ruled = part + "".join(_refinement(rule, shape_of(kind.described)) for rule in kind.rules)
        self.chunks.append(f"export const {name} = {ruled};\nexport type {name} = z.infer<typeof {name}>;\n")
        return name

    def _object(self, kind: Any, own: tuple[rules.Rule, ...] = ()) -> str:
        cls = kind.cls
        if cls in self._open:
            # It contains itself, and its schema has no name yet.
            return f"z.lazy((): z.ZodType => {self._names[cls]})"
        if cls in self._names:
            return self._names[cls]
        self._names[cls] = name = self._free(cls.__name__)
        self._open.add(cls)
        members = [f"  {json.dumps(field.encode_name)}: {self._field(field)}," for field in kind.fields]
        if getattr(kind, "tag_field", None) is not None:
            members.insert(0, f"  {json.dumps(kind.tag_field)}: z.literal({json.dumps(kind.tag)}),")
        shut = getattr(getattr(cls, "__struct_config__", None), "forbid_unknown_fields", False)
        schema = f"z.{'strict' if shut else 'loose'}Object({{\n" + "\n".join(members) + "\n})"
        shape = shape_of(cls)
        needed = [
            field.encode_name for field in kind.fields if field.required and isinstance(field.type, inspect.AnyType)
        ]
        schema += "".join(f'.refine((d) => "{field}" in d, {{ path: ["{field}"] }})' for field in needed)
        schema += "".join(_refinement(rule, shape) for rule in (*getattr(cls, "__rules__", ()), *own))
        doc = " ".join((cls.__doc__ or "").strip().partition("\n\n")[0].split()).replace("*/", "* /")
        self._open.discard(cls)
        self.chunks.append(
            f"/** {doc} */\nexport const {name} = {schema};\nexport type {name} = z.infer<typeof {name}>;\n"
        )
        return name

    def _free(self, wanted: str) -> str:
        taken, name, number = set(self._names.values()), wanted, 2
        while name in taken:
            name, number = f"{wanted}_{number}", number + 1
        return name

    def _field(self, field: Any) -> str:
        schema = self._schema(field.type)
        return schema if field.required else f"{schema}.optional()"

    def _schema(self, kind: Any) -> str:
        if isinstance(kind, inspect.Metadata):
            return self._schema(kind.type)
        if isinstance(kind, inspect.StrType):
            return _text(kind)
        if isinstance(kind, inspect.IntType | inspect.FloatType):
            return _number(kind)
        if isinstance(kind, inspect.LiteralType | inspect.EnumType):
            values = kind.values if isinstance(kind, inspect.LiteralType) else [member.value for member in kind.cls]
            return "z.literal([" + ", ".join(json.dumps(value) for value in values) + "])"
        if isinstance(kind, inspect.UnionType):
            return self._union(kind)
        if isinstance(kind, inspect.DictType):
            return f"z.record({self._schema(kind.key_type)}, {self._schema(kind.value_type)})"
        if isinstance(kind, inspect.TupleType):
            return "z.tuple([" + ", ".join(self._schema(item) for item in kind.item_types) + "])"
        if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
            return f"z.array({self._schema(kind.item_type)}){_lengths(kind)}"
        if isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
            return self._object(kind)
        return _PLAIN.get(type(kind), "z.unknown()")

    def _union(self, kind: inspect.UnionType) -> str:
        rest = [self._schema(member) for member in kind.types if not isinstance(member, inspect.NoneType)]
        schema = rest[0] if len(rest) == 1 else f"z.union([{', '.join(rest)}])"
        return schema if kind.includes_none is False else f"{schema}.nullable()"


def _text(kind: inspect.StrType) -> str:
    schema = "z.string()"
    if kind.pattern is not None:
        pattern = kind.pattern.removesuffix(r"\Z") + "$" if kind.pattern.endswith(r"\Z") else kind.pattern
        schema += f".regex(new RegExp({json.dumps(pattern)}, 'u'))"
    minimum, maximum = kind.min_length or 0, kind.max_length
    if minimum == 1 and maximum is None:
        return schema + ".min(1)"
    if minimum or maximum is not None:
        schema += f".refine(sized({minimum}, {'Infinity' if maximum is None else maximum}))"
    return schema


def _number(kind: inspect.IntType | inspect.FloatType) -> str:
    schema = "z.number()"
    minimum, maximum = kind.ge, kind.le
    if isinstance(kind, inspect.IntType):
        minimum = max(minimum if minimum is not None else -SAFE_INTEGER, -SAFE_INTEGER) if kind.gt is None else minimum
        maximum = min(maximum if maximum is not None else SAFE_INTEGER, SAFE_INTEGER) if kind.lt is None else maximum
    for word, bound in (("gte", minimum), ("gt", kind.gt), ("lte", maximum), ("lt", kind.lt)):
        if bound is not None:
            schema += f".{word}({json.dumps(bound)})"
    if kind.multiple_of is not None:
        schema += f".multipleOf({json.dumps(kind.multiple_of)})"
    return schema + (".refine(Number.isInteger)" if isinstance(kind, inspect.IntType) else "")


def _lengths(kind: Any) -> str:
    minimum = f".min({kind.min_length})" if kind.min_length else ""
    return minimum + (f".max({kind.max_length})" if kind.max_length is not None else "")


def _refinement(rule: rules.Rule, shape: Shape) -> str:
    path = json.dumps([token for token in rule.pointer.split("/") if token])
    test = _expression(rule.condition, shape)
    return f"\n  .refine((d: any) => {test}, {{ message: {json.dumps(rule.text)}, path: {path} }})"


def _expression(condition: rules.Condition, shape: Shape) -> str:
    """Return *condition* as an expression of `d`, an object."""
    return _EXPRESSIONS[type(condition)](condition, shape)


def _value(field: str, shape: Shape) -> str:
    default = shape.default(field)
    if default is msgspec.UNSET or default is None:
        return f"valueOf(d, {json.dumps(field)})"
    return f"valueOf(d, {json.dumps(field)}, {msgspec.json.encode(default).decode()})"


def _has(condition: rules.Has, shape: Shape) -> str:
    value = _value(condition.field, shape)
    return f"({value} !== undefined)" if condition.null else f"!absent({value})"


def _size(condition: rules.Size, shape: Shape) -> str:
    size = f"sizeOf({_value(condition.field, shape)})"
    maximum = "" if condition.maximum is None else f" && {size} <= {condition.maximum}"
    return f"({size} >= {condition.minimum}{maximum})"


def _each(word: str) -> Callable[[Any, Shape], str]:
    def expression(condition: Any, shape: Shape) -> str:
        part = _expression(condition.part, shape.below(condition.field))
        return f"itemsOf({_value(condition.field, shape)}).{word}((d: any) => {part})"

    return expression


def _joined(sign: str, empty: str) -> Callable[[Any, Shape], str]:
    def expression(condition: Any, shape: Shape) -> str:
        parts = f" {sign} ".join(_expression(part, shape) for part in condition.parts)
        return f"({parts})" if parts else empty

    return expression


_EXPRESSIONS: Final[dict[type, Callable[[Any, Shape], str]]] = {
    rules.Has: _has,
    rules.Is: lambda condition, shape: (
        f"({json.dumps(list(condition.values))} as unknown[]).includes({_value(condition.field, shape)})"
    ),
    rules.IsText: lambda condition, shape: f'(typeof {_value(condition.field, shape)} === "string")',
    rules.Least: lambda condition, shape: f"(({_value(condition.field, shape)} as number) >= {condition.minimum})",
    rules.AtMost: lambda condition, shape: (
        f"(({_value(condition.field, shape)} as number) <= ({_value(condition.other, shape)} as number))"
    ),
    rules.Size: _size,
    rules.Bytes: lambda condition, shape: f"(bytesOf({_value(condition.field, shape)}) <= {condition.maximum})",
    rules.Begins: lambda condition, shape: (
        f"String({_value(condition.field, shape)} ?? '').startsWith({json.dumps(condition.beginning)})"
    ),
    rules.Among: lambda condition, shape: (
        f"(itemsOf({_value(condition.others, shape)}) as unknown[]).includes({_value(condition.field, shape)})"
    ),
    rules.RangeOf: lambda condition, shape: (
        f"(absent({_value(condition.field, shape)}) || "
        f'String({_value(condition.field, shape)}).split("@")[0] === {_value(condition.other, shape)})'
    ),
    rules.All: _joined("&&", "true"),
    rules.Either: _joined("||", "false"),
    rules.Not: lambda condition, shape: f"!{_expression(condition.part, shape)}",
    rules.Every: _each("every"),
    rules.Some: _each("some"),
    rules.Computed: lambda condition, shape: f"({condition.typescript or 'true'})",  # noqa: ARG005 - the table's form
}
