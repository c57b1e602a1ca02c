"""Lineage: the causes of one message, verified one by one, and the timeline of one conversation.

`log_search` reads their records from the log; `ancestry` and `timeline` decide, and are pure. The commands are `sealbus
blame` and `sealbus trace`.
"""
