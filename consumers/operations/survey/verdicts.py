"""Verdicts: what a survey means, as checks with their fixes. Pure.

A verdict speaks only of what the survey has read; of the rest it says that it was not looked at.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec

from bus.protocol.reasons import DECIDED_BY_BYTES, FORGED
from bus.topics.names import message_topic
from consumers.operations.survey.drift import of_changes
from consumers.operations.survey.group_state import GroupState
from consumers.operations.survey.letter_watch import OpenLetters
from consumers.operations.survey.member_verdicts import of_members
from consumers.operations.survey.results import CheckResult, fault, hint, ok, unknown, worst_first
from consumers.operations.survey.survey import Survey
from producers.directory.hold_ups import HoldUp
from producers.directory.presence import AgentEntry, RefusedRecords

__all__ = [
    "BEHIND_S",
    "DECIDED",
    "STILL_S",
    "cure_of_database",
    "of_cards",
    "of_group",
    "of_hold_up",
    "of_log",
    "of_survey",
    "of_topics",
    "waits_of",
]

_MAX_AGENTS: Final = 20
_MAX_HOLD_UPS: Final = 5
_MAX_SKEW_S: Final = 2.0
_WORKER_SKEW_S: Final = 5.0
"""A heartbeat may be under way for some seconds between its seal and its place in the log."""
_SLOW_S: Final = 0.4
_KEY_CURE: Final = "sealbus key list; give the program its new private key"
_KEY_CURES: Final = {
    "key_unknown": "put its public key among the trusted ones: sealbus key export, into the file that trust.keys "
    "names; or give the program a private key whose public one is there"
}
"""An append that takes longer on average slows down every publish and commit."""
STILL_S: Final = 20.0
HELD_S: Final = 20.0
BEHIND_S: Final = 300.0
_BEHIND_SOON_S: Final = 60.0
_MUCH_MB, _MUCH = 150.0, 1.5
_OF_LIMIT: Final = 0.85
_LIMITED: Final = "the limit sets the pace: raise it in limits=[...], or publish less; no message is lost"
_ONE_HANDLER: Final = "no other worker can help: look at what the handler calls; a shorter timeout_s cuts it sooner"
_OUTSIDE: Final = frozenset({"inbox", "append", "key", "breaker", "brake", "limit"})
"""What whole types or workers wait for: one line tells it."""
_PID: Final = re.compile(r"pid (\d+) of PostgreSQL")
_LOST: Final = 3
_MUCH_BEHIND: Final = 10_000
_BROKEN: Final = DECIDED_BY_BYTES - FORGED
"""The reasons of messages that stay refused, and that nobody need have forged."""
DECIDED: Final = "approval_rejected"
"""The reason of messages that a person has judged: nothing is wrong, and nobody has to look."""
_DOORS: Final = "doors"
"""The group of the gateway, which alone ends tasks (`consumers.gateway.agents`)."""
_GATEWAY: Final = "start it: sealbus serve gateway"
_TASKS: Final = "task"
_FEW: Final = 3
_MANY: Final = 5


def of_survey(survey: Survey) -> Iterator[CheckResult]:
    """Check the current state: groups, dead letters, processes, approvals, agents."""
    for group in survey.groups:
        yield from of_group(group, survey.taken_ms)
    if not survey.groups:
        yield ok("groups", "no group has read anything yet")
    yield from _of_transactions(survey)
    yield from _of_letters(survey)
    yield from _of_work(survey)
    yield from _of_agents(survey)
    yield from of_members(survey.agents, survey.taken_ms)
    yield from _of_audit(survey)


def of_log(survey: Survey, url: str) -> Iterator[CheckResult]:
    """Check how fast the log takes a record, and the clock of this machine against the log's."""
    log = survey.log
    if log.failure:
        text = f"{url} can be read, and takes no record: {log.failure}"
        cure = "start the brokers that are missing; publishers wait, then raise PublishUnknown"
        yield fault("log", text, cure)
        yield unknown("clock", "whether it agrees with the log's")
        return
    if log.append_s is None:
        yield ok("log", f"{url} answers")
        yield unknown("log", f"how long an append takes: {log.error}")
        yield unknown("clock", f"whether it agrees with the log's: {log.error}")
        return
    took = f"an append takes {_duration(log.append_s)}" + (f" on average of {log.appends}" if log.appends > 1 else "")
    if log.append_s > _SLOW_S:
        cure = "look at the brokers: processor, disk, network, and partitions with too few replicas in sync"
        yield fault("log", f"{url} is slow: {took}, and every publish and commit waits as long", cure)
    else:
        yield ok("log", f"{url} answers; {took}")
    offset_s = log.clock_offset_s
    if offset_s is None:
        yield unknown("clock", "whether it agrees with the log's")
    elif abs(offset_s) > _MAX_SKEW_S:
        text = f"{offset_s:.0f} s ahead of" if offset_s > 0 else f"{-offset_s:.0f} s behind"
        yield fault("clock", f"this clock is {text} the log's", "run chrony or systemd-timesyncd on both machines")
    else:
        yield ok("clock", "agrees with the log's")


