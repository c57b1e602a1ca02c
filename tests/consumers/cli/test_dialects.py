"""`convert`, `publish --dialect` and `tail --dialect`: foreign messages at the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bus.protocol import sealing
from consumers.cli import main
from tests.keyrings import write_keys

TASK: dict[str, Any] = {
    "message_id": "msg_1_a",
    "timestamp": "2026-11-24T10:00:00Z",
    "sender": {"agent_id": "opencode://planner", "framework": "opencode"},
    "recipient": {"agent_id": "codex://coder", "framework": "codex"},
    "message_type": "task_request",
    "priority": "high",
    "payload": {"task_type": "code_review", "files": ["a.py"], "acceptance_criteria": ["tests pass"]},
    "routing": {
        "timeout": "300s",
        "retry_policy": {"max_retries": 2, "backoff": "exponential"},
        "delivery_mode": "async",
    },
    "metadata": {"task_id": "t-1"},
}


def sealbus(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin, catch_exceptions=False)


def lines(*messages: dict[str, Any]) -> str:
    return "".join(json.dumps(message) + "\n" for message in messages)


def test_a_message_comes_back_unchanged_in_its_own_dialect() -> None:
    done = sealbus("convert", "--from", "frameworks", "--to", "frameworks", stdin=lines(TASK, TASK))
    assert (done.exit_code, done.stderr) == (0, "2 converted, 0 refused\n")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [TASK, TASK]


def test_a_signature_that_is_not_written_is_told() -> None:
    message = {
        "message_id": "0190a3b2-7c4d-4e5f-8a6b-9c0d1e2f3a4b",
        "message_type": "request",
        "sender_id": "agent-a01",
        "recipient_id": "agent-b01",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "correlation_id": None,
        "payload": {"method": "m"},
    }
    tag = {"agent_id": "agent-a01", "timestamp": message["timestamp"], "nonce": "0" * 32, "signature": "c2lnbmVk" * 11}
    signed = {**message, "auth": tag}
    done = sealbus("convert", "--from", "plain-ids", "--to", "plain-ids", stdin=lines(message, signed))
    assert [json.loads(line) for line in done.stdout.splitlines()] == [message, message]
    assert done.exit_code == 0
    assert done.stderr == (
        "line 2: left out: signature (proves the bytes of this line alone)\n2 converted, 0 refused\n"
    )
    told = sealbus("convert", "-o", "json", "--from", "plain-ids", "--to", "canonical", stdin=lines(signed)).stderr
    assert json.loads(told.splitlines()[0]) == {"line": 1, "left_out": ["signature"]}


def test_a_message_spread_over_lines_is_one_message() -> None:
    done = sealbus("convert", "--from", "frameworks", "--to", "frameworks", stdin=json.dumps(TASK, indent=2))
    assert json.loads(done.stdout) == TASK


def test_the_digits_of_a_dialect_stand_for_its_name() -> None:
    by_name = sealbus("convert", "--from", "frameworks", "--to", "plain-ids", stdin=lines(TASK))
    by_digits = sealbus("convert", "--from", "004", "--to", "002", stdin=lines(TASK))
    assert (by_digits.stdout, by_digits.stderr) == (by_name.stdout, by_name.stderr)
    assert "frameworks" in sealbus("convert", "--from", "006", "--to", "004").stderr


def test_canonical_messages_are_sealed_and_go_on_to_other_dialects() -> None:
    canonical = sealbus("convert", "--from", "frameworks", "--to", "canonical", stdin=lines(TASK)).stdout
    message = sealing.parse(canonical.strip().encode())
    sealing.check_integrity(message)
    assert (message.message_type, message.metadata.task_id) == ("task.request", "t-1")
    event = json.loads(sealbus("convert", "--from", "canonical", "--to", "cloudevents", stdin=canonical).stdout)
    assert (event["specversion"], event["type"], event["id"]) == ("1.0", "task.request", "msg_1_a")
    back = sealbus("convert", "--from", "canonical", "--to", "frameworks", stdin=canonical).stdout
    assert json.loads(back) == TASK


def test_a_refused_line_says_where_and_why_and_does_not_stop_the_others() -> None:
    wrong = {**TASK, "priority": "urgent"}
    done = sealbus("convert", "--from", "frameworks", "--to", "frameworks", stdin=lines(wrong, TASK) + "{]\n")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == TASK
    first, *_ = done.stderr.splitlines()
    assert first.startswith("line 1: /priority: found 'urgent', expected one of low")
    assert "1 converted, 2 refused" in done.stderr


def test_refusals_as_json_have_pointer_found_and_expected() -> None:
    done = sealbus(
        "convert",
        "--from",
        "frameworks",
        "--to",
        "frameworks",
        "--output",
        "json",
        stdin=lines({**TASK, "priority": "urgent"}),
    )
    told = json.loads(done.stderr.splitlines()[0])
    assert (told["line"], told["pointer"], told["found"]) == (1, "/priority", "'urgent'")


def test_an_unrepresentable_member_is_named_and_an_alias_helps() -> None:
    done = sealbus("convert", "--from", "frameworks", "--to", "plain-ids", stdin=lines(TASK))
    assert done.exit_code == 1
    assert "/metadata/message_id" in done.stderr


def test_altered_canonical_messages_are_refused() -> None:
    canonical = sealbus("convert", "--from", "frameworks", "--to", "canonical", stdin=lines(TASK)).stdout
    done = sealbus(
        "convert", "--from", "canonical", "--to", "frameworks", stdin=canonical.replace("code_review", "code_rewrite")
    )
    assert done.exit_code == 1
    assert done.stdout == ""


@pytest.mark.parametrize("arguments", [("--from", "005", "--to", "frameworks"), ("--from", "frameworks"), ()])
def test_wrong_names_are_refused_with_those_there_are(arguments: tuple[str, ...]) -> None:
    done = sealbus("convert", *arguments)
    assert done.exit_code == 2


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a":' * 70 + "1" + "}" * 70, "\ufeff{}", "\x00", '{"a":1,"a":2}'])
def test_hostile_lines_are_refused_and_end_nothing(line: str) -> None:
    done = sealbus("convert", "--from", "frameworks", "--to", "frameworks", stdin=f"{line}\n{json.dumps(TASK)}\n")
    assert (done.exit_code, json.loads(done.stdout)) == (1, TASK)


def test_hostile_text_reaches_no_terminal() -> None:
    done = sealbus(
        "convert", "--from", "frameworks", "--to", "frameworks", stdin=lines({**TASK, "priority": "\x1b[31mred\x07"})
    )
    assert "\x1b" not in done.output
    assert "\x07" not in done.output


class TestOnTheLog:
    @pytest.fixture
    def bus(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/bus.db"

    def test_foreign_messages_are_published_and_shown_in_any_dialect(self, bus: str) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        task = {**TASK, "timestamp": now.isoformat().replace("+00:00", "Z")}
        done = sealbus("publish", "--dialect", "frameworks", "--bus", bus, stdin=lines(task))
        assert done.exit_code == 0
        assert json.loads(done.stdout)["topic"] == "agents.task.request"
        shown = json.loads(sealbus("tail", "task.request", "--dialect", "frameworks", "--bus", bus).stdout)
        assert {**shown, "timestamp": 0, "routing": 0} == {**task, "timestamp": 0, "routing": 0}
        event = json.loads(sealbus("tail", "task.request", "--dialect", "cloudevents", "--bus", bus).stdout)
        assert event["data"]["inputs"] == {"files": ["a.py"]}

    def test_with_a_key_foreign_messages_of_its_agent_are_signed_and_others_refused(
        self, bus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = write_keys(tmp_path / "keys", "planner@svc")
        monkeypatch.setenv("SEALBUS_TRUST__KEYS", str(keys))
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        own = {**TASK, "timestamp": now, "sender": {**TASK["sender"], "agent_id": "planner@svc"}}
        other = {**own, "message_id": "msg_2", "sender": {**TASK["sender"], "agent_id": "eve@svc"}}
        words = ("publish", "--dialect", "frameworks", "--bus", bus, "--key-file", str(keys.parent / "planner.pem"))
        done = sealbus(*words, stdin=lines(own, other))
        assert done.exit_code == 1
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert [answer.get("reason") for answer in answers] == [None, "signature_missing"]
        tailed = sealbus(
            "tail", "task.request", "--from", "start", "--verify", "--trusted-keys", str(keys), "--bus", bus
        )
        assert "1 valid, 0 invalid" in tailed.stderr

    def test_what_has_expired_is_not_published(self, bus: str) -> None:
        past = (datetime.now(UTC) - timedelta(hours=1)).isoformat().replace("+00:00", "Z")
        done = sealbus("publish", "--dialect", "frameworks", "--bus", bus, stdin=lines({**TASK, "timestamp": past}))
        assert done.exit_code == 1
        assert json.loads(done.stdout)["pointer"] == "/routing/expires_at"

    def test_what_a_dialect_cannot_say_is_counted(self, bus: str) -> None:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        sealbus("publish", "--dialect", "frameworks", "--bus", bus, stdin=lines({**TASK, "timestamp": now}))
        done = sealbus("tail", "task.request", "--dialect", "plain-ids", "--bus", bus)
        assert done.stdout == ""
        assert "1 messages cannot be represented in that format" in done.stderr

    def test_publish_takes_no_type_beside_a_dialect(self, bus: str) -> None:
        done = sealbus("publish", "--dialect", "frameworks", "task.request", "file.ndjson", "--bus", bus)
        assert done.exit_code == 2
        assert "each line names its type" in done.output


APP = """
import msgspec
from sealbus import App, payload

