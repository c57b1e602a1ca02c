"""Sagas: work that lasts hours or days, as a class whose methods handle its events.

    from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_start

Its state is stored, so it outlives the workers. Page: `docs/how-to/long-work.md`.
"""

from __future__ import annotations

from consumers.processes.sagas.context import AskFailed, SagaContext
from consumers.processes.sagas.rules import (
    Saga,
    on_answer,
    on_cancel,
    on_failure,
    on_message,
    on_progress,
    on_start,
    on_timer,
    upgrade_state,
)

__all__ = [
    "AskFailed",
    "Saga",
    "SagaContext",
    "on_answer",
    "on_cancel",
    "on_failure",
    "on_message",
    "on_progress",
    "on_start",
    "on_timer",
    "upgrade_state",
]
