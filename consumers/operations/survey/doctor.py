"""Doctor: one check of every part of an installation, with a fix for each fault.

Owns the checks that no worker makes at its start, and the texts. `consumers.operations.survey.drift` checks the log and
its topics, `consumers.operations.survey.survey` the current activity.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from bus.clock import Clock
from bus.errors import BusError, ConfigurationError
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings, WorkerSettings
from bus.topics.names import message_topic
from bus.transports.base import Transport
from bus.trust.keys.key_pairing import SOON_MS, KeyGuard, ending_keys
from bus.trust.opening import Trust, keyless, open_trust
from bus.trust.policy.policy import NO_POLICY
from consumers.delivery.declaration import Declaration
from consumers.delivery.inbox.open import inbox_url, is_missing_file, log_file, open_inbox
from consumers.operations.lint.nested_requests import NESTED_REQUEST_CURE, limits_that_cannot_hold
from consumers.operations.survey.survey import Survey
from producers.directory.presence import AgentEntry

__all__ = [
    "CheckResult",
    "DoctorVerdict",
    "check_clock",
    "check_here",
    "check_inbox",
    "check_limits",
    "check_trust",
    "free_bytes",
    "of_survey",
]

DoctorVerdict: TypeAlias = Literal["ok", "hint", "fault"]

_MIN_FILES: Final = 1_024
_MIN_FREE_BYTES: Final = 1 << 30
_MAX_AGENTS: Final = 20
_MAX_SKEW_S: Final = 2.0
STILL_S: Final = 20.0
_SQLITE: Final = "sqlite:///"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, rename={"cure": "fix"}):
    """One check: its result, and the fix if it is a fault."""

    area: str
    state: DoctorVerdict
    text: str
    cure: str = ""


def check_here(settings: Settings, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Judge this machine: file limits, disk, hash seed."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        pass
    else:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < _MIN_FILES:
            yield _fault(
                "files", f"{soft} open files are allowed", f"ulimit -n 65536, or LimitNOFILE= (at least {_MIN_FILES})"
            )
        else:
            yield _ok("files", f"{soft:,} open files are allowed")
    for name, folder in _folders(settings):
        yield _disk(name, folder)
    if environment.get("PYTHONHASHSEED", "").isdecimal():
        yield _fault(
            "python",
            "PYTHONHASHSEED is fixed, so a sender can cause hash collisions and slow the worker down",
            "unset it",
        )


def _folders(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yield where log and inbox lie, as far as they are files."""
    for name, url in (("log", settings.bus.url), ("inbox", settings.inbox.url)):
        if url.startswith(_SQLITE):
            yield name, log_file(url).absolute().parent


def free_bytes(settings: Settings) -> dict[str, float]:
    """Return how much room is left for log and inbox, as far as they are files."""
    found = {}
    for name, folder in _folders(settings):
        with contextlib.suppress(OSError):
            found[name] = float(shutil.disk_usage(folder).free)
    return found


def _disk(name: str, folder: Path) -> CheckResult:
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return _fault("disk", f"the folder of the {name}, {folder}, cannot be read: {error.strerror}", "create it")
    free = f"{usage.free / 1e9:.1f} GB are free for the {name} in {folder}"
    if usage.free < _MIN_FREE_BYTES:
        return _fault("disk", free, "make room, or shorten topics.retention_s: a full disk stops every publish")
    return _ok("disk", free)


def check_trust(settings: Settings, agents: tuple[str, ...], clock: Clock) -> Iterator[CheckResult]:
    """Judge keys and policy, as the workers of *agents* would open them."""
    for agent in agents or ("",):
        chosen = settings if agent else keyless(settings)
        try:
            trust = open_trust(chosen, agent, clock=clock)
        except ConfigurationError as error:
            yield _fault(
                "keys", str(error), "`sealbus key --help` makes and checks keys, `sealbus check --only policy` rules"
            )
            continue
        named = f" of {agent}" if agent else ""
        if trust.verifier is None:
            yield _hint(
                "keys",
                "no keys: any process with write access to a topic can send as any agent",
                "sealbus key new AGENT...",
            )
        else:
            signs = "" if not agent else ("; it signs" if trust.signer is not None else "; it does not sign")
            yield _ok("keys", f"keys{named} can be read{signs}")
            yield from _own_key(trust, agent, settings.bus.namespace, clock)
        if trust.policy is NO_POLICY:
            cure = "set policy.file (docs/policy.md), or set it to allow-all"
            yield _hint("policy", "no policy: everybody may do everything", cure)
        else:
            yield _ok("policy", f"{settings.policy.file} can be read")