app = App("shop@svc")


@payload("github.pull-request-opened", performative="inform")
class Opened(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@app.on(Opened)
async def take(opened: Opened) -> None:
    pass
"""


def test_a_type_of_an_app_goes_through_every_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events_of_shop.py").write_text(APP)
    (tmp_path / "sealbus.toml").write_text(
        '[dialects]\ntype_names = ["com.github.pull_request.opened=github.pull-request-opened"]\n'
    )
    monkeypatch.chdir(tmp_path)
    named = ("--app", "events_of_shop:app", "--bus", "sqlite:///events.db")
    written = sealbus("publish", "github.pull-request-opened", *named, stdin='{"number": 1}\n')
    assert written.exit_code == 0, written.stderr
    event = sealbus("tail", "github.pull-request-opened", "--dialect", "cloudevents", "--from", "start", *named)
    assert json.loads(event.stdout)["type"] == "com.github.pull_request.opened"
    again = json.loads(event.stdout) | {"id": "another", "time": datetime.now(UTC).isoformat()}
    again.pop("expirytime", None)
    sent = sealbus("publish", "--dialect", "cloudevents", *named, stdin=lines(again))
    assert sent.exit_code == 0, sent.stderr
    converted = sealbus("convert", "--from", "cloudevents", "--to", "canonical", *named[:2], stdin=lines(again))
    assert sealing.parse(converted.stdout_bytes.strip()).message_type == "github.pull-request-opened"
