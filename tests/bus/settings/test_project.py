"""A project's `sealbus.toml` is found from any folder of it, and its relative paths mean files beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bus.errors import ConfigurationError
from bus.settings import project
from bus.settings.loading import Loaded, load, load_project


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with settings, and the current folder three levels below."""
    folder = tmp_path / "desk"
    (folder / "src" / "desk").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("")
    (folder / "sealbus.toml").write_text('[bus]\nurl = "sqlite:///.sealbus/desk.db"\n')
    monkeypatch.chdir(folder / "src" / "desk")
    return folder


def found(**env: str) -> Loaded:
    return load_project(env=env)


# --- which file -------------------------------------------------------------------------------------------------------


def test_the_file_of_the_nearest_folder_is_read(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = found()
    assert loaded.file == desk / "sealbus.toml"
    assert loaded.origins["bus.url"] == f"file {desk / 'sealbus.toml'}"
    (desk / "src" / "sealbus.toml").write_text('[log]\nlevel = "debug"\n')
    assert found().settings.log.level == "debug"
    monkeypatch.chdir(desk)
    assert found().file == desk / "sealbus.toml"


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_the_search_ends_at_the_root_of_a_project(desk: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    inner = desk / "vendor" / "other"
    inner.mkdir(parents=True)
    (desk / "vendor" / mark).write_text("")
    monkeypatch.chdir(inner)
    assert found().file is None
    assert set(found().origins.values()) == {"default"}


def test_a_file_that_is_named_comes_first(desk: Path, tmp_path: Path) -> None:
    named, flagged = tmp_path / "named.toml", tmp_path / "flagged.toml"
    named.write_text('[log]\nlevel = "debug"\n')
    flagged.write_text('[log]\nlevel = "error"\n')
    assert found(SEALBUS_CONFIG=str(named)).file == named
    assert load_project(env={"SEALBUS_CONFIG": str(named)}, file=flagged).settings.log.level == "error"


def test_without_a_project_nothing_is_looked_for(desk: Path) -> None:
    assert load(env={}, file=None).file is None


@pytest.mark.parametrize(("owner", "me", "is_read"), [(1000, 1000, True), (0, 1000, True), (1000, 0, False)])
def test_another_users_file_is_not_read(
    desk: Path, monkeypatch: pytest.MonkeyPatch, owner: int, me: int, is_read: bool
) -> None:
    monkeypatch.setattr(project, "_owners", lambda _: {owner})
    monkeypatch.setattr(os, "getuid", lambda: me)
    if is_read:
        assert found().file == desk / "sealbus.toml"
        return
    with pytest.raises(ConfigurationError, match=f"user {owner}.*--config"):
        found()
    # Who names it has looked at it.
    assert load_project(env={}, file=desk / "sealbus.toml").file == desk / "sealbus.toml"


def test_a_current_folder_that_is_gone_has_no_project(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = desk / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert found().file is None


def test_a_folder_of_that_name_is_no_file(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk / "src" / "sealbus.toml").mkdir()
    assert found().file == desk / "sealbus.toml"


# --- relative paths ---------------------------------------------------------------------------------------------------


def test_relative_paths_in_a_file_are_relative_to_it(desk: Path) -> None:
    (desk / "sealbus.toml").write_text(
        """
        [bus]
        url = "sqlite:///data/my%20desk%3f.db"
        [inbox]
        url = "sqlite:///inbox.db"
        [worker]
        state_dir = "state"
        [trust]
        keys = "keys/jwks.json"
        key_file = "keys"
        [policy]
        file = "policy.toml"
        [audit]
        url = "sqlite:///audit.db"
        anchor = "anchor.txt"
        [kafka]
        ca_file = "ca.pem"
        cert_file = "cert.pem"
        key_file = "key.pem"
        """
    )
    settings = found().settings
    assert settings.bus.url == f"sqlite:///{desk}/data/my%20desk%3F.db"
    assert settings.inbox.url == f"sqlite:///{desk}/inbox.db"
    assert settings.worker.state_dir == str(desk / "state")
    assert (settings.trust.keys, settings.trust.key_file) == (str(desk / "keys/jwks.json"), str(desk / "keys"))
    assert settings.policy.file == str(desk / "policy.toml")
    assert (settings.audit.url, settings.audit.anchor) == (f"sqlite:///{desk}/audit.db", str(desk / "anchor.txt"))
    files = (settings.kafka.ca_file, settings.kafka.cert_file, settings.kafka.key_file)
    assert files == tuple(str(desk / name) for name in ("ca.pem", "cert.pem", "key.pem"))


def test_every_setting_that_names_a_file_is_relative_to_its_file() -> None:
    """A new setting of this kind is marked as one."""
    named = {name for name in load(env={}, file=None).origins if name.endswith(("_file", ".file", "_dir", ".url"))}
    assert named <= project_paths()


def project_paths() -> set[str]:
    from bus.settings.loading import _TYPES, _extra

    return {name for name, kind in _TYPES.items() if _extra(kind, "path")}


def test_what_is_no_relative_path_stays_as_it_is(desk: Path) -> None:
    (desk / "sealbus.toml").write_text(
        """
        [bus]
        url = "sqlite:////var/lib/desk.db"
        [inbox]
        url = "postgresql://localhost/desk"
        [worker]
        state_dir = "off"
        [trust]
        keys = "/etc/keys"
        key_file = ""
        [policy]
        file = "allow-all"
        """
    )
    settings = found().settings
    assert settings.bus.url == "sqlite:////var/lib/desk.db"
    assert settings.inbox.url == "postgresql://localhost/desk"
    assert (settings.worker.state_dir, settings.policy.file) == ("off", "allow-all")
    assert (settings.trust.keys, settings.trust.key_file) == ("/etc/keys", "")


def test_a_file_that_is_named_has_its_paths_beside_it_too(desk: Path, tmp_path: Path) -> None:
    assert load(env={}, file=Path("../../sealbus.toml")).settings.bus.url == f"sqlite:///{desk}/.sealbus/desk.db"


def test_paths_of_the_environment_and_of_flags_are_those_of_the_current_folder(desk: Path) -> None:
    loaded = load_project(env={"SEALBUS_POLICY__FILE": "p.toml"}, flags={"bus": "sqlite:///other.db"})
    assert (loaded.settings.policy.file, loaded.settings.bus.url) == ("p.toml", "sqlite:///other.db")


def test_a_project_has_one_log_though_its_file_names_none(desk: Path) -> None:
    (desk / "sealbus.toml").write_text('[log]\nlevel = "debug"\n')
    assert found().settings.bus.url == f"sqlite:///{desk}/sealbus.db"
    # Who names a file says nothing of a folder.
    assert load(env={}, file=desk / "sealbus.toml").settings.bus.url == "sqlite:///sealbus.db"
