"""Dialect `plain-ids` (002): requests, greetings, discovery and errors between agents with plain ids. Pure."""

from bus.dialects.plain_ids.codec import decode, encode

__all__ = ["decode", "encode"]
