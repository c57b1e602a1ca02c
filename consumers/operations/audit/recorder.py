"""The trail that the settings ask for: who writes the record, how long rows are kept, who signs checkpoints."""

from __future__ import annotations

import os
import socket

from bus.clock import Clock
from bus.payloads.payload_types import Registry
from bus.settings.schema import Settings
from bus.transports.base import Transport
from consumers.operations.audit.checkpoints import checkpoint_publisher
from consumers.operations.audit.metrics import AuditMetrics
from consumers.operations.audit.store import AuditStore
from consumers.operations.audit.trail import AuditTrail, TrailSettings
from consumers.operations.lineage.proofs import trusted_keys

__all__ = ["audit_trail"]


def audit_trail(
    transport: Transport, store: AuditStore, settings: Settings, *, types: Registry, clock: Clock, metrics: AuditMetrics
) -> AuditTrail:
    """Return the trail from *transport* into *store*; this process is one of the holders of its partitions."""
    return AuditTrail(
        transport,
        store,
        TrailSettings(
            namespace=settings.bus.namespace,
            holder=f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}",
            max_message_bytes=settings.publish.max_message_bytes,
            checkpoint_s=settings.audit.checkpoint_s,
            anchor=settings.audit.anchor,
            keep_s=settings.audit.keep_s,
            keep_sensitive_s=settings.audit.keep_sensitive_s,
        ),
        registry=types,
        verifier=trusted_keys(settings, clock),
        publisher=checkpoint_publisher(transport, settings, clock),
        clock=clock,
        metrics=metrics,
    )
