"""Topic settings under Kafka's names, and the comparison of found settings with wanted ones. Pure.

Each transport's `Admin` reads the found settings and carries out the changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bus.transports.base import Change, TopicSpec

__all__ = [
    "CLEANUP",
    "INSYNC",
    "MAX_BATCH",
    "PARTITIONS",
    "REPLICAS",
    "RETENTION_BYTES",
    "RETENTION_MS",
    "compared",
    "settings_of",
]


PARTITIONS: Final = "partitions"


REPLICAS: Final = "replicas"


CLEANUP: Final = "cleanup.policy"


INSYNC: Final = "min.insync.replicas"


MAX_BATCH: Final = "max.message.bytes"


RETENTION_MS: Final = "retention.ms"


RETENTION_BYTES: Final = "retention.bytes"


# A larger value than wanted does no harm for these settings.
_AT_LEAST: Final = frozenset({PARTITIONS, REPLICAS, INSYNC, MAX_BATCH})


_GROWS: Final = (
    "keys move between partitions: their order is guaranteed again once the present messages have been handled"
)


_SHRINKS: Final = "records beyond the new limit will be deleted"


_REASSIGN: Final = "not done here: give its partitions more replicas with Kafka's own kafka-reassign-partitions"


def settings_of(spec: TopicSpec) -> dict[str, str]:
    """Return the settings of *spec* under Kafka's names."""
    policy = "delete"
    if spec.compacted:
        policy = "compact" if spec.retention_ms is None and spec.retention_bytes is None else "compact,delete"
    return {
        PARTITIONS: str(spec.partitions),
        CLEANUP: policy,
        RETENTION_MS: str(-1 if spec.retention_ms is None else spec.retention_ms),
        RETENTION_BYTES: str(-1 if spec.retention_bytes is None else spec.retention_bytes),
    }


def compared(topic: str, found: Mapping[str, str] | None, wanted: Mapping[str, str]) -> list[Change]:
    """Return the changes that turn *topic* from *found* (None: missing) into *wanted*.

    Settings outside *wanted* are not compared.
    """
    if found is None:
        return [Change(topic=topic, setting=setting, found=None, wanted=value) for setting, value in wanted.items()]
    return [
        Change(
            topic=topic,
            setting=setting,
            found=found[setting],
            wanted=value,
            note=_note(setting, found[setting], value),
            by_hand=setting == REPLICAS,
        )
        for setting, value in wanted.items()
        if not _is_met(setting, found, value)
    ]


def _is_met(setting: str, found: Mapping[str, str], wanted: str) -> bool:
    have = found[setting]
    if setting == CLEANUP:
        return set(have.split(",")) == set(wanted.split(","))
    if setting == INSYNC and int(have) > int(found.get(REPLICAS, have)):
        # More than there are replicas: nothing could be written.
        return False
    return int(have) >= int(wanted) if setting in _AT_LEAST else have == wanted


def _note(setting: str, found: str, wanted: str) -> str:
    if setting == PARTITIONS:
        return _GROWS
    if setting == REPLICAS:
        return _REASSIGN
    if setting in (RETENTION_MS, RETENTION_BYTES):
        return _SHRINKS if int(wanted) >= 0 and not 0 <= int(found) < int(wanted) else ""
    return ""
