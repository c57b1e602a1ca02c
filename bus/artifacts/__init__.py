"""Artifacts: large content beside messages, referred to by its hash."""
