"""The Kafka ACLs that each agent needs under a policy. Pure.

Owns which topics follow from the rights to publish, handle, read, approve and redrive. Sealbus processes enforce the
policy; ACLs also stop other programs, but know only topics and groups, not levels, tags or approvals. So an agent gets
a grant if some rule allows such a request in some circumstances, or after an approval, and no rule denies it in all
circumstances. The grants never allow less than the policy. They allow more where only several rules together, or the
limits above the rules, deny a request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import msgspec

from bus.topics.names import (
    consumer_group,
    dead_letter_topic,
    group_of_agent,
    mailbox_topic,
    message_topic,
    own_topic,
    redrive_topic,
    reply_topic,
    retry_topic,
)
from bus.topics.specs import APPROVAL_TYPES, CANCEL_TYPE
from bus.trust.policy.decision import index_of
from bus.trust.policy.index import bits_of
from bus.trust.policy.rules import PolicyRule, PolicyRules

__all__ = ["AclGrant", "acl_grants"]


class AclGrant(msgspec.Struct, frozen=True, kw_only=True):
    """*agent* may do *operations* on *names*, topics or groups; *prefixed*: on all whose names begin so."""

    agent: str
    operations: tuple[str, ...]
    kind: Literal["topic", "group"] = "topic"
    names: tuple[str, ...]
    prefixed: bool = False


def acl_grants(rules: PolicyRules, *, namespace: str, types: Collection[str], tiers: Sequence[str]) -> list[AclGrant]:
    """Return the grants for every agent that *rules* list by its id, over the known message *types*.

    *tiers* are the retry tiers of groups. Agents that only a glob names are not among them: they have no principal.
    """
    agents = [row.id for row in rules.rows if "*" not in row.id]
    named = {glob for rule in rules.rules for glob in rule.groups or () if "*" not in glob}
    groups = sorted(named | {group_of_agent(agent) for agent in agents})
    rights = _Rights(rules, namespace, sorted(types))
    found = []
    for agent in agents:
        own = group_of_agent(agent)
        found += [*_publishing(rights, agent), *_reading(rights, agent), *_redriving(rights, agent)]
        for group in groups:
            if group == own or group in named:
                found += list(_handling(rights, agent, group, tiers))
    return found


class _Rights:
    """Which types an agent may publish, handle, read, approve or redrive, under some circumstances."""

    def __init__(self, rules: PolicyRules, namespace: str, types: Sequence[str]) -> None:
        self.namespace = namespace
        self._types = types
        self._index = index = index_of(rules)
        self._grants = index.allows | index.needs
        self._plain_denies = sum(1 << at for at in bits_of(index.denies) if _is_plain(index.rules[at]))

    def topics(self, action: str, agent: str, group: str | None = None) -> tuple[str, ...]:
        return tuple(
            message_topic(self.namespace, name) for name in self._types if self._may(action, agent, name, group)
        )

    def _may(self, action: str, agent: str, message_type: str, group: str | None) -> bool:
        """Tell whether a rule grants some such request, and no rule denies them all."""
        index = self._index
        groups, _ = index.groups.of(group)
        met = index.of_action(action)[0] & index.of_actor(agent)[0] & index.types.of(message_type)[0]
        return bool(met & groups & self._grants) and not met & groups & self._plain_denies


def _is_plain(rule: PolicyRule) -> bool:
    """Return whether *rule* has only conditions that ACLs know: action, actor, type and group."""
    requested = ("id", "effect", "actions", "agents", "capabilities", "roles", "actor_groups", "types", "groups")
    return PolicyRule(**{name: getattr(rule, name) for name in requested}) == rule


def _with_cancel(topics: Sequence[str], namespace: str) -> tuple[str, ...]:
    """Return *topics* and the topic of cancellations, which requesters write and workers read."""
    return tuple(dict.fromkeys((*topics, message_topic(namespace, CANCEL_TYPE))))


def _publishing(rights: _Rights, agent: str) -> Iterator[AclGrant]:
    topics = rights.topics("publish", agent)
    if topics:
        yield AclGrant(agent=agent, operations=("Write", "Describe"), names=_with_cancel(topics, rights.namespace))
        replies = reply_topic(rights.namespace, agent)
        yield AclGrant(agent=agent, operations=("Read", "Describe"), names=(replies,))


def _reading(rights: _Rights, agent: str) -> Iterator[AclGrant]:
    topics = rights.topics("read", agent)
    if topics:
        yield AclGrant(agent=agent, operations=("Read", "Describe"), names=topics)
    if rights.topics("approve", agent):
        namespace = rights.namespace
        requests = tuple(message_topic(namespace, name) for name in APPROVAL_TYPES)
        yield AclGrant(agent=agent, operations=("Read", "Describe"), names=requests)
        # A decision goes to the mailbox of the group that asked.
        yield AclGrant(agent=agent, operations=("Write", "Describe"), names=(f"{namespace}._mail.",), prefixed=True)


def _redriving(rights: _Rights, agent: str) -> Iterator[AclGrant]:
    topics = rights.topics("redrive", agent)
    if topics:
        namespace = rights.namespace
        yield AclGrant(agent=agent, operations=("Read", "Describe"), names=tuple(map(dead_letter_topic, topics)))
        states = own_topic(namespace, "_deadletters")
        yield AclGrant(agent=agent, operations=("Read", "Write", "Describe"), names=(states,))
        yield AclGrant(agent=agent, operations=("Write", "Describe"), names=(own_topic(namespace, "_audit"),))
        yield AclGrant(agent=agent, operations=("Write", "Describe"), names=(f"{namespace}._redrive.",), prefixed=True)


def _handling(rights: _Rights, agent: str, group: str, tiers: Sequence[str]) -> Iterator[AclGrant]:
    namespace = rights.namespace
    topics = rights.topics("handle", agent, group)
    if not topics:
        return
    yield AclGrant(agent=agent, operations=("Read", "Describe"), names=_with_cancel(topics, namespace))
    yield AclGrant(
        agent=agent, operations=("Read", "Describe"), kind="group", names=(consumer_group(namespace, group),)
    )
    again = (
        *(retry_topic(namespace, group, tier) for tier in tiers),
        redrive_topic(namespace, group),
        mailbox_topic(namespace, group),
    )
    yield AclGrant(agent=agent, operations=("Read", "Write", "Describe"), names=again)
    dead = tuple(map(dead_letter_topic, (*topics, *again)))
    yield AclGrant(agent=agent, operations=("Write", "Describe"), names=dead)
    states = own_topic(namespace, "_deadletters")
    yield AclGrant(agent=agent, operations=("Read", "Describe"), names=(states,))
    # What the bus sends in its name: who it is and that it lives, what was denied, and that an approval is asked for.
    granted_names = (
        own_topic(namespace, "_audit"),
        own_topic(namespace, "_directory"),
        own_topic(namespace, "_heartbeats"),
        *(message_topic(namespace, name) for name in (*APPROVAL_TYPES, CANCEL_TYPE)),
    )
    yield AclGrant(agent=agent, operations=("Write", "Describe"), names=granted_names)
    yield AclGrant(agent=agent, operations=("Read", "Describe"), names=(reply_topic(namespace, agent),))
    for prefix in (f"{namespace}._reply.", f"{namespace}._mail."):
        yield AclGrant(agent=agent, operations=("Write", "Describe"), names=(prefix,), prefixed=True)
