"""The canonical form of a JSON value (RFC 8785, JCS), its digest, and the strict parsing of foreign bytes. Pure.

Owns value -> bytes -> digest, and bytes -> value with the check whether the bytes were canonical. orjson reads and
writes; deviations from RFC 8785 are corrected afterwards in the text, so that any megabyte costs milliseconds.
`bus.protocol.canonical_numbers` owns the form of numbers, `bus.protocol.envelope` the meaning of a document.
"""

from __future__ import annotations

import codecs
import gc
import math
import re
from collections.abc import Iterator
from itertools import accumulate, chain
from operator import lt
from typing import Any, Final, TypeAlias

import orjson

from bus import native
from bus.errors import ContractError
from bus.protocol import canonical_numbers

__all__ = [
    "MAX_DEPTH",
    "digest",
    "encode",
    "encode_parsed",
    "escape_pointer_token",
    "is_canonical",
    "parse_canonical",
    "pointer_tokens",
]

MAX_DEPTH: Final = 64
"""How deep objects and lists may nest; the outermost one is depth 1."""

_Path: TypeAlias = tuple[str | int, ...]

_M: Final = canonical_numbers.SAFE_INTEGER
_ORJSON_AGREES: Final = canonical_numbers.ORJSON_AGREES
_SORTED: Final = orjson.OPT_SORT_KEYS
_EXACT, _RESPELL, _FAULTY = range(3)
# Up to this size, walking over the values is faster than searching their text. Beyond it, the text search keeps hostile
# megabytes cheap.
_WALKED_BYTES: Final = 65_536
# Between these magnitudes orjson writes a float with a fraction as RFC 8785 does.
_SMALLEST, _LARGEST = 1e-5, 1e15
# With more containers the garbage collector would scan the growing tree again and again for nothing: a parsed tree has
# no cycles.
_MANY_CONTAINERS: Final = 2_000
_ASTRAL: Final = re.compile("[\U00010000-\U0010ffff]")
_ABOVE_SURROGATES: Final = re.compile("[\ue000-\uffff]")
_TO_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(code for code in range(256) if code not in b"[]{}")
_TO_STEPS: Final = bytes.maketrans(b"[]", b"\x01\xff")
# Its (bytes, length) pairs sort as the bytes do, in half the time of str.encode.
_utf16: Final = codecs.utf_16_be_encode

digest: Final = native.digest
"""Returns `sha256:` and 64 lower-case hex digits of bytes."""


def escape_pointer_token(token: str) -> str:
    """Escape one reference token of a JSON pointer (RFC 6901, section 3)."""
    return token.replace("~", "~0").replace("/", "~1")


def pointer_tokens(pointer: str) -> list[str]:
    """Return the reference tokens of a JSON pointer (RFC 6901, section 4), unescaped; none for the whole document."""
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def encode(value: object, *, depth: int = 1) -> bytes:
    """Return the canonical bytes (RFC 8785) of dicts with str keys, lists, tuples, str, int, float, bool and None.

    *depth* is the depth of the outermost object or list. Subclasses of these types are foreign types: convert them
    first. Raises `ContractError`, with a pointer, for NaN and infinities, integers beyond +-(2^53-1), lone surrogates,
    keys that are not str, foreign types and more than `MAX_DEPTH` levels.
    """
    judgement = _judge((value,), MAX_DEPTH + 1 - depth)
    if judgement == _FAULTY:
        raise _fault(value, depth)
    try:
        written = _write(value)
    except TypeError:  # a key that is no str, or a lone surrogate
        raise _fault(value, depth) from None
    return _respelled(written) if judgement == _RESPELL else written


def encode_parsed(value: object) -> bytes:
    """Return the canonical bytes of a value from `parse_canonical`, in which integers of any size stand for doubles."""
    written = _write(value)
    return _respelled(written) if canonical_numbers.may_need_respelling(written) else written


