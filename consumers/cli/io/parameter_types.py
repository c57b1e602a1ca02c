"""Types of command-line values: durations, ids, priorities, moments.

Owns refusing a wrong value with a sentence, before anything is opened (exit code 2).
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from bus.nearest import nearest
from bus.protocol.identifiers import is_message_type, is_schema_version, is_text_id
from bus.settings import durations

__all__ = [
    "DURATION_TYPE",
    "INPUT",
    "MESSAGE_TYPE",
    "MOMENT",
    "PAST",
    "PRIORITY_TYPE",
    "RATE",
    "TEXT_ID",
    "VERSION",
    "OneOf",
]

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
    _Choice = click.Choice[str]
else:
    # Generic only in newer versions of click.
    _ParamType = click.ParamType
    _Choice = click.Choice

_PRIORITIES = ("low", "normal", "medium", "high", "critical")
_LONG_S = 50 * 365 * 86_400.0
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class _Kind(_ParamType):
    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        return self.name.upper()


class OneOf(_Choice):
    """One of some words; an error names the nearest. *aliases* maps further words to them."""

    def __init__(self, choices: Iterable[str], aliases: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(tuple(choices))
        self._aliases = aliases

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        value = self._aliases.get(value, value)
        if value not in self.choices and (near := nearest(str(value), self.choices)):
            self.fail(f"{value!r} is none of {', '.join(self.choices)}{near}", param, ctx)
        return str(super().convert(value, param, ctx))


class _Duration(_Kind):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = durations.seconds(value)
        except ValueError as error:
            self.fail(f"{value!r} is not a duration: {error}", param, ctx)
        # Times in messages have milliseconds: a shorter duration is none.
        if seconds * 1000 < 1 or not math.isfinite(seconds):
            self.fail(f"{value!r} is not more than 0: write for instance 30s, 10m or 2h", param, ctx)
        if seconds > _LONG_S:
            self.fail(f"{value!r} is longer than 50 years", param, ctx)
        return seconds


class _TextId(_Kind):
    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_text_id(value):
            self.fail(
                f"{value[:80]!r} is not a valid id: 1 to 256 characters, none of them a control or format character",
                param,
                ctx,
            )
        return str(value)


class _Input(click.File):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-" and sys.stdin is None:
            self.fail("standard input is closed; name a file", param, ctx)
        return super().convert(value, param, ctx)


class _Priority(_Kind):
    name = "priority"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value in _PRIORITIES:
            return str(value)
        if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 1):
            self.fail(f"{value!r} is neither 0 to 9 nor one of {', '.join(_PRIORITIES)}", param, ctx)
        return int(value)


class _Version(_Kind):
    name = "x.y.z"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_schema_version(value):
            self.fail(
                f"{value!r} is not a valid schema version: three integers without leading zeros, such as 1.0.0",
                param,
                ctx,
            )
        return str(value)


class _MessageType(_Kind):
    name = "type"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_message_type(value):
            self.fail(
                f"{value[:130]!r} is not a valid message type: use lower-case segments joined by dots, such as "
                "research.request",
                param,
                ctx,
            )
        return str(value)


class _Moment(_Kind):
    """Milliseconds since 1970."""

    name = "time"
    _examples = "for instance 2026-01-31T12:00:00Z"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time: write {self._examples}", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{value!r} has no time zone: write Z or an offset at its end", param, ctx)
        try:
            # Not rounded: the last moment of the year 9999 would round into the next year.
            return (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND
        except (OverflowError, ValueError):
            self.fail(f"{value!r} is outside the years 1 to 9999", param, ctx)


class _Past(_Moment):
    """Milliseconds since 1970; a duration means that long ago, a date its beginning in UTC."""

    name = "time"
    _examples = "2h or 3d for that long ago, or a date such as 2026-01-31 or 2026-01-31T12:00:00Z"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str):
            try:
                ago_s = durations.seconds(value)
            except ValueError:
                day = f"{value}T00:00:00Z" if _DATE.fullmatch(value) else value
                return super().convert(day, param, ctx)
            return max(0, time.time_ns() // 1_000_000 - round(min(ago_s, _LONG_S) * 1000))
        return super().convert(value, param, ctx)


class _Rate(_Kind):
    """A count per second."""

    name = "n/s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        number, _, unit = value.partition("/")
        seconds = {"": 1, "s": 1, "m": 60, "h": 3600}.get(unit)
        try:
            rate = float(number) / seconds if seconds else 0.0
        except ValueError:
            rate = 0.0
        if not (rate > 0 and math.isfinite(rate)):
            self.fail(f"{value!r} is not a rate: write for example 20/s or 100/m", param, ctx)
        return rate


DURATION_TYPE = _Duration()
INPUT = _Input("rb")
MESSAGE_TYPE = _MessageType()
MOMENT = _Moment()
PAST = _Past()
PRIORITY_TYPE = _Priority()
RATE = _Rate()
TEXT_ID = _TextId()
VERSION = _Version()
