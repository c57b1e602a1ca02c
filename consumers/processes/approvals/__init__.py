"""Approvals: messages that run only when somebody has agreed to exactly this.

A message that needs an approval is held: its record is kept beside its process in the inbox's database, the approvers
are asked, and no lane waits. `approval` is what handlers declare, `packet` what is agreed to, `decisions` who may
decide, `desk` the process. Design part two sections 15 and 16.6.
"""
