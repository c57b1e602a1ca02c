"""Child processes that never outlive this one, also when it is killed.

Owns starting them and the watchdog that ends them. Does not own what they are. PR_SET_PDEATHSIG is not used: it is tied
to the thread that started the child, which may end long before the process, and exists on one system only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

__all__ = ["Processes"]

# The child writes its own id before it becomes the program: no moment exists at which it runs and the watchdog could
# not know it.
_ANNOUNCE = 'echo $$ >&0 && exec "$@" </dev/null'


class Processes:
    """The processes started here, and their watchdog."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._unreaped: set[subprocess.Popen[bytes]] = set()

    def start(self, command: Sequence[str | Path], *, output: BinaryIO) -> subprocess.Popen[bytes]:
        """Start *command* in a session of its own, so that Ctrl-C in the terminal is ours alone to answer."""
        process = subprocess.Popen(  # noqa: S603 - the caller's command
            ["/bin/sh", "-c", _ANNOUNCE, "sh", *command],
            stdin=self._watched(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._unreaped.add(process)
        return process

    def has_ended(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it has ended; if so the watchdog forgets it, for its id may soon belong to a stranger."""
        if process.poll() is None:
            return False
        if process in self._unreaped:
            self._unreaped.discard(process)
            if self._pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    os.write(self._pipe, b"-%d\n" % process.pid)
        return True

    def close(self) -> None:
        """End the watchdog, and with it whatever still runs."""
        if self._pipe is not None and self._watchdog is not None:
            os.close(self._pipe)
            self._watchdog.wait()
            self._pipe = self._watchdog = None

    def _watched(self) -> int:
        if self._pipe is None:
            reading, writing = os.pipe()
            script = Path(__file__).with_name("watchdog.py")
            command: list[str | Path] = [sys.executable, "-I", "-S", script]
            try:
                self._watchdog = subprocess.Popen(  # noqa: S603 - our own
                    command, stdin=reading, stdout=subprocess.DEVNULL, start_new_session=True
                )
            except BaseException:
                os.close(writing)
                raise
            finally:
                os.close(reading)
            self._pipe = writing
        return self._pipe
