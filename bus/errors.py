"""The error tree. Every class says whether repeating the same call can help (`retriable`).

    BusError
    |- ConfigurationError          a setting is unknown, missing or wrong          (exit 78)
    |- ContractError               a message or payload breaks the contract; has a JSON pointer
    |  |- UnknownTypeError         no payload class is registered under that name
    |  '- DialectError             a foreign message cannot be read, or a message cannot be said in a dialect
    |- SigningError                retriable: the signer made no signature, nothing was sealed
    |  '- KeyRefusedError          not retriable: the key has ended, is not valid yet, or is another agent's: `reason`
    |- EventLoopError              a Bus was used outside the event loop, or the process, that opened it
    |- NameRefusedError            a topic, group, namespace or id is illegal or collides
    |- TransportError              the log answered with a failure, translated by its adapter
    |  |- UnreachableError         retriable: no log behind the URL at present      (exit 69)
    |  |  '- DamagedError          not retriable: the file of a log or an inbox is damaged
    |  |- TopicMissingError        the topic does not exist; nothing creates it by accident
    |  |- RecordTooLargeError      larger than the log or the topic accepts
    |  |- LogFullError             retriable: no space left, nothing was written
    |  |- NotPermittedError        the log refuses this principal
    |  |- DeadlineError            retriable: the call's own deadline passed
    |  |- FencedError              the partition belongs to another member
    |  |- OffsetOutOfRangeError    the committed offset was deleted: possible loss, stop
    |  |- GroupBusyError           the group has members, and only they move its offsets
    |  '- ClosedError              the transport or subscription was closed
    |- AppendUnknownError          retriable with the same bytes: may or may not be in the log
    |- RequestError                whatever a request can end with but its answer
    |  |- PublishError             the part of it that a publish can end with, too
    |  |  |- PublishRejected       certainly not in the log: `reason`, `pointer`
    |  |  '- PublishUnknown        retriable: may be in the log; `resend(error.message)` is safe
    |  |- RequestTimedOut          retriable: accepted, no answer by the deadline; also a TimeoutError
    |  |- RequestFailed            it died or its handler gave up: `reason`, `reporter`
    |  '- UnexpectedReply          an answer of another type
    |- InboxError                  retriable: the store of an inbox or outbox is unreachable or full
    |- UnstorableError             a store refuses a value, and would refuse it again
    '- HandlerError                raised by handlers to decide what happens to a message
       |- RetryLater               transient; optionally not before `after_s`
       |- DependencyDown           a named dependency is down: wait, spend no attempt
       |  '- MissingSetting        the configuration lacks what the handler needs: wait until it exists
       '- Reject                   permanent: dead letter with reason `rejected`
          |- ApprovalRefused       a step may not run: rejected, out of time, invalid, not allowed
          |- ClarificationMissing  the requester was asked, and gave no answer in time
          |- StepInDoubt           a step has begun and has no result: nobody knows whether it had its effect
          '- NotDone               a step says that it had no effect

`consumers.delivery.resilience.retry` decides what a failure leads to. Each adapter translates foreign exceptions once,
at its own edge.
"""

from __future__ import annotations

import traceback
from typing import ClassVar

from bus.redaction import cut, redacted

__all__ = [
    "AppendUnknownError",
    "ApprovalRefused",
    "BusError",
    "ClarificationMissing",
    "ClosedError",
    "ConfigurationError",
    "ContractError",
    "DamagedError",
    "DeadlineError",
    "DependencyDown",
    "DialectError",
    "FencedError",
    "GroupBusyError",
    "HandlerError",
    "InboxError",
    "KeyRefusedError",
    "LogFullError",
    "NameRefusedError",
    "NotDone",
    "NotPermittedError",
    "OffsetOutOfRangeError",
    "RecordTooLargeError",
    "Reject",
    "RetryLater",
    "MissingSetting",
    "SigningError",
    "StepInDoubt",
    "TopicMissingError",
    "TransportError",
    "UnknownTypeError",
    "UnreachableError",
    "UnstorableError",
    "EventLoopError",
    "text_of",
    "trace_of",
]


class BusError(Exception):
    """Root of everything that sealbus raises on purpose.

        except BusError as error:
            again = error.retriable

    *retriable* says whether the same call, repeated, can help.
    """

    retriable: ClassVar[bool] = False


class ConfigurationError(BusError):
    """A setting or an argument is unknown, missing or invalid.

    The text names it, its origin, the value found and the value expected. Nothing has been opened or sent.
    """


