"""Trust: how far the messages that a page shows are trusted, by the keys and the policy of the console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bus.errors import ConfigurationError
from bus.trust.opening import keyless, open_trust
from consumers.operations.console.model import Console
from consumers.operations.lineage.log_search import StoredCopy
from consumers.operations.survey.trust_view import TrustView, TrustViewer

__all__ = ["trust_views"]

_COPIES: Final = ("dlq", "retry", "redrive")


async def trust_views(console: Console, wanted: Sequence[str], copies: Sequence[StoredCopy]) -> dict[str, TrustView]:
    """Return by id how far the *wanted* messages among *copies* are trusted; empty where keys cannot be read."""
    try:
        trusted = open_trust(keyless(console.settings), "", clock=console.clock)
    except ConfigurationError:
        return {}
    viewer = TrustViewer(console.settings, await console.registry(), trusted, console.clock)
    found: dict[str, TrustView] = {}
    for copy in copies:
        if copy.message_id in wanted and copy.message_id not in found and copy.kind not in _COPIES:
            found[copy.message_id] = viewer.view(copy)
    return found
