"""Doctor: the checks of what is on this machine and in its settings: limits, disk, keys, policy, and the inbox.

`consumers.operations.survey.verdicts` judges what goes on in the log, `.drift` the topics that apps want.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bus.artifacts.store import artifact_folder
from bus.clock import Clock
from bus.errors import BusError, ConfigurationError
from bus.payloads.payload_types import payload_type
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings, WorkerSettings
from bus.topics.names import group_of_agent
from bus.trust.keys.key_directory import TrustedKey
from bus.trust.keys.key_pairing import SOON_MS, KeyGuard, ending_keys
from bus.trust.opening import Trust, believed_policy, keyless, open_trust, private_key_files
from bus.trust.policy.cases import make_request
from bus.trust.policy.decision import Deny, decide_request
from bus.trust.policy.policy import NO_POLICY, rules_source
from bus.vocabulary.bus import AuditCheckpoint
from consumers.delivery.declaration import Declaration
from consumers.delivery.inbox.open import inbox_url, is_missing_file, log_file, open_inbox
from consumers.operations.audit.checkpoints import AUDIT_AGENT
from consumers.operations.lint.nested_requests import NESTED_REQUEST_CURE, limits_that_cannot_hold
from consumers.operations.survey.group_state import GroupState
from consumers.operations.survey.results import CheckResult, fault, hint, ok, unknown
from consumers.operations.survey.verdicts import cure_of_database, waits_of

__all__ = [
    "check_audit_policy",
    "check_here",
    "check_inbox",
    "check_limits",
    "check_trust",
    "check_worker_keys",
    "free_bytes",
    "without_policy",
]

_MIN_FILES: Final = 1_024
_MIN_FREE_BYTES: Final = 1 << 30
_SQLITE: Final = "sqlite:///"
_FULL: Final = {
    "log": "make room, or shorten topics.retention_s: a full disk stops every publish",
    "inbox": "make room: a full disk stops every claim, and messages wait",
    "artifacts": "make room: on a full disk no artifact is stored, and the messages of such handlers wait",
    "crash notes": "make room: on a full disk the ends of workers under a message are not counted",
}
"""What to do about a disk that is nearly full, by what lies on it."""


def check_here(settings: Settings, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Judge this machine: file limits, disk, hash seed."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        pass
    else:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < _MIN_FILES:
            yield fault(
                "files", f"{soft} open files are allowed", f"ulimit -n 65536, or LimitNOFILE= (at least {_MIN_FILES})"
            )
        else:
            yield ok("files", f"{soft:,} open files are allowed")
    for name, folder in _folders(settings):
        yield _disk(name, folder)
    if environment.get("PYTHONHASHSEED", "").isdecimal():
        yield fault(
            "python",
            "PYTHONHASHSEED is fixed, so a sender can cause hash collisions and slow the worker down",
            "unset it",
        )


def _folders(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yield where log, inbox, artifacts and the notes about crashes lie, as far as they are files here."""
    for name, url in (("log", settings.bus.url), ("inbox", settings.inbox.url)):
        if url.startswith(_SQLITE):
            yield name, log_file(url).absolute().parent
    artifacts = None if settings.artifacts.url == "auto" else artifact_folder(settings)
    if artifacts is not None:
        # Its name is that of the first folder that is there: a worker makes those below.
        yield "artifacts", next(each for each in (artifacts, *artifacts.absolute().parents) if each.is_dir())
    if settings.worker.state_dir and Path(settings.worker.state_dir).is_dir():
        yield "crash notes", Path(settings.worker.state_dir).absolute()


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
        return fault("disk", f"the folder of the {name}, {folder}, cannot be read: {error.strerror}", "create it")
    free = f"{usage.free / 1e9:.1f} GB are free for the {name} in {folder}"
    if usage.free < _MIN_FREE_BYTES:
        return fault("disk", free, _FULL[name])
    return ok("disk", free)


