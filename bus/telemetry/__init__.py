"""Telemetry of a process: logs, metrics, and terminal-safe text."""
