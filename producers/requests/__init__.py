"""Requests: send them, and read the verified answers."""