def of_topics(survey: Survey) -> Iterator[CheckResult]:
    """Check all topics of the namespace by what their names say they are for."""
    view = survey.topics
    if view is None:
        yield unknown("topics", "whether records are kept long enough")
        return
    if view.error:
        cure = "allow DescribeConfigs on the topics of the namespace"
        yield unknown("topics", f"whether records are kept long enough ({view.error})", cure)
    elif not view.topics:
        yield unknown("topics", "whether records are kept long enough: no topic of the namespace exists yet")
    elif not view.changes:
        yield ok("topics", f"all {view.topics:,} keep their records long enough")
    for finding in of_changes(view.changes, "MODULE:APP"):
        yield fault("topics", f"{finding.topic}: {finding.detail.replace(' -> ', ', and must be ')}", finding.advice)
    if view.unread:
        named = ", ".join(f"{each.topic} ({each.records:,} records)" for each in view.unread[:_FEW])
        more = f" and {len(view.unread) - _FEW} more" if len(view.unread) > _FEW else ""
        yield hint("topics", f"no group reads {named}{more}", "start the agent that handles the type: sealbus run")


def of_cards(agents: Sequence[AgentEntry], existing: Collection[str], namespace: str) -> Iterator[CheckResult]:
    """Check whether the topics exist that running *agents* read or append to, by their cards."""
    wanted: dict[str, list[str]] = {}
    for agent in agents:
        for topic in dict.fromkeys((*(message_topic(namespace, name) for name in agent.types), *agent.missing)):
            if topic not in existing:
                wanted.setdefault(topic, []).append(agent.agent_id)
    for topic, names in wanted.items():
        text = f"{', '.join(names)} needs {topic}, which does not exist"
        cure = (
            "sealbus topic apply MODULE:APP of that agent; a type that its code does not name goes to App(types=[...])"
        )
        yield fault("topics", text, cure)


def of_group(group: GroupState, now_ms: int) -> Iterator[CheckResult]:
    """Check one group: has it workers, does it settle, how far is it behind, and what holds it up."""
    waits = waits_of(group.lag)
    waits += "" if group.oldest_s is None else f", the first for {_age(group.oldest_s)}"
    if group.stands:
        text = f"{group.name} stands in {group.stands} partitions: what it would read next is not kept any more"
        yield fault("groups", text, f"sealbus group skip-lost {group.name} --why ...")
        return
    if group.lag and (group.is_silent or not group.members):
        yield _of_absent(group, waits)
        crashes = tuple(each for each in group.hold_ups if each.reason == "crash")
        yield from _of_hold_ups(msgspec.structs.replace(group, hold_ups=crashes), now_ms)
        return
    told = list(_of_hold_ups(group, now_ms))
    yield from told
    if any(found.state == "fault" for found in told):
        return
    behind = f"{group.name} is {_age(group.oldest_s or 0)} behind in {group.worst}: {waits_of(group.lag)}"
    behind += {"grows": ", and they get more", "shrinks": ", and they get fewer"}.get(group.trend, "")
    faster = "start more workers, up to the partitions; raise worker.concurrency; make the handler faster"
    if any(each.reason == "limit" for each in group.hold_ups):
        faster = _LIMITED
    elif any(found.cure == _ONE_HANDLER for found in told):
        faster = _ONE_HANDLER
    if group.oldest_s is not None and group.oldest_s > BEHIND_S:
        yield fault("groups", behind, faster)
    elif group.oldest_s is not None and group.oldest_s > _BEHIND_SOON_S and group.trend != "shrinks":
        # One look alone does not know whether it grows.
        yield (fault if group.trend == "grows" else hint)("groups", behind, faster)
    elif group.still_s > STILL_S and not group.hold_ups:
        text = f"{group.name} has settled nothing for {group.still_s:.0f} s, and {waits}; its workers report no reason"
        yield fault("groups", text, "their /healthz/live and their logs: sealbus run --metrics-port")
    else:
        yield ok("groups", f"{group.name}: {_many(group.members, 'worker', 'workers')}, {waits}")


