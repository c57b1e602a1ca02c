"""Random data for payload types, valid and not quite: what two implementations have to judge alike."""

from __future__ import annotations

import copy
import random
from typing import Any

from msgspec import inspect

from bus.errors import ContractError
from bus.payloads.examples import example_of
from bus.payloads.payload_types import PayloadType
from bus.payloads.rules import check_rules
from bus.protocol import canonical

_TEXTS = (
    "",
    "a",
    "A",
    "task.result",
    "task.result@1",
    "task.result@1.2.3",
    "x@1",
    "1.0.0",
    "01.0.0",
    "EUR",
    "eur",
    "12.50",
    "0.1",
    "00.1",
    "EXAMPLE",
    "EX_",
    "a_b",
    "a-b",
    "A_B\n",
    "word\n",
    "name\u200b",
    "name\ud7ff",
    "näme",
    "👍",
    "x" * 101,
    "👍" * 60,
    "artifact://a/b",
    "https://u:p@host/x",
    "https://host/x?q=1#f",
    "urn:x:y",
    "file:///etc",
    "noscheme",
    "message:sha256:" + "a" * 64 + "#/data",
    "http:// space",
    "%zz:",
    "s3://b/%zz",
    "sha256:" + "0" * 64,
    "sha256:" + "A" * 64,
    "2026-01-31T12:00:00Z",
    "2026-02-30T12:00:00Z",
    "2026-01-31T12:00:00",
    "2026-01-31 12:00:00+02:00",
    "2026-01-31t12:00:00.123456789z",
    "2024-02-29T23:59:60Z",
    "feature/x",
    "-x",
    "a..b",
    "a b",
    "../x",
    "a/../b",
    "a/.b",
    "...",
    "error.transient",
    "error.transient.rate_limit",
    "error.other",
    "low",
    "critical",
    "approved",
    "failed",
    "completed",
    "open_pull_request",
)
_NUMBERS = (0, 1, -1, 2, 29, 30, 70, 69, 86_400, 86_401, 100, 101, 1_000, 2**53 - 1, 0.5, 1.5, -0.5, 1e-7, 1e20)
_OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [None],
    {"a": 1},
    [[]],
    {"uri": "x:y"},
    {"uri": "x:y", "sha256": "z"},
)


def cases_of(kind: PayloadType, count: int, chance: random.Random) -> list[tuple[dict[str, Any], bool]]:
    """Return *count* pieces of data, each with whether *kind* accepts it."""
    described = inspect.type_info(kind.cls)
    example = example_of(kind) or {}
    found: list[tuple[dict[str, Any], bool]] = []
    while len(found) < count:
        data = copy.deepcopy(example) if chance.random() < 0.5 else _object(described, chance, depth=0)
        for _ in range(chance.choice((0, 0, 1, 1, 2, 3))):
            _mutate(data, described, chance)
        try:
            text = canonical.encode(data, depth=2)
        except ContractError:
            continue
        try:
            check_rules(kind.rules, kind.decode(text), text)
        except ContractError:
            found.append((data, False))
        else:
            found.append((data, True))
    return found


def _mutate(data: dict[str, Any], kind: Any, chance: random.Random) -> None:
    """Change one member, at any depth, in a way that may or may not matter."""
    objects: list[tuple[dict[str, Any], Any]] = [(data, kind)]
    for part, described in objects:
        for field in getattr(described, "fields", ()):
            value = part.get(field.encode_name)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict) and (below := _described(field.type)) is not None:
                    objects.append((item, below))  # noqa: PERF401 - the list grows while it is walked
    part, described = chance.choice(objects)
    fields = list(getattr(described, "fields", ()))
    way = chance.random()
    if way < 0.1:
        part[chance.choice(("x_own", "unknown", "result"))] = chance.choice((*_TEXTS[:4], *_OTHERS))
    elif way < 0.3 and part:
        del part[chance.choice(sorted(part))]
    elif fields:
        field = chance.choice(fields)
        pool = chance.choice((_TEXTS, _TEXTS, _NUMBERS, _OTHERS, ()))
        part[field.encode_name] = copy.deepcopy(chance.choice(pool)) if pool else _value(field.type, chance, depth=1)


def _described(kind: Any) -> Any:
    if isinstance(kind, inspect.UnionType):
        return next((found for member in kind.types if (found := _described(member)) is not None), None)
    if isinstance(kind, inspect.Metadata):
        return _described(kind.type)
    item = getattr(kind, "item_type", None)
    return _described(item) if item is not None else kind if hasattr(kind, "fields") else None


def _object(kind: Any, chance: random.Random, *, depth: int) -> dict[str, Any]:
    share = 0.4 if depth == 0 else 0.2
    return {
        field.encode_name: _value(field.type, chance, depth=depth + 1)
        for field in kind.fields
        if field.required or chance.random() < share
    }


def _value(kind: Any, chance: random.Random, *, depth: int) -> Any:
    if isinstance(kind, inspect.Metadata):
        return _value(kind.type, chance, depth=depth)
    if isinstance(kind, inspect.UnionType):
        return _value(chance.choice(kind.types), chance, depth=depth)
    if isinstance(kind, inspect.LiteralType):
        return chance.choice(kind.values)
    if isinstance(kind, inspect.StrType | inspect.DateTimeType):
        return chance.choice(_TEXTS)
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return chance.choice(_NUMBERS)
    if isinstance(kind, inspect.BoolType):
        return chance.random() < 0.5
    if isinstance(kind, inspect.NoneType):
        return None
    if isinstance(kind, inspect.VarTupleType | inspect.ListType):
        return [_value(kind.item_type, chance, depth=depth + 1) for _ in range(chance.choice((0, 1, 1, 2)))]
    if hasattr(kind, "fields"):
        return _object(kind, chance, depth=depth)
    return copy.deepcopy(chance.choice((*_OTHERS, *_TEXTS[:3], *_NUMBERS[:3])))
