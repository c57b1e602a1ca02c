"""Translate errors of the Kafka client into errors of the bus.

Owns the translation from `aiokafka.errors` to `bus.errors`, and what a failed batch means for its records: certainly
not in the log, or unknown. The caller decides what to do about it.
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

__all__ = ["is_certain_failure", "is_denial", "is_refusal", "lacking", "broker_refusal", "error_text", "kafka_error_of"]

_DENIED = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)
_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
_MISSING = (errors.UnknownTopicOrPartitionError,)
# The broker refused the batch itself: sending the same batch again cannot help.
_REFUSALS = (
    *_DENIED,
    *_TOO_LARGE,
    errors.InvalidTopicError,
    errors.InvalidTimestampError,
    errors.PolicyViolationError,
    errors.UnsupportedForMessageFormatError,
    errors.CorruptRecordException,
)
# The log does not hold such a batch (measured over thousands of failed batches each): a sequence gap or a fence.
_CERTAIN = (*_REFUSALS, errors.OutOfOrderSequenceNumber, errors.ProducerFenced, errors.InvalidProducerEpoch)
_LOST_MEMBERSHIP = (
    errors.CommitFailedError,
    errors.IllegalGenerationError,
    errors.UnknownMemberIdError,
    errors.IllegalStateError,
)


def error_text(error: BaseException) -> str:
    """Return the text of *error*, or at least its class name."""
    text = text_of(error).strip()
    name = type(error).__name__
    return text if name in text else f"{name}: {text}" if text else name


def is_denial(error: BaseException) -> bool:
    """Tell whether *error* means that this user lacks a right."""
    return isinstance(error, _DENIED)


def is_refusal(error: BaseException) -> bool:
    """Tell whether the broker refused the batch itself."""
    return isinstance(error, _REFUSALS)


def is_certain_failure(error: BaseException) -> bool:
    """Tell whether a batch that failed with *error* is certainly not in the log by this attempt."""
    return isinstance(error, _CERTAIN)


def kafka_error_of(error: BaseException, doing: str) -> BusError:
    """Return the bus error for *error*; *doing* names the attempted action in its text."""
    if isinstance(error, BusError):
        return error
    if is_denial(error):
        return NotPermittedError(
            f"{doing}: Kafka does not let this user do that ({error_text(error)}); ask for an ACL that allows it"
        )
    if isinstance(error, _TOO_LARGE):
        return RecordTooLargeError(f"{doing}: larger than the topic takes (max.message.bytes)")
    if isinstance(error, _MISSING):
        return TopicMissingError(f"{doing}: no such topic; create it with `sealbus topic apply`")
    if isinstance(error, errors.InconsistentGroupProtocolError):
        return ConfigurationError(
            f"{doing}: another program reads as this group in a way of its own; stop it, or give the app another group"
        )
    if isinstance(error, _LOST_MEMBERSHIP):
        return FencedError(f"{doing}: the group has rebalanced ({error_text(error)})")
    if isinstance(error, asyncio.TimeoutError | errors.RequestTimedOutError | errors.KafkaTimeoutError):
        return DeadlineError(f"{doing}: no answer in time")
    if isinstance(error, OSError) or (isinstance(error, errors.KafkaError) and error.retriable):
        return UnreachableError(f"{doing}: {error_text(error)}")
    return TransportError(f"{doing}: {error_text(error)}")


def lacking(doing: str, right: str) -> NotPermittedError:
    """Return the error for the missing *right*: an operation and its resource, in the words of an ACL."""
    return NotPermittedError(f"{doing}: Kafka does not let this user do that; needed: {right}")


def broker_refusal(error: BaseException, doing: str, right: str) -> BusError:
    """Return the bus error for a refusal by the brokers; *right* names the needed ACL in case that was the reason."""
    return lacking(doing, right) if is_denial(error) else kafka_error_of(error, doing)
