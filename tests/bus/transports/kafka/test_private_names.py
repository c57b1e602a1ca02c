"""aiokafka's private names that the Kafka adapter reads or replaces: each is still there, and none is used that is not
in this table.

The dependency is pinned to one minor version because of them (`pyproject.toml`).
"""

from __future__ import annotations

import ast
import inspect
import re
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import Assignment, Subscription, SubscriptionState, TopicPartitionState
from aiokafka.producer.sender import Sender
from aiokafka.record import default_records, memory_records, util

import bus.transports.kafka as adapter

# Of instances: set in the class's own source. Of classes: methods.
ATTRIBUTES: list[tuple[type[Any], str]] = [
    (AIOKafkaConsumer, "_client"),
    (AIOKafkaConsumer, "_coordinator"),
    (AIOKafkaConsumer, "_fetcher"),
    (AIOKafkaConsumer, "_subscription"),
    (AIOKafkaAdminClient, "_client"),
    (AIOKafkaClient, "_topics"),
    (AIOKafkaProducer, "_sender"),
    (AIOKafkaProducer, "_closed"),
    (GroupCoordinator, "_do_commit_offsets"),
    (GroupCoordinator, "_coordination_task"),
    (GroupCoordinator, "_heartbeat_task"),
    (GroupCoordinator, "_commit_refresh_task"),
    (default_records._DefaultRecordBatchPy, "_maybe_uncompress"),
    (default_records._DefaultRecordBatchPy, "_buffer"),
    (default_records._DefaultRecordBatchPy, "_pos"),
    (default_records._DefaultRecordBatchPy, "_num_records"),
    (PartitionRecords, "_consumer_record"),
]
# Public by name, but not documented: what the private objects above are asked for.
UNDOCUMENTED: list[tuple[type[Any], str]] = [
    (GroupCoordinator, "generation"),
    (GroupCoordinator, "member_id"),
    (GroupCoordinator, "request_rejoin"),
    (SubscriptionState, "subscription"),
    (SubscriptionState, "abort_waiters"),
    (Subscription, "assignment"),
    (Assignment, "state_value"),
    (TopicPartitionState, "lso"),
    (TopicPartitionState, "highwater"),
    (TopicPartitionState, "timestamp"),
    (Sender, "sender_task"),
]
MODULE_NAMES: list[tuple[Any, str]] = [
    (default_records, "_DefaultRecordBatchPy"),
    (memory_records, "_MemoryRecordsPy"),
    (util, "decode_varint_py"),
]


@pytest.mark.parametrize(
    ("owner", "name"), ATTRIBUTES + UNDOCUMENTED, ids=lambda value: getattr(value, "__name__", value)
)
def test_the_installed_client_still_has_it(owner: type[Any], name: str) -> None:
    source = "".join(inspect.getsource(part) for part in owner.__mro__[:-1] if part.__module__.startswith("aiokafka"))
    assert hasattr(owner, name) or re.search(rf"self\.{name}\b", source)


@pytest.mark.parametrize(("module", "name"), MODULE_NAMES, ids=lambda value: getattr(value, "__name__", value))
def test_the_installed_module_still_has_it(module: Any, name: str) -> None:
    assert hasattr(module, name)


def test_the_adapter_uses_no_other_private_name() -> None:
    known = {name for _, name in (*ATTRIBUTES, *MODULE_NAMES)}
    assert _private_names(Path(adapter.__file__).parent) - known == set()


def test_the_dependency_is_pinned_to_one_minor_version() -> None:
    pyproject = Path(__file__).parents[4].joinpath("pyproject.toml").read_text()
    assert '"aiokafka>=0.14,<0.15"' in pyproject
    assert requires("aiokafka") is not None


def _private_names(folder: Path) -> set[str]:
    """Private names that are asked of anything but `self`, imported from aiokafka, or given to getattr as text."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text())
        own = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and not (
                isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            ):
                if _is_private(node.attr) and node.attr not in own:
                    found.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiokafka"):
                found |= {alias.name for alias in node.names if _is_private(alias.name)}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                # The name as text, or one of a row of them that the comprehension around it has.
                found |= {
                    text.value
                    for text in ast.walk(tree)
                    if isinstance(text, ast.Constant) and _is_text_of_private(text.value)
                } - own
    return found


def _is_text_of_private(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"_[a-z][a-z_]+", value) is not None


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
