"""The two logs as the fault tests see them from outside: everything that lies in them, every commit, and the lag.

Owns reading the embedded log's file by plain SQL. No code of the product reads here: what it gets wrong must not hide
itself. Kafka's side is `clusterlogs`'.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from harness.history import Commit, Entry, Note

__all__ = ["NOTES", "EmbeddedLog", "entry_of", "kind_of", "value_of"]

NOTES = ("_deadletters", "_audit")
"""The bus's own topics about dead letters."""

# The log's file is open to other tools by design: a trigger writes down every commit, with the append that came last
# before it.
_WATCH = """CREATE TABLE IF NOT EXISTS fault_commits (
  id INTEGER PRIMARY KEY AUTOINCREMENT, grp, part, committed, at_ms REAL, last);
CREATE TRIGGER IF NOT EXISTS fault_watch AFTER UPDATE OF committed ON leases
WHEN new.committed IS NOT old.committed BEGIN
  INSERT INTO fault_commits (grp, part, committed, at_ms, last) VALUES (
    new.grp, new.part, new.committed, (julianday('now') - 2440587.5) * 86400000.0,
    (SELECT coalesce(max(id), -1) FROM records));
END;"""
_PLACES = "SELECT p.id, t.name, p.partition FROM partitions p JOIN topics t ON t.id = p.topic_id"


class EmbeddedLog:
    """The log in one SQLite file."""

    name = "embedded"

    def __init__(self, folder: Path, namespace: str, group: str) -> None:
        self.path = folder / "log.db"
        self.url = f"sqlite:///{self.path}"
        self._namespace = namespace
        self._group = group

    def watch(self) -> None:
        """From now on every commit is written down; the log must exist."""
        with closing(self._open()) as connection:
            connection.executescript(_WATCH)

    def lag(self) -> int | None:
        """Records of the group's topics that it has not committed; None while nobody can tell."""
        query = """SELECT coalesce(sum(p.next_offset - max(coalesce(l.committed, 0), p.start_offset)), 0)
            FROM partitions p JOIN topics t ON t.id = p.topic_id LEFT JOIN leases l ON l.part = p.id AND l.grp = ?
            WHERE t.name IN ({})"""
        topics = [
            name
            for name in self._topics()
            if kind_of(name) in ("message", "retry", "redrive") and not name.endswith("fault.answer")
        ]
        with closing(self._open()) as connection:
            marks = ", ".join("?" * len(topics))
            return int(connection.execute(query.format(marks), (self._group, *topics)).fetchone()[0])

    def entries(self) -> list[Entry]:
        """Every record, in the order in which all were appended."""
        with closing(self._open()) as connection:
            places = {part: (topic, number) for part, topic, number in connection.execute(_PLACES)}
            rows = connection.execute("SELECT id, part, off, ts, CAST(value AS BLOB), headers FROM records ORDER BY id")
            found = []
            for order, part, offset, at_ms, value, headers in rows:
                topic, partition = places[part]
                decoded = msgspec.msgpack.decode(headers) if headers else ()
                entry = entry_of(
                    (topic, partition, offset), at_ms, value, [(name, bytes(text)) for name, text in decoded], order
                )
                if entry is not None:
                    found.append(entry)
        return found

    def commits(self) -> list[Commit]:
        """Every commit of the group, in order."""
        with closing(self._open()) as connection:
            places = {part: (topic, number) for part, topic, number in connection.execute(_PLACES)}
            rows = connection.execute(
                "SELECT part, committed, at_ms, last FROM fault_commits WHERE grp = ? ORDER BY id", (self._group,)
            ).fetchall()
        return [
            Commit(topic=places[part][0], partition=places[part][1], offset=offset, at_ms=at_ms, order=last)
            for part, offset, at_ms, last in rows
            if offset is not None
        ]

    def notes(self) -> list[Note]:
        """What the bus wrote down about dead letters."""
        found = []
        for topic in (f"{self._namespace}.{name}" for name in NOTES):
            query = """SELECT CAST(r.key AS TEXT), CAST(r.value AS BLOB)
                FROM records r JOIN partitions p ON p.id = r.part JOIN topics t ON t.id = p.topic_id
                WHERE t.name = ? ORDER BY r.id"""
            with closing(self._open()) as connection:
                found += [
                    Note(topic=topic, key=key, told=value_of(value))
                    for key, value in connection.execute(query, (topic,))
                ]
        return found

    def size(self, kind: str) -> int:
        """How many records the topics of *kind* have had."""
        with closing(self._open()) as connection:
            rows = connection.execute(
                "SELECT t.name, p.next_offset FROM partitions p JOIN topics t ON t.id = p.topic_id"
            )
            return sum(end for name, end in rows if kind_of(name) == kind)

    def _topics(self) -> list[str]:
        with closing(self._open()) as connection:
            return [name for (name,) in connection.execute("SELECT name FROM topics")]

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=60.0)


def kind_of(topic: str) -> str:
    """What a topic is for, by its name as the design gives it; empty for the bus's own."""
    rest = topic.partition(".")[2]
    if rest.endswith(".dlq"):
        return "dlq"
    for kind in ("retry", "redrive", "reply"):
        if rest.startswith(f"_{kind}."):
            return kind
    return "" if rest.startswith("_") else "message"


def value_of(value: bytes | None) -> dict[str, Any]:
    """A record's value as data; empty for what is no JSON object."""
    try:
        decoded = msgspec.json.decode(value or b"")
    except msgspec.DecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def entry_of(
    place: tuple[str, int, int],
    at_ms: float,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]],
    order: int = -1,
) -> Entry | None:
    """One record as the checker takes it; None for what lies in the bus's own topics."""
    topic, partition, offset = place
    kind = kind_of(topic)
    if not kind:
        return None
    envelope = value_of(value)
    metadata = envelope.get("metadata", {})
    texts = dict(_texts(headers))
    return Entry(
        topic=topic,
        kind=kind,
        partition=partition,
        offset=offset,
        at_ms=at_ms,
        message_id=metadata.get("message_id", texts.get("sb-id", "")),
        content=f"sha256:{hashlib.sha256(value or b'').hexdigest()}",
        said=hashlib.sha256(msgspec.json.encode(envelope.get("data"))).hexdigest(),
        causation_id=metadata.get("causation_id", ""),
        order=order,
        headers=texts,
    )


def _texts(headers: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        yield name, value.decode("utf-8", "replace")
