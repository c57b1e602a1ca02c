"""Groups as rows: members that renew themselves, leases that change hands.

Owns the statements on `members`, `leases` and `listeners`, and the result of one heartbeat. `heartbeat` decides when to
beat, `subscription` tells the listener.

A lease lasts as long as its owner's row, so one small update a second renews all leases of a member. Times are
monotonic seconds, which all processes of one boot share. A row from before a reboot can lie in the future, so a renewal
further ahead than the timeout counts as expired too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from bus.errors import TopicMissingError
from bus.transports.base import Assignment
from bus.transports.sqlite.assignment import assign
from bus.transports.sqlite.write_transaction import MEMBERSHIP, LogFile

__all__ = [
    "Holding",
    "Member",
    "HeartbeatResult",
    "TakenLease",
    "beat",
    "commit",
    "join",
    "leave_group",
    "listen",
    "release",
    "unlisten",
]

_LISTENER_MARGIN_S = 3600.0

Holding = tuple[int, int]
"""A partition's row id and the epoch of its lease."""


class Member(msgspec.Struct, frozen=True):
    """A member as its own process knows it."""

    id: int
    group: str
    name: str
    topics: tuple[str, ...]
    timeout_s: float
    owned: frozenset[Holding] = frozenset()


class TakenLease(msgspec.Struct, frozen=True):
    """A newly taken lease, and the group's committed offset."""

    part: int
    assignment: Assignment
    committed: int


class HeartbeatResult(msgspec.Struct, frozen=True):
    """The result of one heartbeat for one member.

    *id* None means that another process joined under the same name.
    """

    id: int | None
    renewed_s: float
    taken: Sequence[TakenLease] = ()
    lost: Sequence[Holding] = ()
    surrendered: Sequence[Holding] = ()


class _Lease(msgspec.Struct, frozen=True):
    owner: int | None
    epoch: int


def join(log: LogFile, member: Member, now_s: float) -> int:
    """Add a member and end an earlier one of the same name; return the new id. Raises TopicMissingError."""
    for topic in member.topics:
        if topic not in log.topics:
            raise TopicMissingError(f"no topic {topic[:249]!r}; create it with `sealbus topic apply`")
    for (earlier,) in log.connection.execute(
        "SELECT id FROM members WHERE grp = ? AND name = ?", (member.group, member.name)
    ).fetchall():
        leave_group(log, earlier)
    log.touched.add(MEMBERSHIP)
    cursor = log.connection.execute(
        "INSERT INTO members (grp, name, topics, renewed_s, timeout_s) VALUES (?, ?, ?, ?, ?)",
        (member.group, member.name, msgspec.json.encode(member.topics).decode(), now_s, member.timeout_s),
    )
    return int(cursor.lastrowid or 0)


def leave_group(log: LogFile, member_id: int) -> None:
    """Free all leases of a member and delete it."""
    log.connection.execute(
        "UPDATE leases SET owner = NULL WHERE grp = (SELECT grp FROM members WHERE id = ?) AND owner = ?",
        (member_id, member_id),
    )
    log.connection.execute("DELETE FROM members WHERE id = ?", (member_id,))
    log.touched.add(MEMBERSHIP)


def release(log: LogFile, group: str, member_id: int, holdings: Sequence[Holding]) -> None:
    """Free leases for the members they are meant for."""
    log.connection.executemany(
        "UPDATE leases SET owner = NULL WHERE grp = ? AND part = ? AND owner = ? AND epoch = ?",
        [(group, part, member_id, epoch) for part, epoch in holdings],
    )
    log.touched.add(MEMBERSHIP)


def commit(log: LogFile, group: str, member_id: int, offsets: Mapping[Holding, int]) -> list[Holding]:
    """Move commits forward where this member still owns the lease; return the refused holdings."""
    statement = """UPDATE leases SET committed = max(committed, ?)
        WHERE grp = ? AND part = ? AND owner = ? AND epoch = ?"""
    return [
        (part, epoch)
        for (part, epoch), offset in offsets.items()
        if not log.connection.execute(statement, (offset, group, part, member_id, epoch)).rowcount
    ]


def listen(log: LogFile, port: int, now_s: float, valid_s: float) -> None:
    """Register a port for wake-ups, renew it after half its time, and delete ports of processes that are gone."""
    latest_s = now_s + valid_s + _LISTENER_MARGIN_S
    stale = log.connection.execute(
        "DELETE FROM listeners WHERE expires_s < ? OR expires_s > ?", (now_s, latest_s)
    ).rowcount
    row = log.connection.execute("SELECT expires_s FROM listeners WHERE port = ?", (port,)).fetchone()
    if row is None or row[0] < now_s + valid_s / 2:
        log.connection.execute(
            "INSERT OR REPLACE INTO listeners (port, expires_s) VALUES (?, ?)", (port, now_s + valid_s)
        )
    if stale or row is None:
        log.changed()