def check_trust(settings: Settings, agents: tuple[str, ...], clock: Clock) -> Iterator[CheckResult]:
    """Judge keys and policy, as the workers of *agents* would open them."""
    refusal = _policy_fault(settings, clock)
    if refusal:
        cure = "correct it: sealbus check --only policy. Until then programs that start with it end at once"
        yield fault("policy", refusal, cure)
        settings = without_policy(settings)
    for agent in agents or ("",):
        chosen = settings if agent else keyless(settings)
        try:
            trust = open_trust(chosen, agent, clock=clock)
        except ConfigurationError as error:
            yield fault("keys", str(error), "put the last good file back, or correct it: sealbus check --only keys")
            continue
        named = f" of {agent}" if agent else ""
        if trust.verifier is None:
            yield hint(
                "keys",
                "no keys: any process with write access to a topic can send as any agent",
                "sealbus key new AGENT...",
            )
        else:
            signs = "" if not agent else ("; it signs" if trust.signer is not None else "; it does not sign")
            yield ok("keys", f"{'keys' if agent else 'the trusted keys'}{named} can be read{signs}")
            yield from _own_key(trust, agent, settings.bus.namespace, clock)
        if refusal:
            continue
        if trust.policy is NO_POLICY:
            cure = "set policy.file (docs/reference/policy-language.md), or set it to allow-all"
            yield hint("policy", "no policy: everybody may do everything", cure)
        else:
            yield ok("policy", f"{settings.policy.file} can be read")
    if not agents:
        yield from _private_keys(settings.trust.key_file)


def _private_keys(key_file: str) -> Iterator[CheckResult]:
    """Judge the private keys here without knowing which agents sign with them."""
    if not key_file:
        return
    from bus.trust.keys.private_keys import read_private_key

    unseen, count = list[str](), 0
    try:
        for file in private_key_files(Path(key_file)):
            if file.exists() and not os.access(file, os.R_OK):
                unseen.append(file.name)
                continue
            count += 1
            try:
                read_private_key(file)
            except ConfigurationError as error:
                yield fault("keys", f"no worker starts with this key: {error}", "sealbus check --only keys")
    except ConfigurationError as error:
        yield fault("keys", f"trust.key_file: {error}", "sealbus check --only keys")
        return
    if unseen:
        text = f"{len(unseen)} private keys that this user may not read: {', '.join(unseen[:3])}"
        yield unknown("keys", text, "sealbus doctor, as the user of the workers")
    elif count:
        yield ok("keys", f"the private keys can be read: {count:,} in {key_file}")


def _policy_fault(settings: Settings, clock: Clock) -> str:
    """Return why the policy alone cannot be read; empty where it can."""
    try:
        believed_policy(settings, clock)
    except ConfigurationError as error:
        return str(error)
    return ""


def without_policy(settings: Settings) -> Settings:
    """Return *settings* with no policy."""
    return msgspec.structs.replace(settings, policy=msgspec.structs.replace(settings.policy, file=""))


def _own_key(trust: Trust, agent: str, namespace: str, clock: Clock) -> Iterator[CheckResult]:
    """Judge the key with which *agent* signs; without an agent, all that are trusted."""
    rotate = "sealbus key rotate {}, and give its program the new private key"
    if trust.signer is None:
        directory = getattr(trust.verifier, "directory", None)
        for key, has_ended in () if agent or directory is None else ending_keys(directory, clock.now_ms()):
            whom, end = ", ".join(sorted(key.principals)), format_ms(key.not_after_ms or 0)
            text = f"the key of {whom} {'ended' if has_ended else 'ends'} at {end}, and no other follows it"
            yield (fault if has_ended else hint)("keys", text, rotate.format(whom))
        return
    guard = KeyGuard(trust.signer, trust.verifier, clock.now_ms)
    refusal, own = guard.fault(agent, namespace), guard.key
    if refusal is not None:
        yield fault("keys", f"{refusal.text}: nothing of it is signed ({refusal.reason})", rotate.format(agent))
    elif own is None and hasattr(trust.verifier, "key_named"):
        text = f"the key of {agent} is not among the trusted keys here: receivers without it refuse its signatures"
        yield hint("keys", text, "sealbus key export, into the file that trust.keys names")
    elif own is not None and own.not_after_ms is not None and own.not_after_ms < clock.now_ms() + SOON_MS:
        text = f"the key of {agent} ends at {format_ms(own.not_after_ms)}: then it signs nothing, and messages wait"
        yield hint("keys", text, rotate.format(agent))