def _of_hold_ups(group: GroupState, now_ms: int) -> Iterator[CheckResult]:
    told = [found for each in _distinct(group.hold_ups) if (found := of_hold_up(group.name, each, now_ms)) is not None]
    told.sort(key=lambda found: found.state != "fault")
    yield from told[:_MAX_HOLD_UPS]
    if (more := len(told) - _MAX_HOLD_UPS) > 0:
        yield hint("groups", f"{more} more messages hold {group.name} up", f"sealbus group show {group.name}")


def _of_absent(group: GroupState, waits: str) -> CheckResult:
    """Return the fault of a group for which records wait, and of which no worker is heard."""
    if group.is_silent:
        lost = "its worker" if group.lost == 1 else f"its {group.lost} workers"
        text = f"{group.name}: {lost} dropped out without a goodbye, and {waits}, most in {group.worst}"
        cure = (
            "look at their logs: loop.blocked names a handler that blocks the event loop: fix it, and end that worker; "
            "a new one would block, too. One that was killed or has crashed: start it again"
        )
        return fault("groups", text, cure)
    text = f"{group.name} has no worker, and {waits}, most in {group.worst}"
    start = "start its worker: sealbus run MODULE:APP. One that runs and is not counted hangs: see its log"
    return fault("groups", text, _GATEWAY if group.name == _DOORS else start)


def _distinct(hold_ups: Sequence[HoldUp]) -> list[HoldUp]:
    """Return one of those that wait for the same thing outside, with all that wait behind them."""
    found: dict[object, HoldUp] = {}
    for each in hold_ups:
        cause: object = (each.reason, each.message_type) if each.reason in _OUTSIDE else id(each)
        if each.reason == "crash":
            # Every worker names the same message.
            found.setdefault((each.topic, each.partition, each.offset), each)
            continue
        known = found.get(cause)
        found[cause] = each if known is None else msgspec.structs.replace(known, behind=known.behind + each.behind + 1)
    return list(found.values())


