"""`sealbus policy`."""

from consumers.cli.policy.command import policy

__all__ = ["policy"]
