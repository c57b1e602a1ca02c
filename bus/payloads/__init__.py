"""Payload types: classes marked with `@payload`.

How their values become canonical JSON and back, and what is refused of them.
"""
