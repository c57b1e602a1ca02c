"""Where messages come from: the causes of one message judged hop by hop, and one conversation as it went.

`log_search` reads what a log still has of them; `ancestry` and `timeline` decide, and are pure. The doors are
`sealbus blame` and `sealbus trace`.
"""
