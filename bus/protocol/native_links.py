"""Chains: a quick yes to the links of most messages.

Owns asking the compiled hot path whether links have their form (`bus.protocol.envelope_rules`) and hold
(`bus.protocol.proof_chain`), which a caused message is asked with each of its ancestors. No says nothing: those two
find out what is wrong, or that nothing is.
"""

from __future__ import annotations

from bus import native
from bus.protocol.envelope import Addressee, Link, Statement

__all__ = ["have_form", "hold"]

_links = None if native.core is None else native.core.Links(Link, Statement, Addressee)


def have_form(chain: tuple[Link, ...]) -> bool:
    """Whether every link is proven to have its form."""
    return _links is not None and native.core is not None and bool(_links.have_form(chain))


def hold(
    chain: tuple[Link, ...], statement: Statement, cause_id: str | None, *, backwards_ms: int, age_ms: int
) -> bool:
    """Return whether *chain* is proven to be that of a message that says *statement*.

    The message was caused by *cause_id*; the signer does not matter.
    """
    return (
        _links is not None
        and native.core is not None
        and bool(_links.hold(chain, statement, cause_id, backwards_ms, age_ms))
    )
