"""Requests: ask, and read the answers that can be believed."""