def of_hold_up(group: str, each: HoldUp, now_ms: int) -> CheckResult | None:
    """Return what one hold-up of *group* means; None where it is usual."""
    place = f"{each.topic}/{each.partition}/{each.offset}"
    message = f"message {each.message_id or '?'} ({place})"
    held_s = (now_ms - each.since_ms) / 1000
    behind = f"; {_many(each.behind, 'record waits', 'records wait')} behind it" if each.behind else ""
    match each.reason:
        case "stuck_handler" | "crash" | "handler" | "answer":
            return _of_handler(group, each, now_ms, message + behind)
        case "retry":
            until = "" if each.until_ms is None else f" until {_clock_time(each.until_ms)}"
            key = f"key {each.key!r}" if each.key else "a message without a key"
            text = f"{group}: {key} of {each.message_type} waits{until} for its next attempt: {message}, {each.detail}"
            cure = f"fix the error, or take it out of the way: sealbus dlq add {place} --group {group} --why ..."
            make = fault if held_s >= HELD_S and each.behind else hint
            return make("groups", text + behind, cure)
        case "breaker":
            text = f"{group}: {each.message_type} waits for {each.detail or 'a dependency'}, which is down{behind}"
            return fault("groups", text, "start it, or correct how it is reached; the messages go on by themselves")
        case "brake":
            text = f"{group}: {each.detail}{behind}"
            return fault("groups", text, "sealbus dlq list --by cause shows what died; they go on by themselves")
        case "inbox":
            return fault(
                "inbox", f"{group}: messages wait for the inbox{behind}: {each.detail}", cure_of_database(each.detail)
            )
        case "append":
            text = f"{group}: {message} waits for the log: {each.detail}{behind}"
            return fault("groups", text, "sealbus topic apply for a missing topic; else look at the brokers")
        case "key":
            return fault("keys", f"{group}: nothing runs: {each.detail}{behind}", "sealbus key rotate AGENT")
        case "limit" if held_s > _BEHIND_SOON_S:
            text = f"{group}: {each.message_type} waits for its turn within the limit {each.detail}{behind}"
            return hint("groups", text, _LIMITED)
        case "claim" if held_s > _BEHIND_SOON_S:
            text = f"{group}: {message} is claimed by another worker, for {_age(held_s)}"
            return hint("groups", text, "a worker that was killed keeps its claims for inbox.lease; others wait for it")
        case _:
            return None


def _of_handler(group: str, each: HoldUp, now_ms: int, message: str) -> CheckResult | None:
    """Return what is wrong with a message whose handler runs long or does not end, or under which workers end."""
    if each.reason in ("handler", "answer"):
        held_s = (now_ms - each.since_ms) / 1000
        if held_s <= _BEHIND_SOON_S or not each.behind:
            return None
        until = "" if each.until_ms is None else f", at most until {_clock_time(each.until_ms)}"
        runs = each.detail if each.reason == "answer" else f"{each.detail} runs"
        return hint("groups", f"{group}: {runs} for {_age(held_s)}{until}: {message}", _ONE_HANDLER)
    if each.reason == "crash":
        add = f"sealbus dlq add {each.topic}/{each.partition}/{each.offset} --group {group} --why ..."
        cure = "their logs have why they ended. It becomes a dead letter after 3 ends of a worker that runs it alone; "
        return fault("groups", f"{group}: {each.detail}: {message}", f"{cure}at once: {add}")
    over = "" if each.until_ms is None else f" for {_age((now_ms - each.until_ms) / 1000)}"
    cure = "fix the handler, or what it calls; its worker's log has its stack, once. End that worker: others go on"
    return fault("groups", f"{group}: {each.detail} is past its deadline{over}: {message}", cure)


def cure_of_database(error: str, setting: str = "inbox.url", until: str = "messages wait, and none is lost") -> str:
    """Return what to do about the *error* of a database, and what happens *until* then."""
    if found := _PID.search(error):
        return f'end it: psql -c "SELECT pg_terminate_backend({found[1]})"; {until}'
    if "too many clients" in error or "connection slots" in error:
        return (
            'raise max_connections, or end who has the connections: psql -c "SELECT application_name, count(*) FROM '
            'pg_stat_activity GROUP BY 1 ORDER BY 2 DESC"'
        )
    if "refuses" in error or "password" in error:
        return f"correct {setting}, or the rights of its user; {until}"
    return f"start the database, or free what blocks it; {until}"


