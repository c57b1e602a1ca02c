"""A file is replaced whole, by one writer at a time, and keeps its rights where that is asked for."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from bus.errors import ConfigurationError
from bus.whole_file import one_writer, write_whole


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_written_with_its_mode_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.json", b"{}", mode=0o640)
    assert (tmp_path / "a.json").read_bytes() == b"{}"
    assert mode_of(tmp_path / "a.json") == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_the_rights_of_the_file_before_stay_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    write_whole(path, b"old", mode=0o644)
    if os.geteuid() == 0:
        os.chown(path, 1, 1)
    write_whole(path, b"new", mode=0o600, keeps_rights=True)
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o644)
    if os.geteuid() == 0:
        assert path.stat().st_uid == 1
    write_whole(path, b"newer", mode=0o600)
    assert mode_of(path) == 0o600


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigurationError, match="taken cannot be written"):
        write_whole(tmp_path / "taken", b"x", mode=0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_whole(tmp_path / "missing" / "a", b"x", mode=0o600)


@pytest.mark.skipif(sys.platform == "win32", reason="the lock is one of POSIX")
def test_writers_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "made" / "count"

    def add() -> None:
        for _ in range(50):
            with one_writer(path.parent):
                number = int(path.read_bytes()) if path.exists() else 0
                write_whole(path, b"%d" % (number + 1), mode=0o600)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() == b"200"
