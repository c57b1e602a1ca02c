"""`sealbus publish`: receipts in order, bad lines, slow lines, and refusing what could only be a mistake."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any

import pytest


def test_one_receipt_or_reason_per_line_in_order(folder: Any) -> None:
    lines = '{"number":1}\n{"number":"x"}\n\n[1]\n{bad\n{"number":2,"label":"\\ud800"}\n{"number":1e400}\n{"number":3}'
    result = folder.call("publish", "job.run", "--app", "agents:app", "--key", "k", stdin=lines)
    answers = folder.objects(result.stdout)
    assert result.exit_code == 1
    assert [answer["line"] for answer in answers] == [1, 2, 4, 5, 6, 7, 8]
    assert [answer.get("pointer") for answer in answers[1:3]] == ["/data/number", "/data"]
    assert {answer["partition"] for answer in (answers[0], answers[-1])} == {answers[0]["partition"]}
    assert (answers[0]["topic"], answers[0]["offset"], answers[-1]["offset"]) == ("agents.job.run", 0, 1)
    assert "2 to agents.job.run" in result.stderr
    assert "5 rejected, 0 unknown" in result.stderr


@pytest.mark.parametrize("line", ['{"number":1,"number":2}', '{"number":1,"label":"a:b","n\\u0075mber":2}'])
def test_a_name_given_twice_is_refused(folder: Any, line: str) -> None:
    result = folder.call("publish", "job.run", "--app", "agents:app", stdin=line)
    assert result.exit_code == 1
    assert "the name 'number' is given twice" in result.stdout


def test_the_last_of_very_many_names_given_twice_is_found_at_once(folder: Any) -> None:
    names = [f"name-{number}" for number in range(60_000)]
    line = "{" + ",".join(f'"{name}":1' for name in [*names, names[-1]]) + "}"
    started_s = time.monotonic()
    result = folder.call("publish", "job.run", "--app", "agents:app", stdin=line)
    assert "the name 'name-59999' is given twice" in result.stdout
    assert time.monotonic() - started_s < 40


def test_an_unknown_field_is_refused_with_the_nearest_name(folder: Any) -> None:
    lines = '{"number":1,"labbel":"x\\u001b[31m"}\n{"number":2,"label":"y"}'
    result = folder.call("publish", "job.run", "--app", "agents:app", stdin=lines)
    refused, sent = folder.objects(result.stdout)
    assert result.exit_code == 1
    assert (refused["outcome"], refused["line"], refused["pointer"]) == ("rejected", 1, "/data/labbel")
    assert "job.run has no field 'labbel'; the nearest is label; --ignore-unknown" in refused["error"]
    assert sent["topic"] == "agents.job.run"


def test_an_unknown_field_is_left_out_on_demand(folder: Any) -> None:
    asked = ("publish", "job.run", "--app", "agents:app", "--ignore-unknown")
    result = folder.call(*asked, stdin='{"number":1,"labbel":"x\\u001b[31m"}')
    assert result.exit_code == 0
    assert "has no field 'labbel'; it was left out; the nearest is label" in result.stderr


@pytest.mark.parametrize(("options", "said"), [((), "the nearest is number"), (("--ignore-unknown",), "is nmuber")])
def test_a_required_field_that_is_misspelt_is_named(folder: Any, options: tuple[str, ...], said: str) -> None:
    result = folder.call("publish", "job.run", "--app", "agents:app", *options, stdin='{"nmuber":1}')
    assert result.exit_code == 1
    assert said in result.stdout
    assert "nmuber" in result.stdout


@pytest.mark.medium
def test_lines_leave_as_soon_as_they_arrive(folder: Any) -> None:
    publisher = folder.start("publish", "job.run", "--app", "agents:app", stdin=subprocess.PIPE)
    for number in range(3):
        publisher.stdin.write(f'{{"number":{number}}}\n')
        publisher.stdin.flush()
        assert json.loads(publisher.stdout.readline())["topic"] == "agents.job.run"
    publisher.stdin.write("{bad\n")
    publisher.stdin.flush()
    assert json.loads(publisher.stdout.readline())["line"] == 4
    assert folder.end(publisher, signal.SIGINT) == 130


@pytest.mark.medium
def test_twenty_thousand_lines_take_seconds(folder: Any) -> None:
    started_s = time.monotonic()
    result = folder.call("publish", "job.run", folder.jobs(20_000), "--app", "agents:app")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 20_000
    assert time.monotonic() - started_s < 40


def test_an_overlong_line_costs_itself_only(folder: Any) -> None:
    lines = '{"number":1,"label":"' + "x" * 5_000_000 + '"}\n{"number":2}\n'
    result = folder.call("publish", "job.run", "--app", "agents:app", stdin=lines)
    assert [answer.get("outcome") for answer in folder.objects(result.stdout)] == ["rejected", "published"]


def test_a_type_known_by_name_only_needs_its_topic(folder: Any) -> None:
    missing = folder.call("publish", "job.rum", "--type-version", "1.0.0", stdin='{"number":1}')
    assert missing.exit_code == 78
    assert "no topic agents.job.rum" in missing.stderr
    assert "hint: `sealbus topic list`" in missing.stderr
    assert folder.call("topic", "apply", "agents:app").exit_code == 0
    assert folder.call("publish", "job.run", "--type-version", "1.0.0", stdin='{"anything":true}').exit_code == 0


def test_an_unknown_type_names_the_nearest(folder: Any) -> None:
    result = folder.call("publish", "resarch.request", stdin="{}")
    assert result.exit_code == 2
    assert "the nearest is research.request" in result.stderr


def test_one_idempotency_key_is_for_one_line(folder: Any) -> None:
    result = folder.call(
        "publish", "job.run", "--app", "agents:app", "--idempotency-key", "a", stdin='{"number":1}\n{"number":2}\n'
    )
    assert [answer.get("outcome") for answer in folder.objects(result.stdout)] == ["published", "rejected"]


def test_requested_options_are_part_of_the_sealed_message(folder: Any) -> None:
    options = (
        "--as",
        "me@home",
        "--to",
        "you@work",
        "--role",
        "editor",
        "--priority",
        "high",
        "--conversation",
        "c",
        "--task",
        "t",
    )
    more = (
        "--correlation",
        "r",
        "--idempotency-key",
        "i",
        "--ttl",
        "90s",
        "--key",
        "k",
        "--namespace",
        "other",
        "--timeout",
        "5s",
    )
    assert (
        folder.call("publish", "job.run", "--app", "agents:app", *options, *more, stdin='{"number":1}').exit_code == 0
    )
    result = folder.call("tail", "job.run", "--namespace", "other", "-o", "json")
    (record,) = folder.objects(result.stdout)
    metadata, routing = record["value"]["metadata"], record["value"]["routing"]
    assert metadata["sender"]["id"] == "me@home"
    assert metadata["recipient"] == {"id": "you@work", "role": "editor"}
    assert (metadata["conversation_id"], metadata["task_id"], metadata["correlation_id"]) == ("c", "t", "r")
    assert (routing["idempotency_key"], routing["key"], routing["priority"], record["key"]) == ("i", "k", 7, "k")


def test_a_delay_is_sealed(folder: Any) -> None:
    done = folder.call("publish", "job.run", "--app", "agents:app", "--delay", "5m", stdin='{"number":1}')
    assert done.exit_code == 0
    result = folder.call("tail", "job.run", "-o", "json")
    value = json.loads(result.stdout)["value"]
    assert value["routing"]["not_before"] > value["metadata"]["timestamp"]
    assert value["metadata"]["critical_fields"] == ["/routing/not_before"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--ttl", "-1"),
        ("--ttl", "0"),
        ("--ttl", "soon"),
        ("--ttl", "30d"),
        ("--ttl", "1e999"),
        ("--delay", "7d"),
        ("--delay", "soon"),
        ("--priority", "10"),
        ("--priority", "9" * 5000),
        ("--key", ""),
        ("--as", "a\u202eb"),
        ("--type-version", "1.0"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_opened(folder: Any, option: str, value: str) -> None:
    result = folder.call("publish", "job.run", "--app", "agents:app", option, value, stdin='{"number":1}')
    assert result.exit_code == 2
    assert option in result.stderr
    assert not (folder.path / "sealbus.db").exists()


@pytest.mark.parametrize("bus", ["memory://", "sqlite:///:memory:"])
def test_nothing_is_published_to_a_log_that_ends_with_the_command(folder: Any, bus: str) -> None:
    result = folder.call("publish", "job.run", "--app", "agents:app", "--bus", bus, stdin='{"number": 1}\n')
    assert (result.exit_code, result.stdout) == (2, "")
    assert "ends with this command" in result.stderr


def test_a_byte_order_mark_belongs_to_the_file(folder: Any) -> None:
    result = folder.call(
        "publish", "job.run", "--app", "agents:app", stdin='\ufeff{"number":1}\n{"number":2}\n'.encode()
    )
    assert result.exit_code == 0, result.output


def test_an_object_over_several_lines_is_told_how_to_be_one(folder: Any) -> None:
    result = folder.call("publish", "job.run", "--app", "agents:app", stdin='{\n  "number": 1\n}\n')
    assert result.exit_code == 1
    assert "jq -c . FILE" in result.stderr
    assert "jq" not in folder.call("publish", "job.run", "--app", "agents:app", stdin="{bad\n").stderr
