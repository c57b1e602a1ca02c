"""`sealbus doctor`, `top` and `exporter` tell one story about a namespace."""

from __future__ import annotations

import json
import signal
import urllib.request
from typing import Any

import pytest

from bus.protocol.reasons import REASONS
from consumers.operations.survey.explanation import CURES

pytestmark = pytest.mark.medium  # real workers

FAILING = """
import msgspec
from sealbus import App, Reject, payload

@payload("job.run", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    label: str = ""

app = App("worker@svc")

@app.on(Job)
async def run(job: Job) -> None:
    raise Reject(f"no {job.label} for {job.number}")
"""


def objects(folder: Any, *words: str, code: int = 0) -> list[dict[str, Any]]:
    result = folder.call(*words, "-o", "json")
    assert result.exit_code == code, result.output + result.stderr
    assert "Traceback" not in result.stderr
    return list(folder.objects(result.stdout))


def faults(folder: Any, *words: str, code: int = 1) -> dict[str, str]:
    return {
        each["area"]: each["text"] for each in objects(folder, "doctor", *words, code=code) if each["state"] == "fault"
    }


@pytest.fixture
def ailing(folder: Any) -> Any:
    """A folder in which thirty jobs died of two causes, and whose worker is gone with three more waiting."""
    (folder.path / "agents.py").write_text(FAILING)
    worker = folder.worker()
    publish(folder, [{"number": number, "label": "\x1b[31mtea" if number % 3 else "ink"} for number in range(30)])
    folder.wait_until(lambda: len(objects(folder, "dlq", "list")) == 30)
    folder.wait_until(lambda: sum(row["lag"] for row in objects(folder, "group", "list")) == 0)
    folder.end(worker)
    publish(folder, [{"number": number} for number in range(3)])
    return folder


def publish(folder: Any, jobs: list[dict[str, Any]]) -> None:
    lines = "\n".join(map(json.dumps, jobs))
    assert folder.call("publish", "job.run", "--app", "agents:app", stdin=lines).exit_code == 0


def test_a_sound_set_up_has_no_fault(folder: Any) -> None:
    worker = folder.worker()
    folder.wait_until(lambda: folder.call("doctor").exit_code == 0)
    assert faults(folder, "agents:app", code=0) == {}
    folder.end(worker)


def test_every_fault_is_named_with_what_to_do(ailing: Any) -> None:
    found = faults(ailing, "agents:app")
    assert set(found) == {"groups", "letters"}
    assert "no worker, and 3 records wait" in found["groups"]
    assert found["letters"].startswith("30 dead letters are open; 20 of them: rejected of job.run")
    text = ailing.call("doctor").stdout
    assert "sealbus run MODULE:APP" in text
    assert "sealbus dlq redrive" in text
    assert "\x1b[31mtea" not in text


