"""What a failure of the Kafka client means to the bus.

Owns the one translation from `aiokafka.errors` to `bus.errors`, and what a failed batch says about its records:
certainly not in the log, or unknown. Does not own what follows from it.
"""

from __future__ import annotations

import asyncio

from aiokafka import errors

from bus.errors import (
    BusError,
    ConfigurationError,
    DeadlineError,
    FencedError,
    NotPermittedError,
    RecordTooLargeError,
    TopicMissingError,
    TransportError,
    UnreachableError,
    text_of,
)

__all__ = ["is_certain", "is_denial", "is_refusal", "lacking", "refusal", "said", "translated"]

_DENIED = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)
_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
_MISSING = (errors.UnknownTopicOrPartitionError,)
# The broker looked at the batch and refused it; sending the same batch again cannot help.
_REFUSALS = (
    *_DENIED,
    *_TOO_LARGE,
    errors.InvalidTopicError,
    errors.InvalidTimestampError,
    errors.PolicyViolationError,
    errors.UnsupportedForMessageFormatError,
    errors.CorruptRecordException,
)
# What the log does not hold (measured over thousands of failed batches each): a gap in the sequence, a fence.
_CERTAIN = (*_REFUSALS, errors.OutOfOrderSequenceNumber, errors.ProducerFenced, errors.InvalidProducerEpoch)
_LOST_MEMBERSHIP = (
    errors.CommitFailedError,
    errors.IllegalGenerationError,
    errors.UnknownMemberIdError,
    errors.IllegalStateError,
)


def said(error: BaseException) -> str:
    """What *error* says, or at least its name."""
    text = text_of(error).strip()
    name = type(error).__name__
    return text if name in text else f"{name}: {text}" if text else name


def is_denial(error: BaseException) -> bool:
    """Whether this user may not do that."""
    return isinstance(error, _DENIED)


def is_refusal(error: BaseException) -> bool:
    """Whether the broker refused the batch itself."""
    return isinstance(error, _REFUSALS)


def is_certain(error: BaseException) -> bool:
    """Whether a batch that failed with *error* is certainly not in the log, by this try."""
    return isinstance(error, _CERTAIN)


def translated(error: BaseException, doing: str) -> BusError:
    """The error of the bus that says what *error* means; *doing* is what was tried, for the text."""
    if isinstance(error, BusError):
        return error
    if is_denial(error):
        return NotPermittedError(
            f"{doing}: Kafka does not let this user do that ({said(error)}); ask for an ACL that allows it"
        )
    if isinstance(error, _TOO_LARGE):
        return RecordTooLargeError(f"{doing}: larger than the topic takes (max.message.bytes)")
    if isinstance(error, _MISSING):
        return TopicMissingError(f"{doing}: there is no such topic; create it with `sealbus topics apply`")
    if isinstance(error, errors.InconsistentGroupProtocolError):
        return ConfigurationError(
            f"{doing}: another program reads as this group in a way of its own; stop it, or give the app another group"
        )
    if isinstance(error, _LOST_MEMBERSHIP):
        return FencedError(f"{doing}: the group has rebalanced ({said(error)})")
    if isinstance(error, asyncio.TimeoutError | errors.RequestTimedOutError | errors.KafkaTimeoutError):
        return DeadlineError(f"{doing}: no answer in time")
    if isinstance(error, OSError) or (isinstance(error, errors.KafkaError) and error.retriable):
        return UnreachableError(f"{doing}: {said(error)}")
    return TransportError(f"{doing}: {said(error)}")


def lacking(doing: str, right: str) -> NotPermittedError:
    """*right* is an operation and what it is on, as an ACL says it."""
    return NotPermittedError(f"{doing}: Kafka does not let this user do that; needed: {right}")


def refusal(error: BaseException, doing: str, right: str) -> BusError:
    """What a refusal by the brokers means; *right* is what they ask for where rights were the reason."""
    return lacking(doing, right) if is_denial(error) else translated(error, doing)
