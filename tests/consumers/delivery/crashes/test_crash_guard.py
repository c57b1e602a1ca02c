"""What a worker notes of its work, and what follows from the deaths of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bus.clock import ManualClock
from bus.settings.loading import load
from bus.transports.base import Assignment, Record
from consumers.deadletters.records import Control
from consumers.delivery.crashes.crash_guard import CrashGuard
from consumers.delivery.crashes.crash_rules import Death, Mark, after
from consumers.delivery.crashes.open import open_process_files, state_directory
from consumers.delivery.crashes.process_files import ProcessFiles
from consumers.delivery.state.delivery import Delivery, Refused
from consumers.delivery.state.partition import Partition

LARGE = b"x" * 20_000


class Case:
    """A guard, and a judge that takes so many seconds for a record."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.roll = ProcessFiles(path)
        self.guard = CrashGuard(self.roll, self.clock)
        self.guard.open(4, "m")
        self.takes_s = 0.0
        self.judge = self.guard.judging(self._judge)

    def _judge(self, record: Record, partition: Partition, _now_ms: int) -> Delivery | None:
        self.clock.advance(self.takes_s)
        return Delivery(
            record=record, partition=partition, control=Control("agents.a", 0, record.offset), key=record.offset, size=0
        )

    def judged_and_lost(self, value: bytes = LARGE) -> str:
        """The reason that one record is refused for, in an assignment that is lost after it was judged."""
        partition = Partition(Assignment("agents.a", 0, 1), expected_type=None, own=False, tier=None)
        partition.frontier.deliver(7)
        delivery = self.judge(Record("agents.a", 0, 7, 0, b"k", value), partition, 0)
        assert delivery is not None
        self.guard.gone(partition)
        return delivery.error.reason if isinstance(delivery, Refused) else ""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_record_that_lost_the_session_three_times_in_judging_is_not_judged_again(case: Case) -> None:
    case.takes_s = 10.0
    assert [case.judged_and_lost() for _ in range(4)] == ["", "", "", "crash_loop"]


def test_a_session_that_was_lost_after_quick_judging_is_nobodys_fault(case: Case) -> None:
    assert [case.judged_and_lost() for _ in range(5)] == [""] * 5
    assert case.roll.crash_counts() == {}


def test_one_that_was_committed_before_its_partition_went_is_not_counted(case: Case) -> None:
    case.takes_s = 10.0
    partition = Partition(Assignment("agents.a", 0, 1), expected_type=None, own=False, tier=None)
    partition.frontier.deliver(7)
    case.judge(Record("agents.a", 0, 7, 0, b"k", LARGE), partition, 0)
    partition.committed = 8
    case.guard.gone(partition)
    assert case.roll.crash_counts() == {}


async def test_an_orderly_end_clears_the_crash_count_of_a_message(case: Case) -> None:
    marks = tuple(Mark("agents.a", 0, offset, f"id-{offset}", 0, "handler") for offset in (1, 2))
    case.roll.change(
        lambda crash_counts: after(crash_counts, Death(1, case.clock.now_ms(), marks)), case.clock.now_ms()
    )
    case.guard.look()
    assert len(case.guard.crash_counts) == 2
    partition = Partition(Assignment("agents.a", 0, 1), expected_type=None, own=False, tier=None)
    record = Record("agents.a", 0, 1, 0, b"k", b"{}")
    message = type("Message", (), {"message_id": "id-1"})()
    delivery = Delivery(
        record=record, partition=partition, control=Control("agents.a", 0, 1), key=1, size=0, message=message
    )
    case.guard.ended(delivery)
    assert [key.offset for key in case.guard.crash_counts] == [2]
    case.clock.advance(1.0)
    assert [key.offset for key in case.roll.crash_counts()] == [2]


def test_the_next_worker_knows_which_message_several_processes_ran_that_died(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from consumers.deadletters.records import Control
from consumers.delivery.crashes.process_files import ProcessFiles
from consumers.delivery.crashes.running_messages import INBOX
ProcessFiles(Path(sys.argv[1])).join(4, "child").begin(Control("agents.a", 0, 7), "poison", INBOX)
os._exit(9)
"""
    clock = ManualClock()
    guard = CrashGuard(ProcessFiles(tmp_path), clock)
    told = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
        guard.look()
        told.append([(blame.mark.name, blame.deaths) for blame in guard.blames()])
    assert told == [[], [("poison", 2)]]
    clock.advance(301)
    assert guard.blames() == ()


def test_an_unwritable_crash_directory_is_only_logged(tmp_path: Path) -> None:
    guard = CrashGuard(ProcessFiles(tmp_path / "gone"), ManualClock())
    with capture_logs() as logs:
        guard.open(4, "m")
        guard.look()
        guard.close()
    assert [line["event"] for line in logs] == ["deaths.not_counted"]


def directory(environment: dict[str, str] | None = None, **flags: str) -> str:
    settings = load(
        flags={name.replace("_", ".", 1): value for name, value in flags.items()}, env={}, file=None
    ).settings
    return str(state_directory(settings, "g", environment or {}))


def test_the_directory_is_beside_the_log_or_where_programs_keep_their_state() -> None:
    assert directory(bus_url="sqlite:////var/x/log.db") == "/var/x/log-workers/agents.g"
    assert directory(bus_url="memory://") == "None"
    assert directory(worker_state_dir="off") == "None"
    one, other = (
        directory({"HOME": "/home/a"}, bus_url="kafka://h:1"),
        directory({"HOME": "/home/a"}, bus_url="kafka://i:1"),
    )
    assert one.startswith("/home/a/.local/state/sealbus/agents.g-")
    assert one != other
    assert directory({"XDG_STATE_HOME": "/s"}, bus_url="kafka://h:1").startswith("/s/sealbus/agents.g-")
    assert directory({"STATE_DIRECTORY": "/var/lib/w:/b", "HOME": "/h"}, bus_url="kafka://h:1").startswith(
        "/var/lib/w/agents.g-"
    )
    assert directory(worker_state_dir="/state", bus_url="kafka://h:1").startswith("/state/agents.g-")


def test_a_directory_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    settings = load(
        flags={"bus.url": "kafka://h:1", "worker.state_dir": str(tmp_path / "state")}, env={}, file=None
    ).settings
    roll = open_process_files(settings, "g")
    assert roll is not None
    assert roll.path.stat().st_mode & 0o777 == 0o700
    roll.path.chmod(0o777)
    with capture_logs() as logs:
        assert open_process_files(settings, "g") is None
    assert logs[0]["event"] == "deaths.not_counted"


def test_no_directory_is_made_where_there_is_none_for_the_log(tmp_path: Path) -> None:
    settings = load(flags={"bus.url": f"sqlite:///{tmp_path}/none/log.db"}, env={}, file=None).settings
    assert open_process_files(settings, "g") is None
    assert list(tmp_path.iterdir()) == []
