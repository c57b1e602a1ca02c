"""Approvals: messages that run only after exactly this action was approved.

A message that needs an approval waits outside its lane: its record is stored beside its process in the inbox's
database, and the approvers are asked. `approval` has the declaration of handlers, `packet` the approved action,
`decisions` the rules for approvers, `service` the process. Design part two sections 15 and 16.6.
"""
