"""The topics that several apps need, also for what their policy asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bus.clock import SystemClock
from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.transports.base import TopicSpec
from consumers.delivery.declaration import Declaration
from consumers.worker.needed_topics import needed_topics

__all__ = ["distinct_topics", "wanted_topics"]


def wanted_topics(
    settings: Settings, declarations: Sequence[Declaration], *, on_left_out: Callable[[str], object]
) -> Sequence[TopicSpec]:
    """Return the topics that the apps of *declarations* need, each once.

    *on_left_out* gets the reason where a policy cannot be read: the topics that only it needs are left out.
    """
    found: list[TopicSpec] = []
    for declared in declarations:
        # A policy may want approvals: they need a mailbox, and topics of their own. Without its keys it is read
        # elsewhere.
        if settings.policy.file:
            from bus.trust.opening import keyless
            from consumers.worker.host import trusting

            try:
                found += needed_topics(settings, trusting(declared, keyless(settings), SystemClock()))
                continue
            except ConfigurationError as error:
                on_left_out(f"topics that only the policy needs are left out: {printable(str(error))}")
        found += needed_topics(settings, declared)
    return distinct_topics(found)


def distinct_topics(specs: Sequence[TopicSpec]) -> Sequence[TopicSpec]:
    return [*{spec.name: spec for spec in specs}.values()]
