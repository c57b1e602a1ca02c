"""The folder of a group's process files, by its settings and its log.

Owns the defaults: beside the embedded log; on Kafka where this user's programs keep their state. The files are in
`consumers.delivery.crashes.process_files`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bus.databases.sqlite_file import MEMORY
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from consumers.delivery.inbox.open import log_file

if TYPE_CHECKING:
    from consumers.delivery.crashes.process_files import ProcessFiles

__all__ = ["open_process_files", "state_directory"]

_log = get_logger("deaths")


def state_directory(settings: Settings, group: str, environment: Mapping[str, str]) -> Path | None:
    """Return the directory of *group*; None where nothing is noted, or a log in memory ends with the process.

    On Kafka $STATE_DIRECTORY (which systemd sets for StateDirectory=) or $XDG_STATE_HOME, with a part per cluster.
    """
    wanted, url = settings.worker.state_dir, settings.bus.url
    if wanted == "off" or url.startswith("memory:"):
        return None
    part = f"{settings.bus.namespace}.{group}"
    cluster = hashlib.sha256(url.encode()).hexdigest()[:8]
    if wanted != "auto":
        return Path(wanted).absolute() / f"{part}-{cluster}"
    if url.startswith("kafka:"):
        state = environment.get("STATE_DIRECTORY", "").partition(":")[0]
        home = environment.get("XDG_STATE_HOME") or str(Path(environment.get("HOME") or "/") / ".local" / "state")
        return (Path(state) if state else Path(home) / "sealbus") / f"{part}-{cluster}"
    path = log_file(url)
    return None if str(path) == MEMORY else Path(f"{str(path.absolute()).removesuffix('.db')}-workers") / part


def open_process_files(settings: Settings, group: str) -> ProcessFiles | None:
    """Return the process files of *group*; None if there are none, with a warning if that is a failure."""
    if sys.platform == "win32":
        # Windows locks do not tell which process has died.
        return None
    from consumers.delivery.crashes.process_files import ProcessFiles

    path = state_directory(settings, group, os.environ)
    if path is None or (_is_beside_log(settings) and not path.parent.parent.is_dir()):
        # There is no place for the log either, and opening the log reports that.
        return None
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"{path} is another user's, or others may write to it")
    except OSError as error:
        _log.warning(
            "deaths.not_counted",
            error=str(error),
            detail="a message without an idempotency key that crashes its process is repeated without limit: set "
            "worker.state_dir to a directory",
        )
        return None
    return ProcessFiles(path)


def _is_beside_log(settings: Settings) -> bool:
    return settings.worker.state_dir == "auto" and settings.bus.url.startswith("sqlite:")
