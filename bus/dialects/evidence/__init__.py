"""Dialect `evidence` (001): tasks, reviews and approvals in an envelope of causes, authority and trust. Pure."""

from bus.dialects.evidence.codec import decode, encode

__all__ = ["decode", "encode"]