def _own_key(trust: Trust, agent: str, namespace: str, clock: Clock) -> Iterator[CheckResult]:
    """Judge the key with which *agent* signs; without an agent, all that are trusted."""
    rotate = "sealbus key rotate {}, and give its program the new private key"
    if trust.signer is None:
        directory = getattr(trust.verifier, "directory", None)
        for key, has_ended in () if agent or directory is None else ending_keys(directory, clock.now_ms()):
            whom, end = ", ".join(sorted(key.principals)), format_ms(key.not_after_ms or 0)
            text = f"the key of {whom} {'ended' if has_ended else 'ends'} at {end}, and no other follows it"
            yield (_fault if has_ended else _hint)("keys", text, rotate.format(whom))
        return
    guard = KeyGuard(trust.signer, trust.verifier, clock.now_ms)
    fault, own = guard.fault(agent, namespace), guard.key
    if fault is not None:
        yield _fault("keys", f"{fault.text}: nothing of it is signed ({fault.reason})", rotate.format(agent))
    elif own is None and hasattr(trust.verifier, "key_named"):
        text = f"the key of {agent} is not among the trusted keys here: receivers without it refuse its signatures"
        yield _hint("keys", text, "sealbus key export, into the file that trust.keys names")
    elif own is not None and own.not_after_ms is not None and own.not_after_ms < clock.now_ms() + SOON_MS:
        text = f"the key of {agent} ends at {format_ms(own.not_after_ms)}: then it signs nothing, and messages wait"
        yield _hint("keys", text, rotate.format(agent))


def check_limits(declaration: Declaration, worker: WorkerSettings) -> Iterator[CheckResult]:
    """Judge whether the limits of its workers hold where an app asks types that it handles itself."""
    found = list(limits_that_cannot_hold(declaration, worker))
    for text in found:
        yield _fault("limits", text, NESTED_REQUEST_CURE)
    if not found:
        yield _ok("limits", "what its handlers' sources ask of the app itself fits its limits")


async def check_inbox(settings: Settings, clock: Clock) -> CheckResult:
    """Judge whether the store of the inbox answers."""
    try:
        url = inbox_url(settings)
    except ConfigurationError as error:
        return _fault("inbox", str(error), "set inbox.url")
    if url is None:
        if settings.inbox.url == "off":
            return _hint("inbox", "inbox.url is off: duplicates are not detected", "set inbox.url")
        return _hint(
            "inbox",
            "duplicates are not detected: on Kafka the inbox needs a database",
            "inbox.url = postgresql://user@host/db",
        )
    inbox = open_inbox(url, owner="sealbus doctor", clock=clock, shared_files=settings.bus.shared_files)
    begun_s = time.monotonic()
    try:
        if is_missing_file(url):
            return _ok("inbox", "not created yet; the first worker creates it")
        await inbox.open()
        return _ok("inbox", f"answers in {(time.monotonic() - begun_s) * 1000:.0f} ms")
    except (BusError, ConfigurationError) as error:
        return _fault("inbox", str(error), "start the database; messages wait, and none is lost")
    finally:
        await inbox.close()


async def check_clock(transport: Transport, survey: Survey, settings: Settings, clock: Clock) -> CheckResult:
    """Check this machine's clock against the log's, by the newest heartbeat in it."""
    topic = f"{settings.bus.namespace}._heartbeats"
    newest_ms = 0
    if topic in await transport.admin.topics():
        for partition, retained in (await transport.admin.ranges(topic)).items():
            if retained.end > retained.start:
                records = await transport.read(topic, partition, retained.end - 1, max_records=1, max_bytes=1 << 20)
                newest_ms = max([newest_ms, *(record.timestamp_ms for record in records)])
    if not newest_ms:
        return _ok("clock", "nothing is in the log to compare it with")
    # The survey has written to that topic between these two moments of this clock.
    behind_s, ahead_s = (newest_ms - clock.now_ms()) / 1000, (survey.taken_ms - newest_ms) / 1000
    if max(behind_s, ahead_s) > _MAX_SKEW_S:
        text = f"{behind_s:.0f} s behind" if behind_s > ahead_s else f"{ahead_s:.0f} s ahead of"
        return _fault("clock", f"this clock is {text} the log's", "run chrony or systemd-timesyncd on both machines")
    return _ok("clock", "agrees with the log's")


def of_cards(agents: Sequence[AgentEntry], existing: Collection[str], namespace: str) -> Iterator[CheckResult]:
    """Check whether the topics exist that running *agents* read or append to, by their cards."""
    for agent in agents:
        needed = [message_topic(namespace, name) for name in agent.types]
        missing = [topic for topic in dict.fromkeys((*needed, *agent.missing)) if topic not in existing]
        if missing:
            text = f"{agent.agent_id} needs {', '.join(missing)}, which does not exist"
            cure = "list its published types in App(types=[...]), then sealbus topic apply MODULE:APP with that app"
            yield _fault("topics", text, cure)


