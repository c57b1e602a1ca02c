"""A program that kills processes when whoever started it is gone, however it went.

Run as a script with nothing but the standard library; `deploy.kafka.processes` starts it. Standard input is one pipe
that the starter and, for a moment, each new process hold open: a line `PID` adds a process, `-PID` takes it away. The
end of the input means that the starter is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Remember who runs; at the end of the input, kill who is left."""
    running: set[int] = set()
    for line in sys.stdin.buffer:
        pid = int(line)
        if pid > 0:
            running.add(pid)
        else:
            running.discard(-pid)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
