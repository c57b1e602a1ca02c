"""Secret files as kubelet, systemd and Docker lay them out: what is safe is read, what is not is refused."""

from __future__ import annotations

import errno
import os
import pwd
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bus.errors import ConfigurationError
from bus.trust.keys.file_access import FileFacts, Mount, ReaderFacts, parse_mounts, secret_fault
from bus.trust.keys.private_keys import read_private_key
from bus.trust.keys.trusted_files import check_secret_file, check_trusted_file
from bus.trust.keys.trusted_keys import TrustedKeys
from tests.keyrings import write_keys

ROOT = Path(__file__).resolve().parents[4]
USER = 10001
ALICE, STAFF = 1000, 50
READER = ReaderFacts(user=USER, groups=frozenset({USER}))
FILE = FileFacts(mode=0o440, owner=0, group=USER, group_reads=True)
SWARM = Mount(point="/run/secrets/key", root="/key", kind="tmpfs", is_read_only=True)
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and "SEALBUS_REQUIRE_ROOT" not in os.environ, reason="lays files out for other users"
)


def changed(facts: FileFacts, **changes: object) -> FileFacts:
    return msgspec.structs.replace(facts, **changes)


@pytest.mark.parametrize(
    "file",
    [
        changed(FILE, mode=0o400, owner=USER),
        changed(FILE, mode=0o600, owner=USER),
        FILE,
        changed(FILE, owner=USER),
        changed(FILE, mode=0o640),
        changed(FILE, mode=0o440, group=0, group_reads=False, named=frozenset({USER})),
    ],
    ids=["own 0400", "own 0600", "kubelet with fsGroup", "own 0440", "daemon's 0640", "LoadCredential's list"],
)
def test_a_file_that_only_its_owner_and_this_process_can_read_is_safe(file: FileFacts) -> None:
    assert secret_fault(file, READER, None) is None


@pytest.mark.parametrize(
    ("file", "reader"),
    [
        (changed(FILE, owner=ALICE), READER),
        (changed(FILE, group=STAFF), READER),
        (FILE, msgspec.structs.replace(READER, shared=("alice",))),
        (changed(FILE, mode=0o640, owner=USER), READER),
        (changed(FILE, mode=0o460), READER),
        (changed(FILE, mode=0o442), READER),
        (changed(FILE, mode=0o444), READER),
        (changed(FILE, mode=0o450), READER),
        (changed(FILE, named=frozenset({USER, ALICE}), group_reads=False), READER),
        (changed(FILE, named_groups=frozenset({STAFF}), group_reads=False), READER),
        (changed(FILE, named=frozenset({USER}), group=STAFF), READER),
    ],
    ids=[
        "of another user",
        "of a foreign group",
        "of a group with members",
        "own and writable",
        "writable by the group",
        "writable by others",
        "readable by all",
        "executable",
        "a list names another user",
        "a list names a group",
        "a list and its group",
    ],
)
def test_a_file_that_others_can_read_or_write_is_unsafe(file: FileFacts, reader: ReaderFacts) -> None:
    assert secret_fault(file, reader, None) is not None


def test_a_docker_secret_in_memory_is_safe_and_the_same_file_elsewhere_is_not() -> None:
    secret = changed(FILE, mode=0o444, group=0)
    assert secret_fault(secret, READER, SWARM) is None
    for other in (
        {"is_read_only": False},
        {"kind": "ext4"},
        {"point": "/run"},
        {"point": "/run/secretsquirrel"},
        {"point": "/mnt/run/secrets/key"},
    ):
        assert secret_fault(secret, READER, msgspec.structs.replace(SWARM, **other)) is not None
    assert secret_fault(changed(secret, owner=ALICE), READER, SWARM) is not None
    assert secret_fault(changed(secret, mode=0o446), READER, SWARM) is not None
    assert secret_fault(secret, READER, None) is not None


def test_mounts_are_read_with_their_spaces_and_without_half_lines() -> None:
    text = (
        "36 35 98:0 /mnt1 /mnt\\0402 ro,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
        "nonsense\n63 43 0:39 / /run/secrets rw,relatime - tmpfs tmpfs rw\n"
    )
    assert parse_mounts(text) == [
        Mount(point="/mnt 2", root="/mnt1", kind="ext3", is_read_only=True),
        Mount(point="/run/secrets", root="/", kind="tmpfs", is_read_only=False),
    ]


