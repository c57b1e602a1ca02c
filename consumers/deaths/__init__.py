"""Deaths of worker processes, and the messages that were running at them: poison protection for messages that no inbox remembers.

`slots` is the file in which a process notes what it runs, `roll` the directory of those files, `rules` who is under suspicion, `witness` what a
worker does with it. For messages with a row in an inbox the same rule is `consumers.inbox.rules`'.
"""
