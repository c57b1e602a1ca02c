"""Open the processes beside the inbox, for readers that are not workers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bus.clock import SystemClock
from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from consumers.delivery.inbox.open import inbox_url, is_missing_file, open_inbox
from consumers.processes.sagas.store import ProcessStore

__all__ = ["opened_store"]


@asynccontextmanager
async def opened_store(settings: Settings, group: str | None) -> AsyncGenerator[ProcessStore]:
    """Yield the rows of *group*, or of all groups. Raises ConfigurationError if there is no store."""
    url = inbox_url(settings)
    if url is None:
        raise ConfigurationError(
            "processes are stored in the inbox, and there is none: set inbox.url as for the workers"
        )
    if is_missing_file(url):
        raise ConfigurationError(f"no inbox at {url}: a worker with a saga or an approval makes it")
    inbox = open_inbox(url, owner="sealbus workflow", clock=SystemClock(), shared_files=settings.bus.shared_files)
    await inbox.open()
    try:
        store = ProcessStore(inbox, namespace=settings.bus.namespace, group=group, clock=SystemClock())
        await store.open()
        yield store
    finally:
        await inbox.close()
