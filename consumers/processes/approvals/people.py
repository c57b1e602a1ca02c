"""People who can decide on this machine: the humans of the policy whose private keys are here."""

from __future__ import annotations

from pathlib import Path

from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from bus.trust.opening import ALLOW_ALL, key_file_of
from bus.trust.policy.file import parse_policy

__all__ = ["people_with_keys"]


def people_with_keys(settings: Settings) -> list[str]:
    """Return the humans in the policy of *settings* whose private keys are in the folder of its `trust.key_file`.

    Raises ConfigurationError for a policy that cannot be used.
    """
    keys, file = Path(settings.trust.key_file), settings.policy.file
    if not settings.trust.key_file or not keys.is_dir() or file in ("", ALLOW_ALL):
        return []
    try:
        rules = parse_policy(Path(file).read_bytes(), name=file)
    except OSError as error:
        raise ConfigurationError(f"policy.file: {file} cannot be read: {error.strerror or error}") from error
    people = [row.id for row in rules.rows if row.kind == "human"]
    return [person for person in people if key_file_of(keys, person).exists()]
