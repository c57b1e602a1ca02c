"""An operator looks at a copy of a log that cannot be written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.medium  # real workers


@pytest.fixture
def copy(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder whose log is a copy, which nobody may write, of one with a dead letter in it."""
    worker = folder.worker()
    given = '{"number": 1}\n{"number": 2, "label": "reject"}\n'
    assert folder.call("publish", "job.run", "--app", "agents:app", stdin=given).exit_code == 0
    folder.wait_until(lambda: len(folder.objects(folder.call("dlq", "list", "-o", "json").stdout)) == 1)
    folder.end(worker)
    log = folder.path / "sealbus.db"
    shutil.copy(log, folder.path / "copy.db")
    log.unlink()
    may = os.access
    # The rights of a file do not bind root, as whom tests may run.
    monkeypatch.setattr(os, "access", lambda path, mode: "copy.db" not in str(path) and may(path, mode))
    (folder.path / "copy.db").chmod(0o400)
    return folder


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        (("tail", "job.run", "--from", "start"), '"number":'),
        (("dlq", "list"), "rejected"),
        (("dlq", "list", "--by", "cause"), "rejected"),
        (
            (
                "group",
                "list",
            ),
            "worker-svc",
        ),
        (("topic", "list"), "agents.job.run"),
        (("doctor",), "1 dead letter is open"),
    ],
)
def test_readers_read_it(copy: Any, words: tuple[str, ...], shows: str) -> None:
    before = (copy.path / "copy.db").read_bytes()
    read = copy.call(*words, "--bus", "sqlite:///copy.db")
    assert shows in read.stdout, read.output + read.stderr
    assert (copy.path / "copy.db").read_bytes() == before
    assert not list(Path(copy.path).glob("copy.db-*"))


def test_publishing_to_a_read_only_log_is_refused(copy: Any) -> None:
    written = copy.call(
        "publish", "job.run", "--app", "agents:app", "--bus", "sqlite:///copy.db", stdin='{"number": 3}'
    )
    assert written.exit_code != 0
    assert "read-only" in written.output + written.stderr
