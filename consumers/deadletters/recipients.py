"""The groups that a redrive would send to: whether anybody is there to read what is sent.

Owns the question and the answer in words. A service that was renamed has another group: what is sent back to its old
group is read by nobody. A group whose workers are only stopped reads it when they start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from bus.errors import ConfigurationError
from bus.topics.names import message_topic
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import GroupInfo, Transport
from consumers.deadletters.redrive_rules import RedriveCounts

__all__ = ["check_recipients", "ReadingGroup", "Recipient", "judge_recipients", "recipients_of"]


class ReadingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Another group that reads a topic of the letters; *members* of it are at work."""

    group: str
    members: int


class Recipient(msgspec.Struct, frozen=True, kw_only=True):
    """One group that *letters* would be sent to."""

    group: str
    letters: int
    types: tuple[str, ...]
    members: int
    is_known: bool
    """Whether the log has a committed offset of it."""
    readers: tuple[ReadingGroup, ...]

    @property
    def is_nobody(self) -> bool:
        """Whether no worker will come: none is there, and the group is unknown, or another one reads its topics."""
        return self.members == 0 and (bool(self.readers) or not self.is_known)

    @property
    def text(self) -> str:
        """What an operator must know before sending; empty where members are at work."""
        if self.members:
            return ""
        letters = f"{self.letters} dead letter{'s' if self.letters != 1 else ''}"
        if not self.is_nobody:
            waits = "waits" if self.letters == 1 else "wait"
            return (
                f"group {self.group} has no members now: {letters} {waits} in its redrive topic until a worker starts"
            )
        known = "no members" if self.is_known else "no members and no committed offsets"
        return f"group {self.group} has {known}: {letters} would be sent to a group without workers"

    @property
    def cure(self) -> str:
        """What to do instead of sending to nobody; empty where somebody is there, or comes back."""
        if not self.is_nobody:
            return ""
        if not self.readers:
            return (
                f"start a worker of it: App(..., group={self.group!r}); if the group is gone for good, "
                f"`sealbus dlq dismiss --group {self.group}`"
            )
        others = ", ".join(f"{reader.group} ({reader.members} members)" for reader in self.readers)
        return (
            f"{', '.join(self.types)} is read by {others}. If that is the same service under another name, let it keep "
            f"its group, App(..., group={self.group!r}), or publish the messages again; a group that only stands still "
            "reads what is sent when its workers start"
        )


def judge_recipients(counts: RedriveCounts, infos: Iterable[GroupInfo], namespace: str) -> tuple[Recipient, ...]:
    """Return the groups that letters of *counts* would be sent to, by the groups in the log, *infos*. Pure."""
    known: Mapping[str, GroupInfo] = {info.name: info for info in infos}
    letters: dict[str, int] = defaultdict(int)
    types: dict[str, set[str]] = defaultdict(set)
    for count, number in counts.counts.items():
        if count.verdict == "send":
            letters[count.group] += number
            types[count.group].add(count.message_type)
    found = []
    for group, number in sorted(letters.items()):
        topics = {message_topic(namespace, name) for name in types[group]}
        info = known.get(group)
        found.append(
            Recipient(
                group=group,
                letters=number,
                types=tuple(sorted(types[group])),
                members=0 if info is None else len(info.members),
                is_known=info is not None and bool(info.committed),
                readers=tuple(
                    ReadingGroup(group=other.name, members=len(other.members))
                    for other in sorted(known.values(), key=lambda other: (-len(other.members), other.name))
                    if other.name != group and _reads(other, topics)
                ),
            )
        )
    return tuple(found)


def _reads(info: GroupInfo, topics: set[str]) -> bool:
    owned = (topic for partitions in info.members.values() for topic, _ in partitions)
    return not topics.isdisjoint(owned) or any(topic in topics for topic, _ in info.committed)


async def recipients_of(transport: Transport, namespace: str, counts: RedriveCounts) -> tuple[Recipient, ...]:
    """Return the groups that letters of *counts* would be sent to, as they are in the log now."""
    if not counts.groups:
        return ()
    return judge_recipients(counts, await NamespaceGroups(transport.admin, namespace).infos(), namespace)


def check_recipients(recipients: Iterable[Recipient]) -> None:
    """Raise ConfigurationError, with the cure, if one of *recipients* is a group that nobody is in."""
    for recipient in recipients:
        if recipient.is_nobody:
            raise ConfigurationError(f"{recipient.text}. {recipient.cure}")
