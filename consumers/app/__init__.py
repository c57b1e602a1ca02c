"""The tools for authors of agents: the App, its handlers, and its tests."""
