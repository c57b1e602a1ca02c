"""TaskClient: what the tools need of a gateway, in its own process or over HTTP. Each call raises HttpRefusal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from consumers.gateway.credentials import Credential
from consumers.gateway.gateway import AgentLine, Gateway, TaskAnswers, TaskOrder
from consumers.processes.tasks.service import OpenedTask
from consumers.processes.tasks.snapshot import RESULT, TaskSnapshot
from consumers.web.refusal import HttpRefusal

__all__ = ["GatewayTasks", "TaskClient"]


class TaskClient(Protocol):
    """The tasks of one credential."""

    async def agents(self, query: str | None) -> Sequence[AgentLine]:
        """Return the agents that may be asked."""

    async def open(self, order: TaskOrder, key: str) -> OpenedTask:
        """Open the task of *key*, or return it."""

    async def opened_under(self, key: str) -> TaskSnapshot | None:
        """Return the task of *key*; None where there is none, or it is not known here."""

    async def find(self, task_id: str) -> TaskSnapshot:
        """Return a task."""

    async def wait(self, task_id: str, *, after: int, wait_s: float) -> TaskSnapshot:
        """Return a task once its generation is above *after*, or as it is after *wait_s*."""

    async def answer(self, task_id: str, said: TaskAnswers, *, if_match: str | None = None) -> TaskSnapshot:
        """Answer what a task asks."""

    async def cancel(self, task_id: str) -> TaskSnapshot:
        """Cancel a task."""

    async def large_result(self, task_id: str) -> bytes:
        """Return the result of a task that is too large for its snapshot."""


class GatewayTasks:
    """The tasks of a credential in the gateway's own process."""

    def __init__(self, gateway: Gateway, credential: Credential) -> None:
        self._gateway = gateway
        self._credential = credential

    async def agents(self, query: str | None) -> Sequence[AgentLine]:
        """Return the agents that may be asked."""
        return await self._gateway.agents(self._credential, query)

    async def open(self, order: TaskOrder, key: str) -> OpenedTask:
        """Open the task of *key*, or return it."""
        return await self._gateway.open(self._credential, order, key=key)

    async def opened_under(self, key: str) -> TaskSnapshot | None:
        """Return the task of *key*; None where there is none."""
        try:
            return await self.find(self._gateway.task_id_of(self._credential, key))
        except HttpRefusal as refusal:
            if refusal.code == "NOT_FOUND":
                return None
            raise

    async def find(self, task_id: str) -> TaskSnapshot:
        """Return a task."""
        return await self._gateway.find(self._credential, task_id)

    async def wait(self, task_id: str, *, after: int, wait_s: float) -> TaskSnapshot:
        """Return a task once its generation is above *after*, or as it is after *wait_s*."""
        return await self._gateway.wait(self._credential, task_id, after=after, wait_s=wait_s)

    async def answer(self, task_id: str, said: TaskAnswers, *, if_match: str | None = None) -> TaskSnapshot:
        """Answer what a task asks."""
        return (await self._gateway.answer(self._credential, task_id, said, if_match=if_match)).snapshot

    async def cancel(self, task_id: str) -> TaskSnapshot:
        """Cancel a task."""
        return await self._gateway.cancel(self._credential, task_id)

    async def large_result(self, task_id: str) -> bytes:
        """Return the result of a task that is too large for its snapshot."""
        return (await self._gateway.artifact(self._credential, task_id, RESULT))[1]
