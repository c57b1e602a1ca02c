"""`sealbus verify` and `sealbus trace` on the embedded log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.transports import open_transport
from bus.transports.base import NewRecord, Record, TopicSpec
from consumers.deadletters.records import Control, Failure, dead_letter_record, reappend
from producers.sealing.sealed_record import record_of
from tests.consumers.operations.lineage.changes import AGENTS, HIDDEN, OPEN, Note, Step, changes_of, conversation
from tests.keyrings import key_of, write_keys

pytestmark = pytest.mark.medium  # servers, processes or real waits

TOPICS = ("agents.relay.step", "agents.relay.step.dlq", "agents.relay.note", "agents._retry.workers.5s")


def write(records: Sequence[NewRecord]) -> None:
    async def body() -> None:
        transport = open_transport("sqlite:///sealbus.db")
        await transport.admin.create_topics([TopicSpec(name=name, partitions=2) for name in TOPICS])
        await transport.append(records, timeout_s=5)
        await transport.close()

    asyncio.run(body())


def record(message: Message) -> NewRecord:
    return record_of(message, f"agents.{message.message_type}")


def edit(message: Message, value: bytes | None) -> None:
    """Change the record of *message* behind the bus's back; None deletes it."""
    with contextlib.closing(sqlite3.connect("sealbus.db")) as log, log:
        if value is None:
            log.execute("DELETE FROM records WHERE value = ?", (message.value,))
        else:
            log.execute("UPDATE records SET value = ? WHERE value = ?", (value, message.value))
        assert log.total_changes == 1


@pytest.fixture
def messages(folder: Any) -> list[Message]:
    made = conversation(4)
    write([record(message) for message in made])
    return made


def blamed(folder: Any, message: Message, *options: str) -> tuple[int, dict[str, Any]]:
    result = folder.call("verify", message.message_id, "-o", "json", *options)
    return result.exit_code, json.loads(result.stdout)


