"""The claim rule: the answer to a claim, from the row, the claiming worker and whether the row's owner is alive.

Pure; every store calls it inside its transaction.

Owns which worker may have a message next, what counts as a death, when a message runs alone and when it is
dead-lettered. Rows are stored in `sqlite` and `postgres`; `consumers.delivery.inbox.lease` decides which owners are
alive; `consumers.delivery.handling.executor` acts on the answer.

A death counts only against a message that ran alone. A message that ran among others at two deaths is a suspect, and
runs alone next. One death is not enough, because then every message of that worker would be a suspect, and long
handlers would be repeated one after another.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from consumers.delivery.inbox.base import (
    AlreadyDead,
    AlreadyDone,
    Claim,
    Claimed,
    ClaimedElsewhere,
    Conflict,
    KeepsCrashing,
    Suspect,
)
from consumers.delivery.inbox.row_encoding import decode_outputs, is_death

__all__ = [
    "CLOSED",
    "DEATHS_TO_SUSPICION",
    "FIRST",
    "MAX_DEATHS",
    "NOBODY",
    "SHORTEST_WAIT_S",
    "WAIT_S",
    "Claimant",
    "ClaimDecision",
    "ClaimRow",
    "decide_claim",
    "finished",
    "found_done",
    "released",
]

MAX_DEATHS = 3
"""Maximum deaths alone; after these the message is dead-lettered."""

DEATHS_TO_SUSPICION = 2
"""After so many starts that ended in their worker's death the message runs alone."""

WAIT_S = 1.0
"""The longest wait, in seconds, before asking again about a message that another worker has claimed."""

CLOSED = None
"""The rest of the lease of an owner that closed in order."""

NOBODY = 0
"""The owner of a free row; no owner has this number."""

SHORTEST_WAIT_S = 0.05

FIRST = Claimed(token=1, starts=1, alone=False)
"""The answer where there was no row."""


class ClaimRow(msgspec.Struct, frozen=True):
    """The row stored under a key. *owner* is the number of one incarnation of a worker."""

    content_hash: str
    state: Literal["claimed", "free", "done"]
    owner: int
    token: int
    keep_until_ms: int
    starts: int = 0
    deaths: int = 0
    suspect: bool = False
    """Workers died while they ran this message: it runs alone, until a run of it ends in order."""
    alone: bool = False
    """The run that holds the claim is alone in its process."""
    reopened: int = 0
    """How often an operator had redriven it when deaths were last forgiven, or when it was last reopened."""
    outputs: bytes = b""
    message_id: str = ""
    """The id of the message that was claimed last."""


class Claimant(NamedTuple):
    """The claiming incarnation of a worker, and whether that process is running the message now."""

    owner: int
    content_hash: str
    keep_until_ms: int
    running: bool = False
    reopen: int = 0
    alone: bool = False
    message_id: str = ""


class ClaimDecision(NamedTuple):
    """The row to write, None to leave it as it is, and the answer."""

    row: ClaimRow | None
    claim: Claim


def decide_claim(row: ClaimRow | None, asker: Claimant, holder_rest_s: float | None) -> ClaimDecision:
    """Decide the claim of *asker* on *row*.

    *holder_rest_s*: the seconds for which the lease of the row's owner still runs; not more than 0: dead; or CLOSED.
    """
    if row is None:
        # A row that was purged while its run went on still belongs to that run.
        return ClaimDecision(None, ClaimedElsewhere(WAIT_S)) if asker.running else _claimed(_blank(asker), asker)
    if row.content_hash != asker.content_hash:
        return ClaimDecision(None, Conflict(row.content_hash))
    if row.state == "done":
        ended = _ended(row)
        if isinstance(ended, AlreadyDone) or asker.reopen <= row.reopened:
            return ClaimDecision(None, ended)
        # An operator has sent its dead letter back: only that takes back what its requester was told.
        row = msgspec.structs.replace(_freed(row), outputs=b"", reopened=asker.reopen)
    if asker.running:
        return ClaimDecision(None, ClaimedElsewhere(WAIT_S))
    return _reclaimed(row, asker, holder_rest_s)


