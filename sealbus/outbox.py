"""The outbox: publish in the transaction of your own database.

    from sealbus.outbox import Outbox

Page: `docs/how-to/effects-once.md`.
"""

from __future__ import annotations

from producers.outbox import Outbox

__all__ = [
    "Outbox",
]
