"""What nearly every message needs: a first claim, then a result for a claim that still stands, by one statement for many of them.

Owns which jobs may be answered so, and their answers, which are those of `consumers.inbox.rules`; what is left over goes there. Does not own the
SQL (`table`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from consumers.inbox.rules import FIRST
from consumers.inbox.sqlite.table import Table
from consumers.inbox.sqlite.writer import Job

__all__ = ["answer"]


def answer(table: Table, jobs: Sequence[Job], owner: int, running: Container[str]) -> list[Job]:
    """Answer those of *jobs* that can be answered together; the others. *running*: what this process is at work on."""
    claims: list[Job] = []
    finishes: list[Job] = []
    left: list[Job] = []
    keys = [job.key for job in jobs]
    # Jobs on one key have an order, which statements for many keys do not keep.
    repeated = {key for key, count in Counter(keys).items() if count > 1} if len(set(keys)) < len(keys) else ()
    for job in jobs:
        if job.action is not None or job.key in repeated:
            left.append(job)
        elif job.asker is None:
            finishes.append(job)
        elif job.key in running:
            left.append(job)
        else:
            claims.append(job)
    if finishes:
        left += _finish(table, finishes, owner)
    if claims:
        left += _claim(table, claims, owner)
    return left


def _claim(table: Table, jobs: list[Job], owner: int) -> list[Job]:
    written = table.claim(owner, [(job.key, job.asker.content_hash, job.asker.keep_until_ms) for job in jobs if job.asker is not None])
    left = [] if written is None else [job for job in jobs if job.key not in written]
    for job in jobs:
        if written is None or job.key in written:
            job.value = FIRST
    return left


def _finish(table: Table, jobs: list[Job], owner: int) -> list[Job]:
    results: list[tuple[str, int, bytes]] = []
    silent: dict[int, list[str]] = {}
    for job in jobs:
        if job.outputs:
            results.append((job.key, job.token, job.outputs))
        else:
            silent.setdefault(job.token, []).append(job.key)
    done = not results or table.finish_with(owner, results)
    for token, keys in silent.items():
        done = table.finish(owner, token, keys) and done
    if not done:
        # Whose claim does not stand any more is for the rules to see; to the others it makes no difference to be done already.
        return jobs
    for job in jobs:
        job.value = True
    return []
