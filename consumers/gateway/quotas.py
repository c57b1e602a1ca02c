"""Quotas: how often a credential asks, and how many streams it has, on this replica. Pure but for its clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bus.clock import Clock
from consumers.gateway.credentials import Credential
from consumers.gateway.metrics import waits
from consumers.web.refusal import HttpRefusal

__all__ = ["Quotas"]

_RETRY_S: Final = 1.0


class _Bucket:
    __slots__ = ("at_s", "left", "streams")

    def __init__(self, at_s: float, left: float) -> None:
        self.at_s = at_s
        self.left = left
        self.streams = 0


class Quotas:
    """The use that each credential makes of this process."""

    def __init__(self, clock: Clock, *, max_streams: int) -> None:
        self._clock = clock
        self._max_streams = max_streams
        self._buckets: dict[str, _Bucket] = {}
        self.streams = 0
        """Streams and waiting calls of all."""

    def check_rate(self, credential: Credential) -> None:
        """Count a request. Raises HttpRefusal (429) where it is one too many."""
        now_s = self._clock.monotonic_s()
        bucket = self._bucket(credential, now_s)
        bucket.left = min(float(credential.burst), bucket.left + (now_s - bucket.at_s) * credential.rate)
        bucket.at_s = now_s
        if bucket.left < 1:
            raise HttpRefusal(
                "RATE_LIMIT",
                f"{credential.name} may ask {credential.rate:g} times a second",
                retry_after_s=(1 - bucket.left) / credential.rate,
            )
        bucket.left -= 1

    @contextmanager
    def stream(self, credential: Credential) -> Iterator[None]:
        """Count a stream or a waiting call while the body runs. Raises HttpRefusal (429, 503)."""
        bucket = self._bucket(credential, self._clock.monotonic_s())
        if bucket.streams >= credential.streams:
            raise HttpRefusal(
                "RATE_LIMIT", f"{credential.name} may have {credential.streams} streams", retry_after_s=_RETRY_S
            )
        if self.streams >= self._max_streams:
            raise HttpRefusal(
                "SERVICE_UNAVAILABLE", "this gateway has no stream left: gateway.streams", retry_after_s=_RETRY_S
            )
        waits()
        bucket.streams += 1
        self.streams += 1
        try:
            yield
        finally:
            bucket.streams -= 1
            self.streams -= 1

    def _bucket(self, credential: Credential, now_s: float) -> _Bucket:
        bucket = self._buckets.get(credential.name)
        if bucket is None:
            bucket = self._buckets[credential.name] = _Bucket(now_s, float(credential.burst))
        return bucket
