"""What each group has made of a message, by what lies in the log."""

from __future__ import annotations

from typing import Any

import pytest

from bus.clock import ManualClock
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.settings.loading import load
from bus.topics.names import (
    dead_letter_topic,
    group_of_agent,
    mailbox_topic,
    message_topic,
    redrive_topic,
    retry_topic,
)
from bus.transports.base import GroupInfo, Record
from consumers.deadletters.letter_state import LetterState
from consumers.operations.lineage.log_search import StoredCopy, stored_copy
from consumers.operations.survey.group_verdicts import GroupVerdict, group_sentences, group_verdicts
from consumers.processes.approvals.held_runs import HeldRun
from producers.sealing.options import Outgoing
from producers.sealing.sealer import make_sealer
from tests.kit import Job

TOPIC = message_topic("agents", "job.asked")
GROUP = group_of_agent("worker@svc")


def seal(**options: Any) -> Message:
    settings = load(flags={"bus.url": "memory://"}, env={}, file=None).settings
    return make_sealer(settings, "a@svc", clock=ManualClock()).seal(Outgoing(Job(), **options)).message


def copy(message: Message, topic: str = TOPIC, offset: int = 7, at_ms: int = 1, group: str = "") -> StoredCopy:
    kind = "message" if topic == TOPIC else topic.split(".")[1].strip("_")
    headers: tuple[tuple[str, bytes], ...] = ()
    if topic.endswith(".dlq"):
        kind = "dlq"
        origin = [("__dlq.errors.topic", TOPIC), ("__dlq.errors.partition", "0"), ("__dlq.errors.offset", "7")]
        said = [*origin, ("__dlq.errors.group", group), ("sb-dlq-reason", "rejected")]
        headers = tuple((name, text.encode()) for name, text in said)
    record = Record(topic, 0, offset, at_ms, None, message.value, headers)
    return stored_copy(record, kind)


def group(name: str = GROUP, **committed: int) -> GroupInfo:
    """A group with what it has committed, by the last word of the topic; it reads the messages in any case."""
    places = {"job": TOPIC, "retry": retry_topic("agents", name, "30s"), "redrive": redrive_topic("agents", name)}
    return GroupInfo(
        name=name,
        members={"m": ((TOPIC, 0),)},
        committed={(places[word], 0): offset for word, offset in committed.items()},
    )


def verdict(info: GroupInfo, *copies: StoredCopy, states: dict[str, LetterState] | None = None) -> GroupVerdict:
    (found,) = group_verdicts(copies[0].message_id, copies, [info], states=states or {})
    return found


def test_a_message_before_the_committed_offset_is_done() -> None:
    assert verdict(group(job=8), copy(seal())).state == "done"


@pytest.mark.parametrize(("committed", "behind"), [({}, 7), ({"job": 0}, 7), ({"job": 5}, 2), ({"job": 7}, 0)])
def test_what_lies_behind_the_commit_waits_behind_the_records_before_it(committed: dict[str, int], behind: int) -> None:
    found = verdict(group(**committed), copy(seal()))
    assert (found.state, found.behind, found.place) == ("waits", behind, f"{TOPIC}/0/7")


def test_a_dead_letter_makes_the_groups_verdict_dead() -> None:
    job = seal()
    letter = copy(job, dead_letter_topic(TOPIC), 3, at_ms=5, group=GROUP)
    found = verdict(group(job=8), copy(job), letter)
    assert (found.state, found.place, found.note) == ("dead", f"{TOPIC}.dlq/0/3", "")
    assert verdict(group("other", job=8), copy(job), letter).state == "done"


def test_a_retry_waits_in_its_tier_and_is_done_once_that_is_committed() -> None:
    job = seal()
    put_off = copy(job, retry_topic("agents", GROUP, "30s"), 9, at_ms=5)
    found = verdict(group(job=8, retry=4), copy(job), put_off)
    assert (found.state, found.behind, found.note) == ("waits", 5, "put off")
    assert verdict(group(job=8, retry=10), copy(job), put_off).state == "done"


@pytest.mark.parametrize(
    ("held", "note"),
    [
        (HeldRun(digits="0a" * 32, asked_ms=5), "held for approval 0a0a0a0a0a0a"),
        (HeldRun(digits="0a", asked_ms=5, is_late=True), "held for approval 0a, the time for which is over"),
        (HeldRun(digits="0a", asked_ms=5, is_given=True), "its approval 0a was given, and no worker has run it yet"),
        (
            HeldRun(digits="0a", asked_ms=5, approvers=("lead@acme",)),
            "held for approval 0a: lead@acme sent approve, and no worker has run it yet",
        ),
    ],
)
def test_what_an_approval_holds_is_not_done_though_its_offset_is_committed(held: HeldRun, note: str) -> None:
    job = seal()
    (found,) = group_verdicts(job.message_id, [copy(job)], [group(job=8)], states={}, held={GROUP: held})
    assert (found.state, list(group_sentences([found], until="noon"))) == ("held", [f"{GROUP}: {note}"])
    (other,) = group_verdicts(job.message_id, [copy(job)], [group(job=8)], states={}, held={"other": held})
    assert other.state == "done"
    sent_back = copy(job, redrive_topic("agents", GROUP), 2, at_ms=6)
    infos = [group(job=8, redrive=3)]
    (ran,) = group_verdicts(job.message_id, [copy(job), sent_back], infos, states={}, held={GROUP: held})
    assert ran.state == "done"


def test_a_redriven_message_is_judged_by_its_redrive() -> None:
    job = seal()
    letter = copy(job, dead_letter_topic(TOPIC), 3, at_ms=5, group=GROUP)
    sent_back = copy(job, redrive_topic("agents", GROUP), 2, at_ms=6)
    assert verdict(group(job=8, redrive=2), copy(job), letter, sent_back).note == "sent back"
    assert verdict(group(job=8, redrive=3), copy(job), letter, sent_back).state == "done"
    again = copy(job, dead_letter_topic(TOPIC), 4, at_ms=7, group=GROUP)
    assert verdict(group(job=8, redrive=3), copy(job), letter, sent_back, again).place == f"{TOPIC}.dlq/0/4"


def test_a_message_for_another_agent_is_skipped_in_the_verdict() -> None:
    own, foreign, role = seal(to="worker@svc"), seal(to="other@svc"), seal(to=Agent(role="worker"))
    assert verdict(group(job=8), copy(own)).state == "done"
    assert verdict(group(job=8), copy(foreign)).state == "skipped"
    assert verdict(group(job=3), copy(foreign)).state == "waits"
    assert "role worker" in verdict(group(job=8), copy(role)).note


def test_a_group_that_does_not_read_its_topic_is_not_subscribed() -> None:
    reading, other = group(job=8), GroupInfo(name="g", members={}, committed={(mailbox_topic("agents", "g"), 0): 1})
    job = seal()
    found = group_verdicts(job.message_id, [copy(job)], [other, reading], states={})
    assert [(each.group, each.state) for each in found] == [(GROUP, "done"), ("g", "not subscribed")]


def test_a_verdict_is_a_sentence() -> None:
    job = seal()
    letter = copy(job, dead_letter_topic(TOPIC), 3, at_ms=5, group="c")
    infos = [group("a", job=8), group("b", job=1), group("c", job=8)]
    found = group_verdicts(job.message_id, [copy(job), letter], infos, states={})
    assert list(group_sentences(found)) == [
        "a: done",
        f"b: waits behind 6 records in {TOPIC}/0/7",
        f"c: dead, in {TOPIC}.dlq/0/3",
    ]
    assert "letters were read until" in next(group_sentences(found, until="noon"))
