"""Sagas: long-running work that survives its workers, as rules in a class and one row per run.

A *saga* is a class, the rules. A *process* is one run of it, a row in the inbox's database. A *step* is one event
handled by one process: pure but for its transaction, which also marks the event as done. A *wait* is a row too: what a
process waits for, an answer or a time. Design part two section 16 says what must hold.

`rules` is what users write, `context` what a step may do, `process` the values, `store` the SQL, `steps` the life of
one step, `sweeper` what makes waits fall due.
"""
