"""Payload types: classes marked with `@payload`.

Converts their values to canonical JSON and back, and refuses unsuitable types.
"""
