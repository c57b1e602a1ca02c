"""The fields that a message inherits from its cause, as JSON texts of its envelope.

Owns the texts a template fills in for a caused message: cause, conversation, correlation, hops, task and run, trace,
parents and proof chain. Inherited values passed the gates with the cause, so their form is not checked again. They are
what `producers.sealing.options.compose` takes from a cause (a test compares both).
"""

from __future__ import annotations

import msgspec

from bus.protocol.proof_chain import links_after
from bus.protocol.sealing import Message
from producers.sealing.options import DEFAULT_MAX_HOPS, hop_limit, is_traced

__all__ = ["InheritedFields", "heritage_of"]

_encode = msgspec.json.Encoder().encode


class InheritedFields(msgspec.Struct, frozen=True, gc=False):
    """Pieces of JSON, each with its leading comma, or empty if nothing is inherited."""

    front: bytes
    """The metadata before `hops`."""
    conversation_id: str
    hops: int
    parent_task: bytes
    run: bytes
    task: bytes
    trace: bytes
    traceparent: str | None
    max_hops: int | None
    links: int
    seal: str
    chain: bytes

    @property
    def pieces(self) -> tuple[bytes, str, int, bytes, bytes, bytes, bytes, int, str, bytes]:
        """The values that the compiled step fills in."""
        return (
            self.front,
            self.conversation_id,
            self.hops,
            self.parent_task,
            self.run,
            self.task,
            self.trace,
            self.links,
            self.seal,
            self.chain,
        )

    def allows_hops(self, max_hops: int | None) -> bool:
        """Tell whether receivers accept the message's hops for *max_hops*, or for its cause's limit.

        Beyond 16 hops the exact way decides.
        """
        return self.hops <= hop_limit(self.max_hops if max_hops is None else max_hops, DEFAULT_MAX_HOPS)


def heritage_of(cause: Message, *, answers: bool) -> InheritedFields:
    """Return the fields that a message inherits from *cause*; *answers*: it is an answer to *cause*."""
    before, verification = cause.metadata, cause.verification
    traced = is_traced(before)
    correlation = before.message_id if answers else before.correlation_id or before.message_id
    return InheritedFields(
        front=b'{"causation_id":%b,"conversation_id":%b,"correlation_id":%b,"hops":'
        % (_encode(before.message_id), _encode(before.conversation_id), _encode(correlation)),
        conversation_id=before.conversation_id,
        hops=before.hops + 1,
        parent_task=_member(b',"parent_task_id":', before.parent_task_id),
        run=_member(b',"run_id":', before.run_id),
        task=_member(b',"task_id":', before.task_id),
        trace=_member(b',"traceparent":', before.traceparent) + _member(b',"tracestate":', before.tracestate)
        if traced
        else b"",
        traceparent=before.traceparent if traced else None,
        max_hops=cause.routing.max_hops,
        links=links_after(len(verification.proof_chain) if verification.proof_chain else None),
        seal=cause.seal,
        chain=_encode(cause.chain_for_children()),
    )


def _member(name: bytes, value: str | None) -> bytes:
    return b"" if value is None else name + _encode(value)
