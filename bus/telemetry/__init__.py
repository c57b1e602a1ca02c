"""What operators see of a process: logs, metrics, and text that is safe for a terminal."""