# Folders on the way.


def test_a_folder_far_above_that_all_may_write_is_refused_unless_sticky(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    keys = tmp_path / "open" / "deploy" / "keys"
    keys.parent.mkdir(mode=0o755)
    jwks = write_keys(keys, "planner@svc")
    (tmp_path / "open").chmod(0o777)
    for check, path in ((check_secret_file, keys / "planner.pem"), (check_trusted_file, jwks)):
        with pytest.raises(ConfigurationError, match=f"may write {tmp_path / 'open'} "):
            check(path)
    (tmp_path / "open").chmod(0o1777)
    check_secret_file(keys / "planner.pem")
    check_trusted_file(jwks)


def test_a_link_in_a_folder_that_all_may_write_is_refused(tmp_path: Path) -> None:
    """Who can write the folder can lead the link to files of one's own."""
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o755)
    write_keys(volume / "..2026", "planner@svc")
    (volume / "..data").symlink_to("..2026")
    (volume / "jwks.json").symlink_to("..data/jwks.json")
    assert TrustedKeys(volume / "jwks.json").directory.keys
    volume.chmod(0o777)
    with pytest.raises(ConfigurationError, match=f"may write {volume} "):
        TrustedKeys(volume / "jwks.json")


def test_a_folder_that_a_link_on_the_way_passes_through_counts(tmp_path: Path) -> None:
    jwks = write_keys(tmp_path / "keys", "planner@svc")
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link.json").symlink_to(jwks)
    (tmp_path / "keys" / "first.json").symlink_to("../open/link.json")
    check_trusted_file(tmp_path / "keys" / "first.json")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigurationError, match=f"may write {tmp_path / 'open'} "):
        check_trusted_file(tmp_path / "keys" / "first.json")


def test_a_folder_above_may_be_written_by_a_group_of_ones_own(tmp_path: Path) -> None:
    """As where every user has a group, and files are made with umask 002."""
    keys = tmp_path / "project" / "keys"
    keys.parent.mkdir()
    write_keys(keys, "planner@svc")
    keys.parent.chmod(0o775)
    check_secret_file(keys / "planner.pem")
    if os.geteuid() != 0:
        return  # only root gives a folder to a group of others
    os.chown(keys.parent, -1, 54321)
    with pytest.raises(ConfigurationError, match=f"may write {keys.parent} "):
        check_secret_file(keys / "planner.pem")


# As other users, with real files.

READ = """
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from bus.errors import ConfigurationError
from bus.trust.keys.private_keys import read_private_key
from bus.trust.keys.trusted_keys import TrustedKeys
try:
    read_private_key(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        TrustedKeys(Path(sys.argv[2]))
except ConfigurationError as error:
    print("refused:", error)
else:
    print("read")
"""


