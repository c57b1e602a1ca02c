"""The inbox: what was done under which idempotency key.

`consumers.delivery.inbox.base` is the Protocol, `consumers.delivery.inbox.claim_rules` the decision, `sqlite` and
`postgres` are the stores.
"""