class TestBlame:
    def test_a_valid_chain_is_reported_as_valid(self, folder: Any, messages: list[Message]) -> None:
        code, answer = blamed(folder, messages[-1])
        assert (code, answer["valid"], answer["first_invalid"]) == (0, True, None)
        assert [hop["message_id"] for hop in answer["causes"]] == [message.message_id for message in messages]
        table = folder.call("verify", messages[2].message_id).stdout
        assert "valid: 3 of 3 stored messages" in table

    @pytest.mark.medium
    @pytest.mark.parametrize("hop", range(5))
    def test_every_change_of_every_hop_is_found_in_the_log(
        self, folder: Any, messages: list[Message], hop: int
    ) -> None:
        other = conversation(4)[-1]
        for name, change in changes_of(hop, 4, Step).items():
            value = change(messages[hop].value, other)
            edit(messages[hop], value)
            result = folder.call("verify", messages[-1].message_id, "-o", "json")
            if hop == 4 and name in ("the id", "deleted"):
                assert result.exit_code == 1, name
            else:
                found = json.loads(result.stdout)["first_invalid"]
                assert (result.exit_code, found["message_id"]) == (1, messages[hop].message_id), name
            with contextlib.closing(sqlite3.connect("sealbus.db")) as log, log:
                if value is None:
                    log.execute(
                        "INSERT INTO records (part, off, ts, key, value) SELECT 1, 100, 0, ?, ?",
                        (messages[hop].key, messages[hop].value),
                    )
                    log.execute("UPDATE partitions SET next_offset = 1000 WHERE id = 1")
                else:
                    log.execute("UPDATE records SET value = ? WHERE value = ?", (messages[hop].value, value))

    def test_it_is_told_for_people(self, folder: Any, messages: list[Message]) -> None:
        edit(messages[1], HIDDEN["the sender, resealed"](messages[1].value, messages[0]))
        result = folder.call("verify", messages[-1].message_id)
        assert result.exit_code == 1
        assert f"cause 1 {messages[1].message_id} is invalid: replaced" in result.stdout
        assert "differs in: envelope_hash, sender" in result.stdout
        assert "sender: mallory@svc; not signed" in result.stdout

    def test_text_of_messages_obeys_nobody(self, folder: Any, messages: list[Message]) -> None:
        tree = msgspec.json.decode(messages[1].value)
        tree["metadata"]["sender"]["id"] = "\x1b]0;x\x07\u202e"
        edit(messages[1], msgspec.json.encode(tree))
        for output in ("text", "json"):
            shown = folder.call("verify", messages[-1].message_id, "--output", output).stdout
            assert not set("\x1b\x07\u202e") & set(shown)

    def test_a_type_of_ones_own_says_its_risk(self, folder: Any, messages: list[Message]) -> None:
        notes = conversation(2, Note)
        write([record(message) for message in notes])
        assert blamed(folder, notes[-1])[1]["first_invalid"]["kind"] == "proof_invalid"
        (folder.path / "agents.py").write_text(
            "from sealbus import App\nfrom tests.consumers.operations.lineage.changes import Note\n"
            "app = App('x@svc', types=[Note])\n"
        )
        assert blamed(folder, notes[-1], "--app", "agents:app")[0] == 0

    def test_signatures_are_checked_with_the_keys_that_are_given(self, folder: Any) -> None:
        jwks = str(write_keys(folder.path / "keys", *AGENTS))
        made = conversation(3, signer=key_of)
        write([record(message) for message in made])
        code, answer = blamed(folder, made[-1], "--trusted-keys", jwks)
        assert (code, [hop["is_verified"] for hop in answer["causes"]]) == (0, [True] * 4)
        assert [hop["kid"] for hop in answer["causes"]] == [key_of(AGENTS[hop % 3]).kid for hop in range(4)]
        # Nothing rests on the last one: without keys nobody can tell.
        edit(made[3], HIDDEN["the sender, resealed"](made[3].value, made[0]))
        assert blamed(folder, made[-1])[0] == 0
        code, answer = blamed(folder, made[-1], "--trusted-keys", jwks)
        assert (code, answer["first_invalid"]["number"], answer["first_invalid"]["kind"]) == (1, 3, "signature_missing")
        told = folder.call("verify", made[-1].message_id, env={"SEALBUS_TRUST__KEYS": jwks})
        assert told.exit_code == 1
        assert "sender: mallory@svc; not signed" in told.stdout

    def test_blame_shows_causes_deleted_by_retention_as_not_kept(self, folder: Any, messages: list[Message]) -> None:
        with contextlib.closing(sqlite3.connect("sealbus.db")) as log, log:
            for message in messages[:2]:
                log.execute("DELETE FROM records WHERE value = ?", (message.value,))
            ((part,),) = log.execute("SELECT part FROM records WHERE value = ?", (messages[2].value,)).fetchall()
            log.execute("UPDATE partitions SET start_offset = 2 WHERE id = ?", (part,))
        code, answer = blamed(folder, messages[-1])
        assert code == 0
        assert [hop["state"] for hop in answer["causes"]] == ["not kept", "not kept", "valid", "valid", "valid"]
        assert "valid: 3 of 5 stored messages" in folder.call("verify", messages[-1].message_id).stdout

    def test_blame_reports_a_missing_message(self, folder: Any, messages: list[Message]) -> None:
        result = folder.call("verify", "nobody")
        assert result.exit_code == 1
        assert "no message nobody in namespace agents" in result.stderr
        assert folder.call("verify", "no id").exit_code == 2
        assert folder.call("verify", messages[0].message_id, "--namespace", "others").exit_code == 1

    def test_a_message_of_another_conversation_may_be_a_cause(self, folder: Any) -> None:
        made = conversation(20)
        # As a handler may, each opens a conversation of its own.
        moved: list[Message] = []
        for number, message in enumerate(made):
            cause = moved[-1] if moved else None
            metadata = msgspec.structs.replace(message.metadata, conversation_id=f"c-{number}")
            moved.append(
                sealing.seal(
                    message.data,
                    metadata,
                    message.routing,
                    parents=(cause.seal,) if cause else (),
                    proof_chain=cause.chain_for_children() if cause else (),
                )
            )
        write([record(message) for message in moved])
        code, answer = blamed(folder, moved[-1])
        assert (code, [hop["number"] for hop in answer["causes"]]) == (0, list(range(21)))


