"""The shape of the house: who may import whom, and that modules stay small and say what they own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LADDER = ("bus", "producers", "consumers")
MODULES = sorted(path for package in LADDER for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 300


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_packages_import_only_those_below_them_on_the_ladder(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    above = set(LADDER[LADDER.index(package) + 1 :]) | {"sealbus"}
    assert not tops(path) & above


@pytest.mark.parametrize("path", sorted((ROOT / "bus" / "transports").rglob("*.py")), ids=label)
def test_transports_carry_bytes_and_never_import_the_envelope(path: Path) -> None:
    envelope = ("bus.envelope", "bus.sealing", "bus.payloads", "bus.proof", "bus.shape", "bus.canonical", "bus.signing", "bus.vocabulary")
    assert not [name for name in imported(path) if name.startswith(envelope)]


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_only_the_kafka_adapter_imports_aiokafka(path: Path) -> None:
    assert "aiokafka" not in tops(path) or "transports/kafka" in path.as_posix()


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_no_package_imports_settings_as_a_module(path: Path) -> None:
    assert "config" not in tops(path)


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_every_module_opens_with_what_it_is(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "no docstring"


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_no_module_is_longer_than_300_lines_without_saying_why(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert len(lines) <= MAX_LINES or "Longer than 300 lines" in "\n".join(lines[:20])


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_no_module_is_a_drawer(path: Path) -> None:
    assert path.stem not in {"utils", "util", "common", "helpers", "misc", "manager"}


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_all_is_exact_and_sorted(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    ]
    if not listed:
        return
    names = listed[0]
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        defined |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.Import | ast.ImportFrom) and path.name == "__init__.py":
            defined |= {alias.asname or alias.name for alias in node.names}
    assert len(set(names)) == len(names)
    assert set(names) <= defined


def test_config_is_no_package() -> None:
    assert not list((ROOT / "config").rglob("*.py"))


def test_tests_are_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_facade_exports_what_it_lists() -> None:
    import sealbus

    assert sorted(sealbus.__all__) == sealbus.__all__
    assert all(hasattr(sealbus, name) for name in sealbus.__all__)
