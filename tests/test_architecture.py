"""The shape of the house: who may import whom, and that modules stay small and say what they own. Each test names its
offenders."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import sealbus

ROOT = Path(__file__).parent.parent
LADDER = ("bus", "producers", "consumers")
ROOMS = ("deadletters", "delivery", "processes", "worker", "app", "agents", "operations", "cli")
"""The folders of `consumers`, from the lowest to the highest."""
MODULES = sorted(path for package in LADDER for path in (ROOT / package).rglob("*.py"))
TREES = {path: ast.parse(path.read_text("utf-8")) for path in MODULES}
ENVELOPE = ("bus.protocol", "bus.payloads", "bus.trust", "bus.vocabulary")
DRAWERS = {"utils", "util", "common", "helpers", "misc", "manager"}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "."} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path): path for path in MODULES}


def modules_imported(path: Path) -> set[str]:
    """Our modules that *path* imports, wherever in it; `from package import module` is that module."""
    found = set()
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {
                inner if (inner := f"{node.module}.{alias.name}") in NAMES else str(node.module) for alias in node.names
            }
    return found & NAMES.keys() - {name_of(path)}


IMPORTS = {name: modules_imported(path) for name, path in NAMES.items()}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that each lead to each other: what is left when nodes that nothing leads to, or that lead
    nowhere, are taken away."""
    graph = {node: set(others) for node, others in graph.items()}
    while True:
        led_to = set().union(*graph.values()) if graph else set()
        loose = {node for node, others in graph.items() if not others or node not in led_to}
        if not loose:
            return [sorted(graph)] if graph else []
        graph = {node: others - loose for node, others in graph.items() if node not in loose}


def labels(paths: Iterable[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def above(path: Path) -> set[str]:
    return set(LADDER[LADDER.index(path.relative_to(ROOT).parts[0]) + 1 :]) | {"sealbus"}


def test_packages_import_only_those_below_them_on_the_ladder() -> None:
    assert labels(path for path in MODULES if tops(path) & above(path)) == []


def test_no_module_imports_itself_through_others() -> None:
    assert circles(IMPORTS) == []


def test_no_folder_imports_from_one_that_imports_it() -> None:
    assert {place: found for place, level in levels().items() if (found := circles(level))} == {}


def levels() -> dict[str, dict[str, set[str]]]:
    """By package, which of its entries (a folder or a file) import which others of them. A folder's `__init__` is its
    face, no entry."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, others in IMPORTS.items():
        for other in others:
            here, there = name.split("."), other.split(".")
            same = next((place for place, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
            if same is not None:
                level = found.setdefault(".".join(here[:same]), {})
                level.setdefault(here[same], set()).add(there[same])
                level.setdefault(there[same], set())
    return found


def test_the_rooms_of_consumers_import_only_those_below_them() -> None:
    rooms = [path.name for path in (ROOT / "consumers").iterdir() if (path / "__init__.py").exists()]
    assert sorted(rooms) == sorted(ROOMS)
    assert [path.name for path in (ROOT / "consumers").glob("*.py")] == ["__init__.py"]
    found = levels()["consumers"]
    assert {room: sorted(found[room] - set(ROOMS[: ROOMS.index(room)])) for room in ROOMS} == {r: [] for r in ROOMS}


def test_the_kafka_adapter_can_be_taken_in_at_a_glance() -> None:
    adapter = ROOT / "bus/transports/kafka"
    assert (
        len([entry for entry in adapter.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()]) <= 12
    )


def test_no_class_name_is_given_twice() -> None:
    places: dict[str, list[str]] = {}
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_imports_are_absolute() -> None:
    assert labels(path for path in MODULES if "" in tops(path)) == []


def test_transports_carry_bytes_and_never_import_the_envelope() -> None:
    transports = [path for path in MODULES if "bus/transports" in path.as_posix()]
    assert transports
    assert labels(path for path in transports if any(name.startswith(ENVELOPE) for name in imported(path))) == []


def test_only_the_kafka_adapter_imports_aiokafka() -> None:
    assert (
        labels(path for path in MODULES if "aiokafka" in tops(path) and "transports/kafka" not in path.as_posix()) == []
    )


def test_config_is_data_and_never_a_module() -> None:
    assert labels(path for path in MODULES if "config" in tops(path)) == []
    assert list((ROOT / "config").rglob("*.py")) == []


def test_tests_are_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_every_module_opens_with_what_it_is() -> None:
    assert labels(path for path, tree in TREES.items() if tree.body and not ast.get_docstring(tree)) == []


def test_no_module_is_a_drawer() -> None:
    assert labels(path for path in MODULES if path.stem in DRAWERS) == []


def test_all_lists_only_what_is_there_and_once() -> None:
    assert labels(path for path, tree in TREES.items() if not listed(tree) <= defined(tree)) == []


def listed(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            names = ast.literal_eval(node.value)
            assert len(set(names)) == len(names)
            return set(names)
    return set()


def defined(tree: ast.Module) -> set[str]:
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def test_the_facade_exports_what_it_lists() -> None:
    assert sorted(sealbus.__all__) == sealbus.__all__
    assert all(hasattr(sealbus, name) for name in sealbus.__all__)


def test_only_what_was_admitted_is_delivered_to_a_handler_or_answers_a_request() -> None:
    """Security S21: what is accepted is made in one place each, behind the gate `policy` of the one table."""
    makers = {
        "Accepted": "consumers/delivery/receiving/verification.py",
        "Answer": "producers/requests/reply_reader.py",
    }
    made: dict[str, set[str]] = {}
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers:
                made.setdefault(node.func.id, set()).add(path.relative_to(ROOT).as_posix())
    assert made == {name: {place} for name, place in makers.items()}
    for place in makers.values():
        calls = {
            keyword.arg
            for node in ast.walk(TREES[ROOT / place])
            if isinstance(node, ast.Call)
            for keyword in node.keywords
        }
        assert {"admit", "policy"} <= calls, place
