"""`sealbus types`."""

from consumers.cli.types.command import types

__all__ = ["types"]
