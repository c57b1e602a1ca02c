"""The ledger of effects: what is read back is what was written, by whoever, in that order."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

from harness.ledger import Ledger, runs_of


def _write(path: Path, worker: str, rows: int) -> None:
    ledger = Ledger(path)
    for number in range(rows):
        _note(ledger, worker, "effect", f"{worker}-{number}")


def _note(ledger: Ledger, worker: str, kind: str, message_id: str) -> None:
    ledger.note(1.5, worker, os.getpid(), kind, "fault.task", message_id, "key", "k1", 7, 1, 10**13, "sha256:0")


def test_rows_of_several_processes_are_whole_and_in_the_order_of_each(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, worker, 500)) for worker in ("w1", "w2", "w3")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    runs = runs_of(path)
    assert [run.order for run in runs] == list(range(1, 1501))
    for worker in ("w1", "w2", "w3"):
        assert [run.message_id for run in runs if run.worker == worker] == [
            f"{worker}-{number}" for number in range(500)
        ]
    assert (runs[0].at_ms, runs[0].number, runs[0].expires_ms) == (1.5, 7, 10**13)


def test_failures_are_counted_wherever_they_happened(tmp_path: Path) -> None:
    one, two = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
    _note(one, "w1", "failed", "a")
    _note(two, "w2", "failed", "a")
    assert one.failures("a") == two.failures("a") == 2
    _note(one, "w1", "effect", "a")
    _note(two, "w2", "failed", "b")
    assert (one.failures("a"), one.failures("b"), one.failures("c")) == (2, 1, 0)
