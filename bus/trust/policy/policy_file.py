"""File policy: the policy of a running process, over a TOML file that may change meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bus.clock import Clock, SystemClock
from bus.protocol.sealing import Message
from bus.trust.keys.trusted_files import Reloaded, alarm_about
from bus.trust.policy.file import parse_policy
from bus.trust.policy.rules import PolicyRules

__all__ = ["PolicyFile"]


class PolicyFile:
    """The policy in the TOML file at *path*, read again within a second of a change; the last good one is kept.

        app = App("planner@svc", policy=PolicyFile("policy.toml"))

    Raises ConfigurationError for a file that cannot be used. *stale_after_s*: when it has been unusable for so long,
    types of high risk are refused.
    """

    def __init__(self, path: Path | str, *, clock: Clock | None = None, stale_after_s: float = 900.0) -> None:
        self.path = Path(path)
        self._stale_after_s = stale_after_s
        self._file: Reloaded[PolicyRules] = Reloaded(
            self.path,
            _parse,
            clock=clock or SystemClock(),
            endings=(".toml",),
            alarm=alarm_about("policy", path, "the last good policy stays in use"),
        )

    def rules(self) -> PolicyRules:
        """Return the rules of now."""
        return self._file.current()

    def age_s(self) -> float:
        """Return how long ago the file was good, in seconds; 0 while it is."""
        return self._file.age_s()

    def is_stale(self) -> bool:
        """Tell whether the file has been unusable for too long."""
        return self._file.age_s() > self._stale_after_s

    def refusal(self, message: Message, group: str) -> str | None:  # noqa: ARG002 - the Protocol's signature
        """Return None: `bus.trust.admission` asks the rules, with facts that this Protocol does not have."""
        return None


def _parse(texts: Mapping[str, bytes]) -> PolicyRules:
    ((name, text),) = texts.items()
    return parse_policy(text, name=name)
