"""Open the processes beside the inbox, for who looks at them and is no worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from bus.clock import SystemClock
from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from consumers.inbox.open import inbox_url, open_inbox
from consumers.sagas.store import ProcessStore

__all__ = ["opened_store"]

_SQLITE: Final = "sqlite:///"


@asynccontextmanager
async def opened_store(settings: Settings, group: str | None) -> AsyncGenerator[ProcessStore]:
    """Yield the rows of *group*, or of all groups. Raises ConfigurationError where there is no store."""
    url = inbox_url(settings)
    if url is None:
        raise ConfigurationError(
            "there is no inbox, beside which processes are kept: give inbox.url as the workers have it"
        )
    _check_file(url)
    inbox = open_inbox(url, owner="sealbus processes", clock=SystemClock(), shared_files=settings.bus.shared_files)
    await inbox.open()
    try:
        store = ProcessStore(inbox, namespace=settings.bus.namespace, group=group, clock=SystemClock())
        await store.open()
        yield store
    finally:
        await inbox.close()


def _check_file(url: str) -> None:
    if url.startswith(_SQLITE) and not Path(unquote(url.removeprefix(_SQLITE))).exists():
        raise ConfigurationError(f"there is no inbox at {url}: a worker with a saga or an approval makes it")
