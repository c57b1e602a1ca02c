"""Make a sealed message of a decoded foreign one: the pure part of an ingress, and of converting files.

Owns the envelope that a `Foreign` gets. An ingress checks credentials, freshness, proofs and trust before it calls
this, and passes the cause that it found in its log.
"""

from __future__ import annotations

from typing import Any, Final

from bus.dialects.data_check import kind_of
from bus.dialects.foreign import Foreign
from bus.dialects.forms import LAST_WRITABLE_MS
from bus.dialects.keeping import MARK
from bus.errors import ContractError, DialectError
from bus.payloads.payload_types import Registry
from bus.protocol import canonical
from bus.protocol.envelope import DATA_DEPTH, PROTOCOL, Agent, Metadata, Performative, RetryPolicy, Routing
from bus.protocol.sealing import Message, seal
from bus.protocol.signatures import Signer
from bus.protocol.timestamps import format_ms
from bus.retry import Retry
from bus.vocabulary import BUILT_IN

__all__ = ["seal_foreign", "with_kept_time"]

_LIFETIME_MS = 3_600_000
_TIMES: Final = {"000": "/metadata/timestamp"}
"""The pointer to the time of a message, in dialects where it is not a top-level member."""


def seal_foreign(
    foreign: Foreign,
    *,
    namespace: str,
    sender: Agent | None = None,
    now_ms: int | None = None,
    message_id: str | None = None,
    retry: Retry | None = None,
    cause: Message | None = None,
    signer: Signer | None = None,
    types: Registry = BUILT_IN,
) -> Message:
    """Seal *foreign* in *namespace*, at its own time; a sealed message that it carries is returned unchanged.

    *sender* and *message_id* are used where the foreign message has none. *now_ms*, the time of an ingress, becomes the
    timestamp, and the foreign time is kept. *retry* supplies retry delays that the dialect lacks. Raises ContractError
    for a message that receivers would refuse.
    """
    if foreign.carried is not None:
        return foreign.carried
    options, claims = foreign.options, foreign.claims
    identity = options.message_id or message_id
    agent = claims.sender or sender
    sent_ms = claims.sent_at_ms if now_ms is None else now_ms
    if identity is None or agent is None or sent_ms is None:
        absent = "message_id" if identity is None else "sender" if agent is None else "timestamp"
        raise DialectError(f"/metadata/{absent}", "nothing", "one in the foreign message, or given for it")
    kind = kind_of(types, foreign.type, foreign.version)
    data = with_kept_time(foreign.data, claims.sent_at_ms, sent_ms)
    lifetime_ms = round(kind.terms.ttl_s * 1000) if kind is not None and kind.terms.ttl_s else _LIFETIME_MS
    expires_ms = options.expires_at_ms if options.expires_at_ms is not None else sent_ms + lifetime_ms
    if expires_ms > LAST_WRITABLE_MS:
        raise ContractError("the message would expire after the year 9999", "/routing/expires_at")
    before = cause.metadata if cause is not None else None
    conversation_id = options.conversation_id or (before.conversation_id if before else identity)
    performative: Performative | None = options.performative
    if performative is None and kind is not None:
        performative = kind.terms.spoken(data)
    metadata = Metadata(
        authority=options.authority,
        causation_id=before.message_id if before else None,
        conversation_id=conversation_id,
        correlation_id=options.correlation_id or (before.message_id if before else None),
        critical_fields=options.critical_fields,
        hops=before.hops + 1 if before else 0,
        intent=options.intent,
        message_id=identity,
        message_type=foreign.type,
        namespace=namespace,
        parent_task_id=options.parent_task_id,
        performative=performative,
        protocol=PROTOCOL,
        recipient=options.to,
        run_id=options.run_id,
        schema_version=foreign.version,
        security=options.security,
        sender=agent,
        sequence=options.sequence,
        task_id=options.task_id,
        timestamp=format_ms(sent_ms),
        traceparent=options.traceparent,
        tracestate=options.tracestate,
    )
    routing = Routing(
        expires_at=format_ms(expires_ms),
        idempotency_key=options.idempotency_key,
        key=options.key if options.key != conversation_id else None,
        max_hops=options.max_hops,
        priority=options.priority,
        retry=_policy(foreign, retry or Retry()),
    )
    return seal(
        canonical.encode(data, depth=DATA_DEPTH),
        metadata,
        routing,
        parents=(cause.seal,) if cause is not None else (),
        proof_chain=cause.chain_for_children() if cause is not None and (kind is None or kind.risk != "low") else (),
        signer=signer,
    )


def _policy(foreign: Foreign, waits: Retry) -> RetryPolicy | None:
    requested = foreign.options.retry
    if requested is None:
        return None
    policy = waits.policy()
    return RetryPolicy(
        backoff=requested.backoff, base_ms=policy.base_ms, cap_ms=policy.cap_ms, max_attempts=requested.max_attempts
    )


def with_kept_time(data: dict[str, Any], foreign_ms: int | None, sent_ms: int) -> dict[str, Any]:
    """Return *data* with the foreign time kept in its mark, if the message is sealed at another one."""
    mark = data.get(MARK)
    if foreign_ms is None or foreign_ms == sent_ms or mark is None:
        return data
    pointer = _TIMES.get(mark["of"], "/timestamp")
    if pointer in mark.get("kept", {}):
        return data
    return {**data, MARK: {**mark, "kept": {**mark.get("kept", {}), pointer: format_ms(foreign_ms)}}}
