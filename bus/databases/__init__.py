"""Users' databases: how they are opened, and what their failures mean.

The inbox and the outbox keep their rows in them.
"""
