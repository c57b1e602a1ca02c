"""ArtifactStore: puts content into a store and gives a `Ref` to it; opens a `Ref`, and checks its hash.

Owns the form of addresses, `artifact://NAMESPACE/HEX`, and the check: content is only given out whole, and only if it
has the hash of its reference. A reference never says where to look: the store is the reader's own, and the name in it
is the hash. Where content lies is `bus.artifacts.folder`'s and `bus.artifacts.remote`'s.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import hashlib
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from bus.errors import ConfigurationError, ContractError, DependencyDown, MissingSetting, text_of
from bus.settings.schema import Settings
from bus.vocabulary.parts import Ref

__all__ = ["ArtifactFiles", "ArtifactStore", "artifact_folder", "artifact_store", "has_artifacts"]

_URI: Final = re.compile(r"artifact://([a-z0-9][a-z0-9_-]{0,62})/([0-9a-f]{64})")
_PIECE: Final = 1_048_576
_FOLDER: Final = "file://"
_MEDIA_TYPE: Final = re.compile(r"[!-~]{1,127}/[!-~]{1,127}(; ?[ -~]{1,200})?")


class ArtifactFiles(Protocol):
    """Where artifacts lie, by names that are hashes. Methods block; they run in threads."""

    def write(self, name: str, source: Path) -> None:
        """Store the content of the file *source* under *name*, whole or not at all. Raises OSError."""

    def read(self, name: str, target: Path, max_bytes: int) -> None:
        """Copy the content under *name* to the file *target*, at most *max_bytes* and one. Raises OSError."""


class ArtifactStore:
    """The artifacts of one namespace.

        ref = await context.artifacts.put(pdf, media_type="application/pdf")
        data = await context.artifacts.open(ref)

    Content of equal bytes is stored once.
    """

    def __init__(self, files: ArtifactFiles, *, namespace: str, max_bytes: int) -> None:
        self._files = files
        self._namespace = namespace
        self._max_bytes = max_bytes

    async def put(self, data: bytes | str | Path, *, media_type: str | None = None) -> Ref:
        """Store *data* (bytes, text, or the path of a file), and return a reference with its hash.

        It is durable when this returns. Raises ContractError for more than `artifacts.max_bytes`, for other types, and
        for an illegal media type; DependencyDown where the store is away or full; OSError for a file that cannot be
        read.
        """
        if not isinstance(data, bytes | str | Path):
            raise ContractError(
                f"{type(data).__name__} cannot be stored: give bytes, a text, or the Path of a file", "data"
            )
        if media_type is not None and not (isinstance(media_type, str) and _MEDIA_TYPE.fullmatch(media_type)):
            raise ContractError(f"{media_type!r:.80} is not a media type: write it as text/plain", "media_type")
        return await asyncio.to_thread(self._put, data, media_type)

    async def open(self, ref: Ref) -> bytes:
        """Return the content of *ref*, which has its hash.

        Raises ContractError for a reference into another store or namespace, without a hash, and for content that has
        changed; FileNotFoundError for content that is not there; DependencyDown where the store is away.
        """
        return await asyncio.to_thread(self._open, ref)

    async def save(self, ref: Ref, path: str | Path) -> None:
        """Write the content of *ref* to the file *path*, which appears whole, and with its hash. Raises as `open`."""
        await asyncio.to_thread(self._save, ref, Path(path))

    def _put(self, data: bytes | str | Path, media_type: str | None) -> Ref:
        source = data if isinstance(data, Path) else None
        with tempfile.TemporaryDirectory(prefix="sealbus-artifact-") as folder:
            copied = Path(folder) / "content"
            size, digest = self._copied(source, data, copied)
            try:
                self._files.write(digest, copied)
            except OSError as error:
                raise _away(error) from error
        return Ref(
            uri=f"artifact://{self._namespace}/{digest}", sha256=f"sha256:{digest}", size=size, media_type=media_type
        )

    def _copied(self, source: Path | None, data: bytes | str | Path, target: Path) -> tuple[int, str]:
        """Copy the content to *target*; return its size and hash, which are those of the copy."""
        if source is None:
            whole = data.encode() if isinstance(data, str) else data
            assert isinstance(whole, bytes)  # noqa: S101 - the other forms are gone
            self._check_size(len(whole))
            target.write_bytes(whole)
            return len(whole), hashlib.sha256(whole).hexdigest()
        digest, size = hashlib.sha256(), 0
        with source.open("rb") as reading, target.open("wb") as writing:
            while piece := reading.read(_PIECE):
                size += len(piece)
                self._check_size(size)
                digest.update(piece)
                writing.write(piece)
        return size, digest.hexdigest()

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise ContractError(f"an artifact of more than {self._max_bytes} bytes (artifacts.max_bytes)", "data")

    def _open(self, ref: Ref) -> bytes:
        with tempfile.TemporaryDirectory(prefix="sealbus-artifact-") as folder:
            copied = Path(folder) / "content"
            self._fetch(ref, copied)
            return copied.read_bytes()

    def _save(self, ref: Ref, path: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".sealbus-artifact-", dir=path.parent) as folder:
            copied = Path(folder) / "content"
            self._fetch(ref, copied)
            copied.replace(path)

    def _fetch(self, ref: Ref, target: Path) -> None:
        """Copy the content of *ref* to *target*, and check the copy: what lies in the store may change meanwhile."""
        name = self._name_in(ref)
        try:
            self._files.read(name, target, self._max_bytes)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or error.errno == errno.ELOOP:
                raise FileNotFoundError(f"{ref.uri} is not in the artifact store of this bus") from error
            raise _away(error) from error
        digest = hashlib.sha256()
        with target.open("rb") as reading:
            while piece := reading.read(_PIECE):
                digest.update(piece)
        size = target.stat().st_size
        if digest.hexdigest() != name or (ref.size is not None and ref.size != size):
            raise ContractError(f"the content of {ref.uri} is not what the reference names: it has changed", "sha256")

    def _name_in(self, ref: Ref) -> str:
        if not isinstance(ref, Ref):
            raise ContractError(f"{type(ref).__name__} is not the Ref of an artifact", "ref")
        match = _URI.fullmatch(ref.uri)
        if match is None:
            raise ContractError(
                f"{ref.uri:.200} does not refer to the artifact store of this bus: fetch it by other means", "uri"
            )
        if match[1] != self._namespace:
            raise ContractError(f"{ref.uri} is of the namespace {match[1]}, and this is {self._namespace}", "uri")
        if ref.sha256 != f"sha256:{match[2]}":
            raise ContractError(f"{ref.uri} has no hash beside it, or another one", "sha256")
        return match[2]


def _away(error: OSError) -> DependencyDown:
    return DependencyDown("artifacts.url", f"the artifact store cannot be used: {error.strerror or text_of(error)}")


def artifact_folder(settings: Settings) -> Path | None:
    """Return the folder where artifacts lie; None where they lie elsewhere, or no store is set."""
    url = _address(settings) if has_artifacts(settings) else ""
    return Path(url.removeprefix(_FOLDER)) if url.startswith(_FOLDER) else None


def artifact_store(settings: Settings) -> ArtifactStore:
    """Return the artifact store of these *settings*. Raises MissingSetting where none is set, ConfigurationError."""
    url = _address(settings)
    if url.startswith(_FOLDER):
        from bus.artifacts.folder import ArtifactFolder

        files: ArtifactFiles = ArtifactFolder(Path(url.removeprefix(_FOLDER)), settings.bus.namespace)
    else:
        from bus.artifacts.remote import RemoteArtifacts

        files = RemoteArtifacts(url, settings.bus.namespace)
    return ArtifactStore(files, namespace=settings.bus.namespace, max_bytes=settings.artifacts.max_bytes)


def has_artifacts(settings: Settings) -> bool:
    """Return whether an artifact store is set."""
    return settings.artifacts.url != "off" and not (
        settings.artifacts.url == "auto" and settings.bus.url.startswith("kafka")
    )


@cache
def _own_folder() -> str:
    """Return a folder that goes with this process, as a log in memory does."""
    folder = tempfile.mkdtemp(prefix="sealbus-artifacts-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _address(settings: Settings) -> str:
    url, log = settings.artifacts.url, settings.bus.url
    if url == "off":
        raise MissingSetting("artifacts.url", "it is off: set a folder (file:///path) or a bucket (s3://bucket/prefix)")
    if url != "auto":
        if "://" not in url:
            raise ConfigurationError(f"artifacts.url {url!r}: write file:///folder, or a bucket such as s3://bucket")
        return url
    if log.startswith("kafka"):
        raise MissingSetting(
            "artifacts.url",
            "on Kafka the workers need one store that all of them see: s3://bucket/prefix, or a shared "
            "folder, file:///path",
        )
    if log.startswith("memory"):
        return f"file://{_own_folder()}"
    path = Path(log.partition("?")[0].removeprefix("sqlite:///"))
    return f"file://{path.resolve().with_suffix('')}-artifacts"
