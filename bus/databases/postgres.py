"""PostgreSQL by way of asyncpg, which is imported only when a URL asks for it.

Owns finding the driver, making pools, what a failure of the server or of the way to it means, which way to it cannot be
used, and showing URLs without their passwords. Does not own any statement about our tables.
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
    "TIMEOUT_S",
    "closing",
    "cut",
    "driver",
    "failures",
    "is_late",
    "is_of_store",
    "place",
    "pool",
    "refuse_shared_session",
    "translated",
    "translating",
]

TIMEOUT_S: Final = 10.0
"""A server that has not answered after so long is as good as gone."""

# Classes of SQLSTATE: connection, resources, operator's intervention, system, internal. And a session that may only
# read: after a failover it is the one with the old server, and stays so.
_OF_STORE: Final = ("08", "25006", "53", "57", "58", "XX")
# Who it is, which database, which schema, rights, parameters in the URL.
_OF_SETUP: Final = ("28", "3D", "3F", "42501", "42704")
# A prepared statement that is there already, or not any more.
_ASTRAY: Final = ("42P05", "26000")
_PROCESS: Final = "SELECT pg_backend_pid()"
_OF_URL: Final = (ValueError, OverflowError)
"""What the driver says of a host, a port or a parameter that is none."""


def driver() -> ModuleType:
    """asyncpg. Raises ConfigurationError where it is not installed."""
    try:
        return import_module("asyncpg")
    except ImportError as error:
        raise ConfigurationError('postgresql:// needs asyncpg: pip install "sealbus[postgres]"') from error


def place(url: str) -> str:
    """*url* as it may be shown. Raises ConfigurationError for what is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"no URL of a database: {error}") from error
    return f"{parts.hostname or 'localhost'}{parts.path}"


def pool(url: str, name: str, most: int, timeout_s: float, **options: Any) -> Any:
    """A pool of at most *most* connections, called *name* on the server; to be awaited."""
    options = {"command_timeout": timeout_s, "server_settings": {"application_name": name}} | options
    return driver().create_pool(url, min_size=0, max_size=most, timeout=timeout_s, **options)


def failures() -> tuple[type[BaseException], ...]:
    """What a statement, or the way to the server, can raise."""
    asyncpg = driver()
    return (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def is_of_store(error: BaseException) -> bool:
    """Whether *error* is the server's or the connection's, and not about the statement that met it."""
    if isinstance(error, OSError | TimeoutError):
        return True
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_OF_STORE)
    asyncpg = driver()
    if isinstance(error, asyncpg.InternalClientError):
        # The server has gone just when something was being sent.
        return True
    # What asyncpg says of its own accord: a connection that is closed; or, as a ValueError, an argument it cannot send.
    return (
        isinstance(error, asyncpg.InterfaceError)
        and not isinstance(error, ValueError)
        and "in progress" not in str(error)
    )


def is_late(error: BaseException) -> bool:
    """Return whether *error* is a late answer, whose statement the driver is asking the server to cancel.

    Cut at once, the connection would take that request with it: behind a lock the server would keep the statement, and
    its session, for as long as the lock lasts, and each repetition would add one until the server takes no more. Given
    back to its pool it is waited for.
    """
    return isinstance(error, TimeoutError)


def translated(error: BaseException, where: str, *, at_start: bool = False) -> BusError:
    """The error of the bus that says what *error* means for the database at *where*.

    Being refused is a wrong setting only *at_start*: later, whoever was let in once waits, as through a failover or a
    change of passwords.
    """
    state = str(getattr(error, "sqlstate", None) or "")
    if at_start and state.startswith(_OF_SETUP):
        return ConfigurationError(f"the database {where} refuses: {error}")
    if at_start and isinstance(error, _OF_URL):
        return ConfigurationError(f"the URL of the database {where} cannot be used: {error}")
    text = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
    return InboxError(f"the database {where} cannot be used just now: {text}")


def cut(connection: Any) -> None:
    """Close *connection* without a word to the server, which undoes its transaction."""
    # One that has failed may have gone back to its pool by itself.
    with suppress(driver().InterfaceError):
        connection.terminate()


@asynccontextmanager
async def closing(where: str, most_s: float, terminate: Callable[[], object]) -> AsyncIterator[None]:
    """Translate, as `translating`, what closing meets.

    Closing may take *most_s* seconds; then *terminate* what is to be closed.

    A statement that is only cancelled waits for the server all the same, in the driver.
    """

    def end() -> None:
        terminate()
        limit.reschedule(loop.time())

    loop = asyncio.get_running_loop()
    with translating(where):
        async with asyncio.timeout(None) as limit:
            timer = loop.call_later(most_s, end)
            try:
                yield
            finally:
                timer.cancel()


@contextmanager
def translating(where: str, connection: Any = None, *, at_start: bool = False) -> Iterator[None]:
    """Translate what our own statements meet; a *connection* that has failed is cut, so that nobody waits for it."""
    told = failures() + (_OF_URL if at_start else ())
    try:
        yield
    except told as error:
        if connection is not None and is_of_store(error) and not is_late(error):
            cut(connection)
        raise translated(error, where, at_start=at_start) from error


async def refuse_shared_session(connection: Any, url: str, where: str, timeout_s: float) -> None:
    """Raise ConfigurationError where the next transaction of *connection* may be another session's.

    A pooler that gives its sessions out by the transaction does that, and then locks and roles are anybody's. Where the
    server's process is the one that it said at first, there is none in between; else a second connection, open at the
    same time, shows whether each has its own.
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
            cut(other)
    except driver().PostgresError as error:
        # Prepared statements are a session's too.
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
