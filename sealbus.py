"""sealbus: an asynchronous message bus for software agents. The names that users import.

    from sealbus import App, Context, Retry, connect, payload

Owns no behaviour.
"""

from __future__ import annotations

# In a checkout only (deploy/wheel_sources.py): there `bus`, `producers` and `consumers` are packages of their own.
import importlib.util
from pathlib import Path


def _check_packages() -> None:
    """Raise ImportError naming the file that hides one of our packages, instead of failing somewhere inside."""
    home = Path(__file__).resolve().parent
    for name in ("bus", "producers", "consumers"):
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None and spec is not None and spec.submodule_search_locations:
            origin = Path(next(iter(spec.submodule_search_locations))).resolve()
        if origin != home / name / "__init__.py":
            found = "is missing" if origin is None else f"is hidden by {origin}; rename that file or folder"
            raise ImportError(f"sealbus needs its own package {name!r} beside {home / 'sealbus.py'}, but it {found}")


_check_packages()
if __name__ == "__main__":  # `python -m sealbus`, as an installed one has it
    import sys

    if not sys.flags.safe_path:
        # The current folder comes first, where a file may have the name of a module of Python.
        sys.path.append(sys.path.pop(0))
    from consumers.cli import main

    main(prog_name="sealbus")
# In a wheel, too:

from typing import TYPE_CHECKING  # noqa: E402

from bus.platforms import check_platform  # noqa: E402

check_platform()
if TYPE_CHECKING:
    from bus import dialects, vocabulary
    from bus.errors import (
        BusError,
        ClosedError,
        ConfigurationError,
        ContractError,
        DependencyDown,
        DialectError,
        InboxError,
        Reject,
        RetryLater,
        SettingMissing,
        UnreachableError,
        WrongLoopError,
    )
    from bus.payloads import rules
    from bus.payloads.dual_write import Also
    from bus.payloads.payload_types import payload
    from bus.payloads.upcasters import Upcaster
    from bus.protocol.envelope import Agent, Authority, Security

    # For programs written when messages had a policy of their own; both take a Retry now.
    from bus.protocol.envelope import RetryPolicy as RetryPolicy  # noqa: PLC0414
    from bus.protocol.sealing import Message
    from bus.retry import Retry
    from bus.telemetry.metrics import Metrics
    from bus.trust.keys.private_keys import FileSigner
    from bus.trust.keys.trusted_keys import TrustedKeys
    from bus.trust.policy.file_policy import FilePolicy
    from bus.trust.policy.policy import AllowAll
    from bus.trust.untrusted import Untrusted
    from consumers.agents import workflows
    from consumers.app.app import App
    from consumers.app.handlers import Handlers
    from consumers.delivery.blocking_context import BlockingContext
    from consumers.delivery.context import Context
    from consumers.delivery.handler_errors import TaskCancelled
    from consumers.delivery.handling.tracing import traced_handlers
    from consumers.processes import conversations
    from consumers.processes.approvals.approval import Approval
    from consumers.processes.sagas.context import AskFailure, SagaContext
    from consumers.processes.sagas.rules import (
        Saga,
        answers,
        cancelled,
        due,
        failed,
        on,
        progress,
        starts,
        upcast,
    )
    from producers.connection import Bus, connect
    from producers.outbox import Outbox
    from producers.outcomes import (
        PublishError,
        PublishRejected,
        PublishUnknown,
        Receipt,
        RequestError,
        RequestFailed,
        RequestTimedOut,
        UnexpectedReply,
    )
    from producers.sealing.options import Draft
    from producers.sync_connection import SyncBus, connect_sync
    from producers.tracing import traced_publishes