def _of_letters(survey: Survey) -> Iterator[CheckResult]:
    letters = survey.letters
    if not letters.is_whole:
        yield unknown("letters", f"all dead letters: they are being read, {letters.read:,} so far")
    forged, named = _counted(letters, FORGED)
    if forged:
        many = _many(forged, "dead letter is", "dead letters are")
        text = f"{many} of messages that were forged or changed: {named}"
        kinds = {reason for _, reason, _ in letters.by_type if reason in FORGED}
        but = "" if kinds <= DECIDED_BY_BYTES else ", unless a key or a setting of yours was wrong"
        cure = f"do not redrive them{but}; find who writes to the topic: sealbus dlq list; then sealbus dlq dismiss"
        yield fault("letters", text, cure)
    broken, named = _counted(letters, _BROKEN)
    if broken:
        text = f"{_many(broken, 'dead letter is', 'dead letters are')} of messages that no worker can read: {named}"
        cure = "fix the sender; a redrive cannot change them: sealbus dlq list, then sealbus dlq dismiss"
        yield fault("letters", text, cure)
    refused, _ = _counted(letters, {DECIDED})
    others = letters.count - forged - broken - refused
    if others > 0:
        told = {*FORGED, *_BROKEN, DECIDED}
        cause, count, _ = next((each for each in letters.causes if each[0].reason not in told), letters.causes[0])
        text = f"{_many(others, 'dead letter is', 'dead letters are')} open"
        text += f", besides {refused:,} that a person rejected; " if refused else "; "
        text += f"{count:,} of them: {cause.reason} of {cause.message_type or '?'}"
        yield fault("letters", text, "sealbus dlq list; fix the cause, then sealbus dlq redrive")
    elif letters.is_whole and not forged and not broken:
        asked = f" but {_many(refused, 'approval', 'approvals')} that a person rejected" if refused else ""
        yield ok("letters", f"no dead letter is open{asked}")


def _counted(letters: OpenLetters, reasons: Collection[str]) -> tuple[int, str]:
    """Return how many open *letters* have one of *reasons*, and the most frequent reasons and types in words."""
    kinds = [(count, reason, name) for name, reason, count in letters.by_type if reason in reasons]
    named = ", ".join(f"{count:,} {reason} of {name or '?'}" for count, reason, name in sorted(kinds)[::-1][:_FEW])
    return sum(count for count, _, _ in kinds), named


def _of_work(survey: Survey) -> Iterator[CheckResult]:
    work = survey.work
    if work.unseen:
        yield unknown("processes", f"workflows and approvals: {work.unseen}")
        return
    if work.error:
        yield fault("processes", work.error, cure_of_database(work.error))
    elif work.overdue:
        text = f"{work.overdue:,} waits of processes are overdue: no worker of theirs runs, or their steps fail"
        yield fault("processes", text, "sealbus workflow list --overdue")
    else:
        yield ok("processes", f"{sum(work.open.values()):,} open, none overdue")
    tasks, doors = work.open.get(_TASKS, 0), next((each for each in survey.groups if each.name == _DOORS), None)
    if tasks and (doors is None or not (doors.members or doors.lag)):
        yield fault("groups", f"{_many(tasks, 'task is', 'tasks are')} open, and no gateway runs: none ends", _GATEWAY)
    for saga in work.failed:
        text = (
            f"{saga.failed} of the last {saga.ended} workflows of {saga.saga} failed or timed out: {saga.reason or '?'}"
        )
        are_many = saga.failed >= _MANY and saga.failed * 2 > saga.ended
        yield (fault if are_many else hint)(
            "processes", text, f"sealbus workflow list --name {saga.saga} --state failed"
        )
    if work.approvals:
        oldest_s = (survey.taken_ms - (work.oldest_approval_ms or survey.taken_ms)) / 1000
        text = f"{_many(work.approvals, 'message waits', 'messages wait')} for an approval, "
        text += f"the oldest for {oldest_s / 60:.0f} min"
        yield hint("approvals", text, "sealbus approval list")
    if work.elsewhere is None:
        yield unknown("approvals", "whether the inbox has those that are open in the log: they may not be read")
    for group, count in (work.elsewhere or {}).items():
        text = f"{group}: {_many(count, 'approval is', 'approvals are')} open in the log and unknown to the inbox"
        cure = (
            "start the worker that has them in an inbox of its own, or set inbox.url to the inbox of the group: no "
            "decision about them is taken until then"
        )
        yield fault("approvals", text, cure)