class TestTrace:
    def test_a_conversation_is_shown_with_its_outcomes(self, folder: Any, messages: list[Message]) -> None:
        read = Record("agents.relay.step", 0, 3, 0, messages[3].key, messages[3].value)
        control = Control("agents.relay.step", 0, 3, attempt=1)
        failure = Failure(reason="rejected", error="Reject", text="no")
        letter = dead_letter_record(read, control, failure, group="workers", now_ms=0, honoured=False, details=False)
        write([reappend(read, control, "agents._retry.workers.5s"), letter])
        name = messages[0].metadata.conversation_id
        events = folder.objects(folder.call("trace", name, "-o", "json").stdout)
        assert [event["message_id"] for event in events] == [message.message_id for message in messages]
        assert [event["cause"] for event in events] == [0, 1, 2, 3, 4]
        assert events[3]["marks"] == ["retried in workers (5s)", "dead in workers: rejected"]
        shown = folder.call("trace", name)
        assert shown.exit_code == 0
        assert "    3 relay.step  agent-c@svc" in shown.stdout

    def test_what_does_not_hold_is_marked(self, folder: Any, messages: list[Message]) -> None:
        edit(messages[1], OPEN["a field of data"](messages[1].value, messages[0]))
        events = folder.objects(folder.call("trace", messages[0].message_id, "-o", "json").stdout)
        assert [event["marks"] for event in events] == [[], ["wrong: hash_mismatch"], [], [], []]

    def test_a_cause_that_is_elsewhere_is_said(self, folder: Any, messages: list[Message]) -> None:
        edit(messages[1], None)
        shown = folder.call("trace", messages[0].message_id).stdout
        assert f"(cause {messages[1].message_id} is not here)" in shown

    def test_a_diagram_has_numbers_for_ids_and_plain_labels(self, folder: Any) -> None:
        made = conversation(2)
        tree = msgspec.json.decode(made[1].value)
        tree["metadata"]["sender"]["id"] = '"] --> x; click n1 "javascript:alert(1)" <b>end</b>`%%{init: {}}%%'
        write([record(made[0]), NewRecord("agents.relay.step", b"k", msgspec.json.encode(tree)), record(made[2])])
        lines = folder.call("trace", made[0].message_id, "-o", "mermaid").stdout.splitlines()
        assert lines[0] == "flowchart TD"
        form = re.compile(
            r'  (?:n[0-9]+\["[A-Za-z0-9 ._-]*"\]|n[0-9]+ --> n[0-9]+'
            r"|classDef broken [a-z0-9:,-]+|class [n0-9,]+ broken)"
        )
        assert [line for line in lines[1:] if not form.fullmatch(line)] == []
        assert "  n1 --> n2" in lines
        assert "  class n2 broken" in lines

    def test_messages_that_name_each_other_as_cause_end_the_walk(self, folder: Any) -> None:
        made = conversation(2)
        tree = msgspec.json.decode(made[1].value)
        tree["metadata"]["causation_id"] = made[2].message_id
        write([record(made[0]), NewRecord("agents.relay.step", b"k", msgspec.json.encode(tree)), record(made[2])])
        assert folder.call("trace", made[0].message_id).exit_code == 0
        assert folder.call("verify", made[2].message_id).exit_code == 1

    def test_trace_reports_a_missing_conversation(self, folder: Any, messages: list[Message]) -> None:
        result = folder.call("trace", "nobody")
        assert result.exit_code == 1
        assert "no conversation nobody" in result.stderr
        assert folder.call("trace", messages[0].message_id, "--output", "svg").exit_code == 2
