"""What a survey means: each fault is named with its cause and a fix; what was not read is not judged."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bus.settings.loading import load
from bus.topics.specs import spec_of_topic
from bus.transports.base import Change, GroupInfo, PartitionRange
from consumers.deadletters.causes import Cause
from consumers.operations.survey.audit_view import AuditState
from consumers.operations.survey.group_state import GroupState, dropped_out, state_of_group, trend_of
from consumers.operations.survey.letter_watch import OpenLetters
from consumers.operations.survey.log_probe import LogHealth
from consumers.operations.survey.results import CheckResult, worst_first
from consumers.operations.survey.survey import FailedProcesses, Survey, WorkState, failed_processes
from consumers.operations.survey.topics_view import TopicsView, UnreadTopic, harmful
from consumers.operations.survey.verdicts import DECIDED, of_group, of_log, of_survey, of_topics
from consumers.processes.sagas.process import Process
from producers.directory.hold_ups import HoldUp
from producers.directory.presence import AgentEntry, DirectorySize, RefusedRecords

NOW_MS = 1_800_000_000_000


def group(**members: Any) -> GroupState:
    known = {"name": "worker-svc", "members": 1, "lag": 0, "worst": "agents.job.run", "stands": 0}
    return GroupState(**(known | members))


def held(reason: str, *, for_s: float = 30, **members: Any) -> HoldUp:
    known: dict[str, Any] = {
        "reason": reason,
        "topic": "agents.job.run",
        "partition": 2,
        "offset": 41,
        "message_type": "job.run",
        "message_id": "0192f0c0-0000-7000-8000-000000000001",
        "key": "customer-7",
        "since_ms": NOW_MS - round(for_s * 1000),
        "behind": 77,
    }
    return HoldUp(**(known | members))


def survey(**members: Any) -> Survey:
    known: dict[str, Any] = {
        "taken_ms": NOW_MS,
        "groups": (),
        "letters": OpenLetters(count=0, oldest_ms=None, causes=(), by_type=()),
        "work": WorkState(),
        "agents": (),
    }
    return Survey(**(known | members))


def verdict(state: GroupState) -> list[CheckResult]:
    return worst_first(list(of_group(state, NOW_MS)))


def test_a_group_that_is_far_behind_is_a_fault_with_its_age_and_direction_also_while_it_moves() -> None:
    (found,) = verdict(group(lag=429, oldest_s=424.0, trend="grows", still_s=0.0))
    assert found.state == "fault"
    assert "7 min behind in agents.job.run" in found.text
    assert "they get more" in found.text
    assert found.cure


def test_a_backlog_of_a_moment_is_no_fault() -> None:
    (found,) = verdict(group(lag=30, oldest_s=2.0, trend="grows"))
    assert (found.state, found.text) == ("ok", "worker-svc: 1 worker, 30 records wait, the first for 2 s")


def test_a_key_that_waits_for_its_next_attempt_is_named_with_message_time_and_backlog() -> None:
    until_ms = NOW_MS + 90_000
    (found,) = verdict(group(lag=78, oldest_s=40.0, hold_ups=(held("retry", until_ms=until_ms, detail="1 attempts"),)))
    assert found.state == "fault"
    for part in ("customer-7", "0192f0c0-0000-7000-8000-000000000001", "77 records", "UTC", "agents.job.run/2/41"):
        assert part in found.text
    assert "sealbus dlq add agents.job.run/2/41 --group worker-svc" in found.cure


def test_an_ordinary_retry_is_a_hint() -> None:
    found = verdict(group(lag=1, hold_ups=(held("retry", for_s=8, behind=0),)))
    assert [each.state for each in found] == ["hint", "ok"]


@pytest.mark.parametrize("reason", ["handler", "answer", "busy"])
def test_a_handler_within_its_deadline_is_not_accused(reason: str) -> None:
    found = verdict(group(lag=3, oldest_s=25.0, still_s=25.0, hold_ups=(held(reason, detail="agents.run"),)))
    assert [each.state for each in found] == ["ok"]


@pytest.mark.parametrize(
    ("reason", "area"),
    [
        ("stuck_handler", "groups"),
        ("breaker", "groups"),
        ("brake", "groups"),
        ("append", "groups"),
        ("crash", "groups"),
        ("inbox", "inbox"),
        ("key", "keys"),
    ],
)
def test_what_holds_a_group_up_is_told_instead_of_a_guess(reason: str, area: str) -> None:
    (found,) = verdict(group(lag=3, still_s=40.0, hold_ups=(held(reason, detail="the cause"),)))
    assert (found.state, found.area) == ("fault", area)
    assert "the cause" in found.text
    assert "report no reason" not in found.text


def test_a_message_that_ended_workers_is_named_once_however_many_workers_report_it() -> None:
    (found,) = verdict(group(lag=3, hold_ups=(held("crash", detail="2 workers ended while they ran it"),) * 2))
    for part in ("2 workers ended while they ran it", "0192f0c0-0000-7000-8000-000000000001", "77 records"):
        assert part in found.text
    assert "sealbus dlq add agents.job.run/2/41 --group worker-svc" in found.cure


@pytest.mark.parametrize("members", [0, 2])
def test_of_workers_that_all_dropped_out_nobody_is_asked_to_start_another(members: int) -> None:
    """A handler blocks their event loops: the members leave the group when their sessions end, and a new one blocks."""
    found = worst_first(list(of_group(group(members=members, lag=3, lost=2, still_s=30.0), NOW_MS)))[0]
    assert found.state == "fault"
    assert "its 2 workers dropped out without a goodbye, and 3 records wait" in found.text
    assert "no worker" not in found.text
    for part in ("loop.blocked", "start it again"):
        assert part in found.cure


def test_a_message_that_ends_each_worker_is_named_also_while_none_runs() -> None:
    texts = [
        each.text for each in of_group(group(members=0, lag=3, hold_ups=(held("crash", detail="2 ended"),)), NOW_MS)
    ]
    assert ["has no worker" in text or "2 ended: message" in text for text in texts] == [True, True]


@pytest.mark.parametrize(
    ("members", "lost", "heard", "count"), [(0, 0, 2, 2), (2, 0, 2, 0), (2, 2, 0, 2), (0, 2, 0, 2), (0, 0, 0, 0)]
)
def test_workers_without_a_session_dropped_out_before_a_heartbeat_of_theirs_is_missing(
    members: int, lost: int, heard: int, count: int
) -> None:
    info = GroupInfo(name="worker-svc", members={str(each): () for each in range(members)}, committed={})
    assert dropped_out(info, {"worker-svc": lost}, {"worker-svc": heard, "other": 5}) == count


def test_of_one_that_works_on_beside_a_silent_one_the_group_is_judged_as_ever() -> None:
    (found,) = verdict(group(members=2, lag=3, lost=1))
    assert found.state == "ok"


def test_a_worker_that_hangs_is_not_counted_any_more_once_it_is_forgotten() -> None:
    (found,) = verdict(group(members=0, lag=3))
    assert "has no worker" in found.text
    assert "hangs" in found.cure


def test_a_silent_worker_is_told_however_many_agents_there_are() -> None:
    agents = [agent(agent_id=f"a{number:03}@svc") for number in range(200)]
    agents[150] = agent(agent_id="a150@svc", lost=1, silent=1)
    found = [each.text for each in of_survey(survey(agents=tuple(agents))) if each.state == "fault"]
    assert any("1 worker of a150@svc fell silent" in text for text in found)


def test_what_a_card_names_and_the_group_has_committed_holds_nothing_up() -> None:
    location, each = ("agents.job.run", 2), held("crash")
    for committed, count in ((41, 1), (42, 0)):
        info = GroupInfo(name="worker-svc", members={"m": (location,)}, committed={location: committed})
        state = state_of_group(info, {location: PartitionRange(0, 50)}, hold_ups=[each])
        assert len(state.hold_ups) == count


def test_a_group_that_settles_nothing_and_whose_workers_report_nothing_says_so() -> None:
    (found,) = verdict(group(lag=3, still_s=40.0))
    assert found.state == "fault"
    assert "report no reason" in found.text


def test_a_log_that_was_not_written_to_is_not_judged() -> None:
    found = list(of_log(survey(log=LogHealth(error="Write on _heartbeats is needed")), "kafka://a"))
    assert [(each.area, each.state) for each in found] == [("log", "ok"), ("log", "unknown"), ("clock", "unknown")]
    assert all("not looked at" in each.text for each in found if each.state == "unknown")


@pytest.mark.parametrize(("append_s", "state"), [(0.02, "ok"), (0.66, "fault")])
def test_a_slow_log_is_a_fault_by_how_long_an_append_takes(append_s: float, state: str) -> None:
    found = list(of_log(survey(log=LogHealth(append_s=append_s, appends=5, clock_offset_s=0.0)), "kafka://a"))
    assert {each.area: each.state for each in found} == {"log": state, "clock": "ok"}


@pytest.mark.parametrize(("offset_s", "part"), [(30.0, "30 s ahead of"), (-30.0, "30 s behind"), (1.0, "agrees")])
def test_the_clock_is_judged_by_the_offset_alone(offset_s: float, part: str) -> None:
    found = list(of_log(survey(log=LogHealth(append_s=0.01, appends=1, clock_offset_s=offset_s)), "kafka://a"))
    assert part in next(each.text for each in found if each.area == "clock")


def test_topics_that_were_not_looked_at_are_not_ok() -> None:
    assert [each.state for each in of_topics(survey())] == ["unknown"]
    refused = TopicsView(looked_ms=NOW_MS, topics=3, error="DescribeConfigs is needed")
    assert [each.state for each in of_topics(survey(topics=refused))] == ["unknown"]


def test_records_that_are_deleted_too_early_and_types_that_nobody_reads_are_told() -> None:
    change = Change(topic="agents.job.run", setting="retention.ms", found="60000", wanted="604800000")
    view = TopicsView(
        looked_ms=NOW_MS, topics=3, changes=(change,), unread=(UnreadTopic(topic="agents.a.b", records=1_000_000),)
    )
    fault, hint = worst_first(list(of_topics(survey(topics=view))))
    assert "agents.job.run" in fault.text
    assert "no group reads agents.a.b (1,000,000 records)" in hint.text


def test_longer_retention_and_more_partitions_harm_nobody() -> None:
    def change(setting: str, found: str, wanted: str) -> Change:
        return Change(topic="agents.a.b", setting=setting, found=found, wanted=wanted)

    harmless = [
        change("retention.ms", "-1", "1000"),
        change("retention.ms", "2000", "1000"),
        change("partitions", "8", "4"),
        change("retention.bytes", "-1", "1000"),
    ]
    assert harmful(harmless) == []
    harming = [
        change("retention.ms", "1000", "-1"),
        change("retention.ms", "500", "1000"),
        change("cleanup.policy", "compact", "delete"),
        change("retention.bytes", "100", "-1"),
    ]
    assert harmful(harming) == harming


@pytest.mark.parametrize(
    ("topic", "kept"),
    [
        ("agents.job.run", "topics.retention_s"),
        ("agents.job.run.dlq", "topics.deadletter_retention_s"),
        ("agents._retry.worker-svc.30s", "topics.retention_s"),
        ("agents._redrive.worker-svc", "topics.retention_s"),
        ("agents._mail.worker-svc", "topics.retention_s"),
        ("agents._reply.shop-svc", "publish.max_ttl_s"),
    ],
)
def test_how_long_a_topic_keeps_its_records_is_known_from_its_name(topic: str, kept: str) -> None:
    settings = load(env={}, file=None).settings
    section, _, name = kept.partition(".")
    spec = spec_of_topic(settings, topic)
    assert spec is not None
    assert spec.retention_ms == round(getattr(getattr(settings, section), name) * 1000)


def test_workflows_of_an_inbox_that_is_not_there_are_not_called_fine() -> None:
    found = list(of_survey(survey(work=WorkState(unseen="inbox.url names no database"))))
    assert next(each.state for each in found if each.area == "processes") == "unknown"


@pytest.mark.parametrize(
    ("elsewhere", "states"), [({}, []), ({"shop": 2}, ["fault"]), (None, ["unknown"])], ids=["none", "two", "unread"]
)
def test_approvals_that_are_open_in_the_log_and_in_no_inbox_are_a_fault(elsewhere: Any, states: list[str]) -> None:
    found = [each for each in of_survey(survey(work=WorkState(elsewhere=elsewhere))) if each.area == "approvals"]
    assert [each.state for each in found] == states
    assert not elsewhere or "shop: 2 approvals are open in the log and unknown to the inbox" in found[0].text


def test_no_agent_at_all_is_not_called_healthy() -> None:
    assert next(each.state for each in of_survey(survey()) if each.area == "agents") == "unknown"


def agent(**members: Any) -> AgentEntry:
    known: dict[str, Any] = {"agent_id": "worker@svc", "health": "healthy", "instances": 1, "heard_s_ago": 1.0}
    return AgentEntry(**(known | members))


@pytest.mark.parametrize(
    ("members", "state", "part"),
    [
        ({"memory_mb": 480.0, "memory_limit_mb": 512.0}, "fault", "480 MB of the 512 MB"),
        ({"memory_mb": 428.0, "grown_mb": 348.0}, "hint", "348 MB more than when it began"),
        ({"memory_mb": 428.0, "grown_mb": 20.0}, "ok", "1 healthy"),
        ({"lost": 1, "silent": 1}, "fault", "1 worker of worker@svc fell silent without a goodbye, and no other"),
        ({"lost": 0, "silent": 1}, "ok", "1 healthy"),
        ({"lost": 0, "silent": 4, "is_steady": False}, "fault", "starts again and again"),
        (
            {"lost": 0, "silent": 4},
            "hint",
            "silent without a goodbye in the last minutes, and were replaced",
        ),
        ({"lost": 1, "silent": 4}, "fault", "1 of them were not replaced"),
    ],
)
def test_memory_and_lost_workers_are_told(members: dict[str, Any], state: str, part: str) -> None:
    found = [each for each in of_survey(survey(agents=(agent(**members),))) if each.area == "agents"]
    worst = worst_first(found)[0]
    assert worst.state == state
    assert part in worst.text


def test_a_cancelled_task_of_another_group_waits_for_no_worker_of_a_stopped_one() -> None:
    location, cancels = ("agents.shop.order", 0), ("agents.task.cancel", 0)
    info = GroupInfo(name="shop", members={}, committed={location: 50, cancels: 1}, uncommitted=())
    ranges = {location: PartitionRange(0, 50), cancels: PartitionRange(0, 3)}
    assert state_of_group(info, ranges).lag == 0
    assert state_of_group(info, ranges | {location: PartitionRange(0, 51)}).lag == 1
    at_work = msgspec.structs.replace(info, members={"one": (location, cancels)})
    assert state_of_group(at_work, ranges).lag == 2


def test_a_limit_is_named_and_nobody_is_asked_for_more_workers() -> None:
    found = verdict(group(lag=90, oldest_s=70.0, hold_ups=(held("limit", for_s=67, detail="openai"),)))
    assert any("waits for its turn within the limit openai" in each.text for each in found)
    assert not any("more workers" in each.cure or "claim" in each.text for each in found)


def test_a_handler_for_which_others_wait_is_named_and_nobody_is_asked_for_more_workers() -> None:
    running = held("handler", for_s=130, detail="agents.pack", behind=3)
    found = verdict(group(lag=4, oldest_s=130.0, hold_ups=(running,)))
    assert any("agents.pack runs for 2 min" in each.text and "3 records wait behind it" in each.text for each in found)
    assert not any("more workers" in each.cure for each in found)
    alone = held("handler", for_s=130, detail="agents.pack", behind=0)
    assert not any("agents.pack" in each.text for each in verdict(group(lag=4, hold_ups=(alone,))))


@pytest.mark.parametrize(
    ("before", "now", "trend"), [(None, 5, ""), (100, 140, "grows"), (140, 100, "shrinks"), (100, 101, "steady")]
)
def test_the_direction_of_a_backlog(before: int | None, now: int, trend: str) -> None:
    assert trend_of(before, now) == trend


@pytest.mark.parametrize(("failed", "ended", "state"), [(1, 12, "hint"), (6, 8, "fault")])
def test_workflows_that_fail_are_told_with_the_reason_of_the_last(failed: int, ended: int, state: str) -> None:
    work = WorkState(failed=(FailedProcesses(saga="buying", failed=failed, ended=ended, reason="timeout"),))
    found = worst_first([each for each in of_survey(survey(work=work)) if each.area == "processes"])
    assert found[0].state == state
    assert f"{failed} of the last {ended} workflows of buying failed or timed out: timeout" in found[0].text


def test_the_most_frequent_reason_of_workflows_that_failed_is_told() -> None:
    reasons = ["timeout", "rejected", "rejected"]
    (found,) = failed_processes([ended(reason) for reason in reasons] + [ended("", "completed")])
    assert (found.failed, found.ended, found.reason) == (3, 4, "2 of them rejected")
    (alone,) = failed_processes([ended("rejected")])
    assert alone.reason == "rejected"


def ended(reason: str, outcome: str = "failed") -> Process:
    state = msgspec.json.encode({"ending": {"outcome": outcome, "reason": reason, "where": ""}})
    given: dict[str, Any] = {"id": b"1", "namespace": "agents", "group": "shop", "saga": "buying", "key": "k"}
    return Process(
        **given, version=1, status="finished", shape="1.0.0", state=state, opener=b"{}", trust="user_request"
    )


def test_dead_letters_that_a_person_rejected_are_told_beside_the_others() -> None:
    by_type = (("a.b", "rejected", 45), ("a.b", DECIDED, 1))
    cause = Cause(message_type="a.b", reason="rejected", group="shop", error="no", pointer="")
    letters = OpenLetters(count=46, oldest_ms=NOW_MS, causes=((cause, 45, NOW_MS),), by_type=by_type)
    (found,) = [each for each in of_survey(survey(letters=letters)) if each.area == "letters"]
    assert found.text.startswith("45 dead letters are open, besides 1 that a person rejected; 45 of them: rejected")


@pytest.mark.parametrize(
    ("audit", "state"),
    [
        (AuditState(), "ok"),
        (AuditState(behind=3, oldest_ms=NOW_MS - 2_000, lease_ms=NOW_MS - 900_000), "ok"),
        (AuditState(behind=3, oldest_ms=NOW_MS - 60_000, lease_ms=NOW_MS + 9_000), "ok"),
        (AuditState(behind=3, oldest_ms=NOW_MS - 60_000, lease_ms=NOW_MS - 60_000), "fault"),
        (AuditState(behind=3, oldest_ms=NOW_MS - 60_000, lease_ms=0), "hint"),
        (AuditState(behind=90_000, oldest_ms=NOW_MS - 900_000, lease_ms=NOW_MS + 9_000), "fault"),
        (AuditState(error="nothing listens"), "fault"),
    ],
)
def test_an_audit_that_stands_is_told(audit: AuditState, state: str) -> None:
    assert [each.state for each in of_survey(survey(audit=audit)) if each.area == "audit"] == [state]


@pytest.mark.parametrize(
    ("audit", "state"),
    [
        (AuditState(spent=4.0, daily_budget=5.0), "ok"),
        (AuditState(spent=6.0, daily_budget=5.0), "hint"),
        (AuditState(spent=6.0, daily_budget=5.0, is_summed=False), "hint"),
        (AuditState(spent=4.0, daily_budget=5.0, is_summed=False), "unknown"),
        (AuditState(spent=4.0, daily_budget=5.0, behind=3, oldest_ms=NOW_MS - 60_000), "unknown"),
    ],
)
def test_what_is_spent_is_judged_only_where_all_of_it_is_known(audit: AuditState, state: str) -> None:
    assert [each.state for each in of_survey(survey(audit=audit)) if each.area == "costs"] == [state]


def test_without_a_budget_nothing_is_said_of_costs() -> None:
    assert [each for each in of_survey(survey(audit=AuditState())) if each.area == "costs"] == []


def test_without_an_audit_nothing_is_said_of_it() -> None:
    assert [each for each in of_survey(survey()) if each.area == "audit"] == []


def test_a_log_that_can_be_read_and_takes_no_record_is_a_fault() -> None:
    found = list(of_log(survey(log=LogHealth(failure="too few replicas are in sync")), "kafka://a"))
    assert [(each.area, each.state) for each in found] == [("log", "fault"), ("clock", "unknown")]


def test_forged_messages_are_told_apart_and_are_not_to_be_sent_back() -> None:
    letters = OpenLetters(
        count=4,
        oldest_ms=1,
        causes=(),
        by_type=(("a.b", "hash_mismatch", 4),),
    )
    (found,) = [each for each in of_survey(survey(letters=letters)) if each.area == "letters"]
    assert (found.state, found.text) == (
        "fault",
        "4 dead letters are of messages that were forged or changed: 4 hash_mismatch of a.b",
    )
    assert "do not redrive them; find" in found.cure
    letters = msgspec.structs.replace(letters, by_type=(*letters.by_type, ("a.b", "signature_missing", 1)), count=5)
    (found,) = [each for each in of_survey(survey(letters=letters)) if each.area == "letters"]
    assert "do not redrive them, unless a key or a setting" in found.cure


def test_what_no_worker_can_read_is_not_to_be_sent_back_either() -> None:
    cause = Cause(message_type="a.b", reason="malformed", group="shop", error="no JSON", pointer="")
    by_type = (("a.b", "malformed", 3), ("a.b", "rejected", 2))
    other = msgspec.structs.replace(cause, reason="rejected")
    letters = OpenLetters(count=5, oldest_ms=1, causes=((cause, 3, NOW_MS), (other, 2, NOW_MS)), by_type=by_type)
    broken, rest = [each for each in of_survey(survey(letters=letters)) if each.area == "letters"]
    assert (broken.state, broken.text) == (
        "fault",
        "3 dead letters are of messages that no worker can read: 3 malformed of a.b",
    )
    assert "sealbus dlq dismiss" in broken.cure
    assert "redrive cannot change" in broken.cure
    assert rest.text == "2 dead letters are open; 2 of them: rejected of a.b"


def test_what_a_person_has_rejected_is_no_fault() -> None:
    said = OpenLetters(count=2, oldest_ms=1, causes=(), by_type=(("a.b", "approval_rejected", 2),))
    (found,) = [each for each in of_survey(survey(letters=said)) if each.area == "letters"]
    assert (found.state, found.text) == ("ok", "no dead letter is open but 2 approvals that a person rejected")
    cause = Cause(group="g", message_type="a.b", reason="rejected", pointer="", error="no")
    refused = msgspec.structs.replace(cause, reason="approval_rejected")
    also = OpenLetters(
        count=5,
        oldest_ms=1,
        causes=((refused, 3, 1), (cause, 2, 1)),
        by_type=(("a.b", "approval_rejected", 3), ("a.b", "rejected", 2)),
    )
    (found,) = [each for each in of_survey(survey(letters=also)) if each.area == "letters"]
    assert (found.state, found.text) == (
        "fault",
        "2 dead letters are open, besides 3 that a person rejected; 2 of them: rejected of a.b",
    )


def test_refused_heartbeats_are_told_with_their_reason_and_only_while_they_come() -> None:
    size = DirectorySize(
        refused=500, refused_lately=(RefusedRecords(reason="key_revoked", agent_id="eve@svc", count=3),)
    )
    texts = [each.text for each in of_survey(survey(directory=size)) if each.area == "agents"]
    named = "3 cards and heartbeats that name eve@svc as sender were rejected within the last minute: key_revoked"
    assert named in texts
    quiet = [each.text for each in of_survey(survey(directory=DirectorySize(refused=500)))]
    assert not [text for text in quiet if "rejected" in text]


def test_an_agent_whose_heartbeats_nobody_believes_is_not_said_to_have_died() -> None:
    refused = (RefusedRecords(reason="key_unknown", agent_id="worker@svc", count=5),)
    found = of_survey(
        survey(agents=(agent(silent=1, lost=1),), directory=DirectorySize(refused=5, refused_lately=refused))
    )
    told = [each for each in found if each.area == "agents" and each.state == "fault"]
    text = "5 cards and heartbeats that name worker@svc as sender were rejected within the last minute: key_unknown"
    assert [each.text for each in told] == [f"{text}: what its workers report counts for nothing here"]
    assert "sealbus key export" in told[0].cure


def test_a_namespace_that_no_audit_records_is_not_called_recorded() -> None:
    found = [each for each in of_survey(survey(audit=AuditState(is_empty=True))) if each.area == "audit"]
    assert [each.state for each in found] == ["unknown"]


def test_a_worker_whose_clock_is_wrong_is_named() -> None:
    found = [each for each in of_survey(survey(agents=(agent(clock_offset_s=-30.0),))) if each.area == "clock"]
    assert [each.state for each in found] == ["fault"]
    assert "30 s behind the log's" in found[0].text


def test_dead_letters_that_are_still_being_read_are_not_called_none() -> None:
    letters = OpenLetters(count=0, oldest_ms=None, causes=(), by_type=(), is_whole=False, read=12_000)
    found = [each for each in of_survey(survey(letters=letters)) if each.area == "letters"]
    assert [each.state for each in found] == ["unknown"]
    assert "12,000 so far" in found[0].text