def unlisten(log: LogFile, port: int) -> None:
    """Delete a port from the listeners."""
    log.connection.execute("DELETE FROM listeners WHERE port = ?", (port,))
    log.changed()


def beat(log: LogFile, members: Sequence[Member], now_s: float) -> list[HeartbeatResult]:
    """Renew *members*, end expired members of other processes, and return what each of ours gains and loses."""
    ids = [_renewed(log, member, now_s) for member in members]
    _drop_expired(log, now_s)
    return [
        HeartbeatResult(None, now_s, lost=sorted(member.owned))
        if own is None
        else _coordinated(log, own, member, now_s)
        for own, member in zip(ids, members, strict=True)
    ]


def _renewed(log: LogFile, member: Member, now_s: float) -> int | None:
    if log.connection.execute("UPDATE members SET renewed_s = ? WHERE id = ?", (now_s, member.id)).rowcount:
        return member.id
    taken = log.connection.execute(
        "SELECT 1 FROM members WHERE grp = ? AND name = ?", (member.group, member.name)
    ).fetchone()
    return None if taken else join(log, member, now_s)


def _drop_expired(log: LogFile, now_s: float) -> None:
    rows = log.connection.execute("SELECT id FROM members WHERE abs(? - renewed_s) > timeout_s", (now_s,)).fetchall()
    for (expired,) in rows:
        leave_group(log, expired)


def _coordinated(log: LogFile, own: int, member: Member, now_s: float) -> HeartbeatResult:
    rows = log.connection.execute("SELECT id, topics FROM members WHERE grp = ?", (member.group,))
    # `id` is the column's name.
    interests: dict[int, list[str]] = {id: msgspec.json.decode(topics) for id, topics in rows}  # noqa: A001
    leases = _leases(log, member.group)
    owners = {
        part: lease.owner for part, lease in leases.items() if lease.owner in interests and lease.owner is not None
    }
    topics = {
        name: log.topics[name].parts
        for name in {name for names in interests.values() for name in names}
        if name in log.topics
    }
    target = {part for part, holder in assign(interests, topics, owners).items() if holder == own}
    lost = {(part, epoch) for part, epoch in member.owned if leases.get(part) != _Lease(own, epoch)}
    retained = member.owned - lost
    owned = {part for part, _ in retained}
    # A lease that names this member although it does not hold it was given up after a silence. It is taken again with a
    # new epoch, or freed for the member it is meant for.
    free = sorted(part for part in target - owned if owners.get(part, own) == own)
    if given_up := sorted(part for part, owner in owners.items() if owner == own and part not in owned | target):
        release(log, member.group, own, [(part, leases[part].epoch) for part in given_up])
    return HeartbeatResult(
        own,
        now_s,
        taken=_taken(log, own, member, free),
        lost=sorted(lost),
        surrendered=sorted(holding for holding in retained if holding[0] not in target),
    )


def _leases(log: LogFile, group: str) -> dict[int, _Lease]:
    rows = log.connection.execute("SELECT part, owner, epoch FROM leases WHERE grp = ?", (group,))
    return {part: _Lease(owner, epoch) for part, owner, epoch in rows}


def _taken(log: LogFile, own: int, member: Member, parts: Sequence[int]) -> list[TakenLease]:
    topics = [log.topics[name] for name in member.topics if name in log.topics] if parts else ()
    locations = {part: (topic.spec.name, index) for topic in topics for index, part in enumerate(topic.parts)}
    # A new lease commits its start at once: otherwise the group would not notice what retention deletes before its
    # first commit.
    statement = """INSERT INTO leases (grp, part, owner, epoch, committed)
        SELECT ?, id, ?, 1, start_offset FROM partitions WHERE id = ?
        ON CONFLICT (grp, part) DO UPDATE
        SET owner = excluded.owner, epoch = epoch + 1, committed = coalesce(committed, excluded.committed)
        RETURNING epoch, committed"""
    taken = []
    for part in parts:
        row = log.connection.execute(statement, (member.group, own, part)).fetchone()
        if row is None:
            # The partition was listed a moment ago, in this transaction: an index and its table differ.
            error = sqlite3.DatabaseError("partitions: its index and its rows differ")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        epoch, committed = row
        topic, partition = locations[part]
        taken.append(TakenLease(part, Assignment(topic, partition, epoch), committed))
    return taken
