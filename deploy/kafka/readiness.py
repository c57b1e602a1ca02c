"""When a node is ready: when a real client gets an answer from it that names enough brokers.

Owns the question. An open port is too early: nodes listen long before they know their cluster.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

__all__ = ["brokers_known", "wait_until"]

_POLL_S = 0.1
_ANSWER_TIMEOUT_S = 3.0
_SILENT = logging.getLogger("deploy.kafka.readiness.client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def brokers_known(port: int, settings: Mapping[str, str]) -> frozenset[int]:
    """Ask the node at this port, and no other, which brokers are alive; none while it does not answer."""
    if not _listens(port):
        return frozenset()
    # A new client each time: one that knows the other brokers asks any of them.
    client = AdminClient({**settings, "bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}, logger=_SILENT)
    try:
        return frozenset(client.list_topics(timeout=_ANSWER_TIMEOUT_S).brokers)
    except KafkaException:
        return frozenset()


def wait_until(met: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until it is so; False when time is up."""
    deadline_s = time.monotonic() + timeout_s
    while not met():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
