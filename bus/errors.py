"""The error tree. Every class says whether trying the same call again can help (`retriable`).

    BusError
    |- ConfigurationError          a setting is unknown, missing or wrong          (exit 78)
    |- ContractError               a message or payload breaks the contract; has a JSON pointer
    |  '- UnknownTypeError         no payload class is registered under that name
    |- SigningError                retriable: the signer made no signature, nothing was sealed
    |- WrongLoopError              a Bus was used from another event loop, or another process, than the one that opened
    it
    |- NameRefusedError            a topic, group, namespace or id is illegal or collides
    |- TransportError              the log answered with a failure, translated by its adapter
    |  |- UnreachableError         retriable: no log behind the URL just now        (exit 69)
    |  |  '- DamagedError          the file of a log or an inbox is damaged: trying again finds it so again
    |  |- TopicMissingError        the topic does not exist; nothing creates it by accident
    |  |- RecordTooLargeError      larger than the log or the topic takes
    |  |- LogFullError             retriable: no space left, nothing was written
    |  |- NotPermittedError        the log refuses this principal
    |  |- DeadlineError            retriable: the call's own deadline passed
    |  |- FencedError              the partition belongs to another member by now
    |  |- OffsetOutOfRangeError    the committed offset was deleted: possible loss, stop
    |  |- GroupBusyError           the group has members, and they decide where it goes on
    |  '- ClosedError              the transport or subscription was closed
    |- AppendUnknownError          retriable with the same bytes: may or may not be in the log
    |- PublishError                the three outcomes of a publish, less the receipt
    |  |- PublishRejected          certainly not in the log
    |  '- PublishUnknown           may be in the log; `resend(error.message)` is safe
    |- RequestError                a request that was accepted and got no answer of the type asked for
    |  |- RequestTimedOut          retriable: nothing came by the deadline
    |  |- RequestFailed            it died or its handler gave up: `reason`, `reporter`
    |  '- UnexpectedReply          an answer of another type
    '- HandlerError                raised by handlers to say what shall become of a message
       |- RetryLater               transient; optionally not before `after_s`
       |- DependencyDown           a named dependency is down: wait, spend no attempt
       |  '- SettingMissing        the configuration lacks what the handler needs: wait until it is mended
       '- Reject                   permanent: dead letter with reason `rejected`

Not here: deciding what a failure leads to (`consumers.resilience.retry`), and foreign exceptions, which each adapter
translates once, at its own edge.
"""

from __future__ import annotations

import traceback
from typing import ClassVar

from bus.redaction import redacted

__all__ = [
    "AppendUnknownError",
    "BusError",
    "ClosedError",
    "ConfigurationError",
    "ContractError",
    "DamagedError",
    "DeadlineError",
    "DependencyDown",
    "FencedError",
    "GroupBusyError",
    "HandlerError",
    "InboxError",
    "LogFullError",
    "NameRefusedError",
    "NotPermittedError",
    "OffsetOutOfRangeError",
    "RecordTooLargeError",
    "Reject",
    "RetryLater",
    "SettingMissing",
    "SigningError",
    "TopicMissingError",
    "TransportError",
    "UnknownTypeError",
    "UnreachableError",
    "WrongLoopError",
    "text_of",
    "trace_of",
]


class BusError(Exception):
    """Root of everything that sealbus raises on purpose."""

    retriable: ClassVar[bool] = False


class ConfigurationError(BusError):
    """A setting is unknown, missing or has a value it cannot have."""


class ContractError(BusError):
    """A message or payload breaks the contract.

    *pointer* (RFC 6901) names the offending field, *reason* is one of the closed set of design section 5
    (`bus.protocol.reasons`).
    """

    def __init__(self, text: str, pointer: str = "", reason: str = "malformed") -> None:
        super().__init__(f"{pointer}: {text}" if pointer else text)
        self.text = text
        self.pointer = pointer
        self.reason = reason


class UnknownTypeError(ContractError):
    """No payload class is registered under that message type or for that Python type."""


