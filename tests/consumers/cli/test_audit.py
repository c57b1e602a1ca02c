"""`sealbus audit`: what passed over the bus is recorded once, proven, asked about, and erased without a gap."""

# ruff: noqa: S608 - statements of constants
from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import time
import uuid
from contextlib import closing
from typing import Any

import asyncpg
import msgspec
import pytest

from sealbus import connect, payload
from sealbus.trust import Security
from tests.databases import Postgres

pytestmark = pytest.mark.medium  # real workers

ALICE = "alice@example.org"
KEYS = {"SEALBUS_TRUST__KEYS": "keys", "SEALBUS_TRUST__KEY_FILE": "keys"}
DESK = """
import msgspec
from sealbus import App, Reject, payload

@payload("desk.question", version="1.0.0", performative="request")
class Question(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    text: str = ""
    password: str = ""

@payload("desk.result", version="1.0.0")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    number: int

app = App("desk@svc")

@app.on(Question)
async def answer(question: Question) -> Answer:
    if question.number % 5 == 0:
        raise Reject("five")
    return Answer(number=question.number)
"""


def said(folder: Any, *words: str, code: int = 0) -> str:
    result = folder.call(*words)
    assert result.exit_code == code, result.output + result.stderr
    assert "Traceback" not in result.stderr
    return str(result.stdout)


def objects(folder: Any, *words: str, code: int = 0) -> list[dict[str, Any]]:
    return list(folder.objects(said(folder, *words, "-o", "json", code=code)))


