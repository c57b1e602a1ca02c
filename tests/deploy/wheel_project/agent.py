"""What `sealbus run agent:app` runs."""

from __future__ import annotations

from consumers.driver import app

__all__ = ["app"]
