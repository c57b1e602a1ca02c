"""Opening a log by its URL.

Owns the table of schemes. Does not own what an adapter makes of the rest of the URL: each adapter module has an `open_url`, and is imported
only when its scheme is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from bus.clock import Clock, SystemClock
from bus.errors import ConfigurationError
from bus.transports.base import Transport

__all__ = ["open_transport"]

_ADAPTERS = {
    "kafka": "bus.transports.kafka",
    "memory": "bus.transports.sqlite",
    "sqlite": "bus.transports.sqlite",
}


def open_transport(url: str, *, clock: Clock | None = None, **options: object) -> Transport:
    """Open the log behind *url*; *options* go to the adapter. Raises ConfigurationError, UnreachableError."""
    scheme, separator, _ = url.partition("://")
    adapter = _ADAPTERS.get(scheme)
    if not separator or adapter is None:
        known = ", ".join(f"{name}://" for name in sorted(_ADAPTERS))
        raise ConfigurationError(f"no transport for this URL (scheme {scheme[:20]!r}); known are {known}")
    if find_spec(adapter) is None:
        raise ConfigurationError(f"{scheme}:// is not supported by this version of sealbus")
    open_url = cast("Callable[..., Transport]", import_module(adapter).open_url)
    return open_url(url, clock=clock or SystemClock(), **options)
