"""What is measured: families of variants, how many messages each, and what each variant does for its user and what not.

Owns the list. Does not own how anything is measured; a variant names a function of another module, which only the
measuring process imports.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from speed.rows import CONSUME, PATHS, PUBLISH, QUEUE_CONSUME, QUEUE_PUBLISH, SEALED

__all__ = ["FAMILIES", "VARIANTS", "Family", "Variant", "chosen", "of_family"]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Variants that are measured in the same rounds. *rounds* is how often at most."""

    name: str
    title: str
    log: str = "kafka"
    source: str = ""
    """The topic or file of sealed messages that all its variants read: sealed, or sealed-plain."""
    compression: str = "zstd"
    unit: str = "messages/s"
    rounds: int = 1_000


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One way of doing what the family does. *quick* messages with --quick, else *messages*; one in *warm_up_part* more
    come first."""

    name: str
    family: str
    label: str
    function: str
    does: str
    messages: int
    quick: int
    warm_up_part: int = 10
    partitions: int = 12
    ours: bool = False
    native: Literal["", "off", "require"] = ""
    """SEALBUS_NATIVE of its process; empty leaves it alone."""

    @property
    def id(self) -> str:
        """As the command line and the results name it."""
        return f"{self.family}/{self.name}"


FAMILIES = (
    Family(name="publish", title="Publishing many messages to Kafka, compressed as sealbus does by default (zstd)"),
    Family(name="publish-plain", title="Publishing many messages to Kafka, uncompressed", compression="none"),
    Family(name="single", title="Publishing by a thousand concurrent calls of one message each"),
    Family(name="latency", title="Publishing one message after another, 200 in a second", unit="ms"),
    Family(name="partitions", title="Publishing to 1 and to 256 partitions"),
    Family(
        name="consume", title="Consuming sealed messages from Kafka, the same topic for all (zstd)", source="sealed"
    ),
    Family(
        name="consume-plain",
        title="Consuming sealed messages from Kafka, the same topic for all, uncompressed",
        source="sealed-plain",
        compression="none",
    ),
    Family(
        name="embedded-publish", title="Publishing to a file on this machine, synchronised at every commit", log="file"
    ),
    Family(
        name="embedded-consume",
        title="Consuming from a file on this machine, synchronised at every commit",
        log="file",
        source="sealed",
    ),
    Family(name="inbox", title="Messages with idempotency keys, on the embedded log", log="file", source="keyed"),
    Family(name="native-publish", title="The compiled hot path: publish_many to Kafka with it and without"),
    Family(
        name="native-consume", title="The compiled hot path: a worker on Kafka with it and without", source="sealed"
    ),
    Family(name="memory", title="Resident memory over many messages, on the embedded log", log="file", rounds=1),
)


def _is_ours(name: str) -> bool:
    return name.startswith("sealbus")


def _publish(family: str) -> list[Variant]:
    return [
        Variant(
            name=name,
            family=family,
            label=label,
            function=function,
            does=does,
            messages=160_000 // part,
            quick=(8_000 if part > 1 else 16_000) // part,
            ours=_is_ours(name),
        )
        for name, label, function, does, part in PUBLISH
    ]


def _consume(family: str) -> list[Variant]:
    return [
        Variant(
            name=name,
            family=family,
            label=label,
            function=function,
            does=does,
            messages=320_000 // part,
            quick=64_000 // part,
            ours=_is_ours(name),
        )
        for name, label, function, does, part in CONSUME
    ]


def _queues(family: str, rows: tuple[tuple[str, str, str, str, int], ...]) -> list[Variant]:
    return [
        Variant(
            name=name,
            family=family,
            label=label,
            function=function,
            does=does,
            messages=80_000 // part,
            quick=max(1_000, 12_000 // part),
            ours=_is_ours(name),
        )
        for name, label, function, does, part in rows
    ]


def _paths(family: str) -> list[Variant]:
    return [
        Variant(
            name=name,
            family=family,
            label=label,
            function=function,
            does=SEALED
            if family == "native-publish"
            else "verified, typed, order per key, retries, commits after handling",
            messages=160_000,
            quick=32_000,
            ours=native == "require",
            native=native,
        )
        for where, name, label, function, native in PATHS
        if where == family
    ]


def _partitions() -> list[Variant]:
    return [
        Variant(
            name=f"{name}-{partitions}",
            family="partitions",
            label=f"{label}, {partitions} partition{'s' if partitions > 1 else ''}",
            function=function,
            does=does,
            messages=100_000,
            quick=10_000,
            # Every partition is written to before the time begins.
            warm_up_part=3,
            partitions=partitions,
            ours=_is_ours(name),
        )
        for name, label, function, does, _ in PUBLISH
        if name in ("aiokafka-send", "sealbus-many")
        for partitions in (1, 256)
    ]


VARIANTS = (
    *_publish("publish"),
    *_publish("publish-plain"),
    Variant(
        name="aiokafka-single",
        family="single",
        label="aiokafka gather(1,000 send_and_wait)",
        function="kafka_single:aiokafka_single",
        does="no seal, no types; bytes; keyed",
        messages=40_000,
        quick=6_000,
    ),
    Variant(
        name="confluent-single",
        family="single",
        label="confluent-kafka AIOProducer, 1,000 produce and a flush",
        function="kafka_single:confluent_single",
        does="no seal, no types; bytes; keyed; C client",
        messages=40_000,
        quick=6_000,
    ),
    Variant(
        name="sealbus-single",
        family="single",
        label="sealbus, 1,000 concurrent publish",
        function="sealbus_publish:single",
        does=f"{SEALED}; Structs given; a receipt for each",
        messages=40_000,
        quick=6_000,
        ours=True,
    ),
    Variant(
        name="aiokafka-latency",
        family="latency",
        label="aiokafka send_and_wait, no linger",
        function="kafka_single:aiokafka_latency",
        does="no seal, no types; bytes",
        messages=1_000,
        quick=300,
        warm_up_part=3,
    ),
    Variant(
        name="sealbus-latency",
        family="latency",
        label="sealbus publish",
        function="sealbus_publish:latency",
        does=f"{SEALED}; Structs given",
        messages=1_000,
        quick=300,
        warm_up_part=3,
        ours=True,
    ),
    *_partitions(),
    *_consume("consume"),
    *_consume("consume-plain"),
    *_queues("embedded-publish", QUEUE_PUBLISH),
    *_queues("embedded-consume", QUEUE_CONSUME),
    Variant(
        name="inbox-on",
        family="inbox",
        label="sealbus run, inbox on (SQLite)",
        function="sealbus_consume:inbox_on",
        does="a repeat of a key runs nothing; effects in one transaction",
        messages=30_000,
        quick=4_000,
        ours=True,
    ),
    Variant(
        name="inbox-off",
        family="inbox",
        label='sealbus run, dedup="off"',
        function="sealbus_consume:inbox_off",
        does="a handler may run twice for one key",
        messages=30_000,
        quick=4_000,
        ours=True,
    ),
    *_paths("native-publish"),
    *_paths("native-consume"),
    Variant(
        name="processes",
        family="memory",
        label="sealbus publish and sealbus run, side by side",
        function="memory:processes",
        does="the commands as people run them; the peak is the worker's",
        messages=1_000_000,
        quick=60_000,
        ours=True,
    ),
)


def of_family(name: str) -> list[Variant]:
    """The variants of one family, in their order."""
    return [variant for variant in VARIANTS if variant.family == name]


def chosen(names: list[str], *, quick: bool) -> list[Variant]:
    """The variants that *names* (of families or variants) name; without names all, with *quick* those of the default
    comparison."""
    known = {family.name for family in FAMILIES} | {variant.id for variant in VARIANTS}
    unknown = sorted(set(names) - known)
    if unknown:
        raise ValueError(f"there is no {', '.join(unknown)}; --list shows what there is")
    if names:
        return [variant for variant in VARIANTS if variant.family in names or variant.id in names]
    return [variant for variant in VARIANTS if not (quick and variant.family.endswith("-plain"))]
