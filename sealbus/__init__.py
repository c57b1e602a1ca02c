"""sealbus: an asynchronous message bus for software agents. The names that most programs use.

    from sealbus import App, Context, Retry, connect, payload

The other names are in modules, one for each subject: `sagas`, `workflows`, `patterns`, `testing`, `trust`, `schemas`,
`outbox`, `telemetry`, `errors`, `envelope`, `vocabulary` and `dialects`. Owns no behaviour.
"""

from __future__ import annotations

# In a checkout only (deploy/wheel_sources.py): there `bus`, `producers` and `consumers` are packages of their own.
import importlib.util
from pathlib import Path


def _check_packages() -> None:
    """Raise ImportError naming the file that hides one of our packages, instead of failing somewhere inside."""
    home = Path(__file__).resolve().parents[1]
    for name in ("bus", "producers", "consumers"):
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None and spec is not None and spec.submodule_search_locations:
            origin = Path(next(iter(spec.submodule_search_locations))).resolve()
        if origin != home / name / "__init__.py":
            found = "is missing" if origin is None else f"is hidden by {origin}; rename that file or folder"
            raise ImportError(f"sealbus needs its own package {name!r} beside {home / 'sealbus'}, but it {found}")


_check_packages()
# In a wheel, too:

from typing import TYPE_CHECKING  # noqa: E402

from bus.platforms import check_platform  # noqa: E402

check_platform()
if TYPE_CHECKING:
    from bus.errors import BusError, DependencyDown, Reject, RetryLater
    from bus.payloads.payload_types import payload
    from bus.protocol.sealing import Message
    from bus.retry import Retry
    from consumers.app.app import App
    from consumers.app.router import Router
    from consumers.delivery.blocking_context import BlockingContext
    from consumers.delivery.context import Context
    from consumers.processes.approvals.approval import Approval
    from producers.connection import Bus, connect
    from producers.outcomes import (
        PublishError,
        PublishRejected,
        PublishUnknown,
        Receipt,
        RequestError,
        RequestFailed,
        RequestTimedOut,
    )
    from producers.sealing.options import Outgoing
    from producers.sync_connection import SyncBus, connect_sync
else:
    # A name is imported when it is first asked for: the command line and most programs use a few of them.
    _PLACES = {
        "App": "consumers.app.app",
        "Router": "consumers.app.router",
        "Context": "consumers.delivery.context",
        "BlockingContext": "consumers.delivery.blocking_context",
        "payload": "bus.payloads.payload_types",
        "Message": "bus.protocol.sealing",
        "Outgoing": "producers.sealing.options",
        "connect": "producers.connection",
        "connect_sync": "producers.sync_connection",
        "Bus": "producers.connection",
        "SyncBus": "producers.sync_connection",
        "Receipt": "producers.outcomes",
        "Retry": "bus.retry",
        "Reject": "bus.errors",
        "RetryLater": "bus.errors",
        "DependencyDown": "bus.errors",
        "Approval": "consumers.processes.approvals.approval",
        "BusError": "bus.errors",
        "PublishError": "producers.outcomes",
        "PublishRejected": "producers.outcomes",
        "PublishUnknown": "producers.outcomes",
        "RequestError": "producers.outcomes",
        "RequestFailed": "producers.outcomes",
        "RequestTimedOut": "producers.outcomes",
    }

    def __getattr__(name):
        """Return a name of the facade, imported from its module."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_PLACES[name]), name)
        return found

    def __dir__():
        return sorted({*globals(), *_PLACES})


__all__ = [
    "App",
    "Router",
    "Context",
    "BlockingContext",
    "payload",
    "Message",
    "Outgoing",
    "connect",
    "connect_sync",
    "Bus",
    "SyncBus",
    "Receipt",
    "Retry",
    "Reject",
    "RetryLater",
    "DependencyDown",
    "Approval",
    "BusError",
    "PublishError",
    "PublishRejected",
    "PublishUnknown",
    "RequestError",
    "RequestFailed",
    "RequestTimedOut",
]
