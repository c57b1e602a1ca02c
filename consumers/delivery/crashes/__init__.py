"""Crash protection without an inbox: process deaths are counted against the messages that were running.

Each process notes its running messages in files that outlive it.
"""
