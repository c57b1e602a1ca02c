"""Open a log by its URL.

Owns the table of URL schemes. Each adapter module interprets the rest of the URL (`open_url`) and the settings
(`options_of`), and is imported only when its scheme is used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import cast

from bus.clock import Clock, SystemClock
from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from bus.transports.base import Transport

__all__ = ["open_configured", "open_transport"]

_ADAPTERS = {
    "kafka": "bus.transports.kafka",
    "memory": "bus.transports.sqlite",
    "sqlite": "bus.transports.sqlite",
}


def open_configured(settings: Settings, *, clock: Clock | None = None) -> Transport:
    """Open the log that *settings* name. Raises ConfigurationError, UnreachableError."""
    options_of = cast("Callable[[Settings], dict[str, object]]", _adapter(settings.bus.url).options_of)
    return open_transport(settings.bus.url, clock=clock, **options_of(settings))


def open_transport(url: str, *, clock: Clock | None = None, **options: object) -> Transport:
    """Open the log at *url*; *options* go to the adapter. Raises ConfigurationError, UnreachableError."""
    open_url = cast("Callable[..., Transport]", _adapter(url).open_url)
    return open_url(url, clock=clock or SystemClock(), **options)


def _adapter(url: str) -> ModuleType:
    scheme, separator, _ = url.partition("://")
    name = _ADAPTERS.get(scheme)
    if not separator or name is None:
        known = ", ".join(f"{name}://" for name in sorted(_ADAPTERS))
        raise ConfigurationError(f"no transport for this URL (scheme {scheme[:20]!r}); known are {known}")
    return import_module(name)