def parse_canonical(data: bytes, *, depth: int = 1) -> object:
    """Parse one JSON text (RFC 8259) strictly into dict, list, str, int (up to 64 bits), float, bool or None.

    *depth* is the depth of its outermost object or list. Raises `ContractError` for anything but UTF-8 without a byte
    order mark, for NaN, infinities and numbers that overflow a double, for lone surrogates (escaped ones too) and for
    more than `MAX_DEPTH` levels. Duplicate keys and unusual number forms pass: see `is_canonical`.
    """
    containers = data.count(b"[") + data.count(b"{")
    value = _read_many(data) if containers > _MANY_CONTAINERS else _read(data)
    room = MAX_DEPTH + 1 - depth
    if containers > room and _depth(data) > room:
        raise ContractError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def is_canonical(data: bytes, value: object) -> bool:
    """Tell whether *data*, from which `value = parse(data)` came, is exactly its own RFC 8785 form.

    Numbers count as doubles: an integer literal beyond 2^53 is canonical if it is the RFC 8785 text of its double.
    Raises nothing.
    """
    written = orjson.dumps(value, option=_SORTED)
    if _orders_may_differ(written) and _orders_differ(objects := _objects(value)):
        if not _in_utf16_order(objects):
            return False
        written = orjson.dumps(value)
    if written == data and (
        (len(data) <= _WALKED_BYTES and _judge((value,), MAX_DEPTH) == _EXACT)
        or not canonical_numbers.may_need_respelling(data)
    ):
        return True
    theirs, ours = _split(data), _split(written)
    outside = b'"'.join(theirs[::2])
    # Checked before respelling, because it bounds the work of respelling.
    if theirs[1::2] != ours[1::2] or canonical_numbers.looks_misspelled(outside):
        return False
    return canonical_numbers.respell(b'"'.join(ours[::2])) == outside


def _read(data: bytes) -> object:
    try:
        return orjson.loads(data)
    except (orjson.JSONDecodeError, RecursionError) as error:
        # `from None`: orjson's error holds the whole document, which would live as long as the traceback.
        raise ContractError(f"not strict JSON: {error}") from None


def _read_many(data: bytes) -> object:
    """Read with the garbage collector paused: 350,000 empty lists take a third of the time."""
    if not gc.isenabled():
        return _read(data)
    gc.disable()
    try:
        return _read(data)
    finally:
        gc.enable()


# --- text -------------------------------------------------------------------------------------------------------------


def _split(text: bytes) -> list[bytes]:
    """Cut valid JSON text at the quotes: outside, inside, outside, ...

    Escaped quotes and backslashes inside are masked.
    """
    if b"\\" in text:
        # Control characters cannot occur in JSON text, so each mask is unambiguous.
        text = text.replace(b"\\\\", b"\x00\x00").replace(b'\\"', b"\x01\x01")
    return text.split(b'"')


def _join(parts: list[bytes]) -> bytes:
    text = b'"'.join(parts)
    return (
        text.replace(b"\x01\x01", b'\\"').replace(b"\x00\x00", b"\\\\") if b"\x00" in text or b"\x01" in text else text
    )


def _respelled(written: bytes) -> bytes:
    parts = _split(written)
    parts[::2] = canonical_numbers.respell(b'"'.join(parts[::2])).split(b'"')
    return _join(parts)


def _depth(data: bytes) -> int:
    """Return how deep objects and lists nest in valid JSON text."""
    brackets = b"".join(_split(data)[::2]).translate(_TO_BRACKETS, _NO_BRACKETS)
    # Removing all innermost pairs makes the text one level shallower; most hostile texts are wide and end here.
    outer = brackets.replace(b"[]", b"")
    removed = 1 if brackets else 0
    # Runs become single steps: the sum of steps is largest at the end of a run of openings.
    long_runs = outer.replace(b"[" * 16, b"\x10").replace(b"]" * 16, b"\xf0")
    steps = long_runs.replace(b"[" * 4, b"\x04").replace(b"]" * 4, b"\xfc").translate(_TO_STEPS)
    return removed + max(accumulate(memoryview(steps).cast("b")), default=0)


# --- the order of keys ------------------------------------------------------------------------------------------------


def _write(value: object) -> bytes:
    """Encode *value* with orjson, with its keys in the order of RFC 8785."""
    written = orjson.dumps(value, option=_SORTED)
    if _orders_may_differ(written) and _orders_differ(_objects(value)):
        return orjson.dumps(_reordered(value))
    return written