def set_for_all(folder: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    environment = folder.environment() | settings
    monkeypatch.setattr(folder, "environment", lambda: environment)


@pytest.fixture
def desk(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder in which twenty questions were asked, by somebody with a key, and answered or refused."""
    (folder.path / "agents.py").write_text(DESK)
    said(folder, "key", "new", "cli@sealbus", "desk@svc", "audit@sealbus")
    set_for_all(folder, monkeypatch, KEYS)
    asked(folder, 20)
    worker = folder.worker()
    folder.wait_until(lambda: handled(folder) == 20)
    folder.end(worker)
    return folder


def asked(folder: Any, count: int, **members: Any) -> None:
    data = {"text": f"from {ALICE}", "password": "hunter2"} | members
    lines = "\n".join(json.dumps({"number": number} | data) for number in range(count))
    result = folder.call("publish", "desk.question", "--app", "agents:app", stdin=lines)
    assert result.exit_code == 0, result.output + result.stderr


def handled(folder: Any) -> int:
    with log_of(folder) as log:
        query = (
            "SELECT count(*) FROM records JOIN partitions ON part = partitions.id JOIN topics ON topic_id = topics.id"
        )
        names = "('agents.desk.result', 'agents.desk.question.dlq')"
        return int(log.execute(f"{query} WHERE name IN {names}").fetchone()[0])


def log_of(folder: Any) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(folder.path / "sealbus.db", isolation_level=None))


def database(folder: Any) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(folder.path / "sealbus-audit.db", isolation_level=None))


def recorded(folder: Any) -> int:
    """How many of the questions the audit has by now."""
    try:
        with database(folder) as rows:
            query = "SELECT count(*) FROM sealbus_audit_rows WHERE topic = 'agents.desk.question'"
            return int(rows.execute(query).fetchone()[0])
    except sqlite3.OperationalError:  # nobody has made its tables yet
        return 0


def test_costs_of_all_conversations_are_summed_up(folder: Any) -> None:
    used = {"model": "large", "input_tokens": 100, "output_tokens": 7, "cost": {"amount": "0.5", "currency": "USD"}}
    result = folder.call("publish", "usage.reported", stdin=json.dumps(used))
    assert result.exit_code == 0, result.output + result.stderr
    said(folder, "serve", "audit", "--once")
    assert objects(folder, "audit", "query", "costs", "--by", "model") == [
        {"name": "large", "tokens_in": 100, "tokens_out": 7, "cost": 0.5, "calls": 1}
    ]
    shown = said(folder, "audit", "query", "costs", "--by", "person", "--days", "2")
    assert "cli@sealbus" in shown
    assert "total: 1 calls, 100 tokens in, 7 out, cost 0.5000" in shown
    assert "name the conversation" in folder.call("audit", "query", "who").stderr


def test_every_record_is_one_row_however_often_the_audit_runs(desk: Any) -> None:
    said(desk, "serve", "audit", "--once")
    first = [row for row in objects(desk, "audit", "export") if row["kind"] != "own"]
    said(desk, "serve", "audit", "--once")
    again = [row for row in objects(desk, "audit", "export") if row["kind"] != "own"]
    assert [row["place"] for row in again] == [row["place"] for row in first]
    assert len({row["place"] for row in first}) == len(first) == 20 + 16 + 4
    assert {row["verdict"] for row in first} == {"holds"}


def test_secrets_are_nowhere_in_the_store(desk: Any) -> None:
    said(desk, "serve", "audit", "--once")
    assert "***" in said(desk, "audit", "export")
    assert b"hunter2" not in (desk.path / "sealbus-audit.db").read_bytes()


def test_questions_about_a_conversation_are_answered(desk: Any) -> None:
    said(desk, "serve", "audit", "--once")
    rows = objects(desk, "audit", "export")
    dead = next(row["conversation"] for row in rows if row["kind"] == "dlq")
    answered = next(row["conversation"] for row in rows if row["type"] == "desk.result")
    (begun,) = objects(desk, "audit", "query", "inputs", answered)
    assert begun["state"] == "answered"
    assert begun["payload"]["password"] == "*" * 3
    (output,) = objects(desk, "audit", "query", "outputs", answered)
    assert (output["from"], output["payload"]) == ("desk@svc", {"number": begun["payload"]["number"]})
    assert objects(desk, "audit", "query", "inputs", dead)[0]["state"] == "dead"
    assert len(objects(desk, "audit", "query", "who", answered)) == 2
    assert "no conversation" in desk.call("audit", "query", "who", "nothing").stderr


BUSIEST = (
    "topic = 'agents.desk.question' AND part = (SELECT part FROM sealbus_audit_rows WHERE topic = "
    "'agents.desk.question' GROUP BY part ORDER BY count(*) DESC LIMIT 1)"
)
"""Of twenty records in four partitions it has five at least."""
ROW = f"{BUSIEST} AND off = 1"
CHANGES = {
    "changed": f"UPDATE sealbus_audit_rows SET verdict = 'refused' WHERE {ROW}",
    "removed": f"DELETE FROM sealbus_audit_rows WHERE {ROW}",
    "inserted": "INSERT INTO sealbus_audit_rows SELECT topic, part, 90, 90, before, kind, message_type, appended_ms, "
    f"verdict, reason, commitment, hash FROM sealbus_audit_rows WHERE {ROW}",
    "content_changed": f"UPDATE sealbus_audit_content SET sender = 'mallory@svc' WHERE {ROW}",
    "content_removed": f"DELETE FROM sealbus_audit_content WHERE {ROW}",
    "cut": "DELETE FROM sealbus_audit_rows WHERE topic = 'agents.desk.question' AND off = (SELECT max(off) FROM "
    "sealbus_audit_rows r WHERE r.topic = sealbus_audit_rows.topic AND r.part = sealbus_audit_rows.part)",
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_is_done_to_a_row_is_found_and_named(desk: Any, kind: str) -> None:
    said(desk, "serve", "audit", "--once")
    assert all(not report["faults"] for report in objects(desk, "audit", "verify"))
    with database(desk) as rows:
        assert rows.execute(CHANGES[kind]).rowcount > 0
    faults = [fault for report in objects(desk, "audit", "verify", code=1) for fault in report["faults"]]
    assert kind in {fault["kind"] for fault in faults}
    assert all(fault["topic"] == "agents.desk.question" for fault in faults)
    assert {fault["offset"] for fault in faults} & {1, 90} or kind == "cut"


def test_rows_that_change_places_are_found(desk: Any) -> None:
    said(desk, "serve", "audit", "--once")
    with database(desk) as rows:
        rows.execute(f"UPDATE sealbus_audit_rows SET off = -1 WHERE {BUSIEST} AND off = 1")
        rows.execute(f"UPDATE sealbus_audit_rows SET off = 1 WHERE {BUSIEST} AND off = 2")
        rows.execute(f"UPDATE sealbus_audit_rows SET off = 2 WHERE {BUSIEST} AND off = -1")
    faults = [fault for report in objects(desk, "audit", "verify", code=1) for fault in report["faults"]]
    assert {1, 2} <= {fault["offset"] for fault in faults}


def test_a_chain_that_is_written_anew_does_not_agree_with_the_signed_checkpoint(desk: Any) -> None:
    said(desk, "serve", "audit", "--once")
    (desk.path / "sealbus-audit.db").rename(desk.path / "kept.db")
    # The same records, in rows with other keys: every hash holds among themselves.
    (desk.path / "keys" / "audit-sealbus-e52ae6b8.pem").rename(desk.path / "gone.pem")
    said(desk, "serve", "audit", "--once")
    faults = [fault for report in objects(desk, "audit", "verify", code=1) for fault in report["faults"]]
    assert {fault["kind"] for fault in faults} == {"forged"}


def test_the_anchor_detects_a_chain_rewritten_with_the_key(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    set_for_all(desk, monkeypatch, {"SEALBUS_AUDIT__ANCHOR": "anchor.ndjson"})
    said(desk, "serve", "audit", "--once")
    assert all(not report["faults"] for report in objects(desk, "audit", "verify"))
    (desk.path / "sealbus-audit.db").unlink()
    # Database and log are another's: nothing but the anchor knows.
    with log_of(desk) as log:
        log.execute(
            "DELETE FROM records WHERE part IN (SELECT partitions.id FROM partitions JOIN topics ON topics.id = "
            "topic_id WHERE name = 'agents._audit')"
        )
    said(desk, "serve", "audit", "--once")
    faults = [fault for report in objects(desk, "audit", "verify", code=1) for fault in report["faults"]]
    assert {fault["kind"] for fault in faults} == {"forged"}
    (desk.path / "anchor.ndjson").unlink()
    assert "cannot be read" in desk.call("audit", "verify").stderr
    set_for_all(desk, monkeypatch, {"SEALBUS_AUDIT__ANCHOR": "nowhere/anchor.ndjson"})
    wrong = desk.call("serve", "audit", "--once")
    assert (wrong.exit_code, "cannot be written" in wrong.stderr) == (78, True)


def test_rows_are_compared_with_what_the_log_still_has(desk: Any) -> None:
    said(desk, "serve", "audit", "--once")
    assert all(not report["faults"] for report in objects(desk, "audit", "verify", "--against-log"))
    place = (
        "part = (SELECT part FROM records JOIN partitions ON part = partitions.id JOIN topics ON topic_id = topics.id "
        "WHERE name = 'agents.desk.question' GROUP BY part ORDER BY count(*) DESC LIMIT 1)"
    )
    with log_of(desk) as log:
        other = f"SELECT value FROM records WHERE {place} AND off = 2"
        log.execute(f"UPDATE records SET value = ({other}) WHERE {place} AND off = 1")
        log.execute(f"UPDATE records SET ts = ts + 1 WHERE {place} AND off = 3")
    assert all(not report["faults"] for report in objects(desk, "audit", "verify"))
    faults = [fault for each in objects(desk, "audit", "verify", "--against-log", code=1) for fault in each["faults"]]
    assert [(each["kind"], each["offset"]) for each in faults] == [("not_the_log", 1), ("not_the_log", 3)]
    assert "message id" in faults[0]["text"]
    assert "time of append" in faults[1]["text"]


def test_a_conversation_that_the_log_has_lost_is_traced_from_the_audit(desk: Any) -> None:
    said(desk, "serve", "audit", "--once")
    rows = objects(desk, "audit", "export")
    ended = next(row["conversation"] for row in rows if row["type"] == "desk.result")
    died = next(row["conversation"] for row in rows if row["kind"] == "dlq")
    before = {name: objects(desk, "trace", name) for name in (ended, died)}
    with log_of(desk) as log:
        log.execute("DELETE FROM records")
    for name, events in before.items():
        kept = objects(desk, "trace", name)
        same = ("number", "message_id", "cause", "sender", "message_type", "location")
        assert [[event[key] for key in same] for event in kept] == [[event[key] for key in same] for event in events]
        assert all(event["marks"] == ["from the audit", *events[at]["marks"]] for at, event in enumerate(kept))


def test_a_message_is_looked_up_by_the_audit_also_when_the_log_has_lost_it(desk: Any) -> None:
    said(desk, "serve", "audit", "--once")
    asked = next(row for row in objects(desk, "audit", "export") if row["type"] == "desk.question")
    (before,) = objects(desk, "show", asked["message_id"])
    assert before["locations"][0] == asked["place"]
    with log_of(desk) as log:
        log.execute("DELETE FROM records")
    (after,) = objects(desk, "show", asked["message_id"])
    assert (after["locations"], after["audit"][0]["place"]) == ([], asked["place"])
    assert "the log no longer has it" in desk.call("show", asked["message_id"]).stderr


def test_a_message_is_found_with_its_outcome_per_group(desk: Any) -> None:
    said(desk, "serve", "audit", "--once")
    rows = objects(desk, "audit", "export")
    died = {row["message_id"] for row in rows if row["kind"] == "dlq"}
    dead = min(died)
    done = next(row for row in rows if row["type"] == "desk.question" and row["message_id"] not in died)
    states = {}
    for name in (dead, done["message_id"]):
        (found,) = objects(desk, "show", name)
        states[name] = {each["group"]: each["state"] for each in found["outcome"]["groups"]}
    (group,) = states[dead]
    assert (states[dead][group], states[done["message_id"]][group]) == ("dead", "done")
    assert f"{group}: dead" in said(desk, "show", dead)
    assert f"Group {group}: done" in said(desk, "show", done["message_id"])
    assert objects(desk, "trace", done["message_id"]) == objects(desk, "trace", done["conversation"])


def test_of_an_absent_message_it_is_said_how_far_was_looked(desk: Any) -> None:
    for verb in ("show", "verify", "trace"):
        told = desk.call(verb, "01a21715-2501-7b4a-b6d2-000000000000")
        assert (told.exit_code, "the whole log was looked at" in told.stderr) == (1, True), told.stderr


def test_sensitive_content_is_kept_for_less_long(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    set_for_all(folder, monkeypatch, {"SEALBUS_AUDIT__KEEP_SENSITIVE_S": "1s"})

    async def publish() -> None:
        made = msgspec.defstruct("Job", [("text", str)], frozen=True, kw_only=True)
        kind: Any = payload("job.run", version="1.0.0")(made)
        async with connect(f"sqlite:///{folder.path}/sealbus.db", agent="cli@svc") as bus:
            for name in ("internal", "restricted"):
                await bus.publish(kind(text=name), security=Security(data_classification=name))

    asyncio.run(publish())
    said(folder, "serve", "audit", "--once")
    time.sleep(1.1)
    said(folder, "serve", "audit", "--once")
    rows = [row for row in objects(folder, "audit", "export") if row["kind"] == "message"]
    assert sorted((row.get("erased", False), row["facts"].get("payload")) for row in rows) == [
        (False, {"text": "internal"}),
        (True, None),
    ]
    assert all(not report["faults"] for report in objects(folder, "audit", "verify"))


def test_erased_content_is_gone_and_the_chain_stays_valid(desk: Any) -> None:
    said(desk, "serve", "audit", "--once")
    assert ALICE.encode() in (desk.path / "sealbus-audit.db").read_bytes()
    told = said(desk, "audit", "erase", "--containing", ALICE, "--why", "asked for", "--yes")
    assert "erased the content of 24 rows" in told
    stored = b"".join(path.read_bytes() for path in desk.path.glob("sealbus-audit.db*"))
    assert ALICE.encode() not in stored
    reports = objects(desk, "audit", "verify")
    assert sum(report["erased"] for report in reports) == 24
    assert all(not report["faults"] for report in reports)
    assert "erase" in desk.call("audit", "erase", "--why", "nothing").stderr


def test_records_deleted_by_retention_get_a_row(desk: Any) -> None:
    with log_of(desk) as log:
        topic = "(SELECT id FROM topics WHERE name = 'agents.desk.question')"
        busiest = f"SELECT id, partition FROM partitions WHERE topic_id = {topic} ORDER BY next_offset DESC LIMIT 1"
        part, number = log.execute(busiest).fetchone()
        log.execute("DELETE FROM records WHERE part = ? AND off < 2", (part,))
        log.execute("UPDATE partitions SET start_offset = 2 WHERE id = ?", (part,))
    said(desk, "serve", "audit", "--once")
    reports = {(each["topic"], each["partition"]): each for each in objects(desk, "audit", "verify")}
    assert reports["agents.desk.question", number]["lost"] == 2
    assert not reports["agents.desk.question", number]["faults"]


def test_two_at_once_and_their_deaths_lose_and_repeat_nothing(desk: Any) -> None:
    asked(desk, 3_000)
    for _ in range(4):
        more = min(recorded(desk) + 1, 3_020)
        two = [desk.start("serve", "audit") for _ in range(2)]
        desk.wait_until(lambda more=more: recorded(desk) >= more, within_s=60)
        for process in two:
            process.send_signal(signal.SIGKILL)
            process.wait()
        with database(desk) as rows:  # the dead hold leases for a while
            rows.execute("PRAGMA busy_timeout = 20000")
            rows.execute("UPDATE sealbus_audit_heads SET lease_ms = 0")
    said(desk, "serve", "audit", "--once")
    places = [row["place"] for row in objects(desk, "audit", "export") if row["type"] == "desk.question"]
    assert len(places) == len(set(places)) == 3_000 + 20 + 4
    assert all(not report["faults"] for report in objects(desk, "audit", "verify"))


def test_the_store_may_be_postgresql(desk: Any, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    url = asyncio.run(postgres.create_database())
    set_for_all(desk, monkeypatch, {"SEALBUS_AUDIT__URL": url})
    said(desk, "serve", "audit", "--once")
    said(desk, "serve", "audit", "--once")
    rows = objects(desk, "audit", "export")
    assert len({row["place"] for row in rows}) == len(rows) >= 40
    assert all(not report["faults"] for report in objects(desk, "audit", "verify"))
    assert "24 rows" in said(desk, "audit", "erase", "--containing", ALICE, "--why", "asked for", "--yes")

    async def tamper() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("UPDATE sealbus_audit_rows SET reason = 'x' WHERE off = 1 AND part = 0")
        await connection.close()

    asyncio.run(tamper())
    faults = [fault for report in objects(desk, "audit", "verify", code=1) for fault in report["faults"]]
    assert {fault["kind"] for fault in faults} == {"changed"}


def test_a_missing_location_or_key_is_explained(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "serve audit" in folder.call("audit", "verify").stderr
    monkeypatch.setenv("SEALBUS_BUS__URL", f"kafka://127.0.0.1:1?{uuid.uuid4().hex}".partition("?")[0])
    result = folder.call("audit", "verify")
    assert result.exit_code == 78
    assert "audit.url" in result.stderr