def check_limits(declaration: Declaration, worker: WorkerSettings) -> Iterator[CheckResult]:
    """Judge whether the limits of its workers hold where an app asks types that it handles itself."""
    found = list(limits_that_cannot_hold(declaration, worker))
    for text in found:
        yield fault("limits", text, NESTED_REQUEST_CURE)
    if not found:
        text = f"what the sources of {declaration.agent_id}'s handlers ask of the app itself fits its limits"
        yield ok("limits", text)


async def check_inbox(settings: Settings, clock: Clock) -> CheckResult:
    """Judge whether the store of the inbox answers."""
    try:
        url = inbox_url(settings)
    except ConfigurationError as error:
        return fault("inbox", str(error), "set inbox.url")
    if url is None:
        if settings.inbox.url == "off":
            return hint("inbox", "inbox.url is off: duplicates are not detected", "set inbox.url")
        return hint(
            "inbox",
            "duplicates are not detected: on Kafka the inbox needs a database",
            "inbox.url = postgresql://user@host/db",
        )
    inbox = open_inbox(url, owner="sealbus doctor", clock=clock, shared_files=settings.bus.shared_files)
    begun_s = time.monotonic()
    try:
        if is_missing_file(url):
            return ok("inbox", "not created yet; the first worker creates it")
        await inbox.open()
        took_s = time.monotonic() - begun_s
        # A lock that keeps every claim waiting leaves small questions alone.
        text = f"answers in {took_s * 1000:.0f} ms"
        if inbox.dialect != "postgres":
            # Opening it has written to it, which nobody else may do at that time.
            return ok("inbox", text)
        if holder := await inbox.who_blocks():
            return _blocked(holder)
        return ok("inbox", f"{text}, and no session blocks its tables")
    except (BusError, ConfigurationError) as error:
        if holder := await inbox.who_blocks():
            return _blocked(f"{holder} ({error})")
        return fault("inbox", str(error), cure_of_database(str(error)))
    finally:
        await inbox.close()


def _blocked(holder: str) -> CheckResult:
    return fault("inbox", f"claims wait for {holder}", cure_of_database(holder))


def check_worker_keys(trust: Trust, groups: Sequence[GroupState], clock: Clock) -> Iterator[CheckResult]:
    """Judge the keys of the agents whose *groups* have workers: without one that counts they sign nothing, and wait."""
    directory = getattr(trust.verifier, "directory", None)
    states = {group.name: group for group in groups if group.members}
    keys: dict[str, list[TrustedKey]] = {}
    for key in () if directory is None else directory.keys.values():
        for agent in key.principals:
            keys.setdefault(agent, []).append(key)
    now_ms = clock.now_ms()
    for agent, known in sorted(keys.items()):
        group = states.get(group_of_agent(agent))
        if group is None or any(not key.is_revoked(now_ms) and key.is_in_time(now_ms, None) for key in known):
            continue
        what = "is revoked" if all(key.is_revoked(now_ms) for key in known) else "has ended"
        waits = f", and {waits_of(group.lag)}" if group.lag else ""
        text = f"the key of {agent} {what}, and no other follows: its workers sign nothing and run nothing{waits}"
        yield fault("keys", text, f"sealbus key rotate {agent}, and give its program the new private key")


def check_audit_policy(trust: Trust, namespace: str, clock: Clock) -> Iterator[CheckResult]:
    """Judge whether the policy lets the audit write its checkpoints, where it has a key for them."""
    rules = rules_source(trust.policy)()
    directory = getattr(trust.verifier, "directory", None)
    has_key = directory is not None and any(AUDIT_AGENT in key.principals for key in directory.keys.values())
    if rules is None or not has_key:
        return
    stated = {"action": "publish", "agent": AUDIT_AGENT, "type": payload_type(AuditCheckpoint).name}
    request = make_request(stated, payload_type(AuditCheckpoint), namespace=namespace, now_ms=clock.now_ms())
    if isinstance(decide_request(rules, request), Deny):
        text = f"the policy does not let {AUDIT_AGENT} publish {stated['type']}: only the database proves its rows"
        cure = f"allow it: sealbus policy explain --action publish --agent {AUDIT_AGENT} --type {stated['type']}"
        yield fault("audit", text, cure)
