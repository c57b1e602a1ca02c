"""`sealbus dlq`: filters, states, sending back and putting away, as commands and on both logs."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from click.testing import Result

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.transports import open_configured
from bus.transports.base import NewRecord
from consumers.app.app import App
from consumers.deadletters.journal import Journal, this_process

pytestmark = pytest.mark.medium  # real workers

SIZE = int(os.environ.get("SEALBUS_TEST_LETTERS", "5000"))

APP = """
import pathlib
import msgspec
from sealbus import App, Reject, payload

@payload("job.run", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    label: str = ""

app = App("AGENT")

@app.on(Job)
async def run(job: Job) -> None:
    if not pathlib.Path("mended").exists():
        raise Reject("not yet")
    with open("handled.txt", "a") as out:
        out.write(f"{job.number}\\n")
"""


class Desk:
    """A folder whose app rejects everything until it is mended, on one log and in one namespace."""

    def __init__(self, folder: Any, url: str) -> None:
        self.folder, self.url = folder, url
        self.namespace = f"d{uuid.uuid4().hex[:8]}"
        self.agent = f"{self.namespace}@svc"
        self.common = ("--bus", url, "--namespace", self.namespace)
        (folder.path / "agents.py").write_text(APP.replace("AGENT", self.agent))

    def call(self, *arguments: str, **options: Any) -> Result:
        return self.folder.call(*arguments, *self.common, **options)

    def letters(self, *filters: str) -> list[dict[str, Any]]:
        return self.folder.objects(self.call("dlq", "list", "-o", "json", "--limit", "100000", *filters).stdout)

    def states(self, *filters: str) -> Counter[str]:
        return Counter(letter["state"] for letter in self.letters(*filters))

    def rejected(self, count: int) -> Any:
        """*count* dead letters, and the worker that made them, still at work."""
        applied = self.call("topic", "apply", "agents:app")
        assert applied.exit_code == 0, applied.stderr
        (self.folder.path / "jobs.ndjson").write_text("".join(f'{{"number":{number}}}\n' for number in range(count)))
        assert self.call("publish", "job.run", "jobs.ndjson", "--app", "agents:app").exit_code == 0
        worker = self.folder.worker(*self.common)
        self.folder.wait_until(lambda: len(self.letters()) == count, within_s=60)
        return worker

    def reject_one(self, number: int) -> None:
        """One more dead letter, at the same partition as each of these."""
        assert self.call("topic", "apply", "agents:app").exit_code == 0
        (self.folder.path / "job.json").write_text(f'{{"number":{number}}}')
        assert self.call("publish", "job.run", "job.json", "--app", "agents:app", "--key", "k").exit_code == 0
        letters, worker = len(self.letters()), self.folder.worker(*self.common)
        self.folder.wait_until(lambda: len(self.letters()) > letters)
        assert self.folder.end(worker) == 0

    def delete(self, topic: str) -> None:
        """Take the embedded log's topic away as deletion does: no record of it is found any more, and its name is
        free."""
        with closing(sqlite3.connect(self.folder.path / "sealbus.db")) as log, log:
            log.execute("UPDATE topics SET name = 'gone.' || id WHERE name = ?", (f"{self.namespace}.{topic}",))

    def expire(self, place: str) -> None:
        """Delete the embedded log's record there, and those before it, as retention does."""
        topic, partition, offset = place.split("/")
        with closing(sqlite3.connect(self.folder.path / "sealbus.db")) as log, log:
            one = (
                "SELECT p.id FROM partitions p JOIN topics t ON t.id = p.topic_id WHERE t.name = ? AND p.partition = ?"
            )
            ((part,),) = log.execute(one, (topic, int(partition)))
            log.execute("DELETE FROM records WHERE part = ? AND off <= ?", (part, int(offset)))
            log.execute("UPDATE partitions SET start_offset = ? WHERE id = ?", (int(offset) + 1, part))

    def append(self, value: bytes) -> None:
        """A record that no program of the bus has written."""

        async def write() -> None:
            settings = load(flags={"bus.url": self.url, "bus.namespace": self.namespace}, env={}, file=None).settings
            transport = open_configured(settings, clock=SystemClock())
            await transport.append([NewRecord(f"{self.namespace}.job.run", value, None, ())], timeout_s=30)
            await transport.close()

        asyncio.run(write())

    def mend(self) -> None:
        (self.folder.path / "mended").touch()

    def handled(self) -> Counter[int]:
        return Counter(int(number) for (number,) in self.folder.handled())

    def records(self, topic: str) -> list[dict[str, Any]]:
        return self.folder.objects(
            self.call("tail", f"{self.namespace}.{topic}", "-o", "json", "--from", "start").stdout
        )

    def audit(self) -> list[dict[str, Any]]:
        return [record["value"] for record in self.records("_audit")]


def elsewhere(function: Callable[..., object], *arguments: object) -> None:
    """Call *function* in a thread of its own: here an event loop runs."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function, *arguments).result()


@pytest.fixture(params=["sqlite", "kafka"])
def desk(folder: Any, request: pytest.FixtureRequest) -> Desk:
    return Desk(
        folder, f"kafka://{request.getfixturevalue('kafka')}" if request.param == "kafka" else "sqlite:///sealbus.db"
    )


@pytest.mark.timeout(120)
def test_from_death_to_done(desk: Desk) -> None:
    worker = desk.rejected(6)
    assert desk.states() == {"open": 6}
    dry = desk.call("dlq", "redrive", "--dry-run")
    assert dry.exit_code == 0
    assert "redriven  rejected  job.run" in dry.stdout
    assert "6 dead letters match; 6 would be redriven" in dry.stderr
    assert desk.call("dlq", "redrive", stdin="n\n").exit_code == 2
    assert desk.states() == {"open": 6}

    assert desk.call("dlq", "redrive", desk.letters()[0]["location"], "--yes").exit_code == 0
    desk.folder.wait_until(lambda: desk.states() == {"open": 6, "redriven": 1})
    again = max(desk.letters(), key=lambda letter: letter["redrives"])
    assert (again["redrives"], again["origin"].rpartition("/")[0].rpartition("/")[0]) == (
        1,
        f"{desk.namespace}.job.run",
    )

    dismissed = desk.call("dlq", "dismiss", again["location"], "--why", "noise", "--yes")
    assert "1 dead letters dismissed" in dismissed.stderr
    desk.mend()
    done = desk.call("dlq", "redrive", "--why", "mended", "--yes", "-o", "json")
    (result,) = desk.folder.objects(done.stdout)
    assert (result["sent"], result["outcome"]) == (5, "finished")
    desk.folder.wait_until(lambda: len(desk.handled()) == 5)
    assert desk.states() == {"redriven": 6, "dismissed": 1}
    shown = desk.call("dlq", "show", again["location"]).stdout
    assert "dismissed" in shown
    assert "because noise" in shown
    assert "an earlier dead letter of the message" in shown
    assert "0 redriven" in desk.call("dlq", "redrive", "--yes").stderr or desk.states()["open"] == 0
    assert desk.folder.end(worker) == 0


@pytest.mark.timeout(120)
def test_what_a_redrive_cannot_change_is_left_and_named(desk: Desk) -> None:
    worker = desk.rejected(1)
    elsewhere(desk.append, b"no JSON")
    desk.folder.wait_until(lambda: len(desk.letters()) == 2)
    (broken,) = desk.letters("--reason", "malformed")
    dry = desk.call("dlq", "redrive", "--dry-run")
    assert "left: a redrive cannot change it  malformed" in dry.stdout
    assert "1 would be redriven" in dry.stderr
    for selection in (["--reason", "malformed"], [broken["location"]]):
        refused = desk.call("dlq", "redrive", *selection, "--yes")
        assert refused.exit_code == 1
        assert "1 left: a redrive cannot change 1 malformed" in refused.stderr
        assert "sealbus dlq dismiss --reason malformed" in refused.stderr
    desk.mend()
    done = desk.call("dlq", "redrive", "--yes", "--wait")
    assert (done.exit_code, "1 redriven, 1 handled" in done.stderr) == (0, True)
    assert "1 left: a redrive cannot change 1 malformed" in done.stderr
    assert desk.states() == {"redriven": 1, "open": 1}
    forced = desk.call("dlq", "redrive", broken["location"], "--force", "--yes")
    assert (forced.exit_code, "1 redriven" in forced.stderr) == (0, True)
    desk.folder.end(worker)


def test_it_stops_when_what_was_sent_dies_again(desk: Desk) -> None:
    worker = desk.rejected(40)
    result = desk.call("dlq", "redrive", "--yes", "--stop-after", "3")
    assert result.exit_code == 1
    assert "stopped" in result.stderr
    assert desk.states()["redriven"] < 40
    assert desk.folder.end(worker) == 0


def test_of_two_at_once_one_withdraws_and_sends_nothing(desk: Desk) -> None:
    worker = desk.rejected(20)
    desk.mend()
    first = desk.folder.start("dlq", "redrive", "--yes", "--rate", "5/s", *desk.common)
    desk.folder.wait_until(desk.handled)
    second = desk.call("dlq", "redrive", "--yes")
    assert second.exit_code == 75
    assert "is still at work" in second.stderr
    assert first.wait(45) == 0
    desk.folder.wait_until(lambda: len(desk.handled()) == 20)
    assert desk.handled() == Counter(range(20))
    assert desk.folder.end(worker) == 0


def test_filters(folder: Any) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    worker = desk.rejected(3)
    assert desk.folder.end(worker) == 0
    died = desk.letters()[1]["failed_at"]
    assert len(desk.letters("--since", "1h")) == 3
    assert desk.letters("--until", "1h") == []
    assert 1 <= len(desk.letters("--since", died, "--until", died)) <= 3
    assert desk.letters("--sender", "nobody") == []
    assert (
        len(desk.letters("--sender", "cli@sealbus", "--state", "open", "--reason", "rejected", "--reason", "expired"))
        == 3
    )
    assert desk.letters("--state", "redriven") == []
    listed = desk.call("dlq", "list")
    assert "rejected  open              3  █" in listed.stderr
    assert desk.call("dlq", "list", "--since", "yesterday").exit_code == 2
    assert desk.call("dlq", "redrive", "--rate", "0/s").exit_code == 2
    assert desk.call("dlq", "redrive", "nowhere").exit_code == 2


def test_times_may_be_as_late_as_there_are_and_no_later(folder: Any) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    desk.reject_one(1)
    assert desk.call("dlq", "redrive", "--extend", "10000000d", "--yes").exit_code == 2
    assert desk.states() == {"open": 1}
    assert (
        desk.call("dlq", "redrive", "--until", "9999-12-31T23:59:59.999999Z", "--extend", "18000d", "--yes").exit_code
        == 0
    )
    assert desk.states() == {"redriven": 1}


@pytest.mark.parametrize("verb", ["redrive", "dismiss"])
def test_ctrl_c_at_the_question_is_an_interrupt_and_a_no_is_not(folder: Any, verb: str) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    desk.reject_one(1)
    assert desk.call("dlq", verb, stdin="n\n").exit_code == 2
    _, terminal = os.openpty()
    asking = folder.start("dlq", verb, *desk.common, stdin=terminal)
    said = ""
    while not said.endswith("[y/N]"):
        said += (letter := asking.stderr.read(1))
        assert letter, said
    asking.send_signal(signal.SIGINT)
    assert asking.wait(45) == 130
    assert "Traceback" not in asking.stderr.read()
    assert desk.states() == {"open": 1}


@pytest.mark.parametrize("verb", ["redrive", "dismiss"])
def test_a_log_without_the_topics_says_which_command_makes_them(folder: Any, kafka: str, verb: str) -> None:
    result = Desk(folder, f"kafka://{kafka}").call("dlq", verb, "--yes")
    assert result.exit_code == 78
    assert "._deadletters" in result.stderr
    assert "sealbus topic apply" in result.stderr


def test_a_missing_redrive_topic_says_which_command_makes_it(folder: Any) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    worker = desk.rejected(1)
    assert desk.folder.end(worker) == 0
    group = App(desk.agent).group
    desk.delete(f"_redrive.{group}")
    result = desk.call("dlq", "redrive", "--yes", env={"SEALBUS_TOPICS__CREATE": "false"})
    assert result.exit_code == 1
    assert f"._redrive.{group} does not exist" in result.stderr
    assert "sealbus topic apply" in result.stderr
    assert desk.states() == {"open": 1}


def test_a_group_without_a_redrive_topic_is_reported_and_others_are_redriven(folder: Any) -> None:
    other, desk = Desk(folder, "sqlite:///sealbus.db"), Desk(folder, "sqlite:///sealbus.db")
    other.common, other.namespace = desk.common, desk.namespace
    for each in (other, desk):
        (folder.path / "agents.py").write_text(APP.replace("AGENT", each.agent))
        worker = each.rejected(1) if each is other else folder.worker(*desk.common)
        folder.wait_until(lambda each=each: desk.letters("--group", App(each.agent).group))
        assert folder.end(worker) == 0
    gone = App(other.agent).group
    desk.delete(f"_redrive.{gone}")
    result = desk.call("dlq", "redrive", "--yes", "--to-stopped", "-o", "json", env={"SEALBUS_TOPICS__CREATE": "false"})
    assert result.exit_code == 1
    assert f"error: group {gone} has no redrive topic" in result.stderr
    assert "are gone" not in result.stderr
    (done,) = folder.objects(result.stdout)
    assert (done["outcome"], done["sent"], done["left"], list(done["unreachable"])) == ("finished", 1, 1, [gone])
    assert desk.states("--group", App(desk.agent).group) == {"redriven": 1}
    assert desk.states("--group", gone) == {"open": 1}


@pytest.mark.timeout(120)
def test_dead_letters_of_a_topic_and_of_its_recreation_are_all_redriven(folder: Any) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    desk.reject_one(1)
    desk.delete("job.run")
    desk.reject_one(2)
    first, second = desk.letters()
    assert first["origin"] == second["origin"]
    desk.mend()
    assert desk.call("dlq", "redrive", "--yes").stderr.splitlines()[2].startswith("2 redriven; finished")
    assert desk.states() == {"redriven": 2}
    worker = desk.folder.worker(*desk.common)
    desk.folder.wait_until(lambda: desk.handled() == Counter([1, 2]))
    assert desk.folder.end(worker) == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("done", ["redrive", "dismiss"])
def test_a_dead_letter_of_a_recreated_topic_is_open_whatever_its_predecessors_state(folder: Any, done: str) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    desk.reject_one(1)
    assert desk.call("dlq", done, "--why", "of old", "--yes").exit_code == 0
    (before,) = desk.letters()
    desk.delete("job.run")
    desk.delete("job.run.dlq")
    desk.delete(f"_redrive.{before['group']}")
    desk.reject_one(2)
    (letter,) = desk.letters("--state", "open")
    assert (letter["location"], letter["origin"]) == (before["location"], before["origin"])
    assert "of old" not in desk.call("dlq", "show", letter["location"]).stdout
    desk.mend()
    assert desk.call("dlq", "redrive", "--yes").stderr.splitlines()[2].startswith("1 redriven; finished")
    assert desk.states() == {"redriven": 1}
    # What was sent back has its outcome: it is dismissed only by name.
    assert desk.call("dlq", "dismiss", "--yes").exit_code == 0
    assert desk.states() == {"redriven": 1}
    told = desk.call("dlq", "dismiss", letter["location"], "--yes").stderr.splitlines()[1]
    assert told.startswith("1 dead letters dismissed")
    assert desk.states() == {"dismissed": 1}


@pytest.mark.parametrize("verb", ["redrive", "dismiss"])
def test_a_dry_run_writes_nothing(folder: Any, verb: str) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    worker = desk.rejected(2)
    assert desk.folder.end(worker) == 0
    before = desk.call("topic", "list").stdout
    assert "2  █" in desk.call("dlq", verb, "--dry-run").stdout
    (row,) = desk.folder.objects(desk.call("dlq", verb, "--dry-run", "-o", "json").stdout)
    assert (row["dead_letters"], row["reason"]) == (2, "rejected")
    assert desk.call("topic", "list").stdout == before


@pytest.mark.parametrize("verb", ["redrive", "dismiss"])
def test_a_location_without_a_dead_letter_is_reported_and_nothing_changes(folder: Any, verb: str) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    desk.reject_one(1)
    (letter,) = desk.letters()
    gone = f"{letter['location'].rpartition('/')[0]}/7"
    result = desk.call("dlq", verb, letter["location"], gone, "--yes")
    assert result.exit_code == 1
    assert f"no dead letter at {gone}" in result.stderr
    assert desk.call("dlq", verb, f"{desk.namespace}._audit/0/0", "--yes").exit_code == 1
    assert desk.states() == {"open": 1}


@pytest.mark.parametrize(("verb", "state"), [("redrive", "redriven"), ("dismiss", "dismissed")])
def test_a_letter_may_be_named_by_its_type_as_it_is_shown(folder: Any, verb: str, state: str) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    desk.reject_one(1)
    (letter,) = desk.letters()
    _, partition, offset = letter["location"].split("/")
    assert desk.call("dlq", verb, f"job.run/{partition}/{offset}", "--yes").exit_code == 0
    assert desk.states() == {state: 1}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("verb", "state", "asked"),
    [("redrive", "redriven", "Redrive 1 dead letters to"), ("dismiss", "dismissed", "Dismiss 1 dead")],
)
def test_a_letter_that_arrives_while_the_question_is_open_is_not_meant(
    folder: Any, monkeypatch: pytest.MonkeyPatch, verb: str, state: str, asked: str
) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    desk.reject_one(1)

    def confirm(_: object, question: str, **__: object) -> bool:
        assert question.startswith(asked)
        elsewhere(desk.reject_one, 2)
        return True

    monkeypatch.setattr("consumers.cli.session.CommandSession.confirm", confirm)
    assert desk.call("dlq", verb).exit_code == 0
    assert desk.states() == {state: 1, "open": 1}


@pytest.mark.timeout(120)
def test_dead_letters_deleted_by_retention_before_redrive_are_reported(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    desk.reject_one(1)
    desk.reject_one(2)
    first, _ = desk.letters()

    def confirm(*_: object, **__: object) -> bool:
        desk.expire(first["location"])
        return True

    monkeypatch.setattr("consumers.cli.session.CommandSession.confirm", confirm)
    result = desk.call("dlq", "redrive")
    assert "1 redriven; finished" in result.stderr
    assert "hint: 1 matching dead letters are gone" in result.stderr


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            '{"output":1}',
            [
                "expected:     an integer, required",
                "found:        nothing",
                "'output' is unknown: perhaps 'number' was meant",
            ],
        ),
        ('{"number":"x"}', ["expected:     an integer, required", 'found:        "x"']),
        (
            '{"number":1,"label":[]}',
            ["field:        /data/label", "expected:     a string, optional", "found:        []"],
        ),
    ],
)
def test_show_prints_expected_and_found(folder: Any, data: str, said: list[str]) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    desk.call("topic", "apply", "agents:app")
    desk.call("publish", "job.run", "--type-version", "1.0.0", stdin=data)
    worker = desk.folder.worker(*desk.common)
    desk.folder.wait_until(lambda: len(desk.letters()) == 1)
    assert desk.folder.end(worker) == 0
    shown = desk.call("dlq", "show", desk.letters()[0]["location"], "--app", "agents:app").stdout
    assert [line for line in said if line not in shown] == []


@pytest.mark.timeout(120)
def test_the_next_redrive_records_the_end_of_one_killed_after_its_last_letter(
    folder: Any,
) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    worker = desk.rejected(1)
    desk.mend()
    assert desk.call("dlq", "redrive", "--yes").exit_code == 0
    desk.folder.wait_until(lambda: len(desk.handled()) == 1)
    assert desk.folder.end(worker) == 0

    async def kill_one() -> str:
        settings = load(
            flags={"bus.url": f"sqlite:///{folder.path}/sealbus.db", "bus.namespace": desk.namespace}, env={}, file=None
        ).settings
        transport = open_configured(settings, clock=SystemClock())
        journal = Journal(transport, settings, SystemClock(), verb="redrive", why="")
        await journal.note("started", why="", host=this_process()["host"], pid=2**22 + 1)
        await transport.close()
        return journal.run

    killed = asyncio.run(kill_one())
    again = desk.call("dlq", "redrive", "--yes")
    assert again.exit_code == 0
    assert [entry["run"] for entry in desk.audit() if entry["event"] == "redrive.abandoned"] == [killed]
    assert "has not ended" not in desk.call("dlq", "redrive", "--yes").stderr
    assert desk.handled() == Counter([0])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_interrupted_redrives_handle_each_letter_once_with_a_complete_journal(desk: Desk) -> None:
    worker = desk.rejected(SIZE)
    desk.mend()
    rate = f"{max(50, SIZE // 5)}/s"
    command = ("dlq", "redrive", "--why", "mended", "--yes", "--rate", rate, *desk.common)
    codes = []
    for number in (signal.SIGINT, signal.SIGKILL, signal.SIGKILL):
        before = len(desk.handled())
        process = desk.folder.start(*command)
        desk.folder.wait_until(lambda before=before: len(desk.handled()) > before, within_s=60)
        time.sleep(0.5)
        process.send_signal(number)
        codes.append(process.wait(45))
    assert codes == [130, -9, -9]
    cut = len(desk.handled())
    assert 0 < cut < SIZE
    # No pace from here on: killed wherever it is, again and again, until it gets through.
    for delay_s in itertools.count(1.0, 0.5):
        process = desk.folder.start(*command[:5], *desk.common)
        try:
            codes.append(process.wait(delay_s))
            break
        except Exception:  # noqa: BLE001 - it is still at work
            process.kill()
            process.wait(45)
    assert codes[-1] == 0
    desk.folder.wait_until(lambda: len(desk.handled()) == SIZE, within_s=120)
    time.sleep(1.0)
    assert desk.handled() == Counter(range(SIZE))
    assert desk.states() == {"redriven": SIZE}
    assert desk.folder.end(worker) == 0

    audit = desk.audit()
    begun = {entry["run"] for entry in audit if entry["event"] == "redrive.started"}
    ended = [entry["run"] for entry in audit if entry["event"] in ("redrive.ended", "redrive.abandoned")]
    assert sorted(ended) == sorted(begun), "every run has exactly one end"
    outcomes = Counter(entry.get("outcome", "cut off") for entry in audit if entry["event"] != "redrive.started")
    assert outcomes["interrupted"] == 1
    assert outcomes["finished"] == 1
    assert outcomes["cut off"] >= 2
    states = {record["key"]: record["value"] for record in desk.records("_deadletters")}
    assert set(states) == {letter["location"] for letter in desk.letters()}
    assert {(state["state"], state["steps"][-1]["action"]) for state in states.values()} == {("redriven", "redriven")}
    assert {step["run"] for state in states.values() for step in state["steps"]} <= begun
    assert {entry["why"] for entry in audit if entry["event"] == "redrive.started"} == {"mended"}


def test_a_renamed_service_is_told_before_anything_is_sent(folder: Any) -> None:
    desk = Desk(folder, "sqlite:///sealbus.db")
    worker = desk.rejected(2)
    assert folder.end(worker) == 0
    old = App(desk.agent).group
    (folder.path / "agents.py").write_text(APP.replace("AGENT", "renamed@svc"))
    (folder.path / "mended").touch()
    worker = folder.worker(*desk.common)
    folder.wait_until(lambda: App("renamed@svc").group in desk.call("group", "list").stdout, within_s=60)
    result = desk.call("dlq", "redrive", "--yes")
    assert result.exit_code == 1, result.stderr
    assert f"group {old} has no members: 2 dead letters would be sent to a group without workers" in result.stderr
    assert f"job.run is read by {App('renamed@svc').group}" in result.stderr
    assert desk.states() == {"open": 2}
    assert desk.call("dlq", "redrive", "--yes", "--to-stopped").exit_code == 0
    assert desk.states() == {"redriven": 2}
    assert folder.end(worker) == 0
