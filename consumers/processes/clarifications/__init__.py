"""Clarifications: what a run asks its requester in the middle of its work, and the wait for the answer.

The twin of an approved step: the message waits outside its lane, its record is stored beside its process, and a later
run gets the answer. `question_desk` is asked by the run, `service` has the process, `state` its row. Design part three
22.8.
"""