def _orders_may_differ(text: bytes) -> bool:
    """Tell whether UTF-8 *text* has characters whose order may differ in UTF-16.

    Only characters beyond U+FFFF and those from U+E000 to U+FFFF sort differently, and only if both occur.
    """
    if text.isascii() or not (b"\xee" in text or b"\xef" in text):
        return False
    return any(lead in text for lead in (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4"))


def _orders_differ(objects: list[dict[str, object]]) -> bool:
    """Tell the same about the keys alone."""
    names = "".join(chain.from_iterable(objects))
    return bool(_ASTRAL.search(names) and _ABOVE_SURROGATES.search(names))


def _objects(value: object) -> list[dict[str, object]]:
    """Return all objects in *value*, itself included, level by level."""
    found: list[dict[str, object]] = []
    level = [value]
    while level:
        objects = [v for v in level if v.__class__ is dict]
        found += objects
        lists = [v for v in level if v.__class__ is list or v.__class__ is tuple]
        level = list(chain(chain.from_iterable(map(dict.values, objects)), chain.from_iterable(lists)))
    return found


def _in_utf16_order(objects: list[dict[str, object]]) -> bool:
    """Tell whether the keys of each object are in the order of RFC 8785, section 3.2.3."""
    filled = list(filter(None, objects))
    units = list(map(_utf16, chain.from_iterable(filled)))
    rising = list(map(lt, units, units[1:]))
    for end in accumulate(map(len, filled[:-1])):
        rising[end - 1] = True  # the next key belongs to another object
    return all(rising)


def _reordered(value: Any) -> object:
    if value.__class__ is dict:
        return {key: _reordered(value[key]) for key in sorted(value, key=_utf16)}
    if value.__class__ is list or value.__class__ is tuple:
        return [_reordered(v) for v in value]
    return value


# --- values -----------------------------------------------------------------------------------------------------------


def _judge(values: Any, room: int) -> int:
    """Tell how orjson would write *values*, with at most *room* nested levels.

    The result is _EXACT (as in RFC 8785), _RESPELL (with other number texts) or _FAULTY. orjson checks keys and
    strings. One loop with everything inline: it runs for each value of each message.
    """
    judgement = _EXACT
    for v in values:
        c = v.__class__
        if c is str or v is None or c is bool:
            continue
        if c is int:
            if -_M <= v <= _M:
                continue
            return _FAULTY
        if c is float:
            if v % 1.0 and (_SMALLEST <= v < _LARGEST or -_LARGEST < v <= -_SMALLEST) and _ORJSON_AGREES:
                continue
            if not math.isfinite(v):
                return _FAULTY
            judgement = _RESPELL
            continue
        if not room or not (c is dict or c is list or c is tuple):
            return _FAULTY
        inner = _judge(v.values() if c is dict else v, room - 1)
        if inner == _FAULTY:
            return _FAULTY
        judgement = judgement or inner
    return judgement


def _fault(value: object, depth: int) -> ContractError:
    """Return the error why *value* has no canonical form."""
    for text, path in _faults(value, depth, ()):
        return ContractError(text, "".join(f"/{escape_pointer_token(str(token))}" for token in path))
    return ContractError("not a JSON value")


def _faults(value: Any, depth: int, path: _Path) -> Iterator[tuple[str, _Path]]:
    kind = value.__class__
    if kind is not dict and kind is not list and kind is not tuple:
        text = _scalar_fault(value)
        if text:
            yield text, path
    elif depth > MAX_DEPTH:
        yield f"nested deeper than {MAX_DEPTH} levels", path
    else:
        for key, inner in value.items() if kind is dict else enumerate(value):
            if kind is dict and key.__class__ is not str:
                yield f"a key must be str, not {key.__class__.__name__}", path
            elif kind is dict and _scalar_fault(key):
                yield f"a key: {_scalar_fault(key)}", path
            yield from _faults(inner, depth + 1, (*path, key))


def _scalar_fault(value: Any) -> str:
    kind = value.__class__
    if value is None or kind is bool:
        return ""
    if kind is str:
        return (
            "" if value.isascii() or not re.search("[\ud800-\udfff]", value) else "a lone surrogate is not Unicode text"
        )
    if kind is int:
        return "" if -_M <= value <= _M else "an integer beyond +-(2^53-1) is not exact as a double"
    if kind is float:
        return "" if math.isfinite(value) else f"{value} is not a JSON number"
    return f"{kind.__name__} is not a JSON type"
