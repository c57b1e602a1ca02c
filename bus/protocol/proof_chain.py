"""Parents and the proof chain: carry a message's history, and verify it without any other message. Pure.

Owns creating links, extending a chain along the cause, and the rules between links (PROTOCOL.md section 3). The
authenticity gate decides by the type's risk whether a chain is required. A `Verifier` verifies the links' signatures.
"""

from __future__ import annotations

import msgspec

from bus.errors import ContractError
from bus.protocol import canonical
from bus.protocol.envelope import LINKS, Link, Metadata, Statement, Verification
from bus.protocol.envelope_rules import MAX_LINKS
from bus.protocol.signatures import Verifier, check_signature, parse_signature
from bus.protocol.timestamps import parse_ms

__all__ = ["BACKWARDS_TOLERANCE_MS", "MAX_LINK_AGE_MS", "encode_statement", "extend_chain", "find_fault", "links_after"]

BACKWARDS_TOLERANCE_MS = 120_000
MAX_LINK_AGE_MS = 16 * 14 * 86_400_000
"""16 x (largest ttl of 7 days + retry horizon of 7 days), measured back from the message's own timestamp."""

_statement_encoder = msgspec.json.Encoder()


def encode_statement(statement: Statement) -> bytes:
    """Return the JCS of *statement*: strings, small integers and lists of strings, declared in sorted order."""
    return _statement_encoder.encode(statement)


def links_after(links: int | None) -> int:
    """Return the number of links of a message whose cause carries *links*."""
    return min(MAX_LINKS, (links or 0) + 1)


def extend_chain(cause: Statement, signature: str | None, chain: tuple[Link, ...] | None) -> tuple[Link, ...]:
    """Return the chain of a message caused by *cause*: the cause's chain plus the cause, limited to the newest 16."""
    return ((chain or ()) + (Link(statement=cause, signature=signature),))[-MAX_LINKS:]


def find_fault(
    statement: Statement, verification: Verification, metadata: Metadata, verifier: Verifier | None = None
) -> str | None:
    """Return the fault of *verification*'s chain as a sentence, or None if the chain is consistent.

    With a *verifier*, every link must be signed, and each signature must be good for that statement's sender and type.
    """
    chain = verification.proof_chain or ()
    if verifier is None and LINKS.hold(
        chain, statement, metadata.causation_id, BACKWARDS_TOLERANCE_MS, MAX_LINK_AGE_MS
    ):
        return None
    newest = chain[-1].statement
    if newest.message_id != metadata.causation_id:
        return "the newest link is not the cause"
    identities = [link.statement.message_id for link in chain] + [statement.message_id]
    if len(set(identities)) != len(identities):
        return "a message id repeats"
    sealed_at_ms = parse_ms(statement.timestamp) or 0
    for index, link in enumerate(chain):
        successor = chain[index + 1].statement if index + 1 < len(chain) else statement
        fault = _find_step_fault(link.statement, successor) or _find_age_fault(link.statement, sealed_at_ms)
        if fault is None and verifier is not None:
            fault = _find_signature_fault(link, verifier)
        if fault is not None:
            return f"link {index}: {fault}"
    return None


def _find_step_fault(link: Statement, successor: Statement) -> str | None:
    if (link.hops == 0) != (link.parents is None):
        return "hops 0 and no parents do not go together"
    if link.links is not None and not 1 <= link.links <= MAX_LINKS:
        return "links is not 1 to 16"
    if link.namespace != successor.namespace:
        return "another namespace"
    if link.hops != successor.hops - 1:
        return "hops is not one less than the next"
    if successor.parents is None or canonical.digest(encode_statement(link)) != successor.parents[0]:
        return "its hash is not the next one's first parent"
    if successor.links != links_after(link.links):
        return "the number of links does not follow"
    if (
        link.recipient is not None
        and link.recipient.id not in (None, successor.sender)
        and link.sender != successor.sender
    ):
        return "it was addressed to another agent than the sender of the next one"
    if (parse_ms(link.timestamp) or 0) > (parse_ms(successor.timestamp) or 0) + BACKWARDS_TOLERANCE_MS:
        return "time runs backwards by more than 120 s"
    return None


def _find_age_fault(link: Statement, sealed_at_ms: int) -> str | None:
    if (parse_ms(link.timestamp) or 0) < sealed_at_ms - MAX_LINK_AGE_MS:
        return "older than 16 x (largest ttl + retry horizon)"
    return None


def _find_signature_fault(link: Link, verifier: Verifier) -> str | None:
    if link.signature is None:
        return "not signed"
    signature = parse_signature(link.signature)
    if signature is None:
        return "its signature is in no valid form"
    try:
        check_signature(verifier, signature, link.statement, encode_statement(link.statement), is_link=True)
    except ContractError as error:
        return f"its signature: {error.text} ({error.reason})"
    return None
