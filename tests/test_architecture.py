"""The shape of the house: who may import whom, and that modules stay small and say what they own. Each test names its
offenders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
LADDER = ("bus", "producers", "consumers")
ROOMS = (
    "deadletters",
    "delivery",
    "processes",
    "worker",
    "tools",
    "app",
    "web",
    "gateway",
    "agents",
    "operations",
    "adapters",
    "scaffold",
    "cli",
)
"""The folders of `consumers`, from the lowest to the highest."""
MODULES = sorted(path for package in LADDER for path in (ROOT / package).rglob("*.py"))
TREES = {path: ast.parse(path.read_text("utf-8")) for path in MODULES}
ENVELOPE = ("bus.protocol", "bus.payloads", "bus.trust", "bus.vocabulary")
MAX_NEEDED, MAX_COLLABORATORS = 8, 10
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


FACES = {"decode", "encode", "open_url", "options_of", "serve", "tools", "untrusted"}
"""What each dialect, transport and adapter has under the same name, so that its place is enough to call it."""
WITH_FACES = ("bus/dialects", "bus/transports", "consumers/adapters")


def test_a_public_name_is_given_once_in_the_product() -> None:
    places: dict[str, list[str]] = {}
    for path, tree in TREES.items():
        if path.parent.name == "native":
            # A twin has the name of what is compiled.
            continue
        faces = (
            FACES
            if any(
                map(path.is_relative_to, (ROOT / "bus/dialects", ROOT / "bus/transports", ROOT / "consumers/adapters"))
            )
            else set()
        )
        for name in public_names(tree) - faces:
            places.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def public_names(tree: ast.Module) -> set[str]:
    """What the top level of a module defines. A command of the command line has the name that people type."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not any(is_command(each) for each in node.decorator_list):
                names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def is_command(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") in ("command", "group")


def test_no_function_needs_more_than_eight_arguments() -> None:
    found = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                positional = [*given.posonlyargs, *given.args]
                needed = len(positional) - len(given.defaults) + given.kw_defaults.count(None)
                needed -= bool(positional) and positional[0].arg in ("self", "cls")
                if needed > MAX_NEEDED:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert found == []


def test_a_class_has_at_most_ten_collaborators() -> None:
    """`Worker` drives all parts; the options of `App` are its user's."""
    found = {}
    for tree in TREES.values():
        for node in tree.body:
            if not isinstance(node, ast.ClassDef):
                continue
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    found[node.name] = len(method.args.args) + len(method.args.kwonlyargs) - 1
    assert {name for name, count in found.items() if count > MAX_COLLABORATORS} <= {"App", "Worker"}


def test_the_map_has_a_row_for_exactly_the_folders_with_code() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    rows = text[text.index("## The map") : text.index("## Where is it decided")].splitlines()
    named = {name for row in rows if row.startswith("| `") for name in re.findall(r"`([\w/]+)/`", row.split("|")[1])}
    folders = {path.parent.relative_to(ROOT).as_posix() for path in MODULES}
    assert named == folders | {"tests"}


def test_a_private_name_of_a_product_module_is_read_in_it() -> None:
    assert {name_of(path): unread for path, tree in TREES.items() if (unread := unread_private_names(tree))} == {}


def unread_private_names(tree: ast.Module) -> set[str]:
    """What the top level of a module assigns to a private name, and nothing in the module reads."""
    assigned = [each for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign)]
    stored = {name.id for each in assigned for name in ast.walk(each) if isinstance(name, ast.Name)}
    read = {name.id for name in ast.walk(tree) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)}
    return {name for name in stored - read if name.startswith("_") and not name.endswith("_")}


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


def test_test_folders_are_not_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_every_module_has_a_docstring() -> None:
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
