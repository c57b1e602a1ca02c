"""Failpoints: named places where a test kills the process, as a power cut would.

Owns reading `SEALBUS_FAILPOINT=name:n` once, and killing the process when that failpoint is reached the n-th time.
Without the variable each failpoint costs a comparison. For tests only: the process dies without an exception or
clean-up.
"""

from __future__ import annotations

import os
import signal

__all__ = ["FAILPOINTS", "is_armed", "reach"]

FAILPOINTS = (
    "taken",
    "claimed",
    "stepped",
    "handled",
    "inboxed",
    "sent",
    "retried",
    "buried",
    "reported",
    "settled",
    "committing",
    "committed",
    "nudged",
    "held",
    "begun",
    "consumed",
    "kept",
    "opened",
    "appended",
    "answered",
)
"""The places between read and commit, in the order a message passes them.

taken: fetched and judged. claimed: its start is in the inbox. stepped: a step of its process is
committed. handled: the handler has returned. inboxed: its result is
durable. sent: its outputs are acknowledged. retried: its retry record is acknowledged. buried: its dead letter is.
reported: the requester's report is. settled: its offset may be committed. committing: just before the commit is sent.
committed: the log has acknowledged the commit. nudged: the log has
acknowledged that a wait is due, and its row does not say so yet. held: a run that waits for a decision is stored.
opened: the row of a task is stored. appended: the log has its request. answered: a step of a task is committed.
begun: a step that must not run twice is written as begun. consumed: so is one that was approved. kept: the result of a
step is stored.
"""

_name, _, _count = os.environ.get("SEALBUS_FAILPOINT", "").partition(":")
_left = int(_count or 1)
is_armed = bool(_name)
"""Whether this process dies at a failpoint. The path of every message asks it before it calls `reach`."""


def reach(name: str) -> None:
    """Kill this process if *name* is the chosen failpoint and its count is reached."""
    if name == _name:
        global _left  # noqa: PLW0603 - one process, one count
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
