"""Changes: since when each fault is seen, and what has changed lately. Pure but for what it keeps in memory."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from consumers.operations.survey.results import CheckResult
from producers.directory.presence import AgentEntry

__all__ = ["SeenChange", "Changes"]

_MAX_CHANGES: Final = 200
_NUMBER: Final = re.compile(r"(?<![\w@./-])\d[\d,.:]*")
_DETAILS: Final = re.compile(r"[:;] |, besides ")
_PLURAL: Final = re.compile(r"(?<=\w{3})s(?![\w@./-])|\b(?:is|are|was|were|has|have)\b")
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
        self._agents: dict[str, tuple[str, str]] | None = None
        """By agent, its health and its versions at the last look."""

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
        now = {each.agent_id: (str(each.health), ", ".join(each.versions)) for each in agents}
        before, self._agents = self._agents, now
        if before is None:
            return
        for name, (health, versions) in now.items():
            link = f"/agents/show?id={quote(name, safe='')}"
            if name not in before:
                came = f"version {versions}" if versions else health
                self.add(SeenChange("busy", f"{name} came", came, now_ms, link))
                continue
            last_health, last_versions = before[name]
            if last_health != health:
                kind: SeenChangeKind = "ok" if health == "healthy" else "fault"
                self.add(SeenChange(kind, f"{name} is {health}", f"before: {last_health}", now_ms, link))
            if versions and last_versions and versions != last_versions:
                text = f"{name} runs version {versions}"
                self.add(SeenChange("busy", text, f"before: {last_versions}", now_ms, link))
        for name in before.keys() - now.keys():
            self.add(SeenChange("busy", f"{name} has left", "", now_ms))


def _subject(check: CheckResult) -> tuple[str, str]:
    """Return what a check is about: its numbers change from look to look, and the details that follow."""
    about = _DETAILS.split(check.text, maxsplit=1)[0]
    return check.area, _PLURAL.sub("", _NUMBER.sub("#", about))