class ContractError(BusError):
    """A message or payload breaks the contract.

        except ContractError as error:
            print(error.pointer, error.reason, error.text)      # "/data/cents", "schema_violation", "expected ..."

    *pointer* (RFC 6901) names the offending field, or an option; *reason* is one of the closed set in
    `bus.protocol.reasons`.
    """

    def __init__(self, text: str, pointer: str = "", reason: str = "malformed") -> None:
        super().__init__(f"{pointer}: {text}" if pointer else text)
        self.text = text
        self.pointer = pointer
        self.reason = reason


class UnknownTypeError(ContractError):
    """No payload class is registered under that message type or for that Python type."""


class DialectError(ContractError):
    """A foreign message cannot be read, or a dialect cannot express a message (`bus.dialects`).

        except DialectError as error:
            print(error.pointer, error.found, error.expected)   # "/payload/status", "'done'", "one of completed, ..."

    *pointer* names the foreign member, or when encoding the member of the message. *found* has a limited length and no
    control characters or secrets.
    """

    def __init__(self, pointer: str, found: str, expected: str, reason: str = "malformed") -> None:
        self.found = _printable(found, 80)
        self.expected = _printable(expected, 240)
        super().__init__(f"found {self.found}, expected {self.expected}", _printable(pointer, 256), reason)


class SigningError(BusError):
    """The signer made no signature: nothing was sealed."""

    retriable = True


class KeyRefusedError(SigningError):
    """The key must not sign this: receivers would refuse it for *reason*. Nothing was sealed.

    Repeating it helps only with another key, which may come while the program runs.
    """

    retriable = False
    pointer = "/verification/signature"

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class EventLoopError(BusError, RuntimeError):
    """A Bus was used outside the event loop, or the process, that opened it. Nothing was sent.

        asyncio.run_coroutine_threadsafe(bus.publish(order), loop).result()      # from another thread

    `connect_sync` gives a bus that all threads of a process may use.
    """


class NameRefusedError(BusError):
    """A topic, group, namespace or agent name is illegal, or collides with another one."""


class TransportError(BusError):
    """The log answered with a failure. Nothing of the failed call was written."""


class UnreachableError(TransportError):
    """The log behind the URL is unreachable.

    Retriable. The text names the attempt, such as a missing file or a closed port.
    """

    retriable = True


class TopicMissingError(TransportError):
    """The topic does not exist. `sealbus topic apply` creates topics; a typo never does."""


class RecordTooLargeError(TransportError):
    """The record is larger than the log, or its topic, accepts."""


class LogFullError(TransportError):
    """The log's disk is full; nothing was written."""

    retriable = True


class NotPermittedError(TransportError):
    """The log does not allow this principal the operation."""


class DeadlineError(TransportError):
    """The call's own deadline passed before the log accepted it; nothing was written."""

    retriable = True


class FencedError(TransportError):
    """The partition belongs to another member: this member's offset was not committed."""


class OffsetOutOfRangeError(TransportError):
    """Retention deleted records that this group had not settled: possible loss, so the worker stops."""


class GroupBusyError(TransportError):
    """The group has members, and only they move its offsets."""


class ClosedError(TransportError):
    """The bus, its transport or a subscription was closed: use it inside its `async with` block."""


class AppendUnknownError(BusError):
    """The record may or may not be in the log. Appending the same bytes again is safe."""

    retriable = True


class InboxError(BusError):
    """The store of an inbox or an outbox is unreachable or full.

    Nothing is claimed, and nothing is handled without a claim.
    """

    retriable = True


class UnstorableError(BusError):
    """A store refuses a value: invalid text, a number out of range, or a value too large for an index or a row."""


class DamagedError(UnreachableError, InboxError):
    """The file of the embedded log or of an inbox is damaged."""

    retriable = False


class HandlerError(BusError):
    """Root of the errors by which a handler decides what happens to its message."""


class RetryLater(HandlerError):  # noqa: N818 - a signal, not a fault
    """Transient: run the handler again by its `Retry`, or after *after_s* seconds if that is later.

        if response.status == 429:
            raise RetryLater("rate limited", after_s=30)

    It spends an attempt. So does any other exception of a handler, without a delay of its own.
    """

    retriable = True
    after_s: float | None = None
    """The default for subclasses that do not call this constructor."""

    def __init__(self, text: str = "", after_s: float | None = None) -> None:
        super().__init__(text or "the handler asked to be tried again")
        # Convert here: a wrong type raises in the handler at fault, and not later in the worker.
        self.after_s = None if after_s is None else float(after_s)


