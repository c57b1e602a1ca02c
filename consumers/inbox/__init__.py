"""The inbox: what has been done under which idempotency key. See `base` for the seam, `rules` for the decision."""
