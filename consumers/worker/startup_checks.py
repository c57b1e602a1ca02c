"""Startup checks: an app's needs compared with the settings before any record is read.

Owns faults that are known at start. Others are raised in a run as `MissingSetting`, and their messages wait. A missing
setting must not turn sound messages into dead letters.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping

from bus.artifacts.store import artifact_folder
from bus.errors import ConfigurationError
from bus.payloads.payload_types import raised_risk
from bus.settings.schema import Settings
from bus.topics.names import group_of_agent
from bus.trust.labels import GRAVE
from bus.trust.policy.policy import NO_POLICY, rules_source
from consumers.delivery.declaration import Declaration

__all__ = ["check_artifacts", "check_hash_seed", "check_needs", "start_faults"]


def check_needs(app: Declaration, *, has_inbox: bool, high_risk: Collection[str] = ()) -> None:
    """Raise ConfigurationError, with the remedy, where messages of *app* could only die or wait.

    *high_risk* are types whose risk the settings raise.
    """
    for fault in start_faults(app, has_inbox=has_inbox, high_risk=high_risk):
        raise ConfigurationError(fault)


def check_hash_seed(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError where Python hashes texts with a fixed seed.

    With a known seed a sender can make the keys of an object collide.
    """
    seed = environment.get("PYTHONHASHSEED", "")
    if seed.isdecimal():
        raise ConfigurationError(
            f"PYTHONHASHSEED is {seed}: unset it, or set it to `random`; otherwise a sender can cause hash collisions "
            "and slow the worker down"
        )


def check_artifacts(settings: Settings) -> None:
    """Raise ConfigurationError where the folder that `artifacts.url` names cannot be made or written to."""
    folder = artifact_folder(settings) if settings.artifacts.url.startswith("file://") else None
    if folder is None:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"artifacts.url: {folder} cannot be made ({error.strerror}): name a folder that all workers can write to"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"artifacts.url: this user may not write to {folder}: let it, or name another folder")


def start_faults(app: Declaration, *, has_inbox: bool, high_risk: Collection[str]) -> Iterator[str]:
    """Yield why messages of *app* could only die or wait, with the remedy."""
    if app.has_mailbox and not has_inbox:
        yield (
            f"{app.agent_id} has processes (a saga or an approval), whose state is stored in the inbox, and there is "
            "no inbox: set inbox.url to a database that all workers of the group can reach (on Kafka, "
            "postgresql://user@host/database)"
        )
    yield from _group_faults(app)
    for name, subscription in app.subscriptions.items():
        if subscription.approval is not None:
            yield from _approval_faults(app, name, subscription.approval.by)
        if subscription.dedup == "always" and not has_inbox:
            yield (
                f"{name} is handled with dedup='always' but no inbox is set: set inbox.url to a database (on Kafka, "
                "postgresql://user@host/database)"
            )
        if subscription.limits and not has_inbox:
            yield (
                f"{name} is handled within limits, which all workers share through the inbox, and no inbox is set: set "
                "inbox.url to a database (on Kafka, postgresql://user@host/database)"
            )
        risk = raised_risk(subscription.kind, high_risk)
        if risk == "high" and app.verifier is None:
            yield (
                f"{name} is of high risk, and without keys nothing of it is accepted: set trust.keys, or give the App "
                "a verifier"
            )
        if (risk == "high" or name in GRAVE) and app.verifier and app.policy is NO_POLICY:
            yield (
                f"{name} can change things, but no policy is set: set policy.file (`sealbus policy --help`), or set "
                "policy.file = allow-all to allow every agent with a key everything"
            )
    for kind in app.published:
        if raised_risk(kind, high_risk) == "high" and app.signer is None:
            yield (
                f"{kind.name} is of high risk, which no receiver accepts unsigned: set trust.key_file, or give the App "
                "a signer"
            )


def _group_faults(app: Declaration) -> Iterator[str]:
    """Yield why the mailbox of the app's group, which its processes and approvals need, would get no answers."""
    rules = rules_source(app.policy)() if app.has_mailbox else None
    if rules is None or app.group in {group_of_agent(app.agent_id), *rules.agent(app.agent_id).groups}:
        return
    yield (
        f"{app.agent_id} asks for answers at the mailbox of group {app.group}, which the policy does not give it: "
        f'each of its questions would be refused. Write groups = ["{app.group}"] into its [[agents]] row, or leave '
        "group= out of App(...)"
    )


def _approval_faults(app: Declaration, name: str, by: str) -> Iterator[str]:
    if app.verifier is None:
        yield (
            f"{name} needs an approval, and without keys a decision cannot be verified: set trust.keys, or give "
            "the App a verifier"
        )
    elif not hasattr(app.policy, "rules") and not getattr(app.verifier, "counts_as_human", False):
        who = "who is human" if by == "human" else "who may approve"
        yield f"{name} needs an approval, and only a policy decides {who}: set policy.file"
