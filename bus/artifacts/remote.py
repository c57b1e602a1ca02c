"""RemoteArtifacts: artifacts in a bucket or another store that `fsspec` reaches (the extra `artifacts`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bus.errors import ConfigurationError

__all__ = ["RemoteArtifacts"]

_PIECE: Final = 1_048_576


class RemoteArtifacts:
    """The artifacts of *namespace* below *url*, such as `s3://bucket/prefix`."""

    def __init__(self, url: str, namespace: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ConfigurationError(
                f"artifacts.url {url} needs the extra: pip install 'sealbus[artifacts]', and the package of the store "
                "(s3fs, gcsfs, adlfs)"
            ) from error
        try:
            self._files: Any
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(f"artifacts.url {url}: {error}") from error
        self._root = f"{str(root).rstrip('/')}/{namespace}"

    def write(self, name: str, source: Path) -> None:
        """Store the file *source* under *name*. Raises OSError."""
        path = self._path(name)
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(source), path)

    def read(self, name: str, target: Path, max_bytes: int) -> None:
        """Copy what lies under *name* to *target*. Raises OSError."""
        left = max_bytes + 1
        with self._files.open(self._path(name), "rb") as reading, target.open("wb") as writing:
            while left > 0 and (piece := reading.read(min(_PIECE, left))):
                writing.write(piece)
                left -= len(piece)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name[:2]}/{name}"
