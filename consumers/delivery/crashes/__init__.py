"""Poison protection without an inbox: crashes are counted against the messages that were running.

What each process runs is noted in files that outlive it.
"""
