"""The rules of the envelope's shape: forms, ranges and rules between fields, each failing with a JSON pointer.

Owns every rule of PROTOCOL.md section 1 that needs only the three typed layers. `bus.protocol.sealing` applies them
before sealing and after parsing, so a sender never sends what a receiver refuses. Decoding into `bus.protocol.envelope`
checks types and required members.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from bus.errors import ContractError
from bus.protocol.authority_globs import MAX_GLOBS, authority_glob_fault
from bus.protocol.canonical import MAX_DEPTH, escape_pointer_token
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.protocol.envelope import (
    LINKS,
    Addressee,
    Agent,
    Authority,
    Link,
    Metadata,
    OtherVersion,
    RetryPolicy,
    Routing,
    Statement,
    Verification,
)
from bus.protocol.identifiers import (
    has_control,
    is_hash,
    is_message_id,
    is_message_type,
    is_namespace,
    is_pointer,
    is_protocol,
    is_reply_to,
    is_schema_version,
    is_text_id,
)
from bus.protocol.timestamps import parse_ms
from bus.protocol.validation_errors import translate

__all__ = [
    "MAX_LINKS",
    "MAX_PARENTS",
    "check_authority",
    "check_globs",
    "check_metadata",
    "check_plain",
    "check_routing",
    "check_verification",
]

MAX_PARENTS = 16
MAX_LINKS = 16
MAX_INTENT = 200
MAX_PRIORITY = 9
MAX_ATTEMPTS = 100
MAX_AUTHORITY = 1_024
MAX_AUTHORITY_DEPTH = 8
"""Maximum nesting depth of an authority, itself included. The limit is the same in a message and in the links of its
children."""
MAX_POINTERS = 64
MAX_POINTER = 1_024

_GLOBS = ("can_execute", "can_read", "can_write")

_encode = msgspec.json.Encoder().encode


def check_metadata(metadata: Metadata) -> None:
    """Raise ContractError for the first malformed field of *metadata*."""
    _check_kind(metadata.protocol, metadata.namespace, metadata.message_type, metadata.schema_version)
    _form(is_message_id, metadata.message_id, "/metadata/message_id", "is not 1 to 128 visible ASCII characters")
    _time(metadata.timestamp, "/metadata/timestamp")
    _text_id(metadata.conversation_id, "/metadata/conversation_id")
    _count(metadata.hops, "/metadata/hops")
    _check_sender(metadata.sender)
    if metadata.recipient is not None:
        _agent(metadata.recipient, "/metadata/recipient")
        if metadata.recipient.id is None and metadata.recipient.role is None:
            raise ContractError("a recipient has an id or a role", "/metadata/recipient")
    _optional_metadata(metadata)
    _causality(metadata)


# The same few types and senders recur: accepted values are cached, refused ones are not (lru_cache keeps no exception).
@lru_cache(maxsize=1024)
def _check_kind(protocol: str, namespace: str, message_type: str, schema_version: str) -> None:
    _form(is_protocol, protocol, "/metadata/protocol", "is not `sealbus/1` or a minor of it")
    _form(is_namespace, namespace, "/metadata/namespace", "is not one segment of at most 63 characters")
    _form(
        is_message_type,
        message_type,
        "/metadata/message_type",
        "is not dotted lower-case segments, at most 120, last not `dlq`",
    )
    _form(is_schema_version, schema_version, "/metadata/schema_version", "is not x.y.z")


@lru_cache(maxsize=1024)
def _check_sender(sender: Agent) -> None:
    _agent(sender, "/metadata/sender")
    if sender.id is None:
        raise ContractError("the sender's id is required", "/metadata/sender/id")


def _check_other_version(other: OtherVersion) -> None:
    pointer = "/metadata/other_version"
    _form(is_schema_version, other.schema_version, f"{pointer}/schema_version", "is not x.y.z")
    if other.content_hash is not None:
        _form(is_hash, other.content_hash, f"{pointer}/content_hash", "is not sha256: and 64 hex digits")


def _optional_metadata(metadata: Metadata) -> None:
    if metadata.authority is not None:
        _check_size(_encode(metadata.authority), "/metadata/authority")
        check_globs(metadata.authority, "/metadata/authority")
    _optional_ids(metadata)
    if metadata.sequence is not None:
        _count(metadata.sequence, "/metadata/sequence")
    if metadata.other_version is not None:
        _check_other_version(metadata.other_version)
    if metadata.intent is not None and (len(metadata.intent) > MAX_INTENT or has_control(metadata.intent)):
        raise ContractError("is longer than 200 or has control characters", "/metadata/intent")
    if metadata.critical_fields is not None:
        _critical(metadata.critical_fields)


def _critical(pointers: tuple[str, ...]) -> None:
    if not pointers:
        raise ContractError("is empty; leave it out", "/metadata/critical_fields")
    if len(pointers) > MAX_POINTERS:
        raise ContractError(f"has more than {MAX_POINTERS} pointers", "/metadata/critical_fields")
    for index, pointer in enumerate(pointers):
        if len(pointer) > MAX_POINTER:
            raise ContractError(f"is longer than {MAX_POINTER}", f"/metadata/critical_fields/{index}")
        _form(is_pointer, pointer, f"/metadata/critical_fields/{index}", "is not a JSON pointer")


def _optional_ids(metadata: Metadata) -> None:
    if metadata.correlation_id is not None:
        _text_id(metadata.correlation_id, "/metadata/correlation_id")
    if metadata.task_id is not None:
        _text_id(metadata.task_id, "/metadata/task_id")
    if metadata.parent_task_id is not None:
        _text_id(metadata.parent_task_id, "/metadata/parent_task_id")
    if metadata.run_id is not None:
        _text_id(metadata.run_id, "/metadata/run_id")


def check_authority(authority: dict[str, Any], pointer: str) -> None:
    """Raise ContractError unless *authority*, as sealed, is well-formed.

    That is: known members of the right types, globs of the right form, no value that is illegal outside data, at most
    1 KiB and 8 levels.
    """
    check_plain(authority, pointer, MAX_AUTHORITY_DEPTH)
    try:
        known = msgspec.convert(authority, Authority)
    except msgspec.ValidationError as error:
        raise translate(error, base=pointer) from error
    _check_size(_encode(authority), pointer)
    check_globs(known, pointer)


def check_globs(authority: Authority, pointer: str) -> None:
    """Raise ContractError for a list of globs that is too long, or a glob that a gate could not compare."""
    for name in _GLOBS:
        globs = getattr(authority, name)
        if globs is None:
            continue
        if len(globs) > MAX_GLOBS:
            raise ContractError(f"has {len(globs)} globs, at most {MAX_GLOBS} are allowed", f"{pointer}/{name}")
        for index, glob in enumerate(globs):
            if (fault := authority_glob_fault(glob)) is not None:
                raise ContractError(fault, f"{pointer}/{name}/{index}")


def _check_size(authority: bytes, pointer: str) -> None:
    if len(authority) > MAX_AUTHORITY:
        raise ContractError(f"takes {len(authority)} bytes, at most {MAX_AUTHORITY} are allowed", pointer)


def check_plain(value: object, pointer: str, depth: int = MAX_DEPTH) -> None:
    """Raise ContractError unless *value* holds only strings, safe integers, booleans, arrays and objects.

    Floats and null are illegal in the three layers beside data. Objects and arrays nest at most *depth* levels.
    """
    if not depth and isinstance(value, dict | list):
        raise ContractError("is nested too deep", pointer)
    if isinstance(value, dict):
        for name, member in value.items():
            check_plain(member, f"{pointer}/{escape_pointer_token(name)}", depth - 1)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            check_plain(member, f"{pointer}/{index}", depth - 1)
    elif value is None or isinstance(value, float):
        raise ContractError("null and fractions have no place outside data", pointer)
    elif isinstance(value, int) and not -SAFE_INTEGER <= value <= SAFE_INTEGER:
        raise ContractError("is beyond 2^53-1", pointer)


def _causality(metadata: Metadata) -> None:
    if metadata.causation_id is not None:
        _form(
            is_message_id, metadata.causation_id, "/metadata/causation_id", "is not 1 to 128 visible ASCII characters"
        )
        if metadata.causation_id == metadata.message_id:
            raise ContractError("a message is not its own cause", "/metadata/causation_id")
    if (metadata.hops == 0) != (metadata.causation_id is None):
        raise ContractError("hops 0 and no causation_id go together", "/metadata/hops")


def _not_before(time: str, sealed: str, expires: str) -> None:
    _time(time, "/routing/not_before")
    if not sealed < time < expires:
        raise ContractError("is not between the timestamp and the end of its life", "/routing/not_before")


def check_routing(routing: Routing, metadata: Metadata) -> None:
    """Raise ContractError for the first field of *routing* that is malformed or does not fit *metadata*."""
    _time(routing.expires_at, "/routing/expires_at")
    # Times have one fixed-width form, so text order is time order.
    if routing.expires_at <= metadata.timestamp:
        raise ContractError("is not after the timestamp", "/routing/expires_at")
    if routing.not_before is not None:
        _not_before(routing.not_before, metadata.timestamp, routing.expires_at)
    if routing.priority is not None and not 0 <= routing.priority <= MAX_PRIORITY:
        raise ContractError("is not 0 to 9", "/routing/priority")
    if routing.max_hops is not None:
        _count(routing.max_hops, "/routing/max_hops")
    if routing.idempotency_key is not None:
        _text_id(routing.idempotency_key, "/routing/idempotency_key")
    if routing.key is not None:
        _text_id(routing.key, "/routing/key")
        if routing.key == metadata.conversation_id:
            raise ContractError("equals conversation_id; leave it out", "/routing/key")
    if routing.reply_to is not None and not is_reply_to(routing.reply_to, metadata.namespace):
        raise ContractError("is not a reply address of this namespace", "/routing/reply_to")
    if routing.retry is not None:
        _retry(routing.retry)


def _retry(retry: RetryPolicy) -> None:
    if not 1 <= retry.max_attempts <= MAX_ATTEMPTS:
        raise ContractError("is not 1 to 100", "/routing/retry/max_attempts")
    _count(retry.base_ms, "/routing/retry/base_ms")
    _count(retry.cap_ms, "/routing/retry/cap_ms")
    if retry.cap_ms < retry.base_ms:
        raise ContractError("is less than base_ms", "/routing/retry/cap_ms")


def check_verification(verification: Verification, metadata: Metadata) -> None:
    """Raise ContractError for the first field of *verification* that is malformed or does not fit *metadata*."""
    _hash(verification.content_hash, "/verification/content_hash")
    _hash(verification.seal, "/verification/seal")
    _parents(verification.parents, "/verification/parents")
    if (metadata.hops == 0) != (verification.parents is None):
        raise ContractError("hops 0 and no parents go together", "/verification/parents")
    if verification.signature is not None and not verification.signature:
        raise ContractError("is empty; leave it out", "/verification/signature")
    if verification.proof_chain is not None:
        if not 1 <= len(verification.proof_chain) <= MAX_LINKS:
            raise ContractError("has no link or more than 16", "/verification/proof_chain")
        if LINKS.have_form(verification.proof_chain):
            return
        for index, link in enumerate(verification.proof_chain):
            _link(link, f"/verification/proof_chain/{index}")


def _link(link: Link, pointer: str) -> None:
    if link.signature is not None and not link.signature:
        raise ContractError("is empty; leave it out", f"{pointer}/signature")
    _statement(link.statement, f"{pointer}/statement")


def _statement(statement: Statement, pointer: str) -> None:
    _form(is_protocol, statement.protocol, f"{pointer}/protocol", "is not `sealbus/1` or a minor of it")
    _form(is_namespace, statement.namespace, f"{pointer}/namespace", "is not one segment of at most 63 characters")
    _form(is_message_id, statement.message_id, f"{pointer}/message_id", "is not 1 to 128 visible ASCII characters")
    _form(is_message_type, statement.message_type, f"{pointer}/message_type", "is not a message type")
    _text_id(statement.sender, f"{pointer}/sender")
    _time(statement.timestamp, f"{pointer}/timestamp")
    _hash(statement.content_hash, f"{pointer}/content_hash")
    _hash(statement.envelope_hash, f"{pointer}/envelope_hash")
    _count(statement.hops, f"{pointer}/hops")
    if statement.links is not None and not -SAFE_INTEGER <= statement.links <= SAFE_INTEGER:
        raise ContractError("is beyond 2^53-1", f"{pointer}/links")
    _parents(statement.parents, f"{pointer}/parents")
    if statement.recipient is not None:
        _addressee(statement.recipient, f"{pointer}/recipient")
    if statement.authority is not None:
        check_authority(statement.authority, f"{pointer}/authority")


def _addressee(recipient: Addressee, pointer: str) -> None:
    if (recipient.id is None) == (recipient.role is None):
        raise ContractError("a statement names an id or a role", pointer)
    name, text = ("role", recipient.role) if recipient.id is None else ("id", recipient.id)
    _text_id(text or "", f"{pointer}/{name}")


def _parents(parents: tuple[str, ...] | None, pointer: str) -> None:
    if parents is None:
        return
    if not 1 <= len(parents) <= MAX_PARENTS:
        raise ContractError("has no seal or more than 16", pointer)
    for index, seal in enumerate(parents):
        _hash(seal, f"{pointer}/{index}")
    if len(set(parents)) != len(parents):
        raise ContractError("names a seal twice", pointer)


def _agent(agent: Agent, pointer: str) -> None:
    for name in ("id", "role", "version", "framework", "host", "session_id"):
        value = getattr(agent, name)
        if value is not None:
            _text_id(value, f"{pointer}/{name}")


def _form(rule: Callable[[str], bool], text: str, pointer: str, complaint: str) -> None:
    if not rule(text):
        raise ContractError(f"{text[:80]!r} {complaint}", pointer)


def _text_id(text: str, pointer: str) -> None:
    if not is_text_id(text):
        raise ContractError("is not 1 to 256 characters without control or format characters", pointer)


def _hash(text: str, pointer: str) -> None:
    if not is_hash(text):
        raise ContractError("is not `sha256:` and 64 lower-case hex digits", pointer)


def _time(text: str, pointer: str) -> None:
    if parse_ms(text) is None:
        raise ContractError("is not a UTC time such as 2026-01-31T12:00:00.000Z", pointer)


def _count(value: int, pointer: str) -> None:
    if not 0 <= value <= SAFE_INTEGER:
        raise ContractError("is not an integer from 0 to 2^53-1", pointer)
