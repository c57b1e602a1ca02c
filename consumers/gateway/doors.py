"""Doors: what an operator does about credentials: add, list, remove, and what else has to know of each.

Owns the entry of the gateway's key, which signs for the credentials' agents and nothing else, and the lines of the
policy that a door needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bus.errors import ConfigurationError
from bus.topics.names import group_of_agent
from bus.trust.keys.key_folder import KeyFolder
from bus.trust.labels import INSTRUCTING
from bus.trust.policy.globs import compile_globs
from bus.trust.policy.rules import PolicyRules
from bus.vocabulary import BUILT_IN
from consumers.gateway.agents import GATEWAY_AGENT, GATEWAY_GROUP
from consumers.gateway.credentials import MODEL_DOORS, Credential, Door

__all__ = [
    "CredentialLine",
    "credential_line",
    "default_ceiling",
    "doors_file",
    "key_types",
    "policy_lines",
    "sign_for",
]

_OWN_TYPES: Final = ("task.request", "task.cancel", "task.clarified", "tool.call", "wait.due", "agent.*")
"""What the gateway itself sends for its credentials: nothing that decides, lifts or redrives."""
_FORBIDDEN: Final = ("approval.", "trust.", "redrive.", "key.", "audit.")
_DECIDING: Final = tuple(kind.name for kind in BUILT_IN if kind.name.startswith(_FORBIDDEN))


class CredentialLine(msgspec.Struct, frozen=True, kw_only=True):
    """A credential as `door list` shows it."""

    name: str
    agent: str
    to: tuple[str, ...]
    types: tuple[str, ...]
    doors: tuple[str, ...]
    trusted_as: str
    rate: float
    open_tasks: int
    tokens: int
    until: str | None = None
    """When its last token ends."""
    token: str | None = None
    """Of a new one, shown once."""


def doors_file(named: Path | None, folder: Path) -> Path:
    """Return the file of the credentials."""
    return folder / "doors.toml" if named is None else named


def default_ceiling(doors: Iterable[Door], *, has_policy: bool) -> str:
    """Return how far the content of what comes by *doors* is trusted: what a model writes is not what a user says.

    Without a policy no rule can let it instruct anybody, and every sender may use any name anyway.
    """
    return "model_generated" if has_policy and set(doors) & MODEL_DOORS else "user_request"


def credential_line(credential: Credential, token: str | None = None) -> CredentialLine:
    """Return *credential* as it is shown."""
    ends = [each.not_after for each in credential.tokens]
    last = None if not ends or None in ends else max(each for each in ends if each is not None)
    return CredentialLine(
        name=credential.name,
        agent=credential.agent,
        to=credential.to,
        types=credential.types,
        doors=credential.doors,
        trusted_as=credential.trust_at_most,
        rate=credential.rate,
        open_tasks=credential.open_tasks,
        tokens=len(credential.tokens),
        until=None if last is None else last.isoformat(timespec="seconds"),
        token=token,
    )


def key_types(credentials: Sequence[Credential]) -> tuple[str, ...]:
    """Return the message types that the gateway's key may sign for *credentials*. Pure.

    Raises ConfigurationError for one that would let a door decide.
    """
    wanted = dict.fromkeys(_OWN_TYPES)
    for credential in credentials:
        for pattern in credential.types:
            # In the key's own patterns one star crosses dots.
            wide = compile_globs([re.sub(r"\*+", "**", pattern)])
            if pattern.startswith(_FORBIDDEN) or any(wide.match(name) for name in _DECIDING):
                raise ConfigurationError(
                    f"{credential.name}: types: {pattern!r}: no door approves, lifts, redrives or answers for keys; "
                    "name the types that it sends"
                )
            wanted[pattern] = None
    return tuple(wanted)


def sign_for(folder: KeyFolder, credentials: Sequence[Credential], *, not_before_ms: int) -> str:
    """Let the gateway's key sign for the agents of *credentials*; make it where it is missing.

    What it has signed for agents whose credential is gone stays verifiable, and another file of credentials may be in
    use beside this one: so agents and types are only added. `sealbus key rotate` keeps them, too. Returns its id.
    Receivers follow when they have read the changed file. Raises ConfigurationError.
    """
    principals = {GATEWAY_AGENT, *(each.agent for each in credentials)}
    types = key_types(credentials)
    if not folder.private_file(GATEWAY_AGENT).exists():
        added = folder.add(GATEWAY_AGENT, principals=sorted(principals), types=types, not_before_ms=not_before_ms)
        return added.kid
    key = folder.private_key(GATEWAY_AGENT)
    known = folder.directory().keys[key.kid]
    folder.limit(
        key.kid,
        principals=sorted(principals | known.principals),
        types=tuple(dict.fromkeys((*(known.types or ()), *types))),
    )
    return key.kid


def policy_lines(rules: PolicyRules, credential: Credential) -> str:
    """Return the TOML that the policy lacks for *credential*; "" where it lacks nothing. Pure."""
    text = ""
    if GATEWAY_GROUP not in rules.agent(GATEWAY_AGENT).groups:
        text += f'\n[[agents]]\nid = "{GATEWAY_AGENT}"\nkind = "service"\nmodel = false\ngroups = ["{GATEWAY_GROUP}"]\n'
    row = rules.agent(credential.agent)
    known = any(each.id == credential.agent for each in rules.rows)
    if GATEWAY_GROUP not in row.groups:
        if known:
            raise ConfigurationError(
                f'{rules.name}: add groups = ["{GATEWAY_GROUP}"] to the entry of {credential.agent}: its answers come '
                "to the gateway"
            )
        kind = "agent" if set(credential.doors) & MODEL_DOORS else "service"
        text += f'\n[[agents]]\nid = "{credential.agent}"\nkind = "{kind}"\ngroups = ["{GATEWAY_GROUP}"]\n'
    if rules.rules and not any(each.id == f"door-{credential.name}" for each in rules.rules):
        types = [*credential.types, "task.cancel", "task.clarified"]
        text += (
            f'\n[[rules]]\nid = "door-{credential.name}"\neffect = "allow"\naction = ["publish"]\n'
            f"agents = {_list([credential.agent])}\ntypes = {_list(dict.fromkeys(types))}\n"
            # It runs no worker: what it handles are answers to its own questions.
            f'\n[[rules]]\nid = "door-{credential.name}-answers"\neffect = "allow"\naction = ["handle"]\n'
            f'agents = {_list([credential.agent])}\ntypes = ["**"]\n'
        )
    level = credential.trust_at_most
    if (
        rules.rules
        and level != INSTRUCTING
        and not any(each.id == f"door-{credential.name}-in" for each in rules.rules)
    ):
        groups = dict.fromkeys("**" if "*" in each else group_of_agent(each) for each in credential.to)
        text += (
            f'\n[[rules]]\nid = "door-{credential.name}-in"\neffect = "allow"\naction = ["handle"]\n'
            f"agents = {_list(credential.to)}\ntypes = {_list(credential.types)}\ngroups = {_list(groups)}\n"
            f'instructions_from = "{level}"\nwhen = {{ via_all = {_list([credential.agent])} }}\n'
        )
    return text


def _list(values: Iterable[str]) -> str:
    return "[" + ", ".join(msgspec.json.encode(each).decode() for each in values) + "]"
