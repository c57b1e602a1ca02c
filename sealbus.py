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
    from consumers.cli import main

    main(prog_name="sealbus")
# In a wheel, too:

from bus import dialects, vocabulary  # noqa: E402
from bus.errors import (  # noqa: E402
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
from bus.payloads import rules  # noqa: E402
from bus.payloads.dual_write import Also  # noqa: E402
from bus.payloads.payload_types import payload  # noqa: E402
from bus.payloads.upcasters import Upcaster  # noqa: E402
from bus.protocol.envelope import Agent, Authority, Security  # noqa: E402

# For programs written when messages had a policy of their own; both take a Retry now.
from bus.protocol.envelope import RetryPolicy as RetryPolicy  # noqa: E402, PLC0414
from bus.protocol.sealing import Message  # noqa: E402
from bus.retry import Retry  # noqa: E402
from bus.telemetry.metrics import Metrics  # noqa: E402
from bus.trust.keys.private_keys import FileSigner  # noqa: E402
from bus.trust.keys.trusted_keys import TrustedKeys  # noqa: E402
from bus.trust.policy.file_policy import FilePolicy  # noqa: E402
from bus.trust.policy.policy import AllowAll  # noqa: E402
from bus.trust.untrusted import Untrusted  # noqa: E402
from consumers.agents import workflows  # noqa: E402
from consumers.app.app import App  # noqa: E402
from consumers.app.handlers import Handlers  # noqa: E402
from consumers.delivery.blocking_context import BlockingContext  # noqa: E402
from consumers.delivery.context import Context  # noqa: E402
from consumers.delivery.handler_errors import TaskCancelled  # noqa: E402
from consumers.delivery.handling.tracing import traced_handlers  # noqa: E402
from consumers.processes import conversations  # noqa: E402
from consumers.processes.approvals.approval import Approval  # noqa: E402
from consumers.processes.sagas.context import AskFailure, SagaContext  # noqa: E402
from consumers.processes.sagas.rules import (  # noqa: E402
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
from producers.connection import Bus, connect  # noqa: E402
from producers.outbox import Outbox  # noqa: E402
from producers.outcomes import (  # noqa: E402
    PublishError,
    PublishRejected,
    PublishUnknown,
    Receipt,
    RequestError,
    RequestFailed,
    RequestTimedOut,
    UnexpectedReply,
)
from producers.sealing.options import Draft  # noqa: E402
from producers.sync_connection import SyncBus, connect_sync  # noqa: E402
from producers.tracing import traced_publishes  # noqa: E402

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
