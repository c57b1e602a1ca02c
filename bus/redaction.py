"""Redaction: replace secrets in exception texts and log values by `***`.

Owns the patterns. `redacted` is applied wherever text that sealbus did not write leaves a process: log lines, dead
letters, reports. Every repetition is bounded, so the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

__all__ = ["MAX_LENGTH", "cut", "masked", "masked_member", "names_secret", "redacted"]

_MASK: Final = "***"
_NAMES: Final = (
    r"(?:password|passwd|pwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|signing[_-]?key"
    r"|authorization|cookie|credential)"
)
_PATTERNS: Final = (
    # A private key in PEM form, even a truncated one.
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----(?:.{0,16384}?-----END [A-Z ]{0,32}PRIVATE KEY-----|.{0,16384})",
            re.DOTALL,
        ),
        _MASK,
    ),
    # The password of a URL. A password that contains an @ is masked up to the last one.
    (re.compile(r"(\w://[^\s:/@]{0,256}:)\S{1,512}@"), rf"\1{_MASK}@"),
    # name=value, "name": "value", Authorization: Bearer value.
    (
        re.compile(
            rf"(?i)({_NAMES}s?[\w-]{{0,16}}[\"']?\s{{0,3}}(?:=>|[=:])\s{{0,3}}(?:(?:bearer|basic)\s{{1,3}})?)"
            r"(?:\"[^\"\n]{0,1024}\"|'[^'\n]{0,1024}'|[^\s\"',;&)}\]]{1,4096})"
        ),
        rf"\1{_MASK}",
    ),
    # "password hunter2": a word with a digit after the name; "token expired" is kept.
    (
        re.compile(
            r"(?i)\b((?:password|passwd|passphrase|secret|token|bearer|basic|api key)\s{1,3}[\"']?)"
            r"(?=[^\s\d]{0,256}\d)[^\s\"']{4,4096}"
        ),
        rf"\1{_MASK}",
    ),
    # Tokens of a known form: JWT, AWS, GitHub, GitLab, Slack, Google, and keys of model providers.
    (re.compile(r"\beyJ[\w-]{8,2048}\.[\w-]{0,8192}\.[\w-]{8,2048}"), _MASK),
    (
        re.compile(
            r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_\w{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,255}|xox[abeoprs]-[\w-]{10,255}"
            r"|sk-[\w-]{16,255}|AIza[\w-]{35})"
        ),
        _MASK,
    ),
)
MAX_LENGTH: Final = 65_536
"""No displayed text is longer: anything beyond is dropped unread."""


def redacted(text: str) -> str:
    """Return at most 64 Ki characters of *text*, with everything that looks like a secret masked."""
    text = text[:MAX_LENGTH]
    for pattern, mask in _PATTERNS:
        text = pattern.sub(mask, text)
    return text


def cut(text: str, length: int) -> str:
    """Return at most *length* characters of *text*; a final ellipsis marks a cut."""
    return text if len(text) <= length else text[: length - 1] + "…"


_MAX_TEXT: Final = 1_000
_MAX_ITEMS: Final = 100
_MAX_DEPTH: Final = 12


def masked(value: Any) -> Any:
    """Return the JSON value *value* with secrets masked, and cut where it is long, wide or deep."""
    return _masked(value, 0)


def masked_member(name: str, value: Any) -> Any:
    """Return the value of one member as shown by `masked`: `***` if *name* is that of a secret."""
    return _MASK if _is_secret(name, value) else _masked(value, 1)


def _masked(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return cut(redacted(value), _MAX_TEXT)
    if isinstance(value, dict | list | tuple) and depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, list | tuple):
        return [_masked(each, depth + 1) for each in value[:_MAX_ITEMS]]
    if isinstance(value, dict):
        pairs = list(value.items())[:_MAX_ITEMS]
        return {
            cut(key, _MAX_TEXT): _MASK if _is_secret(key, each) else _masked(each, depth + 1) for key, each in pairs
        }
    return value


def _is_secret(name: str, value: Any) -> bool:
    is_count = isinstance(value, int | float) and name[:_MAX_TEXT].endswith("tokens")
    return names_secret(name) and not is_count


def names_secret(name: str) -> bool:
    """Return whether a member of this *name* is a secret, whatever its value."""
    return _names_secret(name[:_MAX_TEXT])


@lru_cache(maxsize=4096)
def _names_secret(name: str) -> bool:
    return redacted(f"{name}=x") != f"{name}=x"
