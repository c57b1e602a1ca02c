"""Who is there: a view on agents' cards and heartbeats, kept by every process that asks (`bus.directory`).

Workers send them (`consumers.agents.directory`).
"""

from producers.directory.view import AgentEntry, Directory, DirectoryChange

__all__ = ["AgentEntry", "Directory", "DirectoryChange"]
