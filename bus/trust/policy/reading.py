"""Read a policy file, with errors that name the setting and the page of the language."""

from __future__ import annotations

from pathlib import Path

from bus.errors import ConfigurationError
from bus.trust.policy.file import PolicyRules, parse_policy

__all__ = ["read_policy"]


def read_policy(file: Path) -> PolicyRules:
    """Return the rules in *file*. Raises ConfigurationError."""
    try:
        return parse_policy(file.read_bytes(), name=str(file))
    except OSError as error:
        raise ConfigurationError(f"policy.file: {file} cannot be read: {error.strerror or error}") from error
    except ConfigurationError as error:
        error.add_note("docs/reference/policy-language.md describes the language in one page")
        raise
