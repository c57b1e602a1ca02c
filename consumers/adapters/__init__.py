"""Adapters: agents of other frameworks as handlers of the bus, and the tools of an app as theirs.

`serving` and `run` are what all have in common; there is a module, and one with its engine, for each framework. Nothing
here imports a framework before one of its adapters is called.
"""
