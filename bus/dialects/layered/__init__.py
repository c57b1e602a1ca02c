"""Dialect `layered` (000): messages in layers, as a union of five types, or bare. Pure."""

from bus.dialects.layered.codec import decode, encode

__all__ = ["decode", "encode"]
