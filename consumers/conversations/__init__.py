"""Protocols between agents, as sagas: each file begins with its table of transitions, and the class follows it.

A class here is a base: a subclass says what opens it, and what to do with the outcome. `roles` is seed 003's table of
who may speak how.
"""
