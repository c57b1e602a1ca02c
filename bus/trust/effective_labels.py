"""Effective labels: the trust level and sensitivity of a message, computed from itself and all its ancestors. Pure.

Owns the rules T1, T2 and T4 of design part two section 14. The effective level is the lowest of the sealed level, the
ceilings of all senders, the chain, and the ancestors before a truncated chain. The effective sensitivity is the
highest. A `trust.lifted` from an agent with that right makes earlier ancestors irrelevant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from bus.protocol.envelope import Statement
from bus.protocol.sealing import Message
from bus.trust.labels import (
    DEFAULT_CLASSIFICATION,
    LEAST_TRUSTED,
    LEVELS,
    highest_classification,
    rank_of_classification,
    rank_of_level,
)

__all__ = [
    "DEFAULT_CEILING",
    "EffectiveLabels",
    "LabelRules",
    "PLAIN",
    "begins_plainly",
    "comes_from_outside",
    "effective_labels",
    "joined",
    "says_nothing",
]

DEFAULT_CEILING: Final = "user_request"
"""The ceiling of senders, and the level of a first message, unless a policy sets another."""
_LIFTING: Final = "trust.lifted"
_LIFTED_AT_MOST: Final = "trusted_tool_result"
_OUTSIDE: Final = frozenset({"tool.result", "evidence.observed"})
"""Types whose content comes from outside, unless their sender labels it better."""


class EffectiveLabels(msgspec.Struct, frozen=True, kw_only=True):
    """The labels that gates, policy and handlers see."""

    level: str = DEFAULT_CEILING
    classification: str = DEFAULT_CLASSIFICATION
    tags: frozenset[str] = frozenset()
    path: tuple[str, ...] = ()
    """The messages that lowered the level, the decisive one last; empty if none did."""

    def is_below(self, threshold: str) -> bool:
        """Tell whether the level is less trusted than *threshold*."""
        return rank_of_level(self.level) > rank_of_level(threshold)


PLAIN: Final = EffectiveLabels()
"""The labels of a message without labels, whose senders no policy mentions."""


class LabelRules(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about senders. Without a policy every ceiling is `user_request`."""

    has_keys: bool = False
    """Whether senders are verified. If so, a missing label that a dishonest sender could have omitted counts as the
    worst."""
    ceiling_of: Callable[[str], str] | None = None
    floor_of: Callable[[str], str] | None = None
    """The least classification of messages from a sender."""
    may_lift: Callable[[Statement, str, str], bool] | None = None
    """Tells whether a statement's sender may lift from one level to another."""


def says_nothing(message: Message) -> bool:
    """Tell whether neither *message* nor its chain carries labels or authority, as most do not."""
    metadata = message.metadata
    if metadata.security is not None or metadata.authority is not None or message.authority is not None:
        return False
    for link in message.verification.proof_chain or ():
        stated = link.statement
        if stated.trust_level is not None or stated.data_classification is not None or stated.authority is not None:
            return False
    return True


def comes_from_outside(message_type: str) -> bool:
    """Return whether messages of this type contain outside content, unless their sender labels them."""
    return message_type in _OUTSIDE


def begins_plainly(message: Message) -> bool:
    """Return whether *message*, which has no labels, is the signed first message of a conversation, at user level."""
    return (
        message.metadata.hops == 0
        and message.verification.signature is not None
        and message.message_type not in _OUTSIDE
        and message.message_type != _LIFTING
    )


def effective_labels(message: Message, rules: LabelRules) -> EffectiveLabels:
    """Return the labels of *message*, which has passed the gates up to `authenticity`."""
    statements = [link.statement for link in message.verification.proof_chain or ()]
    own = message.statement
    level, path = _level(message, own, statements, rules)
    floor = rules.floor_of
    classes = [stated.data_classification or DEFAULT_CLASSIFICATION for stated in (*statements, own)]
    if floor is not None:
        classes += [floor(stated.sender) for stated in (*statements, own)]
    security = message.metadata.security
    tags = frozenset(security.policy_tags or ()) if security is not None else frozenset[str]()
    return EffectiveLabels(level=level, classification=highest_classification(classes), tags=tags, path=path)


