"""CancelWatch: the tasks that their requesters have cancelled, known to every worker of a group.

Owns which `task.cancel` is accepted, and which messages it cancels: the canceller must be the sender of the message, or
of the first message of its chain, or have the capability `cancel` in the policy. Waiting messages are skipped, and
their requesters told with code CANCELLED. A running handler sees `context.cancelled`, and is cancelled when its grace
period ends. Completed effects are not undone. Processes are cancelled by a step (`consumers.processes.sagas.steps`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from bus import gates
from bus.clock import Clock
from bus.errors import BusError, ClosedError, ContractError, TopicMissingError
from bus.payloads.payload_types import RiskClass, payload_type
from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.protocol.timestamps import parse_ms
from bus.telemetry.logs import get_logger
from bus.topics.names import message_topic
from bus.transports.base import Record, Transport
from bus.transports.read_all import scan_topic
from bus.trust.policy.policy import Policy, rules_source
from bus.vocabulary.task import TaskCancel
from consumers.delivery.handler_errors import TaskCancelled
from consumers.delivery.handling.run_policies import RunPolicy
from consumers.delivery.handling.slots import HandlerSlot, HandlerSlots
from consumers.delivery.settling.dispositions import cancelled_by
from consumers.delivery.settling.outcome import Outcome
from consumers.delivery.state.delivery import Accepted

__all__ = ["CancelPolicy", "CancelWatch", "Cancellation"]

CANCELS_FOLLOWED_S: Final = 1.0
_MAX_BACK: Final = 5_000
"""So many records of each partition are read at the start."""
_CAPABILITY: Final = "cancel"
_MAX_KNOWN: Final = 10_000
_MAX_CANCELLERS: Final = 100
"""So many agents may cancel one task; further ones are not heard."""

_log = get_logger("cancel")


class Cancellation(msgspec.Struct, frozen=True):
    """One accepted task.cancel."""

    by: str
    code: str
    grace_s: int
    expires_ms: int


class CancelWatch:
    """Follows `task.cancel` for one worker, beside its group: each worker has to know."""

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        *,
        verifier: Verifier | None,
        policy: Policy,
        clock: Clock,
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._topic = message_topic(namespace, "task.cancel")
        self._verifier = verifier
        self._policy = policy
        self._clock = clock
        self._offsets: dict[int, int] = {}
        self.known: dict[str, dict[str, Cancellation]] = {}
        """The cancellations by task id and canceller: who may not cancel a task must not hide who may."""
        self.changed: Callable[[], object] = int
        """Called when the first cancellation has come, or the last has gone."""

    def cancels(self, message: Message) -> Cancellation | None:
        """Return the cancellation of the task of *message*, where its sender may cancel it."""
        task_id = message.metadata.task_id
        # A requester that has left cancels its one message, which may have a task of many.
        found = {**self.known.get(task_id or "", {}), **self.known.get(message.message_id, {})}
        if not found or message.message_type == "task.cancel":
            return None
        chain = message.verification.proof_chain or ()
        requesters = {message.metadata.sender.id, *(link.statement.sender for link in chain[:1])}
        rules = rules_source(self._policy)()
        for by, cancellation in found.items():
            if by in requesters or (rules is not None and _CAPABILITY in rules.agent(by).capabilities):
                return cancellation
        return None

    async def found_now(self, message: Message) -> TaskCancelled | None:
        """Return the end of *message* if it is cancelled, after a look for new cancellations.

        What opens an approval asks it: a cancellation that came before found no approval to end.
        """
        await self.look()
        found = self.cancels(message)
        return None if found is None else _end_by(found)

    async def look(self) -> None:
        """Read the cancellations so far; if the log does not answer, `follow` reads them later."""
        try:
            await self.read_on()
        except BusError as error:
            _log.debug("cancel.not_read", error=str(error))

    async def follow(self, slots: HandlerSlots) -> None:
        """Learn of cancellations as they come, and stop what runs, until cancelled oneself."""
        while True:
            await self._clock.sleep(CANCELS_FOLLOWED_S)
            try:
                if await self.read_on():
                    self.stop_running(slots)
            except ClosedError:
                return
            except BusError as error:
                _log.debug("cancel.not_read", error=str(error))

    async def read_on(self) -> bool:
        """Read new records; return whether they cancel anything. Raises BusError."""
        found = False
        try:
            if not self._offsets:
                # A cancellation lives for an hour: what lies further back is over.
                ranges = await self._transport.admin.ranges(self._topic)
                self._offsets = {number: max(span.start, span.end - _MAX_BACK) for number, span in ranges.items()}
            async for record in scan_topic(self._transport, self._topic, self._offsets):
                self._offsets[record.partition] = record.offset + 1
                found |= self._take(record)
        except TopicMissingError:
            return False
        if len(self.known) > _MAX_KNOWN:
            now_ms = self._clock.now_ms()
            alive = {
                task: {by: each for by, each in found.items() if each.expires_ms > now_ms}
                for task, found in self.known.items()
            }
            self.known = {task: found for task, found in alive.items() if found}
            self.changed()
        return found

    def stop_running(self, slots: HandlerSlots) -> None:
        """Tell handlers whose task is cancelled, and cut them when their grace is over."""
        for slot in slots.running():
            delivery = slot.delivery
            if not isinstance(delivery, Accepted) or delivery.cancelled or not slot.in_handler:
                continue
            found = self.cancels(delivery.message)
            if found is not None:
                delivery.cancelled = True
                self._clock.call_later(found.grace_s, partial(_cut, slot, delivery))

    def _take(self, record: Record) -> bool:
        try:
            message = sealing.parse(record.value)
            metadata, expires_ms = message.metadata, parse_ms(message.routing.expires_at) or 0
            if metadata.namespace != self._namespace or expires_ms < self._clock.now_ms() or metadata.task_id is None:
                return False
            # Without keys nobody's name is proven.
            risk: RiskClass = "low" if self._verifier is None else "medium"
            gates.prove(message, risk, self._verifier, append_ms=record.timestamp_ms or None)
            cancel = payload_type(TaskCancel).open(message)
        except ContractError:
            return False
        assert isinstance(cancel, TaskCancel)  # noqa: S101 - of that very type
        by = metadata.sender.id or ""
        found = self.known.setdefault(metadata.task_id, {})
        if by in found or len(found) < _MAX_CANCELLERS:
            found[by] = Cancellation(by, cancel.reason_code, cancel.grace_s, expires_ms)
        self.changed()
        return True


class CancelPolicy(RunPolicy):
    """A message whose task is cancelled is skipped instead of running."""

    reports_changes = True

    def __init__(self, watch: CancelWatch) -> None:
        self._watch = watch

    @property
    def idle(self) -> bool:
        """True while nothing is cancelled."""
        return not self._watch.known

    def before_run(self, delivery: Accepted, now_s: float) -> Outcome | None:  # noqa: ARG002 - the hook's form
        """Skip a message whose requester does not want it any more."""
        found = self._watch.cancels(delivery.message)
        return None if found is None else cancelled_by(_end_by(found))


def _end_by(found: Cancellation) -> TaskCancelled:
    return TaskCancelled(f"CANCELLED by {found.by}: {found.code}")


def _cut(slot: HandlerSlot, delivery: Accepted) -> None:
    if slot.delivery is delivery:
        slot.interrupt(TaskCancelled)
