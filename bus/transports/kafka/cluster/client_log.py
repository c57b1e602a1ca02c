"""Limit the log of the client library.

Owns forwarding the library's warnings and errors to the bus's log, each message once in ten seconds. A client that has
lost its brokers writes a thousand lines a second, and the bus reports itself what matters to a user.
"""

from __future__ import annotations

import logging
import time

from bus.telemetry.logs import get_logger

__all__ = ["limit_noise"]

_EVERY_S = 10.0
_MAX_KINDS = 256


class _Limited(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._log = get_logger("aiokafka")
        self._logged_s: dict[tuple[str, str], float] = {}
        self._held_back = 0

    def emit(self, record: logging.LogRecord) -> None:
        kind = (record.name, str(record.msg))
        now_s = time.monotonic()
        if now_s - self._logged_s.get(kind, -_EVERY_S) < _EVERY_S:
            self._held_back += 1
            return
        if len(self._logged_s) >= _MAX_KINDS:
            self._logged_s.clear()
        self._logged_s[kind] = now_s
        held_back, self._held_back = self._held_back, 0
        text = record.getMessage()[:300]
        # An exception with a traceback is a fault of the library; the bus itself deals with all other conditions.
        if record.exc_info:
            self._log.error(
                "kafka.client", text=text, source=record.name, held_back=held_back, exc_info=record.exc_info
            )
        else:
            self._log.debug("kafka.client", text=text, source=record.name, held_back=held_back)


def limit_noise() -> None:
    """Install the limiting handler, once per process."""
    logger = logging.getLogger("aiokafka")
    if not any(isinstance(handler, _Limited) for handler in logger.handlers):
        logger.addHandler(_Limited())
        logger.propagate = False
