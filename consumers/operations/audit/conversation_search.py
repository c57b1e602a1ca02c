"""What a filter of conversations is in SQL, on SQLite with and without FTS5 and on PostgreSQL. Pure.

Nothing that somebody has typed is part of a statement: texts are arguments, and words have only letters and digits.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from consumers.operations.audit.conversations import ConversationFilter, indexed_name, search_words

__all__ = ["WordSearch", "conditions_of"]

WordSearch: TypeAlias = Literal["fts5", "plain", "tsvector"]
"""How the table of words is searched; `plain`: a SQLite without FTS5."""

_MAX_WORDS: Final = 8
_MOST: Final = 1 << 62
_WITHIN: Final = "c.number IN (SELECT rowid FROM sealbus_audit_words WHERE {})"
_CONDITIONS: Final = {
    "id_prefix": "substr(c.id, 1, length(CAST(? AS text))) = ?",
    "agent": "c.number IN (SELECT number FROM sealbus_audit_parties WHERE agent = ?)",
    "message_type": "c.first_type = ?",
    "state": "c.state = ?",
    "since_ms": "c.last_ms >= ?",
    "until_ms": "c.first_ms <= ?",
}
_NO_TICK: Final = "(c.first_type NOT IN ('schedule.due', 'wait.due') OR c.last_ms > c.first_ms)"


def conditions_of(
    wanted: ConversationFilter, namespace: str, before: tuple[int, str] | None, search: WordSearch
) -> tuple[str, list[Any]] | None:
    """Return the condition on the table `c` with its arguments; None where nothing can match."""
    asked: list[tuple[str, Any]] = [("c.namespace = ?", namespace)]
    for name, condition in _CONDITIONS.items():
        value = getattr(wanted, name)
        if value not in ("", None):
            asked.append((condition, indexed_name(value) if name == "agent" else _storable(value)))
    if wanted.words.strip():
        tokens = search_words(wanted.words)[:_MAX_WORDS]
        if not tokens:
            return None
        asked += _worded(tokens, search)
    arguments = [value for _, value in asked]
    conditions = [condition.replace("?", f"${number}") for number, (condition, _) in enumerate(asked, 1)]
    if wanted.without_ticks:
        conditions.append(_NO_TICK)
    if wanted.ids is not None:
        if not wanted.ids:
            return None
        first = len(arguments) + 1
        arguments += wanted.ids
        conditions.append(f"c.id IN ({', '.join(f'${number}' for number in range(first, len(arguments) + 1))})")
    if before is not None:
        arguments += (_storable(before[0]), before[1])
        conditions.append(f"(c.last_ms, c.id) < (${len(arguments) - 1}, ${len(arguments)})")
    return " AND ".join(conditions), arguments


def _worded(tokens: tuple[str, ...], search: WordSearch) -> list[tuple[str, Any]]:
    match search:
        case "fts5":
            return [(_WITHIN.format("words MATCH ?"), " ".join(f'"{token}"*' for token in tokens))]
        case "tsvector":
            matched = _WITHIN.format("words @@ CAST(CAST(? AS text) AS tsquery)")
            return [(matched, " & ".join(f"'{token}':*" for token in tokens))]
        case "plain":
            return [(_WITHIN.format("instr(' ' || words, ?) > 0"), f" {token}") for token in tokens]


def _storable(value: Any) -> Any:
    """Return *value*; a number within what a database takes for one."""
    return max(-_MOST, min(value, _MOST)) if isinstance(value, int) else value
