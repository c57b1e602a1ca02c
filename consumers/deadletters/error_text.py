"""Error texts without their ids: what the texts of one fault have in common. Pure, and linear in the text's length.

Owns what counts as an id: whatever has a digit in it, quoted text, URLs, e-mail addresses, paths, and words that no
sentence has (`fKxQz`). Names of parameters stay: `order=17` becomes `order=#`. Words of a sentence stay, so two
sentences without ids stay apart.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from bus.redaction import cut, redacted

__all__ = ["ID_MARK", "without_ids"]

ID_MARK: Final = "#"
"""Stands for an id, a number, a name."""
_MAX_READ: Final = 1_024
_MAX_TEXT: Final = 160
_MAX_QUOTED: Final = 256

_APART: Final = r"\s'\"`(){}\[\]<>,;|“”‘’«»"
# From the beginning of a word only, and without going back: each character is looked at once or twice.
_WITH_DIGIT: Final = re.compile(rf"(?<![^{_APART}])[^{_APART}\d]*+\d[^{_APART}]*+")
_WORD: Final = re.compile(rf"[^{_APART}#]*+#?[^{_APART}]*+")
_COLOUR: Final = re.compile(r"\x1b\[[\d;]{1,32}([A-Za-z])")
# A quotation mark inside a word is an apostrophe.
_QUOTED: Final = re.compile(
    rf"\"[^\"\n]{{0,{_MAX_QUOTED}}}\"|`[^`\n]{{0,{_MAX_QUOTED}}}`|“[^”\n]{{0,{_MAX_QUOTED}}}”"
    rf"|‘[^’\n]{{0,{_MAX_QUOTED}}}’|«[^»\n]{{0,{_MAX_QUOTED}}}»|(?<![\w#])'.{{0,{_MAX_QUOTED}}}?'(?![\w#])"
    # A text that was cut inside of a quotation.
    rf"|(?<!\w)[\"'`][^\"'`\n]{{0,{_MAX_QUOTED}}}…\Z"
)
_KEYS: Final = re.compile(r"(?:[A-Za-z_][A-Za-z_.-]{0,63}[=:])+")
_END: Final = ".!?:…"
_WITHIN: Final = re.compile(r"[A-Za-z]+")
# Words: lower case, a capital first, capitals alone, and several of these in a row (KeyError, HTTPError, parseJSON).
_SENTENCE_WORD: Final = re.compile(
    r"[A-Z]?[a-z]*|[A-Z]{1,15}s?|[A-Z]{0,6}[a-z]{2,40}(?:[A-Z]{1,6}[a-z]{2,40}){0,8}(?:[A-Z]{2,6})?"
)
_ADDRESS: Final = re.compile(r"[0-9A-Fa-f:.%]+")
_DRIVE: Final = re.compile(r"[A-Za-z]:[\\/]")
_BASE64_END: Final = re.compile(r"[A-Za-z+/_-]{2,}==")
_DAYS: Final = (
    r"(?:Mon(?:day)?|Tue(?:s(?:day)?)?|Wed(?:nesday)?|Thu(?:rs(?:day)?)?|Fri(?:day)?|Sat(?:urday)?|Sun(?:day)?"
    r"|Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:t(?:ember)?)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DATE: Final = re.compile(rf"\b(?:{_DAYS}[.,]?\s{{1,2}}){{1,3}}#|#\s{_DAYS}\b")
_LIST: Final = re.compile(r"#(?:[,;|]?\s{0,2}#)+")


def without_ids(text: str) -> str:
    """Return the first line of *text*, at most 160 characters, with `#` for ids and secrets masked."""
    line = text[:_MAX_READ].partition("\n")[0]
    if "\x1b" in line:
        line = _COLOUR.sub("\x1b[#\\1", line)
    # Few texts are left when numbers are gone, and those are looked at once.
    return _without_names(_WITH_DIGIT.sub(_without_digits, line))


def _without_digits(found: re.Match[str]) -> str:
    body = _body_of(found[0])
    return f"{_key_of(body)}{ID_MARK}{found[0][len(body) :]}"


def _body_of(word: str) -> str:
    """Return *word* without the marks of its sentence at the end; a network may end in two colons."""
    body = word.rstrip(_END)
    return f"{body}::" if word.startswith("::", len(body)) else body


def _key_of(body: str) -> str:
    """Return the names before a value: `order=` of `order=17`; nothing of a URL, an address or a path."""
    keys = _KEYS.match(body)
    if keys is None or not body[keys.end() :].strip("=") or body.startswith("://", keys.end() - 1):
        return ""
    is_address = body.count(":") > 1 and _ADDRESS.fullmatch(body) is not None
    return "" if is_address or _DRIVE.match(body) or _has_name(keys[0]) else keys[0]


@lru_cache(maxsize=2048)
def _without_names(line: str) -> str:
    line = _WORD.sub(lambda found: _without_name(found[0]), _QUOTED.sub(ID_MARK, line))
    return cut(redacted(_LIST.sub(ID_MARK, _DATE.sub(ID_MARK, line))), _MAX_TEXT)


def _without_name(word: str) -> str:
    body = _body_of(word)
    if not body or ID_MARK in body or (not (is_whole := _is_name(body)) and not (key := _key_of(body))):
        return word
    if is_whole:
        return f"{_key_of(body)}{ID_MARK}{word[len(body) :]}"
    return f"{key}{ID_MARK}{word[len(body) :]}" if _is_name(body[len(key) :]) else word


def _is_name(body: str) -> bool:
    """Return whether *body*, which has no digits, is no word of a sentence."""
    if "://" in body or "@" in body[1:-1] or "\\" in body or body.count("/") > 1:
        return True
    if (body[0] == "/" or body.startswith(("~/", "./", "../"))) and len(body) > 1:
        return True
    if _BASE64_END.fullmatch(body) or (body.count(":") > 1 and _ADDRESS.fullmatch(body)):
        return True
    return _has_name(body)


def _has_name(body: str) -> bool:
    return any(not _SENTENCE_WORD.fullmatch(part) for part in _WITHIN.findall(body))
