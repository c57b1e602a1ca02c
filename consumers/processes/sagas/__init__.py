"""Sagas: long-running work that survives its workers, as rules in a class and one row per run.

A *saga* is a class, the rules. A *process* is one run of it, a row in the inbox's database. A *step* is one event
handled by one process: pure but for its transaction, which also marks the event as done. A *wait* is a row, too: an
answer or a time that a process waits for. Design part two section 16 has the guarantees.

`rules` has the class that users write, `context` the operations of a step, `process` the values, `store` the SQL,
`steps` the life of one step, `sweeper` the timers of waits.
"""
