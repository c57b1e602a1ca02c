"""The directory: a view of agents' cards and heartbeats, kept by every process that uses it (`bus.directory`).

Workers send them (`consumers.agents.directory`).
"""

from producers.directory.view import AgentEntry, Directory, DirectoryChange

__all__ = ["AgentEntry", "Directory", "DirectoryChange"]