def read_as(user: int, *paths: Path, groups: str = "", mounts: str = "true") -> str:
    """What a process of *user* says about a key and trusted keys, after *mounts* in a mount namespace of its own."""
    dropped = [
        "setpriv",
        f"--reuid={user}",
        f"--regid={user}",
        *([f"--groups={groups}"] if groups else ["--clear-groups"]),
    ]
    inner = subprocess.list2cmdline([*dropped, sys.executable, "-B", "-c", "$READ", *map(str, paths)])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", f"{mounts}\nexec {inner.replace('$READ', chr(34) + '$READ' + chr(34))}"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "READ": READ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_kubelet(folder: Path, group: int | None, mode: int = 0o400) -> Path:
    """A Secret volume: a data folder that is replaced as a whole, and links into it."""
    data = folder / "..2026_11_26_12_00_00.1"
    folder.mkdir()
    write_keys(data, "planner@svc")
    for path in data.iterdir():
        path.chmod(mode if group is None else mode | 0o440)
        os.chown(path, 0, -1 if group is None else group)
        (folder / path.name).symlink_to(Path("..data") / path.name)
    (folder / "..data").symlink_to(data.name)
    for path in (data, folder):
        path.chmod(0o755 if path == data else 0o1777)
        os.chown(path, 0, -1 if group is None else group)
    return folder


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can enter: pytest closes its own ones whenever a session begins."""
    with tempfile.TemporaryDirectory(prefix="sealbus-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@needs_root
@pytest.mark.medium
@pytest.mark.parametrize("groups", [str(USER), "0,10001"])
def test_a_secret_volume_of_kubernetes_is_read(place: Path, groups: str) -> None:
    volume = as_kubelet(place / "keys", USER)
    assert read_as(USER, volume / "planner.pem", volume / "jwks.json", groups=groups) == "read\n"


@needs_root
@pytest.mark.medium
def test_a_secret_volume_of_a_group_that_others_share_is_refused_with_the_reason(place: Path) -> None:
    shared = next(each for each in pwd.getpwall() if each.pw_uid not in (0, USER))
    volume = as_kubelet(place / "keys", shared.pw_gid)
    said = read_as(USER, volume / "planner.pem", groups=str(shared.pw_gid))
    assert "others of its group" in said
    assert "needs defaultMode 0400 and an fsGroup of its own" in said


@needs_root
@pytest.mark.medium
def test_a_credential_of_systemd_is_read_by_the_user_that_its_list_names(place: Path) -> None:
    credentials = place / "credentials"
    write_keys(credentials, "planner@svc")
    credentials.chmod(0o755)
    key = credentials / "planner.pem"
    key.chmod(0o400)
    try:
        give(key, USER)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            pytest.skip("this file system has no access lists")
        raise
    assert key.stat().st_mode & 0o777 == 0o440
    assert read_as(USER, key) == "read\n"
    give(key, USER, 12345)
    assert "access list" in read_as(USER, key)


def give(path: Path, *users: int) -> None:
    """Let *users* read, as `setfacl --modify user:ID:r` does."""
    none = 0xFFFFFFFF
    entries = [(1, 4, none), *((2, 4, user) for user in users), (4, 0, none), (16, 4, none), (32, 0, none)]
    text = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", text)


@needs_root
@pytest.mark.medium
def test_a_docker_secret_is_read_from_its_own_mount_and_refused_from_the_disk(place: Path) -> None:
    source = place / "source"
    write_keys(source, "planner@svc")
    (source / "planner.pem").chmod(0o444)
    key = Path("/run/secrets/planner.pem")
    mounted = (
        "mkdir -p /run/secrets; mount -t tmpfs -o mode=0755 tmpfs /run/secrets\n"
        f"cp -p {source}/planner.pem {key}; mount -o remount,bind,ro /run/secrets"
    )
    try:
        assert read_as(USER, key, mounts=mounted) == "read\n"
        writable = mounted.rpartition(";")[0]
        assert "group or others may read" in read_as(USER, key, mounts=writable)
    finally:
        if not any(Path("/run/secrets").glob("*")):
            Path("/run/secrets").rmdir()
    source.chmod(0o755)
    assert "group or others may read" in read_as(USER, source / "planner.pem")


@needs_root
@pytest.mark.medium
def test_a_config_map_is_trusted_where_its_mount_is_read_only(place: Path) -> None:
    """Kubelet gives its folder mode 0777, and mounts it read-only."""
    volume, target = as_kubelet(place / "config", None, 0o644), place / "target"
    volume.chmod(0o777)
    key = write_keys(place / "own", "planner@svc").with_name("planner.pem")
    (place / "own").chmod(0o755)
    os.chown(key, USER, USER)
    target.mkdir()
    bound = f"mount --bind {volume} {target}"
    read_only = f"{bound}; mount -o remount,bind,ro {target}"
    assert read_as(USER, key, target / "jwks.json", mounts=read_only) == "read\n"
    assert f"may write {target} " in read_as(USER, key, target / "jwks.json", mounts=bound)
    # What systemd makes of the machine's own folders is the same folder for everybody else.
    itself = f"mount --bind {volume} {volume}; mount -o remount,bind,ro {volume}"
    assert f"may write {volume} " in read_as(USER, key, volume / "jwks.json", mounts=itself)


def test_a_key_of_ones_own_that_only_one_may_read_is_read(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", "planner@svc")
    (tmp_path / "keys" / "planner.pem").chmod(0o400)
    assert read_private_key(tmp_path / "keys" / "planner.pem").kid
