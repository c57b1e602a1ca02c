"""Opening an inbox: which store a worker gets, by its settings and its log.

Owns the defaults: a file beside the embedded log, none on Kafka. On Kafka it refuses a store that only one machine
sees, since a partition's next owner may be on another machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from bus.clock import Clock
from bus.databases.sqlite_file import MEMORY
from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from consumers.delivery.declaration import Declaration
from consumers.delivery.inbox.base import Inbox

__all__ = ["LEASE_S", "choose_inbox", "has_inbox", "inbox_url", "is_missing_file", "log_file", "open_inbox"]

_log = get_logger("inbox")


def inbox_url(settings: Settings) -> str | None:
    """Return the URL of the inbox; None for no inbox.

    Raises ConfigurationError for a store that workers on other machines would not see.
    """
    log, wanted = settings.bus.url, settings.inbox.url
    scheme = log.partition("://")[0]
    if wanted == "off":
        return None
    if wanted == "auto":
        return None if scheme == "kafka" else beside(log)
    if scheme == "kafka" and not wanted.startswith("postgres") and not settings.inbox.local:
        raise ConfigurationError(
            f"inbox.url {wanted} is seen by this machine only, and on Kafka the next worker of a partition may be "
            "elsewhere: "
            "use postgresql://..., or set inbox.local = true if all workers of the group run here"
        )
    return wanted


def beside(log_url: str) -> str:
    """Return the URL of the inbox file beside the log's, which lives as long."""
    path = log_file(log_url)
    if log_url.startswith("memory://") or str(path) == MEMORY:
        return "memory://"
    return f"sqlite:///{quote(str(path).removesuffix('.db'))}-inbox.db"


def has_inbox(app: Declaration, settings: Settings) -> bool:
    """Return whether a worker of *app* gets an inbox. Raises ConfigurationError as `inbox_url`."""
    return _uses_inbox(app) and inbox_url(settings) is not None


def _uses_inbox(app: Declaration) -> bool:
    """Return whether something of *app* is stored: its processes, what it has handled, or its limits."""
    return app.has_mailbox or any(each.dedup != "off" or each.limits for each in app.subscriptions.values())


def log_file(log_url: str) -> Path:
    """Return the file of the embedded log."""
    path = Path(unquote(log_url.partition("?")[0].removeprefix("sqlite:///")))
    # Workers may name one log by several paths, and must share one inbox.
    return path.resolve() if path.is_symlink() else path


def is_missing_file(url: str) -> bool:
    """Return whether *url* names an SQLite file that is not there: opening it would make it."""
    return url.startswith("sqlite:///") and not log_file(url).exists()


def choose_inbox(app: Declaration, settings: Settings, *, owner: str, clock: Clock) -> Inbox | None:
    """Return the inbox of a worker of *app*, not yet open; None where nothing of the app is remembered."""
    if not _uses_inbox(app):
        return None
    url = inbox_url(settings)
    if url is None:
        if settings.inbox.url == "auto":
            _log.warning(
                "inbox.none",
                detail="on Kafka duplicates are not detected without inbox.url: set it to postgresql://..., or to off",
            )
        return None
    return open_inbox(
        url, owner=owner, clock=clock, lease_s=settings.inbox.lease_s, shared_files=settings.bus.shared_files
    )


LEASE_S: Final = 20.0
"""Seconds of silence after which others take over a worker's claims."""


_KNOWN = "memory://, postgresql://user@host/database, sqlite:///relative.db, sqlite:////absolute.db"


def open_inbox(url: str, *, owner: str, clock: Clock, lease_s: float = LEASE_S, shared_files: bool = False) -> Inbox:
    """Return the inbox behind *url*, still to be opened. Raises ConfigurationError."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        from bus.databases.postgres import driver
        from consumers.delivery.inbox.postgres import PostgresInbox

        driver()
        return PostgresInbox(url, owner=owner, clock=clock, lease_s=lease_s)
    if not separator or scheme not in ("sqlite", "memory"):
        raise ConfigurationError(f"no inbox for this URL (scheme {scheme[:20]!r}); known are {_KNOWN}")
    from consumers.delivery.inbox.sqlite import MEMORY, SqliteInbox

    if scheme == "memory":
        if rest:
            raise ConfigurationError(f"an inbox in memory has no name: write memory:// instead of {url!r}")
        return SqliteInbox(MEMORY, owner=owner, clock=clock, lease_s=lease_s)
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or not path or "?" in rest:
        raise ConfigurationError(f"{url!r} names no file: write sqlite:///relative.db or sqlite:////absolute/path.db")
    return SqliteInbox(path, owner=owner, clock=clock, lease_s=lease_s, shared_files=shared_files)
