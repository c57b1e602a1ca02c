"""Deliberate bugs, built into a worker or a publisher of the tests before it starts: a checker that catches none of
them proves nothing.

Owns what each bug is and which rows it is to be looked for in. The product knows nothing of this: seams of its modules
are replaced from outside, in the processes of the tests alone. Bugs of the inbox are `inboxbugs`'.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

__all__ = ["BUGS", "Bug", "build_in"]


class Bug(msgspec.Struct, frozen=True):
    """*patch* builds it in; *rows* are those in which it must be caught by one of *by*."""

    name: str
    what: str
    patch: Callable[[], None]
    rows: tuple[str, ...]
    by: tuple[str, ...]
    log: str = "embedded"


def build_in(name: str) -> None:
    """Build the bug *name* into this process; nothing without one."""
    if name:
        _all()[name].patch()


def _all() -> dict[str, Bug]:
    from harness.bugtypes import inboxbugs, publishing, reading, settling

    return {bug.name: bug for module in (settling, reading, publishing, inboxbugs) for bug in module.BUGS}


class _Lazily(dict[str, Bug]):
    """Read when first looked at: a process without a bug imports none of the patches."""

    def __missing__(self, name: str) -> Bug:
        self.update(_all())
        return dict.__getitem__(self, name)

    def load(self) -> dict[str, Bug]:
        """All of them."""
        self.update(_all())
        return dict(self)


BUGS = _Lazily()
