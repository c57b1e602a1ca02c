"""Changes: since when each fault is seen, and what has changed lately. Pure but for what it keeps in memory."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from consumers.operations.survey.results import CheckResult
from producers.directory.presence import AgentEntry

__all__ = ["SeenChange", "Changes"]

_MAX_CHANGES: Final = 200
_NUMBER: Final = re.compile(r"(?<![\w@./-])\d[\d,.:]*")
_FORGETS_MS: Final = 60_000
"""A fault that is away for so long begins anew."""

SeenChangeKind: TypeAlias = Literal["fault", "ok", "busy", "retry"]


class SeenChange(msgspec.Struct, frozen=True):
    """One thing that has changed. Its texts are untrusted."""

    kind: SeenChangeKind
    text: str
    detail: str
    at_ms: int
    link: str = ""


class Changes:
    """What a row of looks has shown."""

    def __init__(self) -> None:
        self.latest: deque[SeenChange] = deque(maxlen=_MAX_CHANGES)
        """The newest first."""
        self._since_ms: dict[tuple[str, str], tuple[int, int, str]] = {}
        """By area and subject of a fault: since when, when it was seen last, and its text."""
        self._agents: dict[str, str] | None = None
        """By agent, its health at the last look."""

    def look(self, now_ms: int, checks: Sequence[CheckResult], agents: Sequence[AgentEntry] | None) -> None:
        """Compare what was found now with the looks before; the first look begins the comparison."""
        is_first = self._agents is None and not self._since_ms
        for check in checks:
            if check.state != "fault":
                continue
            key = _subject(check)
            since_ms = self._since_ms.get(key, (now_ms,))[0]
            if key not in self._since_ms and not is_first:
                self.add(SeenChange("fault", check.text, check.cure, now_ms))
            self._since_ms[key] = since_ms, now_ms, check.text
        for key, (_, seen_ms, text) in list(self._since_ms.items()):
            if now_ms - seen_ms > _FORGETS_MS:
                del self._since_ms[key]
                self.add(SeenChange("ok", f"over: {text}", "", seen_ms))
        if agents is not None:
            self._look_at_agents(now_ms, agents)

    def since_ms(self, check: CheckResult) -> int | None:
        """Return since when the fault *check* has been seen; None: it was not seen by a look."""
        found = self._since_ms.get(_subject(check))
        return None if found is None else found[0]

    def add(self, change: SeenChange) -> None:
        """Add *change* as the newest one."""
        self.latest.appendleft(change)

    def _look_at_agents(self, now_ms: int, agents: Sequence[AgentEntry]) -> None:
        now: dict[str, str] = {each.agent_id: each.health for each in agents}
        before, self._agents = self._agents, now
        if before is None:
            return
        for name, health in now.items():
            if name not in before:
                self.add(SeenChange("busy", f"{name} came", health, now_ms, name))
            elif before[name] != health:
                kind: SeenChangeKind = "ok" if health == "healthy" else "fault"
                self.add(SeenChange(kind, f"{name} is {health}", f"before: {before[name]}", now_ms, name))
        for name in before.keys() - now.keys():
            self.add(SeenChange("busy", f"{name} has left", "", now_ms))


def _subject(check: CheckResult) -> tuple[str, str]:
    """Return what a check is about: its numbers change from look to look."""
    return check.area, _NUMBER.sub("#", check.text)