def _of_agents(survey: Survey) -> Iterator[CheckResult]:
    # Anybody can make up names where there are no keys.
    ill = [agent for agent in survey.agents if agent.health == "unhealthy" or agent.unwell]
    for agent in ill[:_MAX_AGENTS]:
        if not agent.unwell:
            heard = "" if agent.heard_s_ago is None else f", the last one {agent.heard_s_ago:.0f} s ago"
            text = f"{agent.agent_id} is unhealthy: no worker of it is heard{heard}"
            cure = "start it if it should run: sealbus run; its log has whether it ended, was killed or hangs"
            yield fault("agents", text, cure)
        else:
            workers = f"{agent.unwell} of {agent.unwell + agent.instances} workers"
            text = f"{workers} of {agent.agent_id} report that they are stuck"
            yield fault("agents", text, "its /healthz/live names the handler; end that worker: others go on")
    if (more := len(ill) - _MAX_AGENTS) > 0:
        yield fault("agents", f"{more:,} more are unhealthy or stuck", "sealbus agent list")
    size = survey.directory
    silent = [each for agent in survey.agents if agent.agent_id not in size.unbelieved for each in _of_silent(agent)]
    found = worst_first([*silent, *(each for agent in survey.agents for each in _of_workers(agent))])
    yield from found[:_MAX_AGENTS]
    if (more := len(found) - _MAX_AGENTS) > 0:
        yield hint("agents", f"{more:,} more findings about workers", "sealbus agent list")
    if size.dropped:
        text = f"{size.dropped:,} cards and heartbeats found no place: {size.agents:,} agents are known"
        yield hint(
            "agents", text, "raise directory.max_agents, or find the sender of invented names: sealbus agent list"
        )
    yield from _of_refused(size.refused_lately, {agent.agent_id for agent in survey.agents if agent.silent})
    healthy = sum(agent.is_healthy for agent in survey.agents)
    if survey.agents:
        yield ok("agents", f"{healthy} healthy")
    else:
        yield unknown("agents", "no worker is there that announces itself (directory.enabled)")


def _of_refused(refused: Sequence[RefusedRecords], silent: Collection[str]) -> Iterator[CheckResult]:
    """Check the cards and heartbeats that were rejected; of *silent* agents a worker is not heard any more."""
    by_reason: dict[str, list[RefusedRecords]] = {}
    for each in refused:
        by_reason.setdefault(each.reason, []).append(each)
    for reason, found in by_reason.items():
        named = [each.agent_id for each in found if each.agent_id]
        whose = f" that name {', '.join(named[:_FEW])}{', ...' if len(named) > _FEW else ''} as sender" if named else ""
        count = sum(each.count for each in found)
        text = f"{count:,} cards and heartbeats{whose} were rejected within the last minute: {reason}"
        if reason.startswith("key_"):
            unheard = any(name in silent for name in named)
            text += ": what its workers report counts for nothing here" if unheard else ""
            yield (fault if unheard else hint)("agents", text, _KEY_CURES.get(reason, _KEY_CURE))
        elif reason == "expired":
            cure = "the log or the worker stood still for a while; if it goes on, compare the clocks of the workers"
            yield hint("agents", text, cure)
        else:
            yield hint("agents", text, "check who may write to the topics _directory and _heartbeats")


def _of_silent(agent: AgentEntry) -> Iterator[CheckResult]:
    """Check the workers of an agent that fell silent."""
    if agent.silent >= _LOST:
        others = f"; {agent.lost} of them were not replaced" if agent.lost else ": it starts again and again"
        is_over = agent.is_steady and not agent.lost
        others = ", and were replaced" if is_over else others
        text = f"{agent.silent} workers of {agent.agent_id} fell silent without a goodbye in the last minutes{others}"
        cure = "its log has why it ends; exit code 137: killed; dmesg has it if memory ran out"
        yield (hint if is_over else fault)("agents", text, cure)
    elif agent.lost:
        lost = _many(agent.lost, "worker", "workers")
        text = f"{lost} of {agent.agent_id} fell silent without a goodbye, and no other has begun since"
        cure = (
            "it was killed, has crashed, is cut off, or a handler blocks its event loop: look at its log, at its "
            "/healthz/live, and at the log of its host"
        )
        yield fault("agents", text, cure)


