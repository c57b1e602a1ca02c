"""Add messages to an outbox, in the transaction that the caller has open.

Owns sealing without a log, and choosing the driver for a connection. The SQL is in `sqlite` and `postgres`, sending in
`relay`. The caller owns transactions; nothing here begins or ends one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Unpack, overload

import msgspec

from bus.clock import Clock, SystemClock
from bus.errors import ContractError
from bus.payloads.class_forms import Payload
from bus.protocol.envelope import Agent
from bus.protocol.signatures import Signer
from bus.settings.loading import load_project
from bus.settings.schema import Settings
from bus.settings.sources import given_to
from bus.trust.opening import open_trust
from producers.outbox import postgres, sqlite
from producers.outbox.rows import NewRow, row_of
from producers.outcomes import PublishRejected
from producers.sealing.options import Options, outgoing_of
from producers.sealing.run_labels import CURRENT_RUN
from producers.sealing.sealer import make_sealer, sender_of

__all__ = ["AsyncConnection", "Outbox"]


class AsyncConnection(Protocol):
    """The shared interface of asyncpg's Connection and the inbox's Transaction: `$1` placeholders, awaited."""

    def execute(self, statement: str, /, *arguments: Any) -> Awaitable[Any]:
        """Run one statement."""


class Outbox:
    """Messages of one *agent*, published after the transaction that adds them commits.

        outbox = Outbox("shop@svc")
        outbox.create(connection)                                       # once per database
        with connection:                                                # sqlite3; asyncpg: `await` both calls
            connection.execute("INSERT INTO orders VALUES (?)", (7,))
            outbox.add(connection, OrderPlaced(number=7), key="customer-3", ttl_s=600)

    `sealbus serve outbox URL` publishes the rows. The lifetime of a message (*ttl_s*, seconds; by default
    `publish.ttl_s`, an hour) begins when it is added, not when it is relayed.

    Without *settings*, they are loaded from the environment (*env*, by default the process's), the TOML file *config*,
    by default the project's `sealbus.toml`, and the defaults. Raises ConfigurationError, also for an illegal agent.
    """

    def __init__(
        self,
        agent: str | Agent,
        *,
        namespace: str | None = None,
        config: Path | None = None,
        env: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        signer: Signer | None = None,
    ) -> None:
        if settings is None:
            flags = given_to("Outbox", namespace=namespace)
            settings = load_project(flags=flags, env=os.environ if env is None else env, file=config).settings
        self._clock = clock or SystemClock()
        sender = sender_of(agent)
        trust = open_trust(settings, sender.id or "", clock=self._clock, signer=signer)
        self._sealer = make_sealer(
            settings, sender, clock=self._clock, signer=trust.signer, verifier=trust.verifier, policy=trust.policy
        )

    @property
    def namespace(self) -> str:
        """The namespace of everything that is published."""
        return self._sealer.origin.namespace

    @overload
    def create(self, connection: sqlite3.Connection) -> None: ...
    @overload
    def create(self, connection: AsyncConnection) -> Awaitable[None]: ...
    def create(self, connection: sqlite3.Connection | AsyncConnection) -> Awaitable[None] | None:
        """Create the table `sealbus_outbox` if it is missing; await the result on asyncpg."""
        if isinstance(connection, sqlite3.Connection):
            sqlite.create_sqlite_outbox(connection)
            return None
        if not hasattr(connection, "fetchval"):
            raise TypeError(
                f"cannot create tables over a {type(connection).__name__}: give a connection of sqlite3 or asyncpg"
            )
        return postgres.create_postgres_outbox(connection)

    @overload
    def add(self, connection: sqlite3.Connection, payload: Payload, **options: Unpack[Options]) -> str: ...
    @overload
    def add(self, connection: AsyncConnection, payload: Payload, **options: Unpack[Options]) -> Awaitable[str]: ...
    def add(
        self, connection: sqlite3.Connection | AsyncConnection, payload: Payload, **options: Unpack[Options]
    ) -> str | Awaitable[str]:
        """Seal *payload* with the options of `publish` and insert its row; return the message id.

        Inserts at once on sqlite3; when awaited on asyncpg and on an inbox's transaction. Raises PublishRejected at
        once.
        """
        rows = self._rows(payload, options)
        if isinstance(connection, sqlite3.Connection):
            for row in rows:
                sqlite.insert(connection, row)
            return rows[-1].message_id
        if not hasattr(connection, "execute"):
            raise TypeError(
                f"no outbox over a {type(connection).__name__}: give a connection of sqlite3 or asyncpg, or insert "
                "`seal(...)`"
            )
        return _insert(connection, rows)

    def seal(self, payload: Payload, **options: Unpack[Options]) -> NewRow:
        """Return the row of a message, for other database drivers.

        Raises PublishRejected, also for a type that is sent in two versions, which takes two rows.
        """
        rows = self._rows(payload, options)
        if len(rows) > 1:
            error = ContractError("its type is sent in two versions: use `add`, which inserts both rows")
            raise PublishRejected(str(error), error)
        return rows[0]

    def _rows(self, payload: Any, options: Options) -> list[NewRow]:
        if options or CURRENT_RUN.get() is not None:
            sealed = self._sealer.seal_here(outgoing_of(payload, options))
        else:
            sealed = self._sealer.seal_plain(payload)
        now_ms = self._clock.now_ms()
        return [row_of(each, now_ms) for each in (sealed.older, sealed) if each is not None]


async def _insert(connection: AsyncConnection, rows: Sequence[NewRow]) -> str:
    for row in rows:
        await connection.execute(postgres.INSERT_OUTBOX_ROW, *msgspec.structs.astuple(row))
    return rows[-1].message_id
