"""Requests: asking, and reading the answers that are believed."""
