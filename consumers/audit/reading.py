"""Reading an audit where there is one: for commands and pages that answer from the log, too."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from consumers.audit.databases import audit_url, open_database
from consumers.audit.store import AuditStore
from consumers.inbox.open import is_missing_file

__all__ = ["read_audit"]


@asynccontextmanager
async def read_audit(settings: Settings) -> AsyncGenerator[AuditStore | None]:
    """Yield the audit's store; None where there is none yet. Raises InboxError where it does not answer."""
    try:
        url = audit_url(settings)
    except ConfigurationError:
        url = ""
    if not url or is_missing_file(url):
        yield None
        return
    store = AuditStore(open_database(url, shared_files=settings.bus.shared_files), namespace=settings.bus.namespace)
    try:
        await store.open(create=False)
    except ConfigurationError:
        await store.close()
        yield None
        return
    try:
        yield store
    finally:
        await store.close()
