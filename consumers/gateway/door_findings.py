"""What is wrong with a file of credentials beside keys, policy, settings and apps, as findings of `sealbus check`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from bus.errors import ConfigurationError
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings
from bus.topics.specs import shortest_retention_s
from bus.trust.keys.key_directory import KeyDirectory, TrustedKey
from bus.trust.labels import least_trusted
from bus.trust.policy.cases import make_request
from bus.trust.policy.decision import Deny, decide_request
from bus.trust.policy.rules import PolicyRules
from bus.vocabulary import BUILT_IN
from consumers.app.app import App
from consumers.gateway.agents import GATEWAY_AGENT
from consumers.gateway.credentials import Credential, Credentials, DoorsFile
from consumers.gateway.doors import key_types, policy_lines

__all__ = ["DOOR_CHECKS", "DoorFinding", "DoorSurroundings", "door_findings"]

DOOR_CHECKS: Final = frozenset(
    {"door-file", "door-token", "door-key", "door-policy", "door-types", "door-retention", "door-repeat"}
)
_SOON_MS: Final = 14 * 86_400_000
_ALSO_SENT: Final = ("task.cancel", "task.clarified")
_ANSWERS: Final = (
    "task.accepted",
    "task.clarification",
    "task.artifact",
    "task.result",
    "task.rejected",
    "error.reported",
)
_ANY: Final = "any.type.of.an.answer"
"""No rule names it: what lets it pass lets every type pass."""


class DoorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One mistake about a credential, or about the file; *location* is its name, or the file."""

    check: str
    level: Literal["error", "warning", "note"]
    location: str
    what: str
    fix: str = ""


class DoorSurroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What credentials are compared with; *keys* and *rules* are None where none are configured."""

    settings: Settings
    keys: KeyDirectory | None
    rules: PolicyRules | None
    apps: Sequence[App]
    now_ms: int


def door_findings(path: Path, around: DoorSurroundings) -> tuple[list[DoorFinding], int]:
    """Return what is wrong with the credentials in *path*, and how many there are."""
    if not path.is_file():
        text, fix = "is not there: no program may use the gateway", "`sealbus door add NAME --agent AGENT --to AGENT`"
        return [_found("door-file", "error", str(path), text, fix)], 0
    try:
        known = DoorsFile(path).read()
    except ConfigurationError as error:
        fix = "correct it, or `chmod 600` where others may write it: a gateway that starts now ends at once"
        return [_found("door-file", "error", str(path), str(error).removeprefix(f"{path}: "), fix)], 0
    return [
        *(found for each in known.all for found in _of_credential(each, around)),
        *_of_key(known, around),
        *_of_retention(path, around.settings),
    ], len(known.all)


def _found(
    check: str, level: Literal["error", "warning", "note"], location: str, what: str, fix: str = ""
) -> DoorFinding:
    return DoorFinding(check=check, level=level, location=location, what=what, fix=fix)


def _of_credential(credential: Credential, around: DoorSurroundings) -> Iterator[DoorFinding]:
    yield from _of_tokens(credential, around.now_ms)
    try:
        key_types([credential])
    except ConfigurationError as error:
        fix = f"name its types in doors.toml, or `sealbus door remove {credential.name}`"
        yield _found("door-types", "error", credential.name, str(error).removeprefix(f"{credential.name}: "), fix)
    if around.rules is not None:
        yield from _of_policy(credential, around.rules, around.settings.bus.namespace, around.now_ms)
    for app in around.apps:
        for name, subscription in app.subscriptions.items():
            if subscription.dedup == "off" and credential.may_ask(app.agent_id) and credential.may_send(name):
                what = f'{app.agent_id} handles {name} with dedup="off": a task of it may run twice'
                yield _found("door-repeat", "warning", credential.name, what, f'remove dedup="off" in {app.agent_id}')


def _of_tokens(credential: Credential, now_ms: int) -> Iterator[DoorFinding]:
    rotate = f"`sealbus door add {credential.name} --rotate`"
    ends = [None if each.not_after is None else round(each.not_after.timestamp() * 1000) for each in credential.tokens]
    if not ends:
        yield _found("door-token", "error", credential.name, "has no token", rotate)
        return
    if None in ends:
        return
    last_ms = max(end for end in ends if end is not None)
    if last_ms <= now_ms:
        yield _found("door-token", "error", credential.name, f"its last token ended at {format_ms(last_ms)}", rotate)
    elif last_ms <= now_ms + _SOON_MS:
        yield _found("door-token", "warning", credential.name, f"its last token ends at {format_ms(last_ms)}", rotate)


def _of_policy(credential: Credential, rules: PolicyRules, namespace: str, now_ms: int) -> Iterator[DoorFinding]:
    def denied(name: str, action: str = "publish") -> bool:
        stated = {"action": action, "agent": credential.agent, "type": name}
        request = make_request(stated, BUILT_IN.get(name), namespace=namespace, now_ms=now_ms)
        return isinstance(decide_request(rules, request), Deny)

    try:
        lines = policy_lines(rules, credential)
    except ConfigurationError as error:
        yield _found("door-policy", "error", credential.name, str(error))
        return
    missing = re.findall(r'^\[\[(agents|rules)\]\]\nid = "([^"]+)"', lines, re.MULTILINE)
    named = [name for name in (*credential.types, *_ALSO_SENT) if "*" not in name]
    if not any(map(denied, named)):
        # Rules of other names let it publish.
        missing = [each for each in missing if each != ("rules", f"door-{credential.name}")]
    if not any(denied(name, "handle") for name in (*_ANSWERS, _ANY)):
        # Others let it read any answer.
        missing = [each for each in missing if each != ("rules", f"door-{credential.name}-answers")]
    if missing:
        what = "the policy lacks " + ", ".join(
            f'groups = ["doors"] of {name}' if table == "agents" else f"the rule {name}" for table, name in missing
        )
        fix = f"`sealbus door add {credential.name} --rotate` adds them, and makes another token"
        yield _found("door-policy", "error", credential.name, what, fix)
    ceiling = rules.agent(credential.agent).trust_ceiling
    known = any(each.id == credential.agent for each in rules.rows)
    if known and least_trusted((ceiling, credential.trust_at_most)) != credential.trust_at_most:
        what = f"trust_at_most is {credential.trust_at_most}, and the policy trusts {credential.agent} as {ceiling}"
        fix = f'trust_at_most = "{ceiling}" in doors.toml, or raise trust_at_most of {credential.agent} in the policy'
        yield _found("door-policy", "warning", credential.name, what, fix)


def _of_key(known: Credentials, around: DoorSurroundings) -> Iterator[DoorFinding]:
    if around.keys is None or not known.all:
        return
    own: list[TrustedKey] = [
        key
        for key in around.keys.keys.values()
        if GATEWAY_AGENT in key.principals and not key.is_revoked(around.now_ms) and key.is_in_time(around.now_ms, None)
    ]
    if not own:
        what, fix = f"no trusted key of {GATEWAY_AGENT} is valid", f"`sealbus key rotate {GATEWAY_AGENT}`"
        yield _found("door-key", "error", GATEWAY_AGENT, what, fix)
        return
    for credential in known.all:
        fix = f"`sealbus door add {credential.name} --rotate` lets it, and makes another token"
        signing = [key for key in own if credential.agent in key.principals]
        if not signing:
            what = f"the gateway's key does not sign for {credential.agent}: receivers refuse what it sends"
            yield _found("door-key", "error", credential.name, what, fix)
            continue
        unsigned = [name for name in (*credential.types, *_ALSO_SENT) if not any(key.may_sign(name) for key in signing)]
        if unsigned:
            what = f"the gateway's key may not sign {', '.join(unsigned)}: receivers refuse them"
            yield _found("door-key", "error", credential.name, what, fix)


def _of_retention(path: Path, settings: Settings) -> Iterator[DoorFinding]:
    needed_s = max(settings.tasks.keep_s, shortest_retention_s(settings))
    if 0 < settings.topics.retention_s < needed_s:
        what = (
            f"topics.retention_s is {settings.topics.retention_s:.0f} s: answers are deleted before a gateway that was "
            f"down for so long reads them, and tasks may still be open (tasks.keep_s, publish.max_ttl_s)"
        )
        yield _found("door-retention", "warning", str(path), what, f"topics.retention_s = {needed_s:.0f} at least")
