"""The findings about messages that were recorded already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bus.payloads.payload_types import Registry
from bus.settings.schema import Settings
from bus.topics.names import read_topic
from bus.transports.base import Transport
from consumers.app.app import App
from consumers.operations.checks.findings import CheckFinding
from consumers.operations.checks.gathering import finding_of
from consumers.operations.checks.type_findings import RecordedChecks
from consumers.operations.lineage.recorded import recorded_messages
from consumers.operations.lint.traffic_checks import TrafficLint

__all__ = ["RecordedFindings", "findings_of_recorded"]


class RecordedFindings(NamedTuple):
    """How many messages were read, and what is wrong with their types and with their protocol."""

    messages: int
    types: Sequence[CheckFinding]
    traffic: Sequence[CheckFinding]


async def findings_of_recorded(
    transport: Transport,
    settings: Settings,
    apps: Sequence[App],
    types: Registry,
    *,
    on_progress: Callable[[int, int], object] = lambda *_: None,
) -> RecordedFindings:
    """Read every message of the namespace and judge it by *types* and *apps*."""
    subscriptions = {name: each for app in reversed(apps) for name, each in app.subscriptions.items()}
    judged, seen = RecordedChecks(types, subscriptions), TrafficLint()
    names = [(topic, read_topic(topic)) for topic in sorted(await transport.admin.topics())]
    topics = [
        topic
        for topic, name in names
        if name is not None and name.kind == "message" and name.namespace == settings.bus.namespace
    ]
    async for _topic, message, location in recorded_messages(transport, topics, on_progress=on_progress):
        seen.look(message, location)
        judged.look(message, location)
    return RecordedFindings(seen.messages, list(judged.findings()), [finding_of(each) for each in seen.findings()])
