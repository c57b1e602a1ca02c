"""The directory of trusted keys as a worker reads it, from the settings or from a folder."""

from __future__ import annotations

from pathlib import Path

from bus.settings.schema import Settings
from bus.trust.keys.key_directory import KeyDirectory, parse_keys
from bus.trust.keys.key_folder import JWKS
from bus.trust.keys.trusted_files import check_trusted_file, files_of, read_files

__all__ = ["trusted_directory"]


def trusted_directory(settings: Settings, folder: Path | None) -> KeyDirectory:
    """Return the keys of *folder*, else of the settings, as a worker reads them. Raises ConfigurationError."""
    path = folder / JWKS if folder is not None else Path(settings.trust.keys or f"keys/{JWKS}")
    return parse_keys(read_files(files_of(path, (".json", ".jwks")), check_trusted_file), domain=settings.trust.domain)
