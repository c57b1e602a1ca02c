"""Bulk answers: first claims, and results of current claims, many of them by one statement.

Owns which claims and results may be answered so; their answers are those of `consumers.delivery.inbox.claim_rules`,
which decides about the rest. The SQL is in `table`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from consumers.delivery.inbox.base import Ask, End
from consumers.delivery.inbox.claim_rules import FIRST
from consumers.delivery.inbox.sqlite.group_commit import InboxJob
from consumers.delivery.inbox.sqlite.table import Table

__all__ = ["answer_batch"]


def answer_batch(table: Table, jobs: Sequence[InboxJob], owner: int, running: Mapping[str, int]) -> None:
    """Answer those claims and results of *jobs* that can be answered together.

    *running*: the keys that this process runs now.
    """
    asks = [ask for job in jobs for ask in job.asks]
    ends = [end for job in jobs for end in job.ends]
    requested = [ask.identity for ask in asks]
    keys = [*requested, *(end.identity for end in ends), *(job.key for job in jobs if job.key)]
    # Jobs on one key have an order, which statements for many keys do not keep.
    odd = {key for key, count in Counter(keys).items() if count > 1} if len(set(keys)) < len(keys) else set()
    if not running.keys().isdisjoint(requested):
        odd.update(key for key in requested if key in running)
    if odd:
        asks = [ask for ask in asks if ask.identity not in odd]
        ends = [end for end in ends if end.identity not in odd]
    if ends:
        _finish(table, ends, owner)
    if asks:
        _claim(table, asks, owner)


def _claim(table: Table, asks: Sequence[Ask], owner: int) -> None:
    written = table.claim(owner, [(ask.identity, ask.content_hash, ask.keep_until_ms, ask.message_id) for ask in asks])
    for ask in asks:
        if written is None or ask.identity in written:
            ask.answer = FIRST


def _finish(table: Table, ends: Sequence[End], owner: int) -> None:
    results: list[tuple[str, int, bytes]] = []
    silent: dict[int, list[str]] = {}
    for end in ends:
        if end.outputs:
            results.append((end.identity, end.token, end.outputs))
        else:
            silent.setdefault(end.token, []).append(end.identity)
    done = not results or table.finish_with(owner, results)
    for token, keys in silent.items():
        done = table.finish(owner, token, keys) and done
    if done:
        for end in ends:
            end.answer = True
    # Otherwise the rules decide which claim is stale; for the others it makes no difference to be done already.