else:
    # A name is imported when it is first asked for: the command line and most programs use a few of them.
    _PLACES = {
        "Agent": "bus.protocol.envelope",
        "AllowAll": "bus.trust.policy.policy",
        "Also": "bus.payloads.dual_write",
        "App": "consumers.app.app",
        "Approval": "consumers.processes.approvals.approval",
        "AskFailure": "consumers.processes.sagas.context",
        "Authority": "bus.protocol.envelope",
        "BlockingContext": "consumers.delivery.blocking_context",
        "Bus": "producers.connection",
        "BusError": "bus.errors",
        "ClosedError": "bus.errors",
        "ConfigurationError": "bus.errors",
        "Context": "consumers.delivery.context",
        "ContractError": "bus.errors",
        "DependencyDown": "bus.errors",
        "DialectError": "bus.errors",
        "Draft": "producers.sealing.options",
        "FilePolicy": "bus.trust.policy.file_policy",
        "FileSigner": "bus.trust.keys.private_keys",
        "Handlers": "consumers.app.handlers",
        "InboxError": "bus.errors",
        "Message": "bus.protocol.sealing",
        "Metrics": "bus.telemetry.metrics",
        "Outbox": "producers.outbox",
        "PublishError": "producers.outcomes",
        "PublishRejected": "producers.outcomes",
        "PublishUnknown": "producers.outcomes",
        "Receipt": "producers.outcomes",
        "Reject": "bus.errors",
        "RequestError": "producers.outcomes",
        "RequestFailed": "producers.outcomes",
        "RequestTimedOut": "producers.outcomes",
        "Retry": "bus.retry",
        "RetryLater": "bus.errors",
        "RetryPolicy": "bus.protocol.envelope",
        "Saga": "consumers.processes.sagas.rules",
        "SagaContext": "consumers.processes.sagas.context",
        "Security": "bus.protocol.envelope",
        "SettingMissing": "bus.errors",
        "SyncBus": "producers.sync_connection",
        "TaskCancelled": "consumers.delivery.handler_errors",
        "TrustedKeys": "bus.trust.keys.trusted_keys",
        "UnexpectedReply": "producers.outcomes",
        "UnreachableError": "bus.errors",
        "Untrusted": "bus.trust.untrusted",
        "Upcaster": "bus.payloads.upcasters",
        "WrongLoopError": "bus.errors",
        "answers": "consumers.processes.sagas.rules",
        "cancelled": "consumers.processes.sagas.rules",
        "connect": "producers.connection",
        "connect_sync": "producers.sync_connection",
        "conversations": "consumers.processes.conversations",
        "dialects": "bus.dialects",
        "due": "consumers.processes.sagas.rules",
        "failed": "consumers.processes.sagas.rules",
        "on": "consumers.processes.sagas.rules",
        "payload": "bus.payloads.payload_types",
        "progress": "consumers.processes.sagas.rules",
        "rules": "bus.payloads.rules",
        "starts": "consumers.processes.sagas.rules",
        "traced_handlers": "consumers.delivery.handling.tracing",
        "traced_publishes": "producers.tracing",
        "upcast": "consumers.processes.sagas.rules",
        "vocabulary": "bus.vocabulary",
        "workflows": "consumers.agents.workflows",
    }

    def __getattr__(name):
        """Return a member of its module, or the module itself."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(_PLACES[name])
        found = globals()[name] = getattr(module, name, module)
        return found

    def __dir__():
        return sorted({*globals(), *_PLACES})


__all__ = [
    "Agent",
    "AllowAll",
    "Also",
    "App",
    "Approval",
    "AskFailure",
    "Authority",
    "BlockingContext",
    "Bus",
    "BusError",
    "ClosedError",
    "ConfigurationError",
    "Context",
    "ContractError",
    "DependencyDown",
    "DialectError",
    "Draft",
    "FilePolicy",
    "FileSigner",
    "Handlers",
    "InboxError",
    "Message",
    "Metrics",
    "Outbox",
    "PublishError",
    "PublishRejected",
    "PublishUnknown",
    "Receipt",
    "Reject",
    "RequestError",
    "RequestFailed",
    "RequestTimedOut",
    "Retry",
    "RetryLater",
    "Saga",
    "SagaContext",
    "Security",
    "SettingMissing",
    "SyncBus",
    "TaskCancelled",
    "TrustedKeys",
    "UnexpectedReply",
    "UnreachableError",
    "Untrusted",
    "Upcaster",
    "WrongLoopError",
    "answers",
    "cancelled",
    "connect",
    "connect_sync",
    "conversations",
    "dialects",
    "due",
    "failed",
    "on",
    "payload",
    "progress",
    "rules",
    "starts",
    "traced_handlers",
    "traced_publishes",
    "upcast",
    "vocabulary",
    "workflows",
]
