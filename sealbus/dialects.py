"""Foreign message formats, read and written: pure functions between JSON and the sealed message.

    foreign = dialects.dialect("frameworks").decode(line)
    message = dialects.seal_foreign(foreign, namespace="agents")

Page: `docs/how-to/interoperate.md`.
"""

from __future__ import annotations

from bus.dialects import DIALECTS, Claims, Defaults, Dialect, Foreign, dialect
from bus.dialects.sealing import seal_foreign

__all__ = [
    "Claims",
    "DIALECTS",
    "Defaults",
    "Dialect",
    "Foreign",
    "dialect",
    "seal_foreign",
]
