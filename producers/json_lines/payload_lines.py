"""The source of `sealbus publish`: lines of JSON turned into drafts, in order, one at a time.

Owns checking a line (strict JSON, an object, its type's shape and fields) and matching outcomes to line numbers.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any, BinaryIO, Final

import msgspec

from bus.byte_lines import SlowLines, layout_hint
from bus.errors import ContractError, SigningError
from bus.nearest import nearest
from bus.payloads.payload_types import PayloadType
from bus.protocol import canonical
from bus.telemetry.terminal import printable
from producers.outcomes import PublishRejected
from producers.publisher import Publisher
from producers.sealing.options import Options, outgoing_of
from producers.stream import Item

__all__ = ["Feed", "LineFeed"]

# Spaces and escapes may make a line longer than its message.
_SPACIOUS: Final = 4
_DATA_DEPTH: Final = 2
_MAX_WARNINGS: Final = 5
_MAX_SHOWN: Final = 80


class LineFeed:
    """A source for `publish_many`; *lines* has the line number of every outstanding outcome."""

    def __init__(self, publisher: Publisher, stream: BinaryIO) -> None:
        self.lines: deque[int] = deque()
        self.size = _size_of(stream)
        self.from_terminal = stream.isatty()
        self.made: set[str] = set()
        """The options that a type needs and the user did not give."""
        self._source = SlowLines(stream, publisher.settings.publish.max_message_bytes * _SPACIOUS)
        self._publisher = publisher
        self._count = 0
        self._layout = ""
        """The hint about a file that is not one object a line."""

    @property
    def consumed(self) -> int:
        """The number of bytes read so far."""
        return self._source.consumed

    def stop(self) -> None:
        """Stop reading; lines already read are still published."""
        self._source.stop()

    def warnings(self) -> Iterator[str]:
        """Yield warnings about the lines."""
        if self._layout:
            yield self._layout

    async def __aiter__(self) -> AsyncIterator[Item]:
        async for line in self._source:
            self.lines.append(line.number)
            self._count += 1
            try:
                if line.content is None:
                    raise ContractError("the line is longer than any message may be", "/data", "oversized")
                item = self.item(line.number, line.content)
            except (ContractError, SigningError) as error:
                self._layout = self._layout or layout_hint(line.content or b"")
                yield PublishRejected(str(error), error)
            else:
                yield item

    def item(self, number: int, content: bytes) -> Item:
        """Return the message in line *number*. Raises ContractError."""
        raise NotImplementedError


class Feed(LineFeed):
    """Lines that are payloads of one type."""

    def __init__(
        self,
        publisher: Publisher,
        kind: PayloadType,
        options: Options,
        *,
        typed: bool,
        stream: BinaryIO,
        ignore_unknown: bool = False,
    ) -> None:
        super().__init__(publisher, stream)
        self._kind = kind
        self._options = options
        self._template = outgoing_of(kind.cls(), options) if not typed else None
        self._once = "idempotency_key" in options
        self._run = secrets.token_hex(6)
        self._fields = _field_names(kind) if typed else None
        self._required = (
            frozenset(field.encode_name for field in kind.fields if field.required) if typed else frozenset()
        )
        self._ignore_unknown = ignore_unknown
        self._ignored: dict[str, int] = {}

    def warnings(self) -> Iterator[str]:
        """Yield warnings about the lines."""
        yield from super().warnings()
        for name, line in self._ignored.items():
            hint = nearest(name, self._fields or ())
            what = f"{self._kind.name} has no field {printable(name)!r}; it was left out{hint}"
            yield f"line {line} and maybe others: {what}"

    def item(self, number: int, content: bytes) -> Item:
        """Return the payload in line *number*, with the options of them all. Raises ContractError."""
        if self._once and self._count > 1:
            raise ContractError(
                "an idempotency key is for one message; this is another line", "/routing/idempotency_key"
            )
        value = canonical.parse_canonical(content, depth=_DATA_DEPTH)
        if not isinstance(value, dict):
            raise ContractError("the payload is not an object", "/data", "schema_violation")
        if content.count(b":") != len(value):
            _refuse_duplicates(content)
        try:
            data = canonical.encode(value, depth=_DATA_DEPTH)
        except ContractError as error:
            raise ContractError(error.text, f"/data{error.pointer}", "schema_violation") from error
        if self._template is not None:
            return self._publisher.sealer.seal_data(self._template, self._kind, data)
        unknown = value.keys() - self._fields if self._fields is not None else set()
        # Members that begin with x_ are the user's own, in every type.
        unknown = {name for name in unknown if not name.startswith("x_")}
        if unknown and not self._ignore_unknown:
            raise self._unknown(unknown, value.keys())
        try:
            payload = self._kind.decode(data)
        except ContractError as error:
            raise self._misspelt(error, unknown) from error
        if unknown:
            self._note(unknown, number)
        made = self._made(number)
        options: Options = {**made, **self._options}
        return outgoing_of(payload, options) if options else payload

    def _made(self, line: int) -> Options:
        """Return the ids that the type needs and the user did not give, a new one for each line."""
        made: Options = {}
        for name in self._kind.terms.required_options:
            if name in ("task_id", "idempotency_key") and name not in self._options:
                made[name] = f"{name.partition('_')[0]}-{self._run}-{line}"  # type: ignore[literal-required]
                self.made.add(name)
        return made

    def _unknown(self, names: set[str], provided: Collection[str]) -> ContractError:
        """Return the error for fields that the type does not have, which are most likely misspelt."""
        name, missing = min(names), self._required - set(provided)
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        near = nearest(name, self._fields or ())
        if not near and len(names) == len(missing) == 1:
            # One is missing and one is unknown: no other can have been meant, however it is spelt.
            near = f"; {min(missing)} is missing: perhaps that was meant"
        text = (
            f"{self._kind.name} has no field {name[:_MAX_SHOWN]!r}{more}{near}; --ignore-unknown leaves such fields out"
        )
        return ContractError(text, f"/data/{_escaped(name)}", "schema_violation")

    @staticmethod
    def _misspelt(error: ContractError, unknown: set[str]) -> ContractError:
        """Return *error*, with the unknown field that is near to a missing one."""
        missing = error.pointer.removeprefix("/data/")
        if "missing required" not in error.text or not (provided := nearest(missing, unknown)):
            return error
        text = f"{error.text}{provided.replace('the nearest is', 'the nearest that was given is')[: _MAX_SHOWN * 2]}"
        return ContractError(text, error.pointer, error.reason)

    def _note(self, names: set[str], line: int) -> None:
        for name in sorted(names):
            if len(self._ignored) < _MAX_WARNINGS:
                self._ignored.setdefault(name, line)


def _escaped(name: str) -> str:
    """Return *name* as a part of a JSON pointer."""
    return name[:_MAX_SHOWN].replace("~", "~0").replace("/", "~1")


def _refuse_duplicates(content: bytes) -> None:
    """Refuse a line with a repeated name: one of its values would be dropped silently, and readers differ in which."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) != len(pairs):
            # Counted in one pass: a line may hold hundreds of thousands of names.
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise ContractError(f"the name {twice!r} is given twice", "/data")

    # Keep numbers as text: canonical.parse has checked them, and int() refuses some lengths.
    json.loads(content, object_pairs_hook=check, parse_int=str, parse_float=str)


def _field_names(kind: PayloadType) -> frozenset[str] | None:
    """Return the top-level names that *kind* reads; None if it has a tag."""
    described: Any = msgspec.inspect.type_info(kind.described)
    if getattr(described, "tag", None) is not None:
        return None
    return frozenset(field.encode_name for field in kind.fields)


def _size_of(stream: BinaryIO) -> int | None:
    """Return how many bytes there are to read, if known."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, AttributeError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
