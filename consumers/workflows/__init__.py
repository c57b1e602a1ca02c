"""Workflows: a small language for work among agents (seed 003 section D), and the agent that runs it.

`definition` is the form, `variables` what stands for `${...}`, `advance` the meaning as a pure state machine, `check`
what is wrong with a definition, `diagram` its picture, `engine` the saga that carries decisions out as asks and timers.
"""
