"""topics, groups, dlq, types, config: what operators look at."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
from contextlib import closing
from typing import Any

import pytest

from bus.transports import open_transport
from bus.transports.base import NewRecord

pytestmark = pytest.mark.medium  # real workers


@pytest.fixture
def rejected(folder: Any) -> list[dict[str, Any]]:
    """Three dead letters: one rejected by its handler, two that break the schema."""
    assert folder.call("topics", "apply", "agents:app").exit_code == 0
    folder.call("publish", "job.run", "--app", "agents:app", stdin='{"number":1,"label":"reject"}')
    hostile = '{"numbr":1,"label":"\\u009b31m"}\n{"number":"\\u001b[2J"}'
    folder.call("publish", "job.run", "--schema-version", "1.0.0", stdin=hostile)
    worker = folder.worker()
    letters: list[dict[str, Any]] = []

    def died() -> bool:
        letters[:] = folder.objects(folder.call("dlq", "list", "--output", "json").stdout)
        return len(letters) == 3

    folder.wait_until(died)
    assert folder.end(worker) == 0
    return letters


def test_dead_letters_are_listed_and_counted(folder: Any, rejected: list[dict[str, Any]]) -> None:
    result = folder.call("dlq", "list")
    assert "3 dead letters: 2 schema_violation, 1 rejected" in result.stderr
    assert len(result.stdout.splitlines()) == 4
    (letter,) = folder.objects(
        folder.call("dlq", "list", "--reason", "rejected", "--type", "job.run", "--output", "json").stdout
    )
    assert letter["origin"]["topic"] == "agents.job.run"
    assert (letter["gate"], letter["sender"]) == ("handler", "cli@sealbus")
    assert "0 dead letters" in folder.call("dlq", "list", "--group", "nobody").stderr
    assert "the newest 1 shown" in folder.call("dlq", "list", "--limit", "1").stderr


def test_a_dead_letter_says_what_was_probably_meant(folder: Any, rejected: list[dict[str, Any]]) -> None:
    shown = ""
    for letter in rejected:
        result = folder.call("dlq", "show", letter["place"], "--app", "agents:app")
        assert result.exit_code == 0
        shown += result.stdout
    assert "/data/number: object missing required field `number`" in shown
    assert "'numbr' is unknown: perhaps 'number' was meant" in shown
    assert "rejected (gate handler)" in shown
    assert "\x1b" not in shown
    assert "\x9b" not in shown


def test_a_dead_letter_can_be_named_in_several_ways(folder: Any, rejected: list[dict[str, Any]]) -> None:
    topic, partition, offset = rejected[0]["place"].split("/")
    shown = folder.call("dlq", "show", topic, partition, offset).stdout
    assert shown == folder.call("dlq", "show", f"job.run/{partition}/{offset}").stdout
    raw = folder.call("dlq", "show", rejected[0]["place"], "--raw").stdout_bytes
    assert folder.call("verify", stdin=raw).exit_code == 0
    assert json.loads(folder.call("dlq", "show", rejected[0]["place"], "--output", "json").stdout)["headers"]
    assert folder.call("dlq", "show", f"{topic}/0/9999").exit_code == 1
    assert folder.call("dlq", "show", "job.run").exit_code == 2
    assert folder.call("dlq", "show", f"{topic}/0/{'9' * 5000}").exit_code == 2


def test_bytes_that_are_no_message_are_shown_in_hex(folder: Any) -> None:
    folder.call("topics", "apply", "agents:app")

    async def append() -> None:
        transport = open_transport("sqlite:///sealbus.db")
        record = NewRecord("agents.job.run.dlq", None, b"\xff\x00\x1b[2J", (("sb-dlq-reason", b"malformed\x1b[2J"),), 0)
        await transport.append([record], timeout_s=5)
        await transport.close()

    asyncio.run(append())
    result = folder.call("dlq", "show", "agents.job.run.dlq", "0", "0")
    assert "ff 00 1b 5b 32 4a" in result.stdout
    assert "\\x1b[2J" in result.stdout
    listed = folder.call("dlq", "list")
    assert "\x1b" not in result.stdout + listed.stdout
    assert "1 dead letters: 1 malformed\\x1b[2J" in listed.stderr


def test_topics(folder: Any) -> None:
    dry = folder.call("topics", "apply", "agents:app", "--dry-run", "--bus", "memory://")
    assert "agents.job.run.dlq" in dry.stdout
    assert "15 topics wanted, 15 would be changed" in dry.stderr
    missing = folder.call("topics", "check", "agents:app", "--bus", "memory://")
    assert missing.exit_code == 1
    assert folder.call("topics", "apply", "agents:app").exit_code == 0
    assert folder.call("topics", "check", "agents:app").exit_code == 0
    drifted = folder.call(
        "topics", "check", "agents:app", "--output", "json", env={"SEALBUS_TOPICS__RETENTION_S": "20d"}
    )
    assert drifted.exit_code == 1
    assert "kept 14d -> 20d" in drifted.stdout
    more = folder.call("topics", "check", "agents:app", env={"SEALBUS_TOPICS__PARTITIONS": "6"})
    assert "4 -> 6 partitions" in more.stdout
    listed = folder.objects(folder.call("topics", "list", "--output", "json").stdout)
    assert {
        "topic": "agents.job.run",
        "kind": "message",
        "partitions": 4,
        "retention_ms": 1_209_600_000,
        "records": 0,
    } in listed
    assert folder.call("topics", "list", "--namespace", "other").stdout.splitlines()[1:] == []


def test_an_unknown_group_names_those_there_are(folder: Any) -> None:
    folder.call("topics", "apply", "agents:app")
    result = folder.call("groups", "nobody")
    assert result.exit_code == 1
    assert "there is no group 'nobody'" in result.stderr


def test_what_waits_for_a_stopped_group_is_counted_also_where_it_never_committed(folder: Any) -> None:
    folder.end(folder.worker())
    folder.call("publish", "job.run", folder.jobs(30), "--app", "agents:app")
    rows = folder.objects(folder.call("groups", "--output", "json").stdout)
    assert sum(row["lag"] for row in rows if row["topic"] == "agents.job.run") == 30


def test_a_group_whose_next_records_were_deleted_is_told_apart_from_one_that_is_through(folder: Any) -> None:
    folder.call("publish", "job.run", folder.jobs(20), "--app", "agents:app")
    worker = folder.worker()
    folder.wait_until(lambda: len(folder.handled()) == 20)
    assert folder.end(worker) == 0
    assert "not kept" not in folder.call("groups").stderr
    with closing(sqlite3.connect(folder.path / "sealbus.db")) as log, log:
        log.execute(
            "UPDATE partitions SET start_offset = next_offset + 7, next_offset = next_offset + 7 WHERE next_offset > 0"
        )
        log.execute("DELETE FROM records")
    shown = folder.call("groups", "--output", "json")
    lost = [row for row in folder.objects(shown.stdout) if row["start"] > row["committed"]]
    assert lost
    assert all(row["lag"] == 0 for row in lost)
    assert f"in {len(lost)} partitions what it would read next is not kept" in shown.stderr
    assert "--skip-lost" in shown.stderr


def test_a_group_whose_next_records_were_deleted_goes_on_when_somebody_says_so(folder: Any) -> None:
    folder.call("publish", "job.run", folder.jobs(20), "--app", "agents:app")
    worker = folder.worker()
    folder.wait_until(lambda: len(folder.handled()) == 20)
    group = json.loads(folder.call("groups", "--output", "json").stdout.splitlines()[0])["group"]
    assert "would be moved in no partitions" in folder.call("groups", group, "--skip-lost", "--dry-run").stderr
    assert folder.end(worker) == 0
    with closing(sqlite3.connect(folder.path / "sealbus.db")) as log, log:
        log.execute(
            "UPDATE partitions SET start_offset = next_offset + 7, next_offset = next_offset + 7 WHERE next_offset > 0"
        )
        log.execute("DELETE FROM records")
    stopped = folder.start("worker", "agents:app")
    assert "--skip-lost" in stopped.communicate(timeout=20)[1]
    assert stopped.returncode == 1
    assert folder.call("groups", group, "--skip-lost", stdin="n\n").exit_code == 1
    shown = folder.objects(folder.call("groups", group, "--skip-lost", "--dry-run", "--output", "json").stdout)
    assert all(row["committed"] + 7 == row["start"] for row in shown)
    assert folder.call("groups", group, "--skip-lost", "--yes", "--why", "away").exit_code == 0
    folder.call("publish", "job.run", folder.jobs(5), "--app", "agents:app")
    worker = folder.worker()
    folder.wait_until(lambda: len(folder.handled()) == 25)
    assert folder.end(worker) == 0
    (entry,) = [row["value"] for row in folder.objects(folder.call("tail", "agents._audit", "--output", "json").stdout)]
    assert (entry["event"], entry["why"], len(entry["places"])) == ("groups.skipped", "away", len(shown))


def test_a_log_that_others_may_write_is_refused_with_what_to_do(folder: Any) -> None:
    folder.call("publish", "job.run", folder.jobs(1), "--app", "agents:app")
    log = folder.path / "sealbus.db"
    assert log.stat().st_mode & 0o777 == 0o600
    log.chmod(0o660)
    for arguments in (("tail", "job.run"), ("groups",), ("publish", "job.run", "jobs.ndjson", "--app", "agents:app")):
        refused = folder.call(*arguments)
        assert refused.exit_code == 78
        assert "chmod 600 it, or say bus.shared_files = true" in refused.stderr
    assert folder.call("tail", "job.run", env={"SEALBUS_BUS__SHARED_FILES": "true"}).exit_code == 0


def group_of(folder: Any) -> str:
    return str(folder.objects(folder.call("groups", "--output", "json").stdout)[0]["group"])


def place_of(row: dict[str, Any]) -> str:
    return f"{row['topic']}/{row['partition']}/{row['offset']}"


def places_of(folder: Any) -> dict[int, str]:
    """Where each job lies."""
    with closing(sqlite3.connect(folder.path / "sealbus.db")) as log:
        rows = log.execute(
            """SELECT value, partition, off FROM records
               JOIN partitions ON part = partitions.id JOIN topics ON topic_id = topics.id
               WHERE name = 'agents.job.run'"""
        )
        return {
            json.loads(value)["data"]["number"]: f"agents.job.run/{partition}/{offset}"
            for value, partition, offset in rows
        }


def test_a_message_that_is_parked_while_its_group_is_stopped_is_buried_and_never_run(folder: Any) -> None:
    folder.end(folder.worker())
    folder.call("publish", "job.run", folder.jobs(20), "--app", "agents:app")
    group, place = group_of(folder), places_of(folder)[7]
    assert "would be parked" in folder.call("groups", group, "--park", place, "--why", "hangs", "--dry-run").stderr
    assert folder.call("groups", group, "--park", place, "--why", "hangs", stdin="n\n").exit_code == 1
    assert folder.call("groups", group, "--park", place, "--why", "hangs", "--yes").exit_code == 0
    worker = folder.worker()
    folder.wait_until(lambda: len(folder.handled()) == 19)
    assert folder.end(worker) == 0
    assert "7" not in [number for number, _ in folder.handled()]
    assert sum(row["lag"] for row in folder.objects(folder.call("groups", "--output", "json").stdout)) == 0
    (letter,) = folder.objects(folder.call("dlq", "list", "--output", "json").stdout)
    assert (letter["reason"], letter["error"], letter["state"], place_of(letter["origin"])) == (
        "rejected",
        "Parked",
        "parked",
        place,
    )
    entries = [row["value"] for row in folder.objects(folder.call("tail", "agents._audit", "--output", "json").stdout)]
    assert [(entry["event"], entry["why"], entry["place"]) for entry in entries] == [("groups.parked", "hangs", place)]
    assert "settled" in folder.call("groups", group, "--park", place, "--why", "hangs", "--yes").stderr


def test_a_parked_letter_is_sent_back_only_by_force_and_then_runs(folder: Any) -> None:
    folder.end(folder.worker())
    folder.call("publish", "job.run", folder.jobs(1), "--app", "agents:app")
    group, place = group_of(folder), places_of(folder)[0]
    assert folder.call("groups", group, "--park", place, "--why", "not yet", "--yes").exit_code == 0
    worker = folder.worker()
    folder.wait_until(lambda: folder.call("dlq", "list", "--output", "json").stdout != "")
    (letter,) = folder.objects(folder.call("dlq", "list", "--output", "json").stdout)
    folder.call("dlq", "redrive", "--yes")
    assert folder.objects(folder.call("dlq", "list", "--output", "json").stdout)[0]["state"] == "parked"
    sent = folder.call("dlq", "redrive", letter["place"], "--force", "--yes")
    assert sent.exit_code == 0, sent.stderr
    folder.wait_until(lambda: len(folder.handled()) == 1)
    assert folder.end(worker) == 0


def test_a_worker_that_runs_is_told_of_what_is_parked(folder: Any) -> None:
    """The message comes round again and again: between two of its runs it is taken out."""
    (folder.path / "agents.py").write_text(
        (folder.path / "agents.py").read_text().replace('raise Reject("not this one")', "raise ValueError")
    )
    (folder.path / "patient.toml").write_text('[retry]\nattempts = 100\nbackoff = "constant"\nbase_s = "1s"\n')
    folder.call("publish", "job.run", "--app", "agents:app", stdin='{"number":1,"label":"reject"}')
    process = folder.start("worker", "agents:app", "--config", "patient.toml", stderr=subprocess.DEVNULL)
    folder.wait_until(lambda: "job.run" in folder.call("groups").stdout)
    group, place = group_of(folder), places_of(folder)[1]
    assert folder.call("groups", group, "--park", place, "--why", "no use", "--yes").exit_code == 0
    folder.wait_until(lambda: folder.call("dlq", "list", "--output", "json").stdout != "")
    (letter,) = folder.objects(folder.call("dlq", "list", "--output", "json").stdout)
    assert letter["error"] == "Parked"
    assert folder.end(process) == 0


def test_what_cannot_be_parked_is_said(folder: Any) -> None:
    folder.end(folder.worker())
    folder.call("publish", "job.run", folder.jobs(1), "--app", "agents:app")
    group, place = group_of(folder), places_of(folder)[0]
    for arguments, code, said in (
        ((group, "--park", place), 2, "--why"),
        (("--park", place, "--why", "x"), 2, "needs a GROUP"),
        ((group, "--park", "job.run", "--why", "x"), 2, "is not TOPIC PARTITION OFFSET"),
        ((group, "--park", "job.run/0/99", "--why", "x", "--yes"), 1, "there is no message at agents.job.run/0/99"),
        ((group, "--park", "agents._audit/0/0", "--why", "x", "--yes"), 1, "no topic of messages"),
        ((f"{group}x", "--park", place, "--why", "x", "--yes"), 1, f"the nearest is {group}"),
        ((group, "--park", place, "--skip-lost", "--why", "x"), 2, "one at a time"),
    ):
        result = folder.call("groups", *arguments)
        assert (result.exit_code, said in result.stderr) == (code, True), result.stderr


def test_types(folder: Any) -> None:
    listed = folder.call("types", "list", "--app", "agents:app").stdout
    assert "job.run" in listed
    assert "number label?" in listed
    shown = json.loads(folder.call("types", "show", "job.run", "--app", "agents:app", "--output", "json").stdout)
    assert shown["schema"]["required"] == ["number"]
    unknown = folder.call("types", "show", "research.reqest")
    assert unknown.exit_code == 1
    assert "the nearest is research.request" in unknown.stderr


def test_every_built_in_type_has_an_example_that_can_be_published(folder: Any) -> None:
    for kind in folder.objects(folder.call("types", "list", "--output", "json").stdout):
        example = json.loads(folder.call("types", "show", kind["type"], "--output", "json").stdout)["example"]
        done = folder.call("publish", kind["type"], stdin=json.dumps(example))
        if kind["risk"] == "high":
            # Nobody accepts it unsigned, and the command line has no key.
            assert "give `connect` or the App a signer" in done.stdout
        else:
            assert done.exit_code == 0, done.stdout


def test_config(folder: Any) -> None:
    shown = folder.call(
        "config", "show", "--origin", "--namespace", "acme", env={"SEALBUS_WORKER__CONCURRENCY": "8"}
    ).stdout
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert lines["bus.namespace"] == ["acme", "flag", "--namespace"]
    assert lines["worker.concurrency"] == ["8", "SEALBUS_WORKER__CONCURRENCY"]
    assert lines["bus.url"] == ["sqlite:///sealbus.db", "default"]
    assert folder.call("config", "check").exit_code == 0
    wrong = folder.call("config", "check", env={"SEALBUS_WORKER__CONCURENCY": "8"})
    assert wrong.exit_code == 78
    assert "SEALBUS_WORKER__CONCURRENCY" in wrong.stderr


def test_types_export_and_check_follow_a_release(folder: Any) -> None:
    assert folder.call("types", "check").exit_code == 2
    assert folder.call("types", "export", "schemas", "job.run", "task.request", "--app", "agents:app").exit_code == 0
    assert json.loads((folder.path / "schemas" / "job.run" / "1.0.0.json").read_text())["title"] == "job.run"
    assert folder.call("types", "check", "job.run", "--app", "agents:app").exit_code == 0
    later = (folder.path / "agents.py").read_text().replace("number: int", "amount: int")
    (folder.path / "later.py").write_text(later)
    checked = folder.call("types", "check", "job.run", "--app", "later:app")
    assert checked.exit_code == 1
    assert "field renamed" in checked.stdout
    assert (
        "most likely amount now"
        in folder.call("types", "check", "job.run", "--app", "later:app", "--output", "json").stdout
    )
    refused = folder.call("types", "export", "schemas", "job.run", "--app", "later:app")
    assert refused.exit_code == 1
    assert "never changes" in refused.stderr


def test_types_check_reads_recorded_messages(folder: Any) -> None:
    folder.call("types", "export", "schemas", "job.run", "--app", "agents:app")
    folder.call("publish", "job.run", "--app", "agents:app", stdin='{"number":1}\n{"number":2}\n')
    bus = "sqlite:///sealbus.db"
    good = folder.call("types", "check", "job.run", "--app", "agents:app", "--recorded", bus)
    assert (good.exit_code, "2 recorded messages, 0 would be refused" in good.stderr) == (0, True)
    later = (folder.path / "agents.py").read_text().replace("number: int", "amount: int")
    (folder.path / "recorded_later.py").write_text(later)
    bad = folder.call("types", "check", "job.run", "--app", "recorded_later:app", "--recorded", bus)
    assert bad.exit_code == 1
    assert "/data/amount" in bad.stdout
    assert "2 recorded messages, 2 would be refused" in bad.stderr
    requiring = (folder.path / "agents.py").read_text().replace("@app.on(Job)", '@app.on(Job, requires=["note"])')
    requiring = requiring.replace('label: str = ""', 'label: str = ""\n    note: str | None = None')
    (folder.path / "requiring.py").write_text(requiring)
    missed = folder.call("types", "check", "job.run", "--app", "requiring:app", "--recorded", bus)
    assert "/data/note" in missed.stdout


def test_an_asyncapi_document_is_written(folder: Any) -> None:
    done = folder.call("docs", "asyncapi", "agents:app")
    assert json.loads(done.stdout)["asyncapi"] == "3.0.0"
