"""Logs: structlog, on standard error, one line per decision that an operator needs and none per success.

Owns the set-up of a process, escaping foreign text for terminals, and surviving a line that cannot be written. Event
names are dotted (`worker.started`). Values are cut to 256 characters and carry no payloads or secrets; tracebacks show
no locals.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from bus.errors import trace_of
from bus.redaction import cut, redacted
from bus.telemetry.terminal import printable

__all__ = ["configure", "configure_unless_done", "get_logger"]

_MAX_VALUE, _MAX_TRACE = 256, 8_192
_TRACES = frozenset({"exception", "stack"})
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(level: str = "info", form: str = "auto") -> None:
    """Log from *level* on; *form* is `console`, `json` or `auto` (console on a terminal)."""
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    console = form == "console" or (form == "auto" and on_terminal)
    renderer = (
        structlog.dev.ConsoleRenderer(colors=on_terminal, exception_formatter=structlog.dev.plain_traceback)
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(lambda info: trace_of(info[1])),
            _bounded,
            *([_escaped] if console else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=_to_stderr,
        cache_logger_on_first_use=False,
    )


def configure_unless_done(level: str) -> None:
    """Configure logging unless the surrounding program has done so."""
    if not structlog.is_configured():
        configure(level)


def get_logger(area: str) -> FilteringBoundLogger:
    """Return the logger of one area of the bus."""
    logger: FilteringBoundLogger = structlog.get_logger(area=area)
    return logger


def _escaped(_: object, __: str, event: EventDict) -> EventDict:
    """Escape control sequences: a handler's exception may quote what a sender wrote."""
    return {name: printable(value, keep="\n\t") if isinstance(value, str) else value for name, value in event.items()}


def _bounded(_: object, __: str, event: EventDict) -> EventDict:
    """Cut foreign text (an id, a pointer, an exception's text) and remove secrets; tracebacks may be longer."""
    return {
        name: cut(redacted(value), _MAX_TRACE if name in _TRACES else _MAX_VALUE) if isinstance(value, str) else value
        for name, value in event.items()
    }


class _Stderr:
    """The present standard error at each line, without its write errors.

    A worker that cannot write its log must not end, and repeat at its next start what it could not settle.
    """

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


_STDERR = _Stderr()


def _to_stderr(*_: object) -> WrappedLogger:
    # Looked up at each call, so that a redirected standard error gets the lines. Without a standard error, lines are
    # dropped: standard output belongs to the program.
    return structlog.PrintLogger(cast("TextIO", _STDERR)) if sys.stderr is not None else structlog.ReturnLogger()
