"""PostgreSQL through asyncpg, which is imported only when a URL asks for it.

Owns finding the driver, creating pools, translating failures of server and connection, refusing unsuitable poolers, and
showing URLs without passwords. Statements about our tables are in the packages that own the tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from bus.errors import BusError, ConfigurationError, InboxError

__all__ = [
    "POSTGRES_TIMEOUT_S",
    "closing",
    "close_silently",
    "driver",
    "failures",
    "is_late",
    "is_postgres_error",
    "is_of_value",
    "database_of",
    "pool",
    "refuse_shared_session",
    "postgres_error_of",
    "translating",
]

POSTGRES_TIMEOUT_S: Final = 10.0
"""A server that has not answered after this many seconds counts as gone."""

# SQLSTATE classes: connection, rollback, resources, operator's intervention, system, internal. 25006 is a read-only
# session: after a failover it is still connected to the old server. A deadlock is a rollback: two transactions wait for
# each other, and the one that the server ends may be repeated.
_OF_STORE: Final = ("08", "25006", "40", "53", "57", "58", "XX")
# Authentication, database, schema, rights, parameters in the URL.
_OF_SETUP: Final = ("28", "3D", "3F", "42501", "42704")
# Data exceptions, and what is longer than an index or a row can be.
_OF_VALUE: Final = ("22", "54")
# A prepared statement that exists already, or no longer.
_ASTRAY: Final = ("42P05", "26000")
_PROCESS: Final = "SELECT pg_backend_pid()"
_OF_URL: Final = (ValueError, OverflowError)
"""The exceptions that the driver raises for an invalid host, port or parameter."""


def driver() -> ModuleType:
    """Import asyncpg. Raises ConfigurationError if it is not installed."""
    try:
        return import_module("asyncpg")
    except ImportError as error:
        raise ConfigurationError('postgresql:// needs asyncpg: pip install "sealbus[postgres]"') from error


def database_of(url: str) -> str:
    """Return *url* without credentials, for display. Raises ConfigurationError for an invalid URL."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"no URL of a database: {error}") from error
    return f"{parts.hostname or 'localhost'}{parts.path}"


def pool(url: str, name: str, max_connections: int, timeout_s: float, **options: Any) -> Any:
    """Return an awaitable pool of at most *max_connections* connections, named *name* on the server."""
    options = {"command_timeout": timeout_s, "server_settings": {"application_name": name}} | options
    return driver().create_pool(url, min_size=0, max_size=max_connections, timeout=timeout_s, **options)


def failures() -> tuple[type[BaseException], ...]:
    """Return the exception classes that a statement or the connection can raise."""
    asyncpg = driver()
    return (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def is_postgres_error(error: BaseException) -> bool:
    """Tell whether *error* concerns the server or the connection, and not the statement that raised it."""
    if isinstance(error, OSError | TimeoutError):
        return True
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_OF_STORE)
    asyncpg = driver()
    if isinstance(error, asyncpg.InternalClientError):
        # The server disappeared while something was being sent.
        return True
    # Errors of asyncpg itself: a closed connection; or, as a ValueError, an argument that it cannot send.
    return (
        isinstance(error, asyncpg.InterfaceError)
        and not isinstance(error, ValueError)
        and "in progress" not in str(error)
    )


def is_of_value(error: BaseException) -> bool:
    """Tell whether *error* concerns a value of the statement, which the server would refuse at every attempt."""
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_OF_VALUE)
    # The driver could not write an argument in the form of its type.
    return isinstance(error, driver().InterfaceError) and isinstance(error, ValueError)


def is_late(error: BaseException) -> bool:
    """Tell whether *error* is a timeout, after which the driver asks the server to cancel the statement.

    Do not cut such a connection, which would drop the cancel request. Behind a lock the server would then keep
    statement and session as long as the lock lasts, and each retry would add one until the server accepts no more.
    Returned to its pool, the connection waits for the cancellation.
    """
    return isinstance(error, TimeoutError)


def postgres_error_of(error: BaseException, where: str, *, at_start: bool = False) -> BusError:
    """Return the bus error for *error* on the database at *where*.

    A refusal is a wrong setting only *at_start*. Later, after one successful login, it is waited out: it may be a
    failover or a change of passwords.
    """
    state = str(getattr(error, "sqlstate", None) or "")
    if at_start and state.startswith(_OF_SETUP):
        return ConfigurationError(f"the database {where} refuses: {error}")
    if at_start and isinstance(error, _OF_URL):
        return ConfigurationError(f"the URL of the database {where} cannot be used: {error}")
    text = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
    return InboxError(f"the database {where} cannot be used just now: {text}")


def close_silently(connection: Any) -> None:
    """Close *connection* without notifying the server, which undoes its transaction."""
    # A failed connection may have returned to its pool by itself.
    with suppress(driver().InterfaceError):
        connection.terminate()


@asynccontextmanager
async def closing(where: str, max_s: float, terminate: Callable[[], object]) -> AsyncIterator[None]:
    """Translate the failures of a close, as `translating` does, and limit its time.

    After *max_s* seconds it calls *terminate*. Cancelling a statement alone is not enough: the driver still waits for
    the server.
    """

    def end() -> None:
        terminate()
        limit.reschedule(loop.time())

    loop = asyncio.get_running_loop()
    with translating(where):
        async with asyncio.timeout(None) as limit:
            timer = loop.call_later(max_s, end)
            try:
                yield
            finally:
                timer.cancel()


@contextmanager
def translating(where: str, connection: Any = None, *, at_start: bool = False) -> Iterator[None]:
    """Translate the failures of our own statements; cut a failed *connection*, so that no caller waits for it."""
    failure_types = failures() + (_OF_URL if at_start else ())
    try:
        yield
    except failure_types as error:
        if connection is not None and is_postgres_error(error) and not is_late(error):
            close_silently(connection)
        raise postgres_error_of(error, where, at_start=at_start) from error


async def refuse_shared_session(connection: Any, url: str, where: str, timeout_s: float) -> None:
    """Raise ConfigurationError if the next transaction of *connection* may run in another session.

    A pooler in transaction mode does that, and locks and roles then leak between clients. If the server's process is
    the one named at connect, no pooler is in between. Otherwise a second, concurrent connection shows whether each has
    its own session.
    """
    try:
        process = await connection.fetchval(_PROCESS)
        if process == connection.get_server_pid():
            return
        other = await driver().connect(url, timeout=timeout_s, command_timeout=timeout_s)
        try:
            async with other.transaction():
                is_shared = await other.fetchval(_PROCESS) == process or await connection.fetchval(_PROCESS) != process
        finally:
            close_silently(other)
    except driver().PostgresError as error:
        # Prepared statements belong to a session too.
        is_shared = error.sqlstate in _ASTRAY
        if not is_shared:
            raise
    if is_shared:
        raise ConfigurationError(
            f"the database {where} is reached by way of a pooler that gives sessions out by the transaction, and "
            "locks, roles and prepared "
            "statements go astray there: use the server itself, or a pool in session mode (PgBouncer: pool_mode = "
            "session)"
        )
