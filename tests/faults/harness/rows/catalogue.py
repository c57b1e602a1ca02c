"""Every row there is, by name.

Owns the list, and the rows of the matrix that are covered elsewhere or not at all, with the reason.
"""

from __future__ import annotations

from harness.rows import brokers, killer, outcomes, redrives, workers
from harness.rows.row import Row

__all__ = ["ELSEWHERE", "ROWS", "matching"]

ROWS: dict[str, Row] = {
    row.name: row for row in (*workers.ROWS, *outcomes.ROWS, *redrives.ROWS, *brokers.ROWS, *killer.ROWS)
}

ELSEWHERE = {
    "12": "a full disk of brokers: it needs a file system for each; 12-full-disk is the embedded log's and the inbox's",
    "14": "altered bytes: tests/e2e/test_forged_records.py, and the forgeries in rows 7-kill, 19-late and 30-chaos",
    "15": "sizes at the limits: tests/contract and tests/consumers",
    "18": "hostile JSON: tests/bus",
    "20": "forged senders: tests/bus",
    "23": "no transactional producers: the product has none",
    "25": "offsets that are gone: tests/kafka/test_lost_offsets.py; the worker must stop there, so nothing can heal",
    "29": "rolling upgrades: there is no earlier release yet",
}


def matching(name: str) -> list[Row]:
    """The row *name*, or all rows whose number it is. Raises KeyError."""
    found = [row for row in ROWS.values() if name in (row.name, row.number)]
    if not found:
        raise KeyError(name)
    return found
