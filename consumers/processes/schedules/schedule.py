"""Schedule: a function that runs at times, and which times those are. Pure.

Owns the two forms (an interval, aligned to the epoch, and a cron expression in a time zone), which times are due, and
what becomes of those that were missed. Cron is read by `cronsim`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec

from bus.errors import ConfigurationError

__all__ = ["Due", "Missed", "Schedule", "due_now", "next_due_ms", "was_missed"]

Missed = Literal["once", "skip"]

GRACE_MS: Final = 60_000
"""What is late by less than this runs all the same; beyond that it was missed."""
_MAX_AT_ONCE: Final = 100
_MAX_LOOKED: Final = 100_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CRON_FIELDS: Final = 5
_SHORTEST_MS: Final = 1_000
_LONGEST_MS: Final = 366 * 86_400_000


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A function that runs at times."""

    name: str
    every_ms: int = 0
    """The interval; 0: by *cron*."""
    cron: str = ""
    timezone: str = "UTC"
    missed: Missed = "once"
    ttl_s: float = 3600.0
    """The lifetime of a run that has become due."""
    function: Callable[..., Any]
    takes_context: bool = False

    @property
    def times(self) -> str:
        """Its times, as text: another text is another schedule."""
        return f"every {self.every_ms} ms" if self.every_ms else f"{self.cron} {self.timezone}"

    def check(self) -> None:
        """Raise ConfigurationError for what is no schedule."""
        if _NAME.fullmatch(self.name) is None:
            raise ConfigurationError(f"illegal name of a schedule {self.name!r:.80}: 1 to 64 of A-Z a-z 0-9 . _ -")
        if self.missed not in get_args(Missed):
            raise ConfigurationError(f"missed={self.missed!r}: once or skip")
        if bool(self.cron) == bool(self.every_ms):
            raise ConfigurationError(
                ("give one of both: " if self.cron else "give ")
                + 'a cron expression, as in every("0 8 * * *"), or seconds=, minutes=, hours='
            )
        if not isinstance(self.ttl_s, int | float) or not 0 < self.ttl_s < math.inf:
            raise ConfigurationError(f"ttl_s={self.ttl_s!r:.80}: give the seconds that a due run may wait, above 0")
        self._check_zone()
        if self.every_ms and not _SHORTEST_MS <= self.every_ms <= _LONGEST_MS:
            raise ConfigurationError(f"a schedule of {self.every_ms / 1000:g} s: from 1 second to 366 days")
        if self.cron:
            self._check_cron()

    def _check_zone(self) -> None:
        try:
            # A small machine may have no zones at all, and an interval needs none.
            if self.timezone != "UTC":
                ZoneInfo(self.timezone)
        except (ValueError, OSError, TypeError, LookupError) as error:
            raise ConfigurationError(
                f'{self.timezone!r:.80} is not a time zone of this machine: write it as "Europe/Berlin"'
            ) from error

    def _check_cron(self) -> None:
        if not isinstance(self.cron, str) or len(self.cron.split()) != _CRON_FIELDS:
            raise ConfigurationError(
                f'{self.cron!r:.80} is not a cron expression of five fields: write it as "0 8 * * *"'
            )
        try:
            next_due_ms(self, 0)
        except ConfigurationError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"{self.cron!r:.80} in {self.timezone!r:.80} is not a cron expression ({error}): write five "
                'fields, as "0 8 * * *", and a time zone as "Europe/Berlin"'
            ) from error


class Due(msgspec.Struct, frozen=True):
    """A run that is due; *missed* due times before it were left out."""

    due_ms: int
    missed: int = 0


def next_due_ms(schedule: Schedule, after_ms: int) -> int:
    """Return the first due time after *after_ms*, in milliseconds since the epoch."""
    return next(_times_after(schedule, after_ms))


def was_missed(schedule: Schedule, due_ms: int, *, waited_ms: int, now_ms: int) -> bool:
    """Return whether a run has waited for a worker for longer than the grace, and the next one is due already.

    Where runs take longer than the time between them, no later one would come in time.
    """
    return waited_ms > GRACE_MS and next_due_ms(schedule, due_ms) <= now_ms


def due_now(schedule: Schedule, next_ms: int, now_ms: int, missed: int) -> tuple[list[Due], int, int]:
    """Return what is due now of *schedule*, whose next time is *next_ms*; the time after that; and those left out.

    Of the times that lie further back than the grace, the last one runs for all ("once"), or none does ("skip"): the
    next run tells how many. *missed* is what an earlier call has left out. At most 100 runs are due at once.
    """
    late: list[int] = []
    due: list[Due] = []
    times = (next_ms, *islice(takewhile(lambda at: at <= now_ms, _times_after(schedule, next_ms)), _MAX_LOOKED))
    for at in times:
        if at > now_ms:
            break
        if at < now_ms - GRACE_MS:
            late.append(at)
        elif len(due) < _MAX_AT_ONCE:
            due.append(Due(at))
        else:
            break
    if late:
        if schedule.missed == "once":
            due.insert(0, Due(late[-1], missed + len(late) - 1))
            missed = 0
        else:
            missed += len(late)
    if due and missed:
        due[0] = Due(due[0].due_ms, due[0].missed + missed)
        missed = 0
    last_ms = max([*late, *(each.due_ms for each in due)], default=None)
    return due, next_ms if last_ms is None else next_due_ms(schedule, last_ms), missed


def _times_after(schedule: Schedule, after_ms: int) -> Iterator[int]:
    if schedule.every_ms:
        at = after_ms // schedule.every_ms * schedule.every_ms
        while True:
            at += schedule.every_ms
            yield at
    try:
        from cronsim import CronSim
    except ImportError as error:
        raise ConfigurationError("a cron expression needs the extra: pip install 'sealbus[schedules]'") from error
    begin = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(ZoneInfo(schedule.timezone))
    for each in CronSim(schedule.cron, begin):
        yield round(each.timestamp() * 1000)
