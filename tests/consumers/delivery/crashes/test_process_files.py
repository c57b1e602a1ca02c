"""The roll of a group: what a process was running when it was killed is counted once, by whoever looks, and never while
it lives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.deadletters.records import Control
from consumers.delivery.crashes.crash_rules import Death, after
from consumers.delivery.crashes.process_files import ProcessFiles, machine
from consumers.delivery.crashes.running_messages import HANDLER, MAX_SLOTS, RunningMessages, read

NOW_MS = 1_767_225_600_000
CHILD = """
import os, sys
from pathlib import Path
from consumers.deadletters.records import Control
from consumers.delivery.crashes.process_files import ProcessFiles
from consumers.delivery.crashes.running_messages import HANDLER, INBOX
slots = ProcessFiles(Path(sys.argv[1])).join(4, "child")
for number in range(int(sys.argv[2])):
    slots.begin(Control("agents.a", 0, number), f"id-{number}", HANDLER)
slots.end(slots.begin(Control("agents.a", 0, 99), "ended", INBOX))
if sys.argv[3] == "ordered":
    slots.end_in_order()
print("up", flush=True)
if sys.argv[3] == "forks" and not os.fork():
    os.close(1)
    import time
    time.sleep(30)
sys.stdin.read()
"""


class Children:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._living: list[subprocess.Popen[bytes]] = []

    def start(self, running: int, how: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", CHILD, str(self.path), str(running), how]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._living.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child

    def stop(self) -> None:
        for child in self._living:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    started = Children(tmp_path)
    yield started
    started.stop()


def kill(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


def test_a_living_process_counts_no_death_and_a_killed_one_counts_once(tmp_path: Path, children: Children) -> None:
    child = children.start(2)
    roll = ProcessFiles(tmp_path)
    assert roll.count(NOW_MS) == []
    kill(child)
    (death,) = roll.count(NOW_MS)
    assert death.pid == child.pid
    assert [(mark.name, mark.kind) for mark in death.running] == [("id-0", "handler"), ("id-1", "handler")]
    assert ProcessFiles(tmp_path).count(NOW_MS) == []
    assert [crash_count.starts for crash_count in ProcessFiles(tmp_path).crash_counts().values()] == [1, 1]
    assert roll.death_of(child.pid, NOW_MS) == death
    assert roll.death_of(child.pid, NOW_MS + 1) is None


def test_an_idle_or_deliberately_stopped_process_counts_no_death(tmp_path: Path, children: Children) -> None:
    roll = ProcessFiles(tmp_path)
    for child in (children.start(1, "ordered"), children.start(0)):
        kill(child)
        assert [(death.running, death.member) for death in roll.count(NOW_MS)] == [((), "child")]
    child = children.start(1)
    kill(child)
    assert [death.running for death in roll.count(NOW_MS, excused=child.pid)] == [()]
    assert roll.count(NOW_MS) == []
    assert roll.crash_counts() == {}
    assert list(tmp_path.glob("*.running")) == []


def test_a_surviving_child_process_does_not_hide_a_death(tmp_path: Path, children: Children) -> None:
    child = children.start(1, "forks")
    kill(child)
    assert len(ProcessFiles(tmp_path).count(NOW_MS)) == 1


def test_its_own_process_is_not_taken_for_dead_nor_unlocked_by_looking(tmp_path: Path) -> None:
    roll = ProcessFiles(tmp_path)
    roll.join(4, "m").begin(Control("agents.a", 0, 1), "id", HANDLER)
    assert roll.count(NOW_MS) == []
    assert _counts_elsewhere(tmp_path) == "0"
    roll.leave()
    assert list(tmp_path.glob("*.running")) == []


def _counts_elsewhere(path: Path) -> str:
    code = (
        "from pathlib import Path; from consumers.delivery.crashes.process_files import ProcessFiles; "
        f"print(len(ProcessFiles(Path({str(path)!r})).count(1)))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.medium
def test_concurrent_counting_counts_each_death_once(tmp_path: Path, children: Children) -> None:
    for child in [children.start(1) for _ in range(6)]:
        kill(child)
    code = (
        "from pathlib import Path; from consumers.delivery.crashes.process_files import ProcessFiles; "
        f"print(len(ProcessFiles(Path({str(tmp_path)!r})).count(1)))"
    )
    counting = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)]
    assert sum(int(each.communicate()[0]) for each in counting) == 6
    assert [crash_count.deaths for crash_count in ProcessFiles(tmp_path).crash_counts().values()] == [6]


def test_a_file_of_another_machine_or_boot_is_left_alone_until_it_is_old(tmp_path: Path, children: Children) -> None:
    kill(children.start(1))
    (file,) = tmp_path.glob("*.running")
    elsewhere = file.rename(tmp_path / file.name.replace(machine(), "0" * 8))
    roll = ProcessFiles(tmp_path)
    assert roll.count(round(elsewhere.stat().st_mtime * 1000) + 86_400_000) == []
    assert elsewhere.exists()
    assert roll.count(round(elsewhere.stat().st_mtime * 1000) + 31 * 86_400_000) == []
    assert not elsewhere.exists()


def test_more_than_there_are_slots_for_is_not_noted_and_does_no_harm(tmp_path: Path) -> None:
    roll = ProcessFiles(tmp_path)
    slots = roll.join(MAX_SLOTS + 5, "m")
    taken = [slots.begin(Control("agents.a", 0, number), "id", HANDLER) for number in range(MAX_SLOTS + 1)]
    assert taken[-1] == 0
    assert all(taken[:-1])
    roll.leave()


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"\0" * 4_096, b"sealbus deaths 1", b"sealbus deaths 1" + b"\xff" * 9_000]
)
def test_a_damaged_process_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"12-{machine()}-ab.running").write_bytes(content)
    (tmp_path / "deaths.json").write_bytes(content)
    roll = ProcessFiles(tmp_path)
    roll.count(NOW_MS)
    assert list(tmp_path.glob("*.running")) == []
    assert roll.change(lambda crash_counts: crash_counts, NOW_MS) == roll.crash_counts()


def test_the_longest_names_come_through(tmp_path: Path) -> None:
    file = tmp_path / "slots"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
    slots = RunningMessages(descriptor, 1, "m" * 500)
    slots.begin(Control("a" * 249, 10**15 - 1, 2**63 - 1, redrive_count=10**15 - 1), "i" * 128, HANDLER)
    member, (found,) = read(descriptor)
    assert member == "m" * 448
    assert (found.topic, found.partition, found.offset, found.name) == ("a" * 249, 10**15 - 1, 2**63 - 1, "i" * 128)
    os.close(descriptor)
    assert after({}, Death(1, NOW_MS, (found,)))


def test_counts_that_an_older_release_has_written_still_count(tmp_path: Path) -> None:
    written = {"topic": "agents.a", "partition": 0, "offset": 7, "judged": False, "name": "m-1", "redrives": 0}
    counts = {**written, "starts": 1, "deaths": 1, "at_ms": NOW_MS}
    (tmp_path / "deaths.json").write_text(json.dumps({"tolls": [counts], "deaths": []}), "utf-8")
    assert [location.offset for location in ProcessFiles(tmp_path).crash_counts()] == [7]
