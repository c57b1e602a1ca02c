"""The agent that answers who is there.

The view on cards and heartbeats is `producers.directory`; workers send them (`consumers.worker.heartbeats`).
"""