class SigningError(BusError):
    """The signer made no signature: nothing was sealed."""

    retriable = True


class WrongLoopError(BusError, RuntimeError):
    """A Bus belongs to the event loop, and the process, that opened it. Nothing was sent."""


class NameRefusedError(BusError):
    """A topic, group, namespace or agent name is illegal, or collides with another one."""


class TransportError(BusError):
    """The log answered with a failure. Nothing of the failed call was written."""


class UnreachableError(TransportError):
    """There is no log behind the URL just now."""

    retriable = True


class TopicMissingError(TransportError):
    """The topic does not exist. `sealbus topics apply` creates topics; a typo never does."""


class RecordTooLargeError(TransportError):
    """The record is larger than the log, or its topic, takes."""


class LogFullError(TransportError):
    """No space is left where the log lives; nothing was written."""

    retriable = True


class NotPermittedError(TransportError):
    """The log does not let this principal do that."""


class DeadlineError(TransportError):
    """The call's own deadline passed before the log took it up; nothing was written."""

    retriable = True


class FencedError(TransportError):
    """The partition was given to another member: this one's offset was not committed."""


class OffsetOutOfRangeError(TransportError):
    """Retention deleted records this group had not settled: possible loss, so the worker stops."""


class GroupBusyError(TransportError):
    """The group has members: where it goes on is theirs to say."""


class ClosedError(TransportError):
    """The transport or subscription was closed."""


class AppendUnknownError(BusError):
    """The record may or may not be in the log. Appending the same bytes again is safe."""

    retriable = True


class InboxError(BusError):
    """The store of an inbox or an outbox cannot be reached, or is full.

    Nothing is claimed, and nothing is handled without a claim.
    """

    retriable = True


class DamagedError(UnreachableError, InboxError):
    """The file of the embedded log or of an inbox is damaged."""

    retriable = False


class HandlerError(BusError):
    """Root of what a handler raises to decide what becomes of its message."""


class RetryLater(HandlerError):  # noqa: N818 - a signal, not a fault
    """Transient: try again, by the retry policy or after *after_s* seconds if that is later."""

    retriable = True
    after_s: float | None = None
    """Of a subclass that does not call this constructor."""

    def __init__(self, text: str = "", after_s: float | None = None) -> None:
        super().__init__(text or "the handler asked to be tried again")
        # Raises here, in the handler that is wrong, and not where the worker computes with it.
        self.after_s = None if after_s is None else float(after_s)


class DependencyDown(HandlerError):  # noqa: N818 - a signal, not a fault
    """A dependency is down: the message waits, no attempt is spent, nothing is dead-lettered."""

    retriable = True
    name = "unnamed"
    """Of a subclass that does not call this constructor."""

    def __init__(self, name: str, text: str = "") -> None:
        super().__init__(f"{name}: {text or 'is down'}")
        # It becomes a metric's label: whatever a handler makes it of, it is text that can be written.
        self.name = str(name).encode("utf-8", "backslashreplace").decode()[:100]


class SettingMissing(DependencyDown):
    """The configuration lacks what the handler needs.

    No message is to blame for that: it waits, and is handled when the setting is there.
    """


class Reject(HandlerError):  # noqa: N818 - a signal, not a fault
    """Permanent: this message can never be handled; it becomes a dead letter, reason `rejected`."""


def text_of(error: BaseException) -> str:
    """What *error* says, without secrets.

    Foreign exceptions may raise anything from their own `__str__`; no worker is to end over that.
    """
    try:
        # Not a kind of text of their own either, which may do so later.
        return redacted(str.__str__(str(error)))
    except BaseException:  # noqa: BLE001 - see above
        return f"<{type(error).__name__} that cannot be printed>"


def trace_of(error: BaseException) -> str:
    """The trace of *error* and of what it was caused by, taken with the same care."""
    try:
        return redacted("".join(traceback.format_exception(error)).rstrip())
    except BaseException:  # noqa: BLE001 - see above
        return text_of(error)
