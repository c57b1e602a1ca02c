"""Trusted keys: the verifier of a running process, over a JWKS file or folder that may change while it runs.

Owns reloading (within a second, and at once for an unknown kid), alarms, and refusing high risk when the files have
been unusable for too long. The verdicts are in `bus.trust.keys.key_directory`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from bus.clock import Clock, SystemClock
from bus.protocol.envelope import Statement
from bus.protocol.signatures import Signature
from bus.trust.keys.key_directory import Domain, KeyDirectory, TrustedKey, parse_keys
from bus.trust.keys.signature_algorithms import require_library
from bus.trust.keys.trusted_files import Reloaded, alarm_about, check_secret_file, check_trusted_file

__all__ = ["TrustedKeys"]

_ENDINGS: Final = (".json", ".jwks")
_UNKNOWN_EVERY_S: Final = 0.2


class TrustedKeys:
    """A `DatedVerifier` over the JWKS at *path*, a file or a folder.

        app = App("worker@svc", verifier=TrustedKeys("keys/jwks.json"))

    Raises ConfigurationError for files that cannot be used. *stale_after_s*: when they have been unusable for so long,
    types of high risk are refused.
    """

    def __init__(
        self, path: Path | str, *, clock: Clock | None = None, domain: Domain = "open", stale_after_s: float = 900.0
    ) -> None:
        self._clock = clock = clock or SystemClock()
        self._stale_after_s = stale_after_s
        path = Path(path)
        require_library()
        self._next_look_s = 0.0
        self._files: Reloaded[KeyDirectory] = Reloaded(
            path,
            partial(parse_keys, domain=domain),
            clock=clock,
            endings=_ENDINGS,
            # Who reads shared secrets can sign with them.
            check=check_trusted_file if domain == "open" else _check_both,
            alarm=alarm_about("keys", path, "the last good keys stay in use"),
        )

    @property
    def directory(self) -> KeyDirectory:
        """The keys as they are now."""
        return self._files.current()

    @property
    def generation(self) -> int:
        """Rises with each change; cached verdicts of an older one are invalid."""
        self._files.current()
        return self._files.generation

    def age_s(self) -> float:
        """Return how long ago the files were good, in seconds; 0 while they are."""
        return self._files.age_s()

    @property
    def is_stale(self) -> bool:
        """Whether the files have been unusable for too long."""
        return self._files.age_s() > self._stale_after_s

    def judge(self, signature: Signature, statement: Statement, payload: bytes) -> str | None:
        """Return the reason why *signature* fails, its record's append time unknown."""
        return self.judge_at(signature, statement, payload, append_ms=None, is_link=False)

    def judge_at(
        self, signature: Signature, statement: Statement, payload: bytes, *, append_ms: int | None, is_link: bool
    ) -> str | None:
        """Return the reason why *signature* fails, or None if it is good."""
        directory = self._files.current()
        if signature.kid not in directory.keys and self._clock.monotonic_s() >= self._next_look_s:
            # A key that has just been published signs before the next look.
            self._next_look_s = self._clock.monotonic_s() + _UNKNOWN_EVERY_S
            self._files.refresh()
            directory = self._files.current()
        return directory.judge(
            signature, statement, payload, now_ms=self._clock.now_ms(), append_ms=append_ms, is_link=is_link
        )

    def key_named(self, kid: str) -> TrustedKey | None:
        """Return the key *kid*, None where it is not among these."""
        return self._files.current().keys.get(kid)

    def may_sign(self, kid: str, message_type: str) -> bool:
        """Tell whether the key *kid* may sign messages of *message_type*."""
        return self._files.current().may_sign(kid, message_type)


def _check_both(path: Path) -> None:
    check_trusted_file(path)
    check_secret_file(path)