def test_unreachable_or_unreadable_parts_are_reported_as_faults(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing listens" in faults(folder, "--bus", "kafka://127.0.0.1:1")["log"]
    monkeypatch.setenv("SEALBUS_POLICY__FILE", "nowhere.toml")
    assert "nowhere.toml" in faults(folder)["policy"]


def test_top_groups_dead_letters_by_cause_and_escapes_untrusted_text(ailing: Any) -> None:
    (survey,) = objects(ailing, "status")
    assert survey["letters"]["count"] == 30
    assert [count for _, count, _ in survey["letters"]["causes"]] == [20, 10]
    text = ailing.call("status").stdout
    assert "Dead letters: 30 open" in text
    assert "\x1b[31mtea" not in text


def test_letters_are_grouped_by_cause_and_a_cause_is_sent_back_alone(ailing: Any) -> None:
    tea, ink = objects(ailing, "dlq", "list", "--by", "cause")
    assert (tea["dead_letters"], tea["error"], tea["sender"]) == (20, "Reject: no \x1b[#mtea for #", "cli@sealbus")
    assert (ink["dead_letters"], ink["error"]) == (10, "Reject: no ink for #")
    assert "\x1b" not in ailing.call("dlq", "list", "--by", "cause").stdout
    assert len(objects(ailing, "dlq", "list", "--cause", ink["value"])) == 10
    sent = ailing.call("dlq", "redrive", "--cause", ink["value"], "--why", "ink is here", "--yes")
    assert sent.exit_code == 0, sent.stderr
    assert [each["value"] for each in objects(ailing, "dlq", "list", "--by", "cause")] == [tea["value"]]
    assert objects(ailing, "dlq", "list", "--pointer", "/data/none") == []


def test_a_message_is_explained_with_its_fix(ailing: Any) -> None:
    letter = objects(ailing, "dlq", "list")[0]
    told = ailing.call("show", letter["message_id"], "--app", "agents:app").stdout
    assert "job.run 1.0.0 from cli@sealbus was appended to agents.job.run/" in told
    assert "rejected (check: handler), Reject: no" in told
    assert f"fix: fix the named problem, then sealbus dlq redrive {letter['location']}" in told
    assert "\x1b" not in told
    answer = objects(ailing, "show", letter["message_id"])[0]["outcome"]
    assert (answer["state"], answer["location"]) == ("dead", letter["location"])
    assert '"number":' in ailing.call("show", letter["message_id"]).stdout
    assert ailing.call("show", "nothing").exit_code == 1


def test_a_redriven_or_purged_letter_shows_its_state_and_no_fix(ailing: Any) -> None:
    first, second = objects(ailing, "dlq", "list")[:2]
    assert ailing.call("dlq", "redrive", first["location"], "--why", "tea \x1b[31mis here", "--yes").exit_code == 0
    told = ailing.call("show", first["message_id"]).stdout
    assert "Its dead letter was sent back at" in told
    assert "is here." in told
    assert "waits next in agents._redrive." in told
    assert "fix:" not in told
    assert "\x1b" not in told
    answer = objects(ailing, "show", first["message_id"])[0]["outcome"]
    assert (answer["state"], answer["fix"]) == ("redriven", "")
    assert ailing.call("dlq", "dismiss", second["location"], "--why", "noise", "--yes").exit_code == 0
    told = ailing.call("show", second["message_id"]).stdout
    assert "Its dead letter was dismissed at" in told
    assert "because: noise." in told
    assert "fix:" not in told


def test_a_letter_that_is_parked_is_cured_by_force(folder: Any) -> None:
    (folder.path / "agents.py").write_text(FAILING)
    folder.worker()
    publish(folder, [{"number": 1}])
    for count in range(4):
        folder.wait_until(lambda: len(objects(folder, "dlq", "list")) == count + 1)  # noqa: B023 - waited for here
        letter = max(objects(folder, "dlq", "list"), key=lambda each: each["redrives"])
        if count < 3:
            assert folder.call("dlq", "redrive", letter["location"], "--why", "again", "--yes").exit_code == 0
    told = folder.call("show", letter["message_id"]).stdout
    assert "Its dead letter is parked: it was redriven 3 times before." in told
    assert f"sealbus dlq redrive {letter['location']} --force" in told


def test_the_exporter_serves_the_same_and_goes_on_when_the_log_is_gone(ailing: Any) -> None:
    process = ailing.start("serve", "metrics", "--port", "0", "--every", "200ms")
    assert process.stderr is not None
    port = 0
    for line in process.stderr:
        if '"metrics.served"' in line:
            port = json.loads(line)["port"]
            break

    def said(name: str) -> float | None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), None)

    ailing.wait_until(lambda: said("sealbus_survey_up") == 1)
    assert said('sealbus_dead_letters_open{namespace="agents",reason="rejected",type="job.run"}') == 30
    assert said("sealbus_group_lag_messages") == 3
    assert ailing.call("dlq", "redrive", "--why", "mended", "--yes").exit_code == 0
    ailing.wait_until(lambda: said("sealbus_dead_letters_open") == 0)
    assert ailing.end(process, signal.SIGINT) == 130


def test_every_reason_has_a_fix() -> None:
    assert set(CURES) == REASONS
    assert all(passes and cure for passes, cure in CURES.values())


BREAKING = FAILING.replace('raise Reject(f"no {job.label} for {job.number}")', "{}[job.number]")


def test_one_trace_is_logged_for_many_failures_at_one_line(folder: Any) -> None:
    (folder.path / "agents.py").write_text(BREAKING)
    worker = folder.worker()
    publish(folder, [{"number": number} for number in range(12)])
    log = folder.path / "worker.log"
    folder.wait_until(lambda: log.read_text().count("handler.failed") >= 12)
    folder.end(worker)
    assert log.read_text().count("Traceback") == 1


def test_groups_are_a_line_each_and_one_group_shows_its_partitions(ailing: Any) -> None:
    brief = ailing.call("group", "list")
    assert len(brief.stdout.splitlines()) == 2
    name = brief.stdout.splitlines()[1].split()[0]
    assert len(ailing.call("group", "show", name).stdout.splitlines()) > 5


def test_tail_shows_the_last_that_fit_however_far_back(folder: Any) -> None:
    (folder.path / "agents.py").write_text(FAILING)
    lines = "\n".join(json.dumps({"number": number, "label": "moon" if number < 3 else ""}) for number in range(40))
    for sender in ("a@svc", "b@svc"):
        told = folder.call("publish", "job.run", "--app", "agents:app", "--as", sender, stdin=lines)
        assert told.exit_code == 0
    found = objects(folder, "tail", "job.run", "--sender", "a@svc", "--grep", "moon")
    assert [each["value"]["data"]["label"] for each in found] == ["moon"] * 3
    assert {each["value"]["metadata"]["sender"]["id"] for each in found} == {"a@svc"}
    conversation = found[0]["value"]["metadata"]["conversation_id"]
    assert len(objects(folder, "tail", "job.run", "--conversation", conversation)) == 1
