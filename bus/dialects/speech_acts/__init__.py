"""Dialect `speech-acts` (003): acts with free content, sent from one agent to another. Pure."""

from bus.dialects.speech_acts.codec import decode, encode

__all__ = ["decode", "encode"]
