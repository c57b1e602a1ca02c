"""The forms that fields of the vocabulary have (`VOCABULARY.md` section 1), as annotations.

Owns what one value may be. The parts that several types share are in `bus.vocabulary.parts`; what fields may hold
together is a rule of their type.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from bus.payloads.rules import Rule, holds
from bus.protocol.canonical_numbers import SAFE_INTEGER

__all__ = [
    "Any_",
    "Code",
    "Count",
    "Decimal",
    "Flag",
    "Glob",
    "Hash",
    "Instant",
    "Level",
    "Long",
    "Name",
    "Number",
    "Object",
    "Path",
    "Percent",
    "Positive",
    "RuledValue",
    "Severity",
    "Share",
    "Text",
    "Type",
    "TypeRange",
    "Uri",
    "Value",
    "Verdict",
    "Version",
    "Word",
]

# Patterns end with \Z: a $ would take a line break behind the text. Exports write $ for it, which means the same there.
_DIGITS = r"(?:0|[1-9][0-9]{0,63})"
_SEGMENT = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
_TYPE = rf"{_SEGMENT}(?:\.{_SEGMENT})*"
_VERSION = rf"{_DIGITS}\.{_DIGITS}\.{_DIGITS}"
# Categories Cc, Cf, Zl and Zp of Unicode 16, as in `bus.protocol.identifiers`.
_NOT_IN_NAMES = (
    "\x00-\x1f\x7f-\x9f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"
)
# RFC 3986: unreserved and sub-delims, and what path, query and fragment take besides.
_PLAIN = r"A-Za-z0-9._~!$&'()*+,;=\-"
_AUTHORITY = rf"(?:[{_PLAIN}:\[\]]|%[0-9A-Fa-f]{{2}})*"
_REST = rf"(?:[{_PLAIN}:@/?#\[\]]|%[0-9A-Fa-f]{{2}})*"
_BESIDE_SLASH = rf"(?:[{_PLAIN}:@?#\[\]]|%[0-9A-Fa-f]{{2}})"

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
"""At least one code point."""
Long: TypeAlias = str
"""Any text."""
Name: TypeAlias = Annotated[str, Meta(pattern=rf"^[^{_NOT_IN_NAMES}]{{1,256}}\Z", max_length=256)]
"""A text id of the protocol: agents, tasks, handles. 1 to 256 code points without control or format characters."""
Word: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z", max_length=64)]
"""A lower-case code of an open set: known values are said where it is used, others are allowed."""
Code: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Z][A-Z0-9_]{0,62}[A-Z0-9]\Z", max_length=64)]
"""An upper-case code of an open set."""
Type: TypeAlias = Annotated[str, Meta(pattern=rf"^{_TYPE}\Z", max_length=120)]
"""A message type."""
Version: TypeAlias = Annotated[str, Meta(pattern=rf"^{_VERSION}\Z", max_length=194)]
"""A schema version, `x.y.z`."""
TypeRange: TypeAlias = Annotated[
    str, Meta(pattern=rf"^{_TYPE}@{_DIGITS}(?:\.{_DIGITS}(?:\.{_DIGITS})?)?\Z", max_length=320)
]
"""`<type>@1`: any 1.y.z; `<type>@1.2`: 1.y.z with y >= 2; `<type>@1.2.3`: exactly."""
Glob: TypeAlias = Text
"""`*` stands for any characters but `/`, `**` for any characters; no other character is special."""
Path: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^(?:(?:\.{0,2}[A-Za-z0-9_-][A-Za-z0-9._-]*|\.{3}[A-Za-z0-9._-]*)/)*"
        r"(?:\.{0,2}[A-Za-z0-9_-][A-Za-z0-9._-]*|\.{3}[A-Za-z0-9._-]*)\Z",
        max_length=512,
    ),
]
"""Segments of `[A-Za-z0-9._-]+` joined by `/`; no segment is `.` or `..`."""
Uri: TypeAlias = Annotated[
    str,
    Meta(
        pattern=rf"^[A-Za-z][A-Za-z0-9+.-]*:(?://{_AUTHORITY}(?:[/?#]{_REST})?|/?(?:{_BESIDE_SLASH}{_REST})?)\Z",
        max_length=2048,
    ),
]
"""A URI with a scheme and without userinfo (RFC 3986). No program opens one because a message names it."""
Instant: TypeAlias = Annotated[datetime, Meta(tz=True)]
"""RFC 3339 with an offset; written in UTC."""
Hash: TypeAlias = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z", max_length=71)]
"""`sha256:` and 64 hexadecimal digits."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=SAFE_INTEGER)]
Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Number: TypeAlias = Annotated[float, Meta(ge=0)]
Decimal: TypeAlias = Annotated[str, Meta(pattern=r"^(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,9})?\Z", max_length=28)]
"""A decimal number as text: money is never a float."""
Flag: TypeAlias = bool
Object: TypeAlias = dict[str, Any]
Any_: TypeAlias = Any
"""Any JSON value, null too; where it is optional its default is `msgspec.UNSET`."""
Severity: TypeAlias = Literal["low", "medium", "high", "critical"]
"""Of work and risks. Errors have their own: warning, error, critical."""
Level: TypeAlias = Literal[
    "platform_policy",
    "org_policy",
    "runtime_instruction",
    "task_instruction",
    "user_request",
    "trusted_tool_result",
    "model_generated",
    "untrusted_content",
]
"""How far content is trusted, from most to least."""
Verdict: TypeAlias = Literal["approved", "changes_requested", "needs_discussion"]


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A payload or a part of one. A default value is not written."""

    __deferred__: ClassVar = True
    """A type is analysed when it is first used, and not with all the others of its family."""


class RuledValue(Value, frozen=True, kw_only=True):
    """A part with rules between its fields, which hold wherever the part stands."""

    __rules__: ClassVar[tuple[Rule, ...]] = ()

    def __post_init__(self) -> None:
        """Raise ValueError, which a decoder reports as `schema_violation` with the pointer of the part."""
        for rule in self.__rules__:
            if not holds(rule.condition, self):
                raise ValueError(rule.text)
