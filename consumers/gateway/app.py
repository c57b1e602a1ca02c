"""GatewayApp: the agent `gateway@sealbus`: a mailbox for whatever is said about the tasks of the gateway.

`sealbus topic apply gateway@sealbus` makes its topics. It runs in `sealbus serve gateway` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from bus.payloads.payload_types import PayloadType
from bus.vocabulary import BUILT_IN
from bus.vocabulary.task import TaskCancel, TaskClarified, TaskRequest
from consumers.app.app import App
from consumers.delivery.declaration import Declaration
from consumers.gateway.agents import GATEWAY_AGENT, GATEWAY_GROUP
from consumers.processes.sagas.subscriptions import every_mail

__all__ = ["GatewayApp"]


class GatewayApp(App):
    """The gateway's worker; *tasks* makes its service of tasks. Answers may be of *types*, and of unknown ones."""

    def __init__(self, types: Iterable[PayloadType] = BUILT_IN, *, tasks: Callable[..., Any] | None = None) -> None:
        super().__init__(GATEWAY_AGENT, group=GATEWAY_GROUP, types=[TaskRequest, TaskCancel, TaskClarified])
        self._mail = every_mail(types)
        self._tasks = tasks

    @property
    def declaration(self) -> Declaration:
        """What it declares."""
        return msgspec.structs.replace(super().declaration, mail=self._mail, tasks=self._tasks or _no_tasks)


def _no_tasks(*_: Any, **__: Any) -> Any:
    raise AssertionError("the tasks of the gateway are served by `sealbus serve gateway`")
