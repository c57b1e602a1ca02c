"""NamespaceGroups: the consumer groups of one namespace, by their names without the namespace.

In the log a group is `<ns>.<group>` (PROTOCOL.md section 6), so that two namespaces on one cluster share nothing. Only
this module translates between the two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from bus.topics.names import consumer_group
from bus.transports.base import Admin, GroupInfo

__all__ = ["NamespaceGroups"]


class NamespaceGroups:
    """The groups of *namespace* in the log of *admin*. All methods raise what those of `Admin` do."""

    def __init__(self, admin: Admin, namespace: str) -> None:
        self._admin = admin
        self._namespace = namespace

    async def infos(self) -> list[GroupInfo]:
        """Return every group of the namespace that has members or committed offsets."""
        prefix = consumer_group(self._namespace, "")
        return [
            msgspec.structs.replace(info, name=info.name.removeprefix(prefix))
            for info in await self._admin.groups()
            if info.name.startswith(prefix)
        ]

    async def committed(self, group: str) -> Mapping[tuple[str, int], int]:
        """Return the committed offsets of *group* by (topic, partition)."""
        return await self._admin.committed(consumer_group(self._namespace, group))

    async def move(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set the committed offsets of *group*, which must have no members."""
        await self._admin.move(consumer_group(self._namespace, group), offsets)

    async def expel(self, group: str, members: Collection[str]) -> None:
        """Remove *members*, processes that have ended, from *group*."""
        await self._admin.expel(consumer_group(self._namespace, group), members)
