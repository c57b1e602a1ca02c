"""Lint: anti-patterns in types, handlers and traffic of agents whose messages are all valid."""
