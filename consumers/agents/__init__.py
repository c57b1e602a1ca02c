"""Agents that come ready-made: the directory, and workflows that are written in files. Each is an App."""