def _of_workers(agent: AgentEntry) -> Iterator[CheckResult]:
    """Check clock and memory of an agent's workers."""
    if abs(agent.clock_offset_s) > _WORKER_SKEW_S:
        side = "ahead of" if agent.clock_offset_s > 0 else "behind"
        text = f"the clock of a worker of {agent.agent_id} is {abs(agent.clock_offset_s):.0f} s {side} the log's"
        yield fault("clock", text, "run chrony or systemd-timesyncd on its machine: SealbusClockSkew names it")
    memory, limit = agent.memory_mb, agent.memory_limit_mb
    if memory is None:
        return
    if limit and memory >= _OF_LIMIT * limit:
        text = f"a worker of {agent.agent_id} uses {memory:,.0f} MB of the {limit:,.0f} MB it may have"
        yield fault("agents", text, "it will be killed: restart it, find what keeps memory, or raise the limit")
    elif agent.grown_mb >= max(_MUCH_MB, (memory - agent.grown_mb) * (_MUCH - 1)):
        text = f"a worker of {agent.agent_id} uses {memory:,.0f} MB, {agent.grown_mb:,.0f} MB more than when it began"
        yield hint("agents", text, "if it goes on, a handler keeps memory; worker.max_in_flight_bytes bounds messages")


def _of_audit(survey: Survey) -> Iterator[CheckResult]:
    audit = survey.audit
    if audit is None:
        return
    start = "start it: sealbus serve audit; it goes on where it was"
    waits_s = 0.0 if audit.oldest_ms is None else (survey.taken_ms - audit.oldest_ms) / 1000
    waits = _many(audit.behind, "record is", "records are") + " not recorded yet"
    waits += f", the first for {_age(waits_s)}" if waits_s > 0 else ""
    # A process that has nothing to write does not renew its lease.
    has_process = audit.lease_ms > survey.taken_ms or waits_s <= STILL_S
    if audit.is_empty:
        yield unknown("audit", "the database of the audit has no row of this namespace: nothing records it")
    elif audit.error:
        until = "what retention deletes before that is lost to the audit"
        yield fault("audit", audit.error, cure_of_database(audit.error, "audit.url", until))
    elif not has_process:
        yield (fault if audit.lease_ms else hint)("audit", f"no process of it works: {waits}", start)
    elif audit.behind > _MUCH_BEHIND and waits_s > BEHIND_S:
        yield fault("audit", waits, "start a second one: sealbus serve audit")
    else:
        yield ok("audit", waits)
    if audit.spent is not None:
        is_current = audit.is_summed and has_process and audit.behind <= _MUCH_BEHIND
        yield _of_budget(audit.spent, audit.daily_budget, is_current=is_current)


def _of_budget(spent: float, budget: float, *, is_current: bool) -> CheckResult:
    known = f"agents report {spent:,.2f} as spent today"
    if spent > budget:
        cure = "see who spends it: sealbus audit query costs --by agent --days 1"
        return hint("costs", f"{known}: more than audit.daily_budget, {budget:,.2f}", cure)
    if not is_current:
        return unknown("costs", f"what is spent today: {known} so far, and the audit has not recorded everything yet")
    return ok("costs", f"{known}, of {budget:,.2f}")


def _of_transactions(survey: Survey) -> Iterator[CheckResult]:
    for stalled in survey.held_up:
        text = (
            f"{stalled.records:,} records of {stalled.topic}/{stalled.partition} lie behind a transaction that another "
            f"program has open" + (f", for {stalled.for_s:.0f} s" if stalled.for_s else "")
        )
        cure = "end that program, or kafka-transactions.sh find-hanging and abort; nothing behind it is read until then"
        yield (fault if stalled.for_s > STILL_S else hint)("log", text, cure)


def waits_of(lag: int) -> str:
    """Return in words that *lag* records wait."""
    return _many(lag, "record waits", "records wait")


def _many(count: int, one: str, several: str) -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {several}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _clock_time(ms: int) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(ms / 1000))
