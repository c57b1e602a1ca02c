"""Verdicts about the workers of one group beside each other, by their cards: do they share one inbox?

Pure. What a card does not tell, as that of an older version, is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from consumers.delivery.inbox.store_mark import NO_STORE
from consumers.operations.survey.results import CheckResult, fault
from producers.directory.presence import AgentEntry, GroupMember

__all__ = ["of_members"]

_FEW: Final = 3
_MAX_GROUPS: Final = 20


def of_members(agents: Iterable[AgentEntry]) -> Iterator[CheckResult]:
    """Check whether the workers of each group of *agents* use one inbox."""
    groups: dict[tuple[str, str], list[GroupMember]] = {}
    for agent in agents:
        for member in agent.members:
            groups.setdefault((agent.agent_id, member.group), []).append(member)
    found = [result for (_, group), members in groups.items() if (result := _of_inboxes(group, members)) is not None]
    yield from found[:_MAX_GROUPS]


def _of_inboxes(group: str, members: Sequence[GroupMember]) -> CheckResult | None:
    """Judge the inboxes of *members*: what one store has, a worker with another one does not know."""
    stores: dict[str, list[GroupMember]] = {}
    for member in members:
        if member.inbox:
            stores.setdefault(member.inbox, []).append(member)
    if len(stores) < 2:  # noqa: PLR2004 - one and another
        return None
    parts = [
        f"{'none' if mark == NO_STORE else f'inbox {mark}'} by {_named(users)}"
        for mark, users in sorted(stores.items(), key=lambda each: -len(each[1]))
    ]
    text = f"{group}: its workers use different inboxes: {'; '.join(parts)}: what one has handled may run again"
    cure = (
        "give all of them one inbox.url; approvals and workflows that an odd one has taken are only in its inbox, so "
        "let it run alone until they have ended"
    )
    return fault("settings", text, cure)


def _named(members: Sequence[GroupMember]) -> str:
    """Return how many workers *members* are, with the names of a few."""
    names = sorted(each.name for each in members if each.name)
    more = ", ..." if len(names) > _FEW else ""
    named = f" ({', '.join(names[:_FEW])}{more})" if names else ""
    return f"{len(members)} worker{'' if len(members) == 1 else 's'}{named}"
