"""Dialect `frameworks` (004): tasks, status, errors and heartbeats between agents of different frameworks. Pure."""

from bus.dialects.frameworks.codec import decode, encode

__all__ = ["decode", "encode"]
