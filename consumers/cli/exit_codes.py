"""The sentence, hint and exit code for each error of a command.

Exit codes are defined only here; `consumers.cli.shell` catches the errors.
"""

from __future__ import annotations

from typing import Final

from bus.errors import (
    AppendUnknownError,
    BusError,
    ConfigurationError,
    DamagedError,
    LogFullError,
    NameRefusedError,
    NotPermittedError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicMissingError,
    UnknownTypeError,
    UnreachableError,
)
from bus.telemetry.terminal import printable
from producers.outcomes import PublishUnknown

__all__ = [
    "BROKEN_PIPE",
    "FAILED",
    "INTERRUPTED",
    "LATER",
    "MISCONFIGURED",
    "TERMINATED",
    "UNREACHABLE",
    "USAGE",
    "exit_code",
    "explain_error",
]

FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 69
LATER: Final = 75
MISCONFIGURED: Final = 78
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
TERMINATED: Final = 143

# The first matching class wins.
_CODES: Final[tuple[tuple[type[BusError], int], ...]] = (
    (UnreachableError, UNREACHABLE),
    (ConfigurationError, MISCONFIGURED),
    (NotPermittedError, MISCONFIGURED),
    (TopicMissingError, MISCONFIGURED),
    (NameRefusedError, USAGE),
)
_HINTS: Final[tuple[tuple[type[BusError], str], ...]] = (
    (
        TopicMissingError,
        "`sealbus topic list` shows what there is; `sealbus topic apply MODULE:APP` creates the topics of an app",
    ),
    (
        DamagedError,
        "stop every process that uses the file, then recover it into a new one: `sqlite3 FILE .recover | sqlite3 NEW`",
    ),
    (UnreachableError, "check --bus; `sealbus config` shows the origin of the URL"),
    (NotPermittedError, "the cluster's operators can allow it; `sealbus config` shows the user"),
    (ConfigurationError, "`sealbus config --help` explains where settings come from"),
    (UnknownTypeError, "`sealbus type list` shows the built-in types; --app MODULE:APP adds your own"),
    (LogFullError, "free some space, then try again: nothing was written"),
    (RecordTooLargeError, "put large content elsewhere and send a reference: {uri, sha256, size, media_type}"),
    (
        OffsetOutOfRangeError,
        (
            "retention deleted records before they were settled; "
            "`sealbus group skip-lost GROUP` continues at the oldest stored record"
        ),
    ),
    (PublishUnknown, "it may be in the log: look with `sealbus tail` before you publish it again"),
    (AppendUnknownError, "it may be in the log: look with `sealbus tail` before you publish it again"),
)


def exit_code(error: BusError) -> int:
    """Return the exit code for *error*; a refused publish counts as its cause."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if error.retriable:
        return LATER
    return exit_code(error.__cause__) if isinstance(error.__cause__, BusError) else FAILED


def explain_error(error: BusError) -> list[str]:
    """Return the lines for standard error."""
    lines = [f"error: {printable(str(error)) or type(error).__name__}"]
    hint = _hint(error)
    return [*lines, f"hint: {hint}"] if hint else lines


def _hint(error: BusError) -> str:
    # Notes are hints that only the failing code could give.
    notes: list[str] = getattr(error, "__notes__", [])
    if notes:
        return printable(notes[0])
    for kind, hint in _HINTS:
        if isinstance(error, kind):
            return hint
    return _hint(error.__cause__) if isinstance(error.__cause__, BusError) else ""
