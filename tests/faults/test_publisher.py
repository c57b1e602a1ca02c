"""What the harness's own publisher claims: no record is in the log before its journal says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from harness.journal import Intent, Journal, Outcome, published_in, unfinished_in
from harness.publisher import Config, Publishing

from bus.protocol.sealing import parse
from bus.transports.base import NewRecord
from producers.connection import connect


@pytest.mark.medium
async def test_nothing_is_sent_before_its_intent_is_durable(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    drawn = {"count": 40, "rate": 4_000, "seed": 1, "duplicates": 1.0, "most_repeats": 3, "forged": 0.1}
    config = Config(url="memory://", namespace="faults", journal=str(journal), **drawn)
    early: list[str] = []
    async with connect("memory://", namespace="faults", agent="faults-publisher") as bus:
        append = bus.transport.append

        async def watched(records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> object:
            durable = published_in(journal)
            early.extend(name for record in records if (name := parse(record.value or b"").message_id) not in durable)
            return await append(records, timeout_s=timeout_s)

        bus.transport.append = watched
        await Publishing(config, bus).run()
    assert len(published_in(journal)) >= 40
    assert early == []


def test_a_line_that_a_death_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path).write([Outcome(message_id="a", outcome="accepted")])
    path.write_bytes(path.read_bytes() + b'{"type":"out')
    Journal(path).write([Outcome(message_id="b", outcome="accepted")])
    assert [line[-1:] for line in path.read_bytes().splitlines()] == [b"}", b"t", b"}"]


def test_a_restarted_publisher_resends_messages_of_unknown_fate(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    answers = {
        "silent": [],
        "taken": ["unknown", "accepted"],
        "refused": ["rejected"],
        "doubtful": ["unknown", "rejected"],
    }
    journal = Journal(path)
    for number, (name, outcomes) in enumerate(answers.items()):
        journal.write([_intent(name, number), *(Outcome(message_id=name, outcome=outcome) for outcome in outcomes)])
    unfinished, numbers = unfinished_in(path)
    assert [intent.message_id for intent in unfinished] == ["silent", "doubtful"]
    assert numbers == {0, 1, 2, 3}


def _intent(name: str, number: int) -> Intent:
    return Intent(
        message_id=name,
        message_type="fault.task",
        idempotency_key=name,
        lane="k1",
        number=number,
        behaviour="ok",
        value="",
        content="",
        expires_ms=0,
        at_ms=0.0,
    )
