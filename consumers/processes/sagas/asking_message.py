"""AskingMessage: the message of a run that has asked for something, and is stored until that is decided.

Owns the names of its waits, by whose beginnings what is open is counted, and the record that is kept of it. Approvals
of steps and clarifications both wait in this way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Protocol

from bus.topics.names import redrive_topic
from bus.transports.base import NewRecord
from consumers.deadletters.records import reappend
from consumers.delivery.inbox.base import principal_of
from consumers.delivery.inbox.row_encoding import encode_outputs
from consumers.delivery.state.delivery import Accepted
from consumers.processes.sagas.process import Hold, Process
from consumers.processes.sagas.process_group import ProcessGroup
from consumers.processes.sagas.store import ProcessChange, ProcessStore

__all__ = ["MIN_LEFT_S", "RUN_S", "AskingMessage", "HeldFor", "beginnings_of", "hold_of"]

MIN_LEFT_S: Final = 60.0
"""A message with a shorter remaining lifetime is not stored: there is no time to decide."""
RUN_S: Final = 30.0
"""So much of the lifetime of a message is left for its run after the decision."""


class HeldFor(Protocol):
    """Something that a run has asked for, and for which its message is stored."""

    @property
    def wait_name(self) -> str:
        """The name of its wait: by beginnings of it open ones are counted."""

    async def held_back(self) -> tuple[ProcessChange, Sequence[NewRecord]] | None:
        """Return the step that stores the message until the decision, and the messages to send.

        None where it need not wait: it was decided meanwhile, or there is no time left. Raises NewerCode.
        """


class AskingMessage:
    """The message of *delivery*, whose inbox row has the key *row_key*; *has_keys*: its sender is verified."""

    def __init__(self, delivery: Accepted, row_key: str, *, has_keys: bool) -> None:
        self.delivery = delivery
        self.row_key = row_key
        self._has_keys = has_keys
        message = delivery.message
        self._mark = _short(row_key, message.metadata.sender.id or "", message.message_type)

    @property
    def owner(self) -> str:
        """The owner of the processes that it opens."""
        return f"message/{self._mark}"

    @property
    def task_id(self) -> str:
        """The task that it belongs to, or its own id."""
        message = self.delivery.message
        return message.metadata.task_id or message.message_id

    @property
    def principal(self) -> str:
        """Its sender."""
        return principal_of(self.delivery.message, has_keys=self._has_keys)

    def wait_name(self, kind: str, identity: str) -> str:
        """Return the name of its wait of *kind* for what is called *identity*."""
        message = self.delivery.message
        conversation = message.metadata.conversation_id or message.message_id
        return "-".join([kind, _short(conversation), self._mark, _short(identity)])

    async def opened(self, store: ProcessStore, saga: str) -> list[Process]:
        """Return the processes of *saga* that it has opened so far, finished ones too."""
        return await store.of_owner(saga, self.task_id, self.principal, self.owner)


def beginnings_of(wait_name: str) -> tuple[str, str]:
    """Return how the names of all waits like *wait_name* begin in its conversation, and in its group."""
    kind, conversation, *_ = wait_name.split("-")
    return f"{kind}-{conversation}-", f"{kind}-"


def hold_of(delivery: Accepted, group: ProcessGroup, process: bytes) -> Hold:
    """Return the record of *delivery*, which *process* sends back to its group."""
    record = reappend(delivery.record, delivery.control, redrive_topic(group.namespace, group.name))
    return Hold(process=process, seal=delivery.message.seal, record=encode_outputs([record]))


def _short(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
