"""The registry folder: immutable, ordered by SemVer, and nothing leads out of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bus.errors import ConfigurationError, ContractError
from bus.schemas.schema_folder import SchemaFolder
from bus.schemas.versions import SchemaVersion

ONE = SchemaVersion(1, 0, 0)


def test_a_published_schema_is_read_back(tmp_path: Path) -> None:
    folder = SchemaFolder(tmp_path)
    assert folder.publish("task.moved", ONE, {"type": "object"})
    assert folder.read("task.moved", ONE) == {"type": "object"}
    assert folder.types() == ("task.moved",)


def test_the_same_schema_may_be_published_again(tmp_path: Path) -> None:
    folder = SchemaFolder(tmp_path)
    folder.publish("task.moved", ONE, {"type": "object"})
    assert not folder.publish("task.moved", ONE, {"type": "object"})


def test_a_published_version_never_changes(tmp_path: Path) -> None:
    folder = SchemaFolder(tmp_path)
    folder.publish("task.moved", ONE, {"type": "object"})
    with pytest.raises(ContractError, match="never changes"):
        folder.publish("task.moved", ONE, {"type": "array"})
    assert folder.read("task.moved", ONE) == {"type": "object"}


def test_versions_are_in_semver_order(tmp_path: Path) -> None:
    folder = SchemaFolder(tmp_path)
    for text in ("1.10.0", "1.2.0", "1.9.0"):
        folder.publish("task.moved", SchemaVersion.of(text), {})
    assert [str(version) for version in folder.versions("task.moved")] == ["1.2.0", "1.9.0", "1.10.0"]


@pytest.mark.parametrize("name", ["../etc", "a/b", "..", "", "Task", "task.dlq", "a\x00b"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ContractError, match="is not a message type"):
        SchemaFolder(tmp_path / "schemas").publish(name, ONE, {})
    assert list(tmp_path.iterdir()) == []


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("ours")
    (tmp_path / "task.moved").mkdir()
    (tmp_path / "task.moved" / "latest.json").write_text("{}")
    assert SchemaFolder(tmp_path).types() == ()


def test_an_invalid_schema_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "task.moved").mkdir()
    (tmp_path / "task.moved" / "1.0.0.json").write_text("[")
    with pytest.raises(ConfigurationError, match=r"1\.0\.0\.json"):
        SchemaFolder(tmp_path).read("task.moved", ONE)


def test_one_of_two_concurrent_exports_wins(tmp_path: Path) -> None:
    outcomes: list[object] = []

    def publish(number: int) -> None:
        try:
            outcomes.append(SchemaFolder(tmp_path).publish("task.moved", ONE, {"number": number}))
        except ContractError:
            outcomes.append("refused")

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(True) == 1
    assert outcomes.count("refused") == 7
    assert list((tmp_path / "task.moved").glob("*")) == [tmp_path / "task.moved" / "1.0.0.json"]
