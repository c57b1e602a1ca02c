"""Cuts between brokers: which links are silent, which way, and what nodes are told so that they go through them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from harness.mesh import Mesh, lost, moods
from harness.proxy import Mood
from harness.rows.catalogue import ROWS

from deploy.kafka.properties import Address, server_properties

CONTROLLER = 100
WAYS = [*itertools.permutations((1, 2, 3), 2), *((who, CONTROLLER) for who in (1, 2, 3))]
SILENT = Mood(silent_up=True, silent_down=True)


@pytest.mark.parametrize(
    ("how", "cut"),
    [
        ("followers", {(2, 1), (2, 3), (1, 2), (3, 2)}),
        ("controller", {(2, CONTROLLER)}),
        ("both", {(2, 1), (2, 3), (1, 2), (3, 2), (2, CONTROLLER)}),
    ],
)
def test_a_cut_silences_exactly_the_selected_connections(how: str, cut: set[tuple[int, int]]) -> None:
    behaviour = moods(WAYS, lost(2, (1, 3), CONTROLLER, how))
    assert {way for way, mood in behaviour.items() if mood == SILENT} == cut
    assert {way for way, mood in behaviour.items() if mood == Mood()} == set(WAYS) - cut


def test_one_way_is_one_way_whoever_has_connected() -> None:
    out, back = (moods(WAYS, lost(2, (1, 3), CONTROLLER, how)) for how in ("both-out", "both-in"))
    assert out[2, 1] == out[2, CONTROLLER] == Mood(silent_up=True)
    assert out[1, 2] == Mood(silent_down=True)
    assert back[2, 1] == back[2, CONTROLLER] == Mood(silent_down=True)
    assert back[1, 2] == Mood(silent_up=True)
    assert out[1, 3] == back[1, 3] == Mood()


def test_a_missing_link_is_not_cut() -> None:
    for how in ("neighbours", "both-sideways"):
        with pytest.raises(KeyError):
            lost(1, (2, 3), CONTROLLER, how)


def test_rows_cut_only_what_exists() -> None:
    drawn = [
        fault
        for row in ROWS.values()
        for seed in range(5)
        for fault in row.schedule(random.Random(seed))
        if fault.what == "apart"
    ]
    assert {fault.how.partition("-")[0] for fault in drawn} == {"followers", "controller", "both"}
    assert all(lost(1, (2, 3), CONTROLLER, fault.how) for fault in drawn)


async def test_every_node_finds_the_others_by_links_of_its_own() -> None:
    addresses = [*(Address(number, 20_000 + number, None) for number in (1, 2, 3)), Address(CONTROLLER, None, 20_100)]
    mesh, ports = Mesh((1, 2, 3), CONTROLLER), itertools.count(30_000)
    await mesh.open(lambda: next(ports))
    try:
        told = {
            node.id: mesh.told(
                node.id, server_properties(node, addresses, data=Path("data"), security=None, settings={})
            )
            for node in addresses
        }
    finally:
        await mesh.close()
    listening, reached = (
        {node: _ports(properties[name]) for node, properties in told.items()}
        for name in ("listeners", "advertised.listeners")
    )
    voters = {told[broker]["controller.quorum.voters"] for broker in (1, 2, 3)}
    for broker in (1, 2, 3):
        way, asks = told[broker]["inter.broker.listener.name"], told[broker]["controller.listener.names"]
        # Nobody but this broker comes by its name, and on the way to another node it never comes to a port of that node
        # itself.
        assert all(told[other]["inter.broker.listener.name"] != way for other in {1, 2, 3} - {broker})
        assert all(reached[other][way] != listening[other][way] for other in {1, 2, 3} - {broker})
        assert told[broker]["controller.quorum.voters"] == f"{CONTROLLER}@127.0.0.1:{reached[CONTROLLER][asks]}"
        assert reached[CONTROLLER][asks] != listening[CONTROLLER][asks]
        assert asks in told[CONTROLLER]["controller.listener.names"].split(",")
        assert {way, asks} <= {
            each.partition(":")[0] for each in told[broker]["listener.security.protocol.map"].split(",")
        }
    assert len(voters) == 3
    everywhere = [port for node in told for port in {*listening[node].values(), *reached[node].values()}]
    assert len(everywhere) == len(set(everywhere))


def _ports(listeners: str) -> dict[str, int]:
    return {each.partition(":")[0]: int(each.rpartition(":")[2]) for each in listeners.split(",")}
