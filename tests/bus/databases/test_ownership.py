"""Whose a file is: what the log and the inbox make is for one user, and what another one could change is refused with
what to do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.errors import ConfigurationError
from bus.transports import open_transport
from bus.transports.base import NewRecord, TopicSpec
from consumers.delivery.inbox.base import InboxKey
from consumers.delivery.inbox.open import open_inbox

Use = Callable[..., None]
KEY = InboxKey(namespace="agents", sender="s", message_type="a", group="g", idempotency_key="k")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def use_log(path: Path, *, shared_files: bool = False) -> None:
    async def used() -> None:
        transport = open_transport(f"sqlite:///{path}", shared_files=shared_files)
        try:
            await transport.admin.create_topics([TopicSpec(name="a.b")])
            await transport.append([NewRecord("a.b", None, b"{}")], timeout_s=5)
            check_companions(path)
        finally:
            await transport.close()

    asyncio.run(used())


def use_inbox(path: Path, *, shared_files: bool = False) -> None:
    async def used() -> None:
        inbox = open_inbox(f"sqlite:///{path}", owner="a", clock=SystemClock(), shared_files=shared_files)
        await inbox.open()
        try:
            await inbox.claim(KEY, "hash", keep_until_ms=1 << 50)
            check_companions(path)
        finally:
            await inbox.close()

    asyncio.run(used())


modes: dict[str, int] = {}


def check_companions(path: Path) -> None:
    """While it is in use: what SQLite keeps beside a file goes with the last connection."""
    modes.clear()
    modes.update({each.name: each.stat().st_mode & 0o777 for each in path.parent.glob(f"{path.name}*")})


@pytest.fixture(params=[use_log, use_inbox], ids=["log", "inbox"])
def use(request: pytest.FixtureRequest) -> Use:
    used: Use = request.param
    return used


@pytest.fixture
def path(tmp_path: Path, use: Use) -> Path:
    """A file that is in order."""
    use(tmp_path / "x.db")
    return tmp_path / "x.db"


def test_created_files_are_private_to_this_user(path: Path) -> None:
    assert modes == {"x.db": 0o600, "x.db-wal": 0o600, "x.db-shm": 0o600}


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_files_writable_by_others_are_refused(path: Path, use: Use, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod 600 it"):
        use(path)


def test_files_only_readable_by_others_are_accepted(path: Path, use: Use) -> None:
    path.chmod(0o644)
    use(path)


def test_a_symbolic_link_is_refused_whether_it_leads_anywhere_or_not(path: Path, use: Use, tmp_path: Path) -> None:
    for name, target in (("link.db", path), ("dangling.db", tmp_path / "none.db")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(ConfigurationError, match=r"symbolic link.*bus\.shared_files"):
            use(tmp_path / name)
    assert not (tmp_path / "none.db").exists()


def test_a_symbolic_link_to_its_directory_is_not(path: Path, use: Use, tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to(path.parent, target_is_directory=True)
    use(tmp_path / "folder" / "x.db")


def test_files_beside_the_database_are_checked_too(path: Path, use: Use) -> None:
    beside = path.with_name("x.db-wal")
    beside.touch()
    beside.chmod(0o666)
    with pytest.raises(ConfigurationError, match=r"x\.db-wal"):
        use(path)


@as_root
def test_another_users_file_is_refused_also_by_root(path: Path, use: Use) -> None:
    os.chown(path, 65_534, 65_534)
    with pytest.raises(ConfigurationError, match="belongs to user 65534, this is user 0"):
        use(path)


def test_shared_files_may_be_group_writable_and_links(path: Path, use: Use, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(path)
    path.chmod(0o660)
    if os.geteuid() == 0:
        os.chown(path, 65_534, 65_534)
    use(path, shared_files=True)
    use(tmp_path / "link.db", shared_files=True)


def test_shared_files_must_not_be_world_writable(path: Path, use: Use) -> None:
    path.chmod(0o666)
    with pytest.raises(ConfigurationError, match="everybody may write"):
        use(path, shared_files=True)


def test_shared_files_are_created_for_the_group(tmp_path: Path, use: Use) -> None:
    before = os.umask(0o022)
    try:
        use(tmp_path / "new.db", shared_files=True)
    finally:
        os.umask(before)
    assert modes == {"new.db": 0o660, "new.db-wal": 0o660, "new.db-shm": 0o660}