def found_done(row: ClaimRow | None, content_hash: str) -> AlreadyDone | AlreadyDead | None:
    """Return the end that *row* records for the message with that content, or None."""
    return None if row is None or row.state != "done" or row.content_hash != content_hash else _ended(row)


def _ended(row: ClaimRow) -> AlreadyDone | AlreadyDead:
    outputs = decode_outputs(row.outputs)
    return (AlreadyDead if is_death(outputs) else AlreadyDone)(outputs, row.message_id)


def finished(row: ClaimRow | None, *, owner: int, token: int, outputs: bytes) -> ClaimRow | None:
    """Return the row with its result; None for a stale token.

    The same object where the row has that result already.
    """
    if row is None or (row.owner, row.token) != (owner, token):
        return None
    if row.state == "done":
        return row if row.outputs == outputs else None
    if row.state != "claimed":
        return None
    return msgspec.structs.replace(_freed(row), state="done", owner=owner, outputs=outputs)


def released(row: ClaimRow | None, *, owner: int, token: int) -> ClaimRow | None:
    """Return the row after an orderly release; None if the claim belongs to another owner now."""
    if row is None or row.state != "claimed" or (row.owner, row.token) != (owner, token):
        return None
    return _freed(row)


def _reclaimed(row: ClaimRow, asker: Claimant, holder_rest_s: float | None) -> ClaimDecision:
    """Decide about a row that was claimed before."""
    if row.state == "free":
        row = _reopened(row, asker)
        return _claimed(row, asker) if row.deaths < MAX_DEATHS else ClaimDecision(None, KeepsCrashing(row.deaths))
    if _ended_in_order(row, asker, holder_rest_s):
        return _claimed(_freed(row), asker)
    if holder_rest_s is not None and holder_rest_s > 0:
        return ClaimDecision(None, ClaimedElsewhere(max(SHORTEST_WAIT_S, min(holder_rest_s, WAIT_S))))
    row = _reopened(_died(row), asker)
    return _claimed(row, asker) if row.deaths < MAX_DEATHS else ClaimDecision(row, KeepsCrashing(row.deaths))


def _ended_in_order(row: ClaimRow, asker: Claimant, holder_rest_s: float | None) -> bool:
    # An owner that does not run what it holds has ended that run, and could not record it.
    return row.owner == asker.owner or holder_rest_s is CLOSED


def _blank(asker: Claimant) -> ClaimRow:
    return ClaimRow(
        content_hash=asker.content_hash, state="free", owner=NOBODY, token=0, keep_until_ms=asker.keep_until_ms
    )


def _freed(row: ClaimRow) -> ClaimRow:
    """Return the row after a run that ended in order: without owner and without suspicion."""
    return msgspec.structs.replace(row, state="free", owner=NOBODY, starts=0, deaths=0, suspect=False, alone=False)


def _died(row: ClaimRow) -> ClaimRow:
    suspect = row.suspect or row.starts >= DEATHS_TO_SUSPICION
    return msgspec.structs.replace(
        row, state="free", owner=NOBODY, deaths=row.deaths + row.alone, suspect=suspect, alone=False
    )


def _reopened(row: ClaimRow, asker: Claimant) -> ClaimRow:
    """Forgive deaths once per redrive; suspicion stays."""
    return msgspec.structs.replace(row, deaths=0, reopened=asker.reopen) if asker.reopen > row.reopened else row


def _claimed(row: ClaimRow, asker: Claimant) -> ClaimDecision:
    if row.suspect and not asker.alone:
        # Claimed before it runs alone, its worker's death by another suspect would count against it.
        return ClaimDecision(row, Suspect())
    claimed = msgspec.structs.replace(
        row,
        state="claimed",
        owner=asker.owner,
        token=row.token + 1,
        starts=row.starts + 1,
        alone=row.suspect,
        keep_until_ms=max(row.keep_until_ms, asker.keep_until_ms),
        message_id=asker.message_id,
    )
    return ClaimDecision(claimed, Claimed(claimed.token, claimed.starts, claimed.alone))
