"""Verdicts about the workers of one group beside each other, by their cards: do they share one inbox, and one code?

Pure. What a card does not tell, as that of an older version, is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from consumers.delivery.inbox.store_mark import NO_STORE
from consumers.operations.survey.results import CheckResult, fault, hint
from producers.directory.presence import AgentEntry, GroupMember

__all__ = ["of_members"]

_DEPLOYED_MS: Final = 300_000
"""Workers of two versions beside each other for so long are a deployment."""
_FEW: Final = 3
_MAX_GROUPS: Final = 20


def of_members(agents: Iterable[AgentEntry], now_ms: int) -> Iterator[CheckResult]:
    """Check whether the workers of each group of *agents* use one inbox, and handle the same types."""
    groups: dict[tuple[str, str], list[GroupMember]] = {}
    for agent in agents:
        for member in agent.members:
            groups.setdefault((agent.agent_id, member.group), []).append(member)
    found = [
        result
        for (agent_id, group), members in groups.items()
        for result in (_of_inboxes(group, members), _of_handled(agent_id, group, members, now_ms))
        if result is not None
    ]
    yield from sorted(found, key=lambda each: each.state != "fault")[:_MAX_GROUPS]


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


def _of_handled(agent_id: str, group: str, members: Sequence[GroupMember], now_ms: int) -> CheckResult | None:
    """Judge the types that *members* handle: two programs may share an agent id by mistake."""
    begun_ms: dict[tuple[str, ...], int] = {}
    for member in members:
        if member.since_ms is not None:
            begun_ms[member.handled] = min(member.since_ms, begun_ms.get(member.handled, member.since_ms))
    # Since when there are all of these beside each other.
    lasts_ms = now_ms - max(begun_ms.values(), default=now_ms)
    if len(begun_ms) < 2 or lasts_ms < _DEPLOYED_MS:  # noqa: PLR2004 - one and another
        return None
    differing = sorted({name for each in begun_ms for name in each if any(name not in other for other in begun_ms)})
    parts = [f"{name} by {_named([each for each in members if name in each.handled])}" for name in differing[:_FEW]]
    more = f"; and {len(differing) - _FEW} more types" if len(differing) > _FEW else ""
    text = f"{group}: workers of {agent_id} have handled different types for {lasts_ms // 60_000} min: "
    text += f"only some handle {'; '.join(parts)}{more}"
    cure = "end the workers of the other program or version; a second program needs an agent id of its own"
    return hint("agents", text, cure)


def _named(members: Sequence[GroupMember]) -> str:
    """Return how many workers *members* are, with the names of a few."""
    names = sorted(each.name for each in members if each.name)
    more = ", ..." if len(names) > _FEW else ""
    named = f" ({', '.join(names[:_FEW])}{more})" if names else ""
    return f"{len(members)} worker{'' if len(members) == 1 else 's'}{named}"
