"""Opening the audit of some settings: to work with it, or to read it where there is one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from consumers.delivery.inbox.open import is_missing_file, log_file
from consumers.operations.audit.databases import audit_url, open_database
from consumers.operations.audit.store import AuditStore

__all__ = ["opened_audit", "read_audit"]


@asynccontextmanager
async def opened_audit(settings: Settings, *, create: bool) -> AsyncGenerator[AuditStore]:
    """Yield the audit's store; make its tables with *create*.

    Raises ConfigurationError where there is none, or no place for it; InboxError where it does not answer.
    """
    url = audit_url(settings)
    if not create and is_missing_file(url):
        raise ConfigurationError(f"no audit at {log_file(url)}: `sealbus serve audit` writes it")
    store = AuditStore(open_database(url, shared_files=settings.bus.shared_files), namespace=settings.bus.namespace)
    try:
        await store.open(create=create)
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def read_audit(settings: Settings) -> AsyncGenerator[AuditStore | None]:
    """Yield the audit's store; None if there is none yet. Raises InboxError if it does not answer."""
    async with AsyncExitStack() as opened:
        try:
            store = await opened.enter_async_context(opened_audit(settings, create=False))
        except ConfigurationError:
            store = None
        yield store
