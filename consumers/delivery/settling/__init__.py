"""Outcomes made durable: retries, dead letters, reports, answers. An offset counts as settled only after that."""