def of_survey(survey: Survey) -> Iterator[CheckResult]:
    """Check the current state: groups, dead letters, processes, approvals, agents."""
    yield from _of_groups(survey)
    yield from _of_transactions(survey)
    letters = survey.letters
    if letters.count:
        cause, count, _ = letters.causes[0]
        text = (
            f"{letters.count:,} dead letters are open; {count:,} of them: {cause.reason} of {cause.message_type or '?'}"
        )
        yield _fault("letters", text, "sealbus dlq list; fix the cause, then sealbus dlq redrive")
    else:
        yield _ok("letters", "no dead letter is open")
    work = survey.work
    if work.error:
        yield _fault("processes", work.error, "start the database of the inbox")
    elif work.overdue:
        text = f"{work.overdue:,} waits of processes are overdue: no worker of theirs runs, or their steps fail"
        yield _fault("processes", text, "sealbus workflow list --overdue")
    else:
        yield _ok("processes", f"{sum(work.open.values()):,} open, none overdue")
    if work.approvals:
        oldest_s = (survey.taken_ms - (work.oldest_approval_ms or survey.taken_ms)) / 1000
        text = f"{work.approvals} messages wait for an approval, the oldest for {oldest_s / 60:.0f} min"
        yield _hint("approvals", text, "sealbus approval list")
    yield from _of_agents(survey)


def _of_agents(survey: Survey) -> Iterator[CheckResult]:
    # Anybody can make up names where there are no keys.
    ill = [agent for agent in survey.agents if agent.health == "unhealthy" or agent.unwell]
    for agent in ill[:_MAX_AGENTS]:
        if agent.health == "unhealthy":
            heard = "" if agent.heard_s_ago is None else f", heard {agent.heard_s_ago:.0f} s ago"
            yield _fault(
                "agents", f"{agent.agent_id} is unhealthy{heard}", "look at its log: it is stuck, cut off or dead"
            )
        else:
            workers = f"{agent.unwell} of {agent.unwell + agent.instances} workers"
            text = f"{workers} of {agent.agent_id} report that they are stuck"
            yield _fault("agents", text, "its /healthz/live names the handler; end that worker: others go on")
    if (more := len(ill) - _MAX_AGENTS) > 0:
        yield _fault("agents", f"{more:,} more are unhealthy or stuck", "sealbus agent list")
    size = survey.directory
    if size.dropped:
        text = f"{size.dropped:,} cards and heartbeats found no place: {size.agents:,} agents are known"
        yield _hint(
            "agents", text, "raise directory.max_agents, or find the sender of invented names: sealbus agent list"
        )
    if size.refused:
        text = f"{size.refused:,} cards and heartbeats were rejected: replayed, forged, or from a wrong clock"
        yield _hint(
            "agents",
            text,
            "compare the clocks of the workers, and check the write access to the topics _directory and _heartbeats",
        )
    healthy = sum(agent.is_healthy for agent in survey.agents)
    yield _ok("agents", f"{healthy} healthy")


def _of_groups(survey: Survey) -> Iterator[CheckResult]:
    for group in survey.groups:
        if group.stands:
            text = f"{group.name} stands in {group.stands} partitions: what it would read next is not kept any more"
            yield _fault("groups", text, f"sealbus group skip-lost {group.name} --why ...")
        elif group.lag and not group.members:
            text = f"{group.name} has no worker, and {group.lag:,} records wait, most in {group.worst}"
            yield _fault("groups", text, "start its worker: sealbus run MODULE:APP")
        elif group.still_s > STILL_S:
            text = f"{group.name} has settled nothing for {group.still_s:.0f} s, and {group.lag:,} records wait"
            cure = "its worker's /healthz/live names a handler that is stuck: sealbus run --metrics-port"
            yield _fault("groups", text, cure)
        else:
            yield _ok("groups", f"{group.name}: {group.members} members, {group.lag:,} records wait")


def _of_transactions(survey: Survey) -> Iterator[CheckResult]:
    for stalled in survey.held_up:
        text = (
            f"{stalled.records:,} records of {stalled.topic}/{stalled.partition} lie behind a transaction that another "
            f"program has open" + (f", for {stalled.for_s:.0f} s" if stalled.for_s else "")
        )
        cure = "end that program, or kafka-transactions.sh find-hanging and abort; nothing behind it is read until then"
        yield (_fault if stalled.for_s > STILL_S else _hint)("log", text, cure)


def _ok(area: str, text: str) -> CheckResult:
    return CheckResult(area=area, state="ok", text=text)


def _hint(area: str, text: str, cure: str) -> CheckResult:
    return CheckResult(area=area, state="hint", text=text, cure=cure)


def _fault(area: str, text: str, cure: str) -> CheckResult:
    return CheckResult(area=area, state="fault", text=text, cure=cure)
