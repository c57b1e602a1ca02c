"""`sealbus verify` and `tail --verify`: the same verdicts offline and on a log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bus.protocol import sealing
from bus.protocol.envelope import Agent, Metadata, Routing
from bus.transports import open_transport
from bus.transports.base import NewRecord
from tests.keyrings import jwks_of, key_of


@pytest.fixture
def value(folder: Any) -> bytes:
    """The sealed bytes of one message."""
    assert folder.call("publish", "job.run", "--app", "agents:app", "--ttl", "1h", stdin='{"number":7}').exit_code == 0
    (record,) = folder.objects(folder.call("tail", "job.run", "-o", "json").stdout)
    return json.dumps(record["value"], separators=(",", ":")).encode()


def verify(folder: Any, content: bytes, *options: str) -> tuple[int, dict[str, Any]]:
    Path("message.json").write_bytes(content)
    result = folder.call("verify", "--file", "message.json", "-o", "json", *options)
    (answer,) = folder.objects(result.stdout)
    return result.exit_code, answer


def test_a_sealed_message_holds(folder: Any, value: bytes) -> None:
    assert verify(folder, value)[1]["verdict"] == "ok"
    assert verify(folder, value + b"\n")[0] == 0
    assert folder.call("verify", "--file", "-", stdin=value).stdout.startswith("ok  ")
    assert verify(folder, value, "--app", "agents:app", "--namespace", "agents", "--type", "job.run")[0] == 0


@pytest.mark.parametrize(
    ("old", "new", "gate", "reason"),
    [
        (b'"number":7', b'"number":8', "integrity", "hash_mismatch"),
        (b"cli@sealbus", b"cli@seallus", "integrity", "seal_mismatch"),
        (b'{"data":', b'{ "data":', "parse", "malformed"),
        (b"sealbus/1", b"sealbus/2", "parse", "unsupported_protocol"),
        (b'"hops":0', b'"hops":"0"', "parse", "malformed"),
    ],
)
def test_any_change_is_found(folder: Any, value: bytes, *, old: bytes, new: bytes, gate: str, reason: str) -> None:
    code, answer = verify(folder, value.replace(old, new))
    assert (code, answer["verdict"], answer["check"], answer["reason"]) == (1, "dead", gate, reason)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--now", "2099-01-01T00:00:00Z"), "expired"),
        (("--now", "2001-01-01T00:00:00+02:00"), "clock_skew"),
        (("--namespace", "others"), "wrong_audience"),
        (("--type", "job.other"), "type_mismatch"),
        (("--key", "other"), "key_mismatch"),
        (("--risk", "high"), "signature_missing"),
    ],
)
def test_what_else_can_be_asked(folder: Any, value: bytes, options: tuple[str, ...], reason: str) -> None:
    code, answer = verify(folder, value, *options)
    assert (code, answer["reason"]) == (1, reason)


def test_only_one_line_break_is_the_files_own(folder: Any, value: bytes) -> None:
    assert verify(folder, value + b"\n\n")[1]["reason"] == "malformed"
    assert verify(folder, b"")[1]["reason"] == "malformed"


def test_too_large_is_not_read(folder: Any, value: bytes) -> None:
    with Path("huge").open("wb") as huge:
        huge.truncate(1 << 40)
    result = folder.call("verify", "--file", "huge", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["reason"]) == (1, "oversized")


def test_lines(folder: Any, value: bytes) -> None:
    Path("many").write_bytes(value + b"\n\n" + value.replace(b":7", b":9") + b"\n" + b"x" * 2_000_000 + b"\n" + value)
    result = folder.call("verify", "--lines", "--file", "many", "-o", "json")
    answers = folder.objects(result.stdout)
    assert [(answer["line"], answer.get("reason")) for answer in answers] == [
        (1, None),
        (3, "hash_mismatch"),
        (4, "oversized"),
        (5, None),
    ]
    assert result.exit_code == 1
    assert folder.call("verify", "--lines", "--file", "-", stdin="\n \n").exit_code == 0


@pytest.mark.parametrize(
    "options", [(), ("--now", "2026-01-01"), ("--now", "noon", "--file", "message.json"), ("0198", "--file", "x")]
)
def test_wrong_usage(folder: Any, options: tuple[str, ...]) -> None:
    assert folder.call("verify", *options).exit_code == 2


def test_a_recipient_skips_what_is_for_others(folder: Any) -> None:
    folder.call("publish", "job.run", "--app", "agents:app", "--to", "you@work", stdin='{"number":7}')
    (record,) = folder.objects(folder.call("tail", "job.run", "-o", "json").stdout)
    content = json.dumps(record["value"], separators=(",", ":")).encode()
    assert verify(folder, content, "--recipient", "me@work") == (
        0,
        verify(folder, content, "--recipient", "me@work")[1],
    )
    assert verify(folder, content, "--recipient", "me@work")[1]["verdict"] == "skipped"
    assert verify(folder, content, "--recipient", "you@work")[1]["verdict"] == "ok"


def append(*values: bytes | None) -> None:
    async def run() -> None:
        transport = open_transport("sqlite:///sealbus.db")
        await transport.append([NewRecord("agents.job.run", b"k", value) for value in values], timeout_s=5)
        await transport.close()

    asyncio.run(run())


def test_tail_finds_bad_records_and_obeys_no_escape(folder: Any, value: bytes) -> None:
    append(value.replace(b"cli@", b"clu@"), b"\x1b[31mred\x9b", None, b'{"metadata":{"sender":{"id":"\xc2\x9b"}}}')
    result = folder.call("tail", "job.run", "--verify")
    assert result.exit_code == 1
    assert "5 records, 1 valid, 4 invalid (3 malformed, 1 seal_mismatch)" in result.stderr
    for output in ("text", "json"):
        shown = folder.call("tail", "job.run", "--output", output, "--verify").stdout
        assert "\x1b" not in shown
        assert "\x9b" not in shown


def test_tail_shows_the_last_ones_in_order(folder: Any) -> None:
    folder.call("publish", "job.run", folder.jobs(100), "--app", "agents:app", "--key", "k")
    offsets = [
        int(line.split()[1].partition("/")[2]) for line in folder.call("tail", "job.run", "-n", "3").stdout.splitlines()
    ]
    assert offsets == [97, 98, 99]
    assert len(folder.call("tail", "job.run", "--from", "90").stdout.splitlines()) == 10
    assert folder.call("tail", "job.run", "--from", "middle").exit_code == 2


def test_tail_answers_to_numbers_of_any_size(folder: Any) -> None:
    folder.call("publish", "job.run", folder.jobs(3), "--app", "agents:app")
    beyond = "9" * 20
    assert len(folder.call("tail", "job.run", "-n", beyond).stdout.splitlines()) == 3
    assert folder.call("tail", "job.run", "--from", beyond).stdout == ""
    for option in ("-n", "--from"):
        assert folder.call("tail", "job.run", option, "9" * 5_000).exit_code == 2


def test_tail_shows_a_record_whose_time_is_of_no_year(folder: Any) -> None:
    folder.call("publish", "job.run", "--app", "agents:app", stdin='{"number":1}')
    with contextlib.closing(sqlite3.connect(folder.path / "sealbus.db")) as log, log:
        log.execute("UPDATE records SET ts = 1 << 61")
    assert folder.call("tail", "job.run", "--from", "start").stdout.startswith(str(1 << 61))
    assert folder.objects(folder.call("tail", "job.run", "--from", "start", "-o", "json").stdout)[0][
        "timestamp"
    ] == str(1 << 61)


def test_tail_follows_across_processes(folder: Any) -> None:
    folder.call("publish", "job.run", "--app", "agents:app", stdin='{"number":1}')
    tail = folder.start("tail", "job.run", "--follow")
    assert "job.run" in tail.stdout.readline()
    folder.call("publish", "job.run", "--app", "agents:app", "--as", "later@home", stdin='{"number":2}')
    assert "later@home" in tail.stdout.readline()
    assert folder.end(tail, 2) == 130
    assert "2 records" in tail.stderr.read()


@pytest.mark.parametrize(
    ("limits", "now", "reason"),
    [
        ({"revoked_at": "2026-02-01T00:00:00.000Z"}, "2026-01-01T00:59:59Z", None),
        ({"revoked_at": "2026-01-01T00:30:00.000Z"}, "2026-01-01T00:29:59.999Z", None),
        ({"revoked_at": "2026-01-01T00:30:00.000Z"}, "2026-01-01T00:30:00Z", "key_revoked"),
        ({"not_after": "2026-01-01T00:10:00.000Z"}, "2026-01-01T00:30:00Z", None),
        ({"not_after": "2026-01-01T00:10:00.000Z"}, "2026-01-15T00:10:00Z", "expired"),
        ({"not_after": "2026-01-01T00:10:00.000Z"}, "2026-01-15T00:10:00.001Z", "key_expired"),
        ({"not_before": "2026-01-02T00:00:00.000Z"}, "2026-01-01T00:30:00Z", "key_expired"),
    ],
)
def test_lifetime_and_keys_are_judged_at_one_time(
    folder: Any, limits: dict[str, str], now: str, reason: str | None
) -> None:
    Path("jwks.json").write_bytes(jwks_of("a@svc", **limits))
    Path("jwks.json").chmod(0o600)
    metadata = Metadata(
        protocol="sealbus/1",
        namespace="agents",
        message_id="m",
        message_type="job.run",
        schema_version="1.0.0",
        timestamp="2026-01-01T00:00:00.000Z",
        sender=Agent(id="a@svc"),
        conversation_id="c",
        hops=0,
    )
    routing = Routing(expires_at="2026-01-01T01:00:00.000Z")
    signed = sealing.seal(b'{"number":7}', metadata, routing, signer=key_of("a@svc"))
    code, answer = verify(folder, signed.value, "--trusted-keys", "jwks.json", "--now", now)
    assert (code, answer.get("reason")) == (0 if reason is None else 1, reason)
