"""Logs: structlog, on standard error, one line per decision that an operator needs and none per success.

Owns the set-up of a process, escaping foreign text for terminals, and surviving a line that cannot be written. Event
names are dotted (`worker.started`). Values are cut to 256 characters and carry no payloads or secrets; tracebacks show
no locals. While a handler runs, every line also has the ids of its message, whichever logger writes it. structlog (with
rich) takes as long to import as a third of sealbus, so it is imported with the first line.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO, cast

import msgspec

from bus.errors import trace_of
from bus.redaction import cut, masked_member, redacted
from bus.telemetry.terminal import printable

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

__all__ = [
    "RUN",
    "HasLogIds",
    "adopt_logging",
    "configure",
    "configure_unless_done",
    "get_logger",
    "says_all",
    "with_run_ids",
]

_MAX_VALUE, _MAX_TRACE = 256, 8_192
_TRACES = frozenset({"exception", "stack"})
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class HasLogIds(Protocol):
    """The message that a handler runs for, as named in log lines."""

    def log_ids(self) -> Mapping[str, object]:
        """Return the ids of its message. Called only for a line that is written."""


RUN: Final[ContextVar[HasLogIds | None]] = ContextVar("sealbus_run", default=None)
"""The run of a handler that the present task is in."""


def configure(level: str = "info", form: str = "auto") -> None:
    """Log from *level* on; *form* is `console`, `json` or `auto` (console on a terminal)."""
    import structlog

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
            with_run_ids,
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
    import structlog

    if not structlog.is_configured():
        configure(level)


def adopt_logging(level: str) -> None:
    """Write log records of other libraries (module `logging`) as lines of this log, from *level* on.

    For processes that sealbus owns. It does nothing if the program has installed a log handler itself.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    root.addHandler(_Adopted())
    root.setLevel(_LEVELS[level])
    # Its debug lines tell of asyncio itself.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def says_all() -> bool:
    """Whether debug lines are written: one per message may be built."""
    import structlog

    return bool(structlog.get_logger().is_enabled_for(logging.DEBUG)) if structlog.is_configured() else False


def with_run_ids(_: object, __: str, event: EventDict) -> EventDict:
    """Add the ids of the message that is being handled: a structlog processor.

    Not where the line names another message: background work may have the context of the run that has begun it.
    """
    run = RUN.get()
    if run is not None:
        ids = run.log_ids()
        if event.get("message_id") in (None, ids.get("message_id")):
            for name, value in ids.items():
                event.setdefault(name, value)
    return event


def get_logger(area: str) -> FilteringBoundLogger:
    """Return the logger of one area of the bus."""
    return cast("FilteringBoundLogger", _Logger(area))


class _Logger:
    """structlog's own logger of one area, made when the first line is written."""

    def __init__(self, area: str) -> None:
        self._area = area

    @cached_property
    def _proxy(self) -> FilteringBoundLogger:
        import structlog

        logger: FilteringBoundLogger = structlog.get_logger(area=self._area)
        return logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxy, name)


def _escaped(_: object, __: str, event: EventDict) -> EventDict:
    """Escape control sequences, because a handler's exception may quote a sender's text."""
    return {name: printable(value, keep="\n\t") if isinstance(value, str) else value for name, value in event.items()}


def _bounded(_: object, __: str, event: EventDict) -> EventDict:
    """Cut foreign text (an id, a pointer, an exception's text) and remove secrets; tracebacks may be longer.

    Handlers may log any value: members are masked by their names, other objects by their printed form.
    """
    return {name: _harmless(name, value) for name, value in event.items()}


def _harmless(name: str, value: Any) -> Any:
    if isinstance(value, str) and name in _TRACES:
        return cut(redacted(value), _MAX_TRACE)
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, str | int | float):
        value = _plain(value)
    shown = masked_member(name, value)
    return cut(shown, _MAX_VALUE) if isinstance(shown, str) else shown


def _plain(value: object) -> Any:
    """Return *value* as plain JSON values; other objects by their printed form."""
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=repr)
    except Exception:  # noqa: BLE001 - a line about an object that cannot be shown is still a line
        return f"<{type(value).__name__}>"


class _Adopted(logging.Handler):
    """Hands records of `logging` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        import structlog

        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - a wrong format is the caller's fault, and no reason to lose the line
            text = str(record.msg)
        log = structlog.get_logger(area="logging", source=record.name)
        with contextlib.suppress(Exception):
            log.log(min(max(record.levelno // 10 * 10, 10), 50), text, exc_info=record.exc_info or None)


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
    import structlog

    # Looked up at each call, so that a redirected standard error gets the lines. Without a standard error, lines are
    # dropped: standard output belongs to the program. A line and its end are one write: processes share the stream.
    return structlog.WriteLogger(cast("TextIO", _STDERR)) if sys.stderr is not None else structlog.ReturnLogger()
