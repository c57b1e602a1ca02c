"""Ports for nodes: never the same for two, and never one that is in use."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.kafka.ports import Ports, is_free


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Ports, Ports]]:
    both = Ports(tmp_path), Ports(tmp_path)
    yield both
    for ports in both:
        ports.release()


def test_a_port_in_use_is_not_reserved(two: tuple[Ports, Ports]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
        assert not two[0].keep(port)


def test_a_port_is_kept_by_one_until_it_is_released(two: tuple[Ports, Ports]) -> None:
    first, second = two
    port = first.take()
    assert first.keep(port)
    assert not second.keep(port)
    first.release()
    assert second.keep(port)


def test_ports_lie_outside_the_range_of_clients(two: tuple[Ports, Ports]) -> None:
    taken = {two[0].take() for _ in range(50)}
    assert len(taken) == 50
    assert all(20_000 <= port <= 32_000 for port in taken)
