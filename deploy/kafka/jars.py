"""The jars of a real Kafka, in a folder of this user.

Owns where they lie, how they get there and that they are the ones listed in jars.txt. Does not own what is run from
them. A jar enters the folder by one rename after its digest was checked, so whatever lies there under its final name is
whole, whoever else fetches at the same time.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from deploy.kafka.errors import KafkaUnavailableError

__all__ = [
    "LISTED",
    "VERSION",
    "Fetch",
    "Jar",
    "cache_folder",
    "class_path",
    "fetch_from_maven",
    "home",
    "installed",
    "parse",
]

VERSION = "4.3.0"
_THREADS = 8
_ATTEMPTS = 3
_PAUSE_S = 1.0


@dataclass(frozen=True, order=True)
class Jar:
    """One line of jars.txt."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """The file name; with the group, for artifacts of two groups may be called alike."""
        return f"{self.group}.{self.artifact}-{self.version}.jar"


Fetch = Callable[[Jar, Path], Path]
"""Brings a jar somewhere below a scratch folder and says where."""


def parse(text: str) -> tuple[Jar, ...]:
    """Read the lines `group:artifact:version sha256:digest`."""
    lines = [line.replace(":", " ").split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return tuple(Jar(group, artifact, version, sha256) for group, artifact, version, _, sha256 in lines)


LISTED = parse((Path(__file__).parent / "jars.txt").read_text("utf-8"))


def cache_folder() -> Path:
    """The folder of this user for what can be had again; nothing is made here."""
    if chosen := os.environ.get("SEALBUS_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser().absolute() / "sealbus"


def home() -> Path:
    """Where Kafka's jars, and what is made from them, lie."""
    return cache_folder() / "kafka" / VERSION


def class_path(folder: Path | None = None, *, jars: Sequence[Jar] = LISTED) -> str:
    """Fetch what is missing and return the Java class path; at once when all are there."""
    return os.pathsep.join(str(path) for path in installed(folder, jars=jars))


def installed(folder: Path | None = None, *, jars: Sequence[Jar] = LISTED, fetch: Fetch | None = None) -> list[Path]:
    """Return the jars in *folder*, fetching those that are missing; KafkaUnavailableError when one cannot be had."""
    folder = folder or home()
    missing = [jar for jar in jars if not (folder / jar.name).exists()]
    if missing:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _fetch_all(missing, folder, fetch or fetch_from_maven)
        except OSError as error:
            raise KafkaUnavailableError(
                f"cannot keep Kafka's jars in {folder}: {error.strerror or error}; name a folder that can be written: "
                "SEALBUS_CACHE=..."
            ) from error
    return [folder / jar.name for jar in jars]


def fetch_from_maven(jar: Jar, scratch: Path) -> Path:
    """Fetch one jar with jgo, which needs neither Maven nor Java."""
    from jgo.maven import MavenContext

    return (
        MavenContext(repo_cache=scratch, timeout=30)
        .project(jar.group, jar.artifact)
        .at_version(jar.version)
        .artifact()
        .resolve()
    )


def _fetch_all(missing: Sequence[Jar], folder: Path, fetch: Fetch) -> None:
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-", ignore_cleanup_errors=True) as scratch,
        ThreadPoolExecutor(_THREADS) as threads,
        _progress(len(missing), folder) as advance,
    ):
        tasks = [threads.submit(_fetch_one, jar, Path(scratch), folder, fetch) for jar in missing]
        try:
            for task in as_completed(tasks):
                task.result()
                advance()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch_one(jar: Jar, scratch: Path, folder: Path, fetch: Fetch) -> None:
    if (folder / jar.name).exists():  # another process that fetches too was faster
        return
    for attempt in range(1, _ATTEMPTS + 1):
        place = scratch / f"{jar.name}.{attempt}"
        try:
            path = fetch(jar, place)
            break
        except Exception as error:
            if attempt == _ATTEMPTS:
                raise KafkaUnavailableError(
                    f"cannot fetch {jar.group}:{jar.artifact}:{jar.version}, tried {_ATTEMPTS} times: {error}; Kafka's "
                    "jars come from a Maven "
                    f"repository on the first run: connect this machine, or copy {folder} from one where they are"
                ) from error
            time.sleep(_PAUSE_S * attempt)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != jar.sha256:
        path.unlink()
        raise KafkaUnavailableError(
            f"refused {jar.group}:{jar.artifact}:{jar.version}: its sha256 is {digest}, jars.txt says {jar.sha256}; "
            f"it was altered or cut short on the way, so it was deleted; look at the proxy or mirror it came through"
        )
    path.replace(folder / jar.name)


@contextmanager
def _progress(total: int, folder: Path) -> Iterator[Callable[[], None]]:
    title = f"Fetching {total} jars of Kafka {VERSION} into {folder}"
    if not sys.stderr.isatty():
        print(title, file=sys.stderr, flush=True)  # noqa: T201 - for people, and not data
        yield lambda: None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"Fetching Kafka {VERSION}", total=total)
        yield lambda: progress.advance(bar)
