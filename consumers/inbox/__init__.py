"""The inbox: what was done under which idempotency key.

`consumers.inbox.base` is the Protocol, `consumers.inbox.claim_rules` the decision, `sqlite` and `postgres` are the
stores.
"""
