"""Failpoints: named places where a test kills the process, as a power cut would.

Owns reading `SEALBUS_FAILPOINT=name:n` once and dying at the n-th time that place is reached. Without that variable
every place is one comparison. Not for anything but tests: nothing here raises, cleans up or says goodbye.
"""

from __future__ import annotations

import os
import signal

__all__ = ["NAMES", "reach"]

NAMES = (
    "taken",
    "claimed",
    "handled",
    "inboxed",
    "sent",
    "retried",
    "buried",
    "reported",
    "settled",
    "committing",
    "committed",
)
"""The places between read and commit, in the order a message passes them.

taken: fetched and judged. claimed: its start stands in the inbox. handled: the handler has returned. inboxed: its
result is durable. sent: its outputs are acknowledged. retried: the retry record is. buried: the dead letter is.
reported: the requester's report is. settled: its offset may be committed. committing: just before the commit is sent.
committed: the log has acknowledged it.
"""

_name, _, _count = os.environ.get("SEALBUS_FAILPOINT", "").partition(":")
_left = int(_count or 1)


def reach(name: str) -> None:
    """Die here if this is the time."""
    if name == _name:
        global _left  # noqa: PLW0603 - one process, one count
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
