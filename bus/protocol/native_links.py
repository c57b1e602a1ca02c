"""Check the links of a proof chain with the compiled code.

Owns asking the compiled code whether links are well-formed (`bus.protocol.envelope_rules`) and consistent
(`bus.protocol.proof_chain`). Only True is an answer: after False, those two modules decide.
"""

from __future__ import annotations

from bus import native
from bus.protocol.envelope import Addressee, Link, Statement

__all__ = ["have_form", "hold"]

_links = None if native.core is None else native.core.Links(Link, Statement, Addressee)


def have_form(chain: tuple[Link, ...]) -> bool:
    """Tell whether every link is proven well-formed."""
    return _links is not None and native.core is not None and bool(_links.have_form(chain))


def hold(
    chain: tuple[Link, ...], statement: Statement, cause_id: str | None, *, backwards_ms: int, age_ms: int
) -> bool:
    """Tell whether *chain* is proven consistent with a message of this *statement*, caused by *cause_id*.

    Signatures are not checked.
    """
    return (
        _links is not None
        and native.core is not None
        and bool(_links.hold(chain, statement, cause_id, backwards_ms, age_ms))
    )
