"""PostgresInbox: one or two short statements per call, each with its own deadline.

Owns what each call of `consumers.delivery.inbox.base.Inbox` sends, the lease, and what this process runs now. The
decision is in `consumers.delivery.inbox.claim_rules`, the SQL in `statements`.

Two pools: handlers may keep transactions open, and neither a claim nor the lease may wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

from bus.clock import Clock
from bus.databases.postgres import (
    POSTGRES_TIMEOUT_S,
    closing,
    database_of,
    failures,
    is_postgres_error,
    pool,
    refuse_shared_session,
    translating,
)
from bus.databases.postgres_locks import who_blocks
from bus.databases.stored_text import restored, storable
from bus.errors import BusError, InboxError
from bus.telemetry.logs import get_logger
from bus.transports.base import NewRecord
from consumers.delivery.inbox import claim_rules
from consumers.delivery.inbox.base import (
    AlreadyDead,
    AlreadyDone,
    Claim,
    Claimed,
    ClaimedElsewhere,
    InboxKey,
    SomeAsk,
    SomeEnd,
    SqlDialect,
    Transaction,
    Write,
    Written,
)
from consumers.delivery.inbox.claim_rules import Claimant
from consumers.delivery.inbox.lease import Lease
from consumers.delivery.inbox.postgres import statements
from consumers.delivery.inbox.postgres.bulk import BulkClaims, BulkResults, BulkStatements, answer_one
from consumers.delivery.inbox.postgres.transaction import PostgresTransaction, Sessions
from consumers.delivery.inbox.row_encoding import encode_outputs, key_digest, key_text

__all__ = ["PostgresInbox"]

_T = TypeVar("_T")

_NAME: Final = "sealbus inbox"
_CONNECTIONS: Final = 8
_PURGED_AT_ONCE: Final = 5_000
# A server that hangs finds out by itself when the lease ends, as after a death.
_CLOSING_S: Final = 4.0

_log = get_logger("inbox")


class PostgresInbox:
    """The inbox in the database behind *url*. *owner* names this process to people who look at the rows."""

    shared = True
    dialect: SqlDialect = "postgres"

    def __init__(
        self, url: str, *, owner: str, clock: Clock, lease_s: float = 20.0, timeout_s: float = POSTGRES_TIMEOUT_S
    ) -> None:
        self._url = url
        self._where = database_of(url)
        self._name = owner
        self._clock = clock
        self._timeout_s = timeout_s
        self._owner = claim_rules.NOBODY
        self._lease = Lease(lease_s, clock.monotonic_s())
        self._running: dict[bytes, int] = {}
        self._asking: set[bytes] = set()
        self._together = BulkStatements(self._alive, self._running, self._asking, self._begun)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pool: Any = None
        self._sessions: Sessions | None = None
        self._location: str | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._pool is not None:
            raise InboxError("an inbox is opened once")
        self._pool = pool(self._url, _NAME, _CONNECTIONS, self._timeout_s, reset=statements.reset_nothing)
        self._sessions = Sessions(self._url, _NAME, self._timeout_s, self._is_at_work)
        try:
            with translating(self._where):
                await self._pool
                await self._sessions.open()
            async with self._connection(at_start=True) as connection:
                await refuse_shared_session(connection, self._url, self._where, self._timeout_s)
                self._location = await statements.migrate_inbox(connection)
                self._lease = Lease(self._lease.length_s, self._clock.monotonic_s())
                self._owner = self._together.owner = await connection.fetchval(
                    statements.ENROL, self._name, self._lease.length_s
                )
        except BaseException:
            self._terminate()
            self._pool = None
            raise
        self._renewal = asyncio.get_running_loop().create_task(self._keep_alive())

    async def claim(
        self,
        key: InboxKey,
        content_hash: str,
        *,
        keep_until_ms: int,
        reopen: int = 0,
        alone: bool = False,
        message_id: str = "",
    ) -> Claim:
        identity, text = statements.named(key)
        asker = Claimant(self._owner, content_hash, keep_until_ms, reopen=reopen, alone=alone, message_id=message_id)
        task = self._begun(self._claim(identity, text, asker))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The claim is carried out all the same; a granted one is released for others.
            task.add_done_callback(lambda done: self._give_back(identity, done))
            raise

    def claim_soon(self, asks: Sequence[SomeAsk], on_answers: Callable[[Sequence[SomeAsk]], object]) -> None:
        for ask in asks:
            (identity, text), answered = statements.named(ask.key), partial(answer_one, on_answers, ask)
            ask.identity = identity
            asker = Claimant(
                self._owner,
                ask.content_hash,
                ask.keep_until_ms,
                reopen=ask.reopen,
                alone=ask.alone,
                message_id=ask.message_id,
            )
            alone = partial(self._together.apart, answered, self._claim, identity, text, asker)
            if identity in self._asking or identity in self._running:
                alone()
            else:
                self._together.claim(
                    BulkClaims(identity, text, ask.content_hash, ask.keep_until_ms, ask.message_id, answered, alone)
                )

    def finish_soon(self, ends: Sequence[SomeEnd], on_answers: Callable[[Sequence[SomeEnd]], object]) -> None:
        for end in ends:
            answered = partial(answer_one, on_answers, end)
            alone = partial(self._together.apart, answered, self.finish, end.key, end.token, ())
            self._together.finish(
                BulkResults(end.identity or key_digest(key_text(end.key)), end.token, answered, alone)
            )

    async def sync(self) -> None:
        """Do nothing: every commit is durable."""

    async def find_done(self, key: InboxKey, content_hash: str) -> AlreadyDone | AlreadyDead | None:
        async with self._connection() as connection:
            return claim_rules.found_done(
                await statements.seen_row(connection, key_digest(key_text(key))), content_hash
            )

    async def finish(
        self, key: InboxKey, token: int, outputs: Sequence[NewRecord], transaction: Transaction | None = None
    ) -> bool:
        identity = key_digest(key_text(key))
        data = encode_outputs(outputs)
        if transaction is None:
            running = self._finish(identity, token, data)
        elif isinstance(transaction, PostgresTransaction):
            running = self._finish_together(identity, token, data, transaction)
        else:
            raise TypeError(f"a {type(transaction).__name__} is not a transaction of this inbox")
        is_done = await asyncio.shield(self._begun(running))
        self._forget(identity, token)
        return is_done

    async def finish_with(
        self, key: InboxKey, token: int, outputs: Sequence[NewRecord], writes: Sequence[Write]
    ) -> Written:
        identity = key_digest(key_text(key))
        running = self._finish_with(identity, token, encode_outputs(outputs), writes)
        written = await asyncio.shield(self._begun(running))
        if written != "moved":
            self._forget(identity, token)
        return written

    async def write(self, writes: Sequence[Write]) -> Written:
        return await asyncio.shield(self._begun(self._write(writes)))

    async def release(self, key: InboxKey, token: int) -> None:
        identity = key_digest(key_text(key))
        try:
            await asyncio.shield(self._begun(self._release(identity, token)))
        finally:
            # A message that no longer runs here may be claimed again, also where the release could not be stored.
            self._forget(identity, token)

    async def void(self, key: InboxKey, token: int) -> None:
        identity = key_digest(key_text(key))
        try:
            await asyncio.shield(self._begun(self._release(identity, token, statements.VOID)))
        finally:
            self._forget(identity, token)

    async def release_with(self, key: InboxKey, token: int, transaction: Transaction) -> bool:
        identity = key_digest(key_text(key))
        if not isinstance(transaction, PostgresTransaction):
            raise TypeError(f"a {type(transaction).__name__} is not a transaction of this inbox")
        try:
            return await asyncio.shield(self._begun(self._release_together(identity, token, transaction)))
        finally:
            self._forget(identity, token)

    async def remembered(self, key: InboxKey) -> Mapping[str, bytes]:
        async with self._connection() as connection:
            if not await connection.fetchval(statements.STEPS_EXIST):
                return {}
            rows = await connection.fetch(statements.STEPS, key_digest(key_text(key)))
            return {restored(row["name"]): bytes(row["data"]) for row in rows}

    async def remember(self, key: InboxKey, token: int, name: str, data: bytes) -> bool:
        identity = key_digest(key_text(key))
        async with self._connection() as connection:
            if not await connection.fetchval(statements.STEPS_EXIST):
                await statements.make_steps_table(connection)
            async with connection.transaction(isolation="read_committed"):
                if await connection.fetchval(statements.STILL_CLAIMED, identity, self._owner, token) is None:
                    return False
                await connection.execute(statements.NO_SUSPECT, identity, self._owner, token)
                await connection.execute(statements.REMEMBER, identity, storable(name), data)
                return True

    async def remember_with(
        self, key: InboxKey, token: int, name: str, data: bytes, writes: Sequence[Write]
    ) -> Written:
        running = self._remember_with(key_digest(key_text(key)), token, name, data, writes)
        return await asyncio.shield(self._begun(running))

    async def forget(self, key: InboxKey) -> None:
        async with self._connection() as connection:
            await connection.execute(statements.FORGET, key_digest(key_text(key)))

    async def begin(self) -> PostgresTransaction:
        if self._sessions is None or self._renewal is None:
            raise InboxError("the inbox is not open")
        return await self._sessions.begin()

    async def read(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        async with self._connection() as connection:
            return [tuple(row) for row in await connection.fetch(statement, *arguments)]

    async def who_blocks(self) -> str:
        return await who_blocks(self._url)

    async def purge(self) -> int:
        total = 0
        async with self._connection() as connection:
            await connection.execute(statements.PURGE_OWNERS)
        while True:
            async with self._connection() as connection:
                count = int((await connection.execute(statements.PURGE, _PURGED_AT_ONCE)).rpartition(" ")[2])
            if not count:
                break
            total += count
        async with self._connection() as connection:
            if await connection.fetchval(statements.STEPS_EXIST):
                await connection.execute(statements.PURGE_STEPS)
        return total

    async def close(self) -> None:
        if self._renewal is None or self._sessions is None:
            return
        self._renewal.cancel()
        try:
            async with closing(self._where, _CLOSING_S, self._terminate):
                await asyncio.wait([self._renewal])
                while self._tasks:
                    await asyncio.wait(self._tasks)
                await self._sessions.undo()
                async with self._connection() as connection:
                    await connection.execute(statements.STRIKE, self._owner)
                await self._pool.close()
                await self._sessions.close()
        except BusError as error:
            _log.warning("inbox.lease_left", error=str(error))
        self._renewal = None
        self._terminate()

    def _terminate(self) -> None:
        self._pool.terminate()
        if self._sessions is not None:
            self._sessions.terminate()

    async def _claim(self, identity: bytes, text: str, asker: Claimant) -> Claim:
        if identity in self._asking:
            return ClaimedElsewhere(claim_rules.SHORTEST_WAIT_S)
        self._asking.add(identity)
        try:
            claim: Claim | None = None
            async with self._alive() as connection:
                # A row may be purged between the two.
                while claim is None:
                    claim = await self._claimed_first(connection, identity, text, asker) or await self._decide(
                        connection, identity, asker
                    )
            if isinstance(claim, Claimed):
                self._running[identity] = claim.token
            return claim
        finally:
            self._asking.discard(identity)

    async def _claimed_first(self, connection: Any, identity: bytes, text: str, asker: Claimant) -> Claim | None:
        """Claim if there is no row yet, the most frequent case, with one statement."""
        decision = claim_rules.decide_claim(None, asker._replace(running=identity in self._running), claim_rules.CLOSED)
        if decision.row is None:
            return None
        inserted = await connection.fetchval(
            statements.INSERT_CLAIM, identity, text, *statements.row_values(decision.row)
        )
        return decision.claim if inserted is not None else None

    async def _decide(self, connection: Any, identity: bytes, asker: Claimant) -> Claim | None:
        async with connection.transaction(isolation="read_committed"):
            row = await statements.locked_row(connection, identity)
            asker = asker._replace(running=identity in self._running)
            if row is None and not asker.running:
                return None
            rest_s = claim_rules.CLOSED
            if row is not None and row.state == "claimed" and row.owner != asker.owner:
                rest_s = self._lease.judged(await statements.rest_s(connection, row.owner), self._clock.monotonic_s())
            decision = claim_rules.decide_claim(row, asker, rest_s)
            if decision.row is not None:
                await connection.execute(statements.UPDATE, identity, *statements.row_values(decision.row))
        return decision.claim

    async def _finish(self, identity: bytes, token: int, data: bytes) -> bool:
        async with self._connection() as connection:
            values = (identity, self._owner, token, data)
            if await connection.fetchval(statements.FINISH, *values) is not None:
                return True
            return await connection.fetchval(statements.IS_FINISHED, *values) is not None

    async def _write(self, writes: Sequence[Write]) -> Written:
        async def nothing(_: Any) -> Written | None:
            return None

        async with self._connection() as connection:
            written = await _written_with(
                connection, connection.transaction(isolation="read_committed"), nothing, writes
            )
        return _unless_fault(written)

    async def _finish_with(self, identity: bytes, token: int, data: bytes, writes: Sequence[Write]) -> Written:
        values = (identity, self._owner, token, data)

        async def finish(connection: Any) -> Written | None:
            if await connection.fetchval(statements.FINISH, *values) is not None:
                return None
            is_finished = await connection.fetchval(statements.IS_FINISHED, *values) is not None
            return "written" if is_finished else "stale"

        async with self._connection() as connection:
            written = await _written_with(connection, connection.transaction(), finish, writes)
        return _unless_fault(written)

    async def _remember_with(
        self, identity: bytes, token: int, name: str, data: bytes, writes: Sequence[Write]
    ) -> Written:
        async def remember(connection: Any) -> Written | None:
            if await connection.fetchval(statements.STILL_CLAIMED, identity, self._owner, token) is None:
                return "stale"
            await connection.execute(statements.REMEMBER, identity, storable(name), data)
            return None

        async with self._connection() as connection:
            if not await connection.fetchval(statements.STEPS_EXIST):
                await statements.make_steps_table(connection)
            transaction = connection.transaction(isolation="read_committed")
            written = await _written_with(connection, transaction, remember, writes)
        return _unless_fault(written)

    async def _finish_together(
        self, identity: bytes, token: int, data: bytes, transaction: PostgresTransaction
    ) -> bool:
        try:
            values = (identity, self._owner, token, data)
            if await transaction.fetchrow(statements.placed(statements.FINISH, self._location), *values) is not None:
                await transaction.commit()
                return True
            return (
                await transaction.fetchrow(statements.placed(statements.IS_FINISHED, self._location), *values)
                is not None
            )
        finally:
            await transaction.rollback()

    async def _release(self, identity: bytes, token: int, statement: str = statements.RELEASE) -> None:
        async with self._connection() as connection:
            await connection.execute(statement, identity, self._owner, token)

    async def _release_together(self, identity: bytes, token: int, transaction: PostgresTransaction) -> bool:
        try:
            statement = f"{statements.placed(statements.RELEASE, self._location)} RETURNING token"
            if await transaction.fetchrow(statement, identity, self._owner, token) is None:
                return False
            await transaction.commit()
            return True
        finally:
            await transaction.rollback()

    async def _renew(self) -> None:
        now_s = self._clock.monotonic_s()
        async with self._connection() as connection:
            await connection.execute(statements.RENEW, self._owner, self._name, self._lease.length_s)
        self._lease.renewed(now_s)

    async def _keep_alive(self) -> None:
        failing = False
        while True:
            await self._clock.sleep(self._lease.interval_s)
            try:
                await self._renew()
            except BusError as error:
                if not failing:
                    _log.warning("inbox.lease_not_renewed", error=str(error))
                failing = True
            else:
                failing = False

    @asynccontextmanager
    async def _alive(self) -> AsyncGenerator[Any]:
        """Yield a connection for a claim, with a lease that runs."""
        if self._lease.has_run_out(self._clock.monotonic_s()):
            await self._renew()
        async with self._connection() as connection:
            yield connection

    @asynccontextmanager
    async def _connection(self, *, at_start: bool = False) -> AsyncGenerator[Any]:
        if self._pool is None:
            raise InboxError("the inbox is not open")
        with translating(self._where, at_start=at_start):
            connection = await self._pool.acquire(timeout=self._timeout_s)
        try:
            with translating(self._where, connection, at_start=at_start):
                yield connection
        finally:
            with contextlib.suppress(*failures()):
                await self._pool.release(connection, timeout=self._timeout_s)

    def _begun(self, running: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _give_back(self, identity: bytes, done: asyncio.Task[Claim]) -> None:
        if not done.cancelled() and done.exception() is None and isinstance(claim := done.result(), Claimed):
            self._forget(identity, claim.token)
            self._begun(self._release(identity, claim.token)).add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )

    def _forget(self, identity: bytes, token: int) -> None:
        if self._running.get(identity) == token:
            del self._running[identity]

    async def _is_at_work(self, process: int) -> bool:
        """Return whether the server's *process* runs a statement; False if the server does not show it."""
        with contextlib.suppress(InboxError):
            async with self._connection() as connection:
                return bool(await connection.fetchval(statements.IS_ACTIVE, process))
        return False


class _MovedError(Exception):
    """A write has not returned its row: what came before it is rolled back."""


async def _written_with(
    connection: Any, transaction: Any, own: Callable[[Any], Awaitable[Written | None]], writes: Sequence[Write]
) -> Written | Exception:
    """Do *own*, which returns what the answer is where nothing is to be written, and *writes*, all or nothing.

    No code of users runs in it: it needs none of the care that a handler's transaction does. A fault of a write is
    returned: outside of the connection it is its caller's, as it is on SQLite.
    """
    try:
        async with transaction:
            if (answer := await own(connection)) is not None:
                return answer
            for each in writes:
                if await connection.fetchrow(each.statement, *each.arguments) is None and each.must_return:
                    raise _MovedError
    except _MovedError:
        return "moved"
    except Exception as error:
        if is_postgres_error(error):
            raise
        return error
    return "written"


def _unless_fault(written: Written | Exception) -> Written:
    if isinstance(written, Exception):
        raise written
    return written