def joined(labels: Iterable[EffectiveLabels]) -> EffectiveLabels:
    """Return the labels of a message that is based on all of *labels*, which is not empty."""
    found = list(labels)
    worst = max(found, key=lambda one: rank_of_level(one.level))
    return EffectiveLabels(
        level=worst.level,
        classification=max((one.classification for one in found), key=rank_of_classification),
        tags=frozenset[str]().union(*(one.tags for one in found)),
        path=worst.path,
    )


def _level(message: Message, own: Statement, links: list[Statement], rules: LabelRules) -> tuple[str, tuple[str, ...]]:
    """Return the level, and the steps that lowered it."""
    steps: list[tuple[int, str]] = []
    if rules.has_keys and message.verification.signature is None:
        steps.append((rank_of_level(LEAST_TRUSTED), f"{own.message_type} {own.message_id} is not signed"))
    everything = [*links, own]
    first = 0
    for index in range(len(everything) - 1, -1, -1):
        stated = everything[index]
        if stated.message_type == _LIFTING and _lifts(everything[: index + 1], rules):
            first = index
            steps.append(
                (rank_of_level(stated.trust_level or LEAST_TRUSTED), _stated(stated, "lifts to what it seals"))
            )
            break
        steps += _steps_of(stated, rules)
    if first == 0 and rules.has_keys and everything[0].parents is not None and everything[0].trust_level is None:
        # What lies before is not at hand, and nobody has said how far it can be trusted.
        steps.append((rank_of_level(LEAST_TRUSTED), _stated(everything[0], "has ancestors that are not in its chain")))
    elif rules.has_keys and len(own.parents or ()) > 1 and own.trust_level is None:
        steps.append((rank_of_level(LEAST_TRUSTED), _stated(own, "rests on further messages and seals no level")))
    rank = max(found for found, _ in steps)
    start = rank_of_level(DEFAULT_CEILING)
    return LEVELS[rank], tuple(text for found, text in steps if found == rank and rank > start)


def _steps_of(stated: Statement, rules: LabelRules) -> list[tuple[int, str]]:
    """Return the ranks that one statement bounds the level by, each with its reason."""
    steps = []
    ceiling = DEFAULT_CEILING if rules.ceiling_of is None else rules.ceiling_of(stated.sender)
    steps.append((rank_of_level(ceiling), _stated(stated, f"whose sender counts for {ceiling} at most")))
    claim = stated.trust_level
    if claim is not None:
        steps.append((rank_of_level(claim), _stated(stated, f"seals {claim[:64]}")))
    elif stated.message_type in _OUTSIDE and (rules.has_keys or rules.ceiling_of is not None):
        steps.append((rank_of_level(LEAST_TRUSTED), _stated(stated, "carries what comes from outside")))
    elif stated.hops == 0:
        steps.append((rank_of_level(DEFAULT_CEILING), _stated(stated, "begins a conversation")))
    return steps


def _lifts(until: list[Statement], rules: LabelRules) -> bool:
    """Tell whether the last of *until*, a `trust.lifted`, counts."""
    lifted = until[-1]
    if rules.may_lift is None or lifted.trust_level is None or lifted.trust_level not in LEVELS:
        return False
    if len(until) > 1 and until[-2].sender == lifted.sender:
        # Nobody vouches for what it has sent itself.
        return False
    before = (
        LEAST_TRUSTED
        if len(until) == 1
        else LEVELS[max(rank for link in until[:-1] for rank, _ in _steps_of(link, rules))]
    )
    if before == LEAST_TRUSTED and rank_of_level(lifted.trust_level) < rank_of_level(_LIFTED_AT_MOST):
        return False
    return rules.may_lift(lifted, before, lifted.trust_level)


def _stated(stated: Statement, what: str) -> str:
    return f"{stated.message_type} {stated.message_id} of {stated.sender} {what}"
