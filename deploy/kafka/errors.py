"""What can go wrong with a local Kafka, drawn as a tree.

KafkaError
├── KafkaUnavailableError   this machine cannot run one: no jars, no Java
└── KafkaFailedError        a node died, did not become ready, or would not stop
"""

from __future__ import annotations

__all__ = ["KafkaError", "KafkaFailedError", "KafkaUnavailableError"]


class KafkaError(Exception):
    """A local Kafka is not there; the sentence says why and what to do."""


class KafkaUnavailableError(KafkaError):
    """This machine cannot run a local Kafka: its jars or a Java runtime are missing."""


class KafkaFailedError(KafkaError):
    """A node died, or did not do what it was told in time."""
