"""`sealbus dlq`: dead letters on the command line."""

from consumers.cli.dlq.command import dlq

__all__ = ["dlq"]
