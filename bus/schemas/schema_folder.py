"""The registry folder: one file per type and version, `DIR/<type>/<x.y.z>.json`, immutable once published.

Owns reading and writing it. Files are written atomically and never overwritten. Names follow the protocol's rules, so
no type or version can lead to a path outside the folder.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bus.errors import ConfigurationError, ContractError
from bus.protocol.identifiers import is_message_type, is_schema_version
from bus.schemas.decoder_marks import unmarked
from bus.schemas.versions import SchemaVersion

__all__ = ["SchemaFolder", "written"]

_MAX_BYTES = 4_194_304


def written(schema: Mapping[str, Any]) -> bytes:
    """Return *schema* as the text of its file."""
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


class SchemaFolder:
    """The schemas published in one folder. Raises ConfigurationError for what cannot be read or written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def types(self) -> tuple[str, ...]:
        """Return the types that have a version, sorted; other folders are not looked at."""
        with _translated(self.path):
            if not self.path.is_dir():
                return ()
            names = [entry.name for entry in self.path.iterdir() if entry.is_dir() and is_message_type(entry.name)]
        return tuple(sorted(name for name in names if self.versions(name)))

    def versions(self, name: str) -> tuple[SchemaVersion, ...]:
        """Return the published versions of type *name* in their order."""
        folder = self._folder(name)
        with _translated(folder):
            if not folder.is_dir():
                return ()
            stems = [entry.stem for entry in folder.iterdir() if entry.suffix == ".json"]
        return tuple(sorted(SchemaVersion.of(stem) for stem in stems if is_schema_version(stem)))

    def read(self, name: str, version: SchemaVersion) -> dict[str, Any]:
        """Return the published schema."""
        path = self._file(name, version)
        with _translated(path):
            if path.stat().st_size > _MAX_BYTES:
                raise ConfigurationError(
                    f"{path} takes more than {_MAX_BYTES >> 20} MiB: it was not written by sealbus"
                )
            text = path.read_bytes()
        try:
            found = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{path} is not a JSON object: {error}") from error
        return found

    def publish(self, name: str, version: SchemaVersion, schema: Mapping[str, Any]) -> bool:
        """Write *schema*; return False where the same is there, marked or not (`bus.schemas.decoder_marks`).

        Raises ContractError for another schema under that version: what is published is never changed.
        """
        path, text = self._file(name, version), written(schema)
        with _translated(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).chmod(0o644)
                # A link, unlike a rename, never replaces a file that another process has published meanwhile.
                os.link(temporary, path)
            except FileExistsError:
                if path.read_bytes() == text or self.read(name, version) == unmarked(msgspec.json.decode(text)):
                    return False
                raise ContractError(
                    f"{name} {version} is published with another content: a published version never changes; "
                    f"give the type a new version"
                ) from None
            finally:
                Path(temporary).unlink(missing_ok=True)
        return True

    def _folder(self, name: str) -> Path:
        if not is_message_type(name):
            raise ContractError(f"{name!r:.80} is not a message type")
        return self.path / name

    def _file(self, name: str, version: SchemaVersion) -> Path:
        return self._folder(name) / f"{version}.json"


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
