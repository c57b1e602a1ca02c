"""The one table of gates: every entry is asked about every record, wherever it stands, and on both ways."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus import gates
from bus.errors import ContractError
from bus.protocol.reasons import REASON_TABLE
from sealbus import App, payload

ROOT = Path(gates.__file__).parents[2]
PLACES = [*range(1, len(gates.GATES) + 1)]


@payload("gate.low", version="1.0.0", risk="low", performative="inform")
class Low(msgspec.Struct, frozen=True, kw_only=True):
    n: int


@payload("gate.high", version="1.0.0", risk="high", performative="request")
class High(msgspec.Struct, frozen=True, kw_only=True):
    n: int


@pytest.fixture
def fresh_walks() -> Iterator[None]:
    gates._between.cache_clear()
    yield
    gates._between.cache_clear()


def _with_probe(monkeypatch: pytest.MonkeyPatch, entry: Any, at: int) -> None:
    monkeypatch.setattr(gates, "GATES", (*gates.GATES[:at], entry, *gates.GATES[at:]))
    gates._between.cache_clear()


@pytest.mark.parametrize("cls", [Low, High])
@pytest.mark.parametrize("at", PLACES)
@pytest.mark.usefixtures("fresh_walks")
async def test_an_added_gate_is_asked_of_every_record(at: int, cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def probe(case: gates.Case, checks: gates.Checks) -> bool:
        asked.append(case.record.offset)
        return True

    stage: Any = "after_inbox" if at > 7 else "before_inbox"
    _with_probe(monkeypatch, gates.Gate("probe", probe, stage), at)
    app, handled = App("gated@svc"), list[int]()

    @app.on(cls)
    async def handle(message: Any) -> None:
        handled.append(message.n)

    async with app.test() as bus:
        for n in range(5):
            await bus.publish(cls(n=n), key="one")
            await bus.settle()
    assert handled == list(range(5))
    assert len(asked) == 5


@pytest.mark.usefixtures("fresh_walks")
async def test_a_gate_without_a_declared_dependency_runs_for_every_record(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def probe(case: gates.Case, checks: gates.Checks) -> bool:
        asked.append(1)
        return True

    _with_probe(monkeypatch, ("probe", probe), len(gates.GATES))
    app = App("gated@svc")

    @app.on(Low)
    async def handle(_: Low) -> None: ...

    async with app.test() as bus:
        for n in range(4):
            await bus.publish(Low(n=n), key="one")
            await bus.settle()
    assert len(asked) == 4


@pytest.mark.usefixtures("fresh_walks")
async def test_an_added_gate_refuses_records_also_after_valid_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbids(case: gates.Case, checks: gates.Checks) -> bool:
        if b'"n":3' in case.message.value:
            raise ContractError("holds the forbidden number", "/data/n", "semantic_violation")
        return True

    _with_probe(monkeypatch, gates.Gate("content", forbids, "before_inbox"), 6)
    app, handled = App("gated@svc"), list[int]()

    @app.on(Low)
    async def handle(message: Low) -> None:
        handled.append(message.n)

    async with app.test() as bus:
        for n in range(6):
            await bus.publish(Low(n=n), key="one")
            await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["semantic_violation"]
    assert handled == [0, 1, 2, 4, 5]


@pytest.mark.medium
def test_gates_are_called_only_through_the_table() -> None:
    functions = {name for name in gates.__all__ if name.endswith("_gate")}
    found = []
    for package in ("bus", "producers", "consumers"):
        for path in (ROOT / package).rglob("*.py"):
            if path.parent == Path(gates.__file__).parent:
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in functions:
                    found.append(f"{path.name}:{node.lineno} {name}")
    assert found == []


def test_the_entries_and_the_reasons_name_the_same_gates_in_the_same_order() -> None:
    names = [name for name, _ in gates.GATES]
    assert [gate for gate in REASON_TABLE if gate in names] == names
