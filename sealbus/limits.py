"""Limits of handlers: how often, and how many at once, they may use a named resource.

    from sealbus.limits import Concurrency, Rate

Page: `docs/how-to/limits-and-schedules.md`.
"""

from __future__ import annotations

from consumers.delivery.resilience.limits import Concurrency, Rate

__all__ = ["Concurrency", "Rate"]
