"""Assign partitions to members.

Owns one pure function: equal input gives equal output in every process, and applying it to its own result changes
nothing. Leases are in `membership`: the present owner keeps a partition until it has drained.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

__all__ = ["assign"]


def assign(
    members: Mapping[int, Collection[str]], topics: Mapping[str, Sequence[int]], owners: Mapping[int, int]
) -> dict[int, int]:
    """Return partition -> member for every partition of *topics* that a member subscribes to.

    Within a topic, shares differ by at most one, and the larger shares go to the members with the fewest partitions so
    far. If all members subscribe to the same topics, totals differ by at most one too. *owners* keep the partitions
    that fit their share.
    """
    totals = dict.fromkeys(members, 0)
    target: dict[int, int] = {}
    for topic in sorted(topics):
        interested = [member for member in sorted(members) if topic in members[member]]
        if not interested:
            continue
        shares = _shared(topics[topic], interested, owners, totals)
        target |= shares
        for member in shares.values():
            totals[member] += 1
    return target


def _shared(
    parts: Sequence[int], members: Sequence[int], owners: Mapping[int, int], totals: Mapping[int, int]
) -> dict[int, int]:
    owned = {member: [part for part in parts if owners.get(part) == member] for member in members}
    base, extra = divmod(len(parts), len(members))
    # Among equal totals, a member that already holds a larger share comes first. With plain counts, the first member to
    # take its share would change the shares of the others.
    order = sorted(members, key=lambda member: (totals[member], len(owned[member]) <= base, member))
    quota = {member: base + (rank < extra) for rank, member in enumerate(order)}
    retained = {part: member for member in members for part in owned[member][: quota[member]]}
    seats = [member for member in order for _ in range(quota[member] - len(owned[member]))]
    free = (part for part in parts if part not in retained)
    return retained | dict(zip(free, seats, strict=True))
