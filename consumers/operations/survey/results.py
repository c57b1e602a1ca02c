"""CheckResult: one check of an installation, with its fix. A verdict that was not made is none of "ok"."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

__all__ = ["CHECK_AREAS", "CheckResult", "CheckState", "fault", "hint", "ok", "unknown", "worst_first"]

CheckState: TypeAlias = Literal["fault", "unknown", "hint", "ok"]
"""`unknown`: it was not looked at."""
_ORDER: Final = ("fault", "hint", "unknown", "ok")

_SOURCES: Final = {
    "agents": "the cards and heartbeats of the last minutes",
    "approvals": "the inbox, and the requests in the log",
    "audit": "the database of the audit, and the ends of partitions",
    "brokers": "the settings of the brokers",
    "clock": "a record written in this look",
    "disk": "this machine",
    "doors": "the file of credentials",
    "files": "this machine",
    "groups": "committed offsets, ends of partitions, and the reports of workers",
    "inbox": "the inbox, and the reports of workers",
    "keys": "the key files",
    "letters": "the dead-letter topics",
    "limits": "the apps",
    "log": "a record written in this look",
    "policy": "the policy file",
    "processes": "the inbox",
    "python": "this machine",
    "settings": "the settings, and the cards of workers",
    "topics": "the topics and their settings",
}
CHECK_AREAS: Final = tuple(_SOURCES)
"""Every area of checks."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, rename={"cure": "fix"}):
    """One check: its result, and the fix if it is a fault. Texts of agents in it are untrusted."""

    area: str
    state: CheckState
    text: str
    cure: str = ""
    source: str = ""
    """What was read for it."""


def ok(area: str, text: str) -> CheckResult:
    """Return the result of a check that found what it wanted."""
    return _result(area, "ok", text, "")


def hint(area: str, text: str, cure: str = "") -> CheckResult:
    """Return something to know, which is no fault."""
    return _result(area, "hint", text, cure)


def fault(area: str, text: str, cure: str) -> CheckResult:
    """Return a fault, and what to do."""
    return _result(area, "fault", text, cure)


def unknown(area: str, text: str, cure: str = "") -> CheckResult:
    """Return what was not looked at, and why."""
    return _result(area, "unknown", f"not looked at: {text}", cure)


def worst_first(found: list[CheckResult]) -> list[CheckResult]:
    """Return *found* with faults first, then hints, then what was not looked at, then successes."""
    return sorted(found, key=lambda result: _ORDER.index(result.state))


def _result(area: str, state: CheckState, text: str, cure: str) -> CheckResult:
    return CheckResult(area=area, state=state, text=text, cure=cure, source=_SOURCES.get(area, ""))
