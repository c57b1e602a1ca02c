"""Poison protection without an inbox: deaths are counted.

What each process runs is noted in files that outlive it.
"""
