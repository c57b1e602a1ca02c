"""The checkpoints of an audit: those of the anchor file and the signed ones in the log, and who publishes new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from bus import gates
from bus.clock import Clock
from bus.errors import ConfigurationError, ContractError
from bus.protocol import sealing
from bus.protocol.signatures import Verifier
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.topics.names import own_topic
from bus.transports.base import Transport
from bus.transports.read_all import read_partition, scan_topic
from bus.trust.opening import open_trust
from bus.vocabulary.bus import AuditCheckpoint
from consumers.operations.audit.anchor import read_anchor
from consumers.operations.audit.store import AuditHead, AuditStore
from consumers.operations.audit.verification import ChainFault, ChainReport, compare_with_log
from producers.connection import make_publisher
from producers.publisher import Publisher

__all__ = ["AUDIT_AGENT", "checkpoint_publisher", "compared_with_log", "read_checkpoints"]

AUDIT_AGENT: Final = "audit@sealbus"
_log = get_logger("audit")


def checkpoint_publisher(transport: Transport, settings: Settings, clock: Clock) -> Publisher | None:
    """Return the publisher of checkpoints; None without a key to sign them."""
    try:
        trust = open_trust(settings, AUDIT_AGENT, clock=clock)
    except ConfigurationError as error:
        trust = None
        reason = str(error)
    else:
        reason = f"trust.key_file has no key of {AUDIT_AGENT}"
    if trust is None or trust.signer is None:
        _log.warning(
            "audit.no_checkpoints",
            detail=f"without a signature nothing outside the database proves its rows: {reason}; make a key with "
            f"`sealbus key new {AUDIT_AGENT}`",
        )
        return None
    return make_publisher(
        transport,
        settings,
        AUDIT_AGENT,
        clock=clock,
        metrics=Metrics(),
        signer=trust.signer,
        verifier=trust.verifier,
        policy=trust.policy,
    )


async def read_checkpoints(
    transport: Transport, settings: Settings, verifier: Verifier | None
) -> Mapping[str, Mapping[int, Sequence[AuditCheckpoint]]]:
    """Return the checkpoints of the anchor and the signed ones in the log, by partition and number of rows."""
    found: dict[str, dict[int, list[AuditCheckpoint]]] = {}

    def add(checkpoint: AuditCheckpoint) -> None:
        found.setdefault(checkpoint.partition, {}).setdefault(checkpoint.rows, []).append(checkpoint)

    if settings.audit.anchor:
        for anchored in read_anchor(settings.audit.anchor):
            add(anchored)
    topic = own_topic(settings.bus.namespace, "_audit")
    if topic in await transport.admin.topics():
        async for record in scan_topic(transport, topic):
            checkpoint = _checkpoint(record.value or b"", verifier)
            if checkpoint is not None:
                add(checkpoint)
    return found


def _checkpoint(value: bytes, verifier: Verifier | None) -> AuditCheckpoint | None:
    """Return the checkpoint in *value*; None if it is another entry, or its writer is not verified."""
    if b'"audit.checkpoint"' not in value:
        return None
    try:
        message = sealing.parse(value)
        if message.message_type != "audit.checkpoint" or message.metadata.sender.id != AUDIT_AGENT:
            return None
        gates.prove(message, "high", verifier)
        return msgspec.json.decode(message.data, type=AuditCheckpoint)
    except (ContractError, msgspec.DecodeError):
        return None


async def compared_with_log(
    transport: Transport,
    store: AuditStore,
    reports: Sequence[ChainReport],
    heads: Mapping[tuple[str, int], AuditHead],
) -> list[ChainReport]:
    """Return *reports* with what differs from the records that the log still has."""
    found, topics = [], await transport.admin.topics()
    for report in reports:
        location = (report.topic, report.partition)
        faults: list[ChainFault] = []
        if report.topic in topics:
            faults = await compare_with_log(
                store.rows(*location), read_partition(transport, *location), heads[location]
            )
        found.append(msgspec.structs.replace(report, faults=(*report.faults, *faults)))
    return found