class DependencyDown(HandlerError):  # noqa: N818 - a signal, not a fault
    """A dependency is down: the message waits, no attempt is spent, nothing is dead-lettered.

        except ConnectionError as error:
            raise DependencyDown("billing-api") from error

    All messages of its type wait, one at a time tries whether the dependency called *name* is back. A message that
    blames it again after others got through spends an attempt, and waits 1, 2, 4 and up to 30 s. *name* is a label of
    metrics, so give few different ones.
    """

    retriable = True
    name = "unnamed"
    """The default for subclasses that do not call this constructor."""

    def __init__(self, name: str, text: str = "") -> None:
        super().__init__(f"{name}: {text or 'is down'}")
        # The name becomes a metric label: make it encodable text, whatever the handler passed.
        self.name = str(name).encode("utf-8", "backslashreplace").decode()[:100]


class MissingSetting(DependencyDown):
    """The configuration lacks what the handler needs.

        if (key := os.environ.get("PAYMENTS_KEY")) is None:
            raise MissingSetting("PAYMENTS_KEY")

    The message waits without using an attempt, and is handled once the setting exists.
    """


class Reject(HandlerError):  # noqa: N818 - a signal, not a fault
    """Permanent: this message can never be handled; it becomes a dead letter with reason `rejected`.

        raise Reject("address without a domain")

    No attempt follows. The requester gets a RequestFailed with this text (240 characters, secrets masked), so write it
    for them. The texts of other exceptions are not sent.
    """

    dead_reason = "rejected"
    """The reason of the dead letter."""


class ApprovalRefused(Reject):
    """A step may not run: its approval was refused, or the policy forbids its tool.

        except ApprovalRefused as error:
            return TaskResult(status="failed", summary=f"not allowed: {error}")

    *reason* is `approval_rejected`, `approval_timeout`, `approval_invalid`, `unauthorized`, `too_many` (approvals asked
    for one message) or `too_large` (arguments). Uncaught, it ends the message by that reason, the last two as
    `rejected`.
    """

    def __init__(self, text: str, reason: str = "approval_rejected") -> None:
        super().__init__(text)
        self.reason = reason
        self.dead_reason = "rejected" if reason in ("too_many", "too_large") else reason


class ClarificationMissing(Reject):
    """The requester was asked by `context.clarify` and did not answer in time, or may not be asked any more.

        except ClarificationMissing:
            branch = "main"

    *reason* is `timeout` or `too_many` (questions of one message). Uncaught it is a `Reject`, whose text begins with
    the code CLARIFICATION_MISSING.
    """

    def __init__(self, text: str, reason: str = "timeout") -> None:
        super().__init__(f"CLARIFICATION_MISSING: {text}")
        self.reason = reason


class StepInDoubt(Reject):
    """A step that must not run twice has begun in an earlier run and has no result.

    Nobody here knows whether it had its effect. Uncaught, the message dies once, with reason `effect_in_doubt`, and an
    operator answers: `sealbus dlq redrive ID --step-done JSON` or `--step-again`. `reconcile=` of the step answers
    without one. Raised by `reconcile` itself it means "unknown".
    """

    dead_reason = "effect_in_doubt"

    def __init__(self, text: str, step: str = "") -> None:
        super().__init__(text)
        self.step = step
        """The id of the step, `<name>/<32 hex>`."""


class NotDone(Reject):
    """Raised by the function of a step, or by its `reconcile`: it had no effect, and may be called again.

        async def push(branch: str) -> str:
            if not await reachable():
                raise NotDone("the server is away; nothing was pushed")

    Uncaught it is a `Reject`.
    """


def _printable(text: str, length: int) -> str:
    """Return at most *length* characters of foreign *text*, with what cannot be printed escaped."""
    short = text[: 4 * length]
    return cut(redacted(short if short.isprintable() else repr(short)[1:-1]), length)


def text_of(error: BaseException) -> str:
    """Return the text of *error*, without secrets.

    A foreign exception may raise anything from its `__str__`; that must not end a worker.
    """
    try:
        # A str subclass could raise later: force a plain str.
        return redacted(str.__str__(str(error)))
    except BaseException:  # noqa: BLE001 - see above
        return f"<{type(error).__name__} that cannot be printed>"


def trace_of(error: BaseException) -> str:
    """Return the traceback of *error* and its causes, without secrets; never raises."""
    try:
        return redacted("".join(traceback.format_exception(error)).rstrip())
    except BaseException:  # noqa: BLE001 - see above
        return text_of(error)
