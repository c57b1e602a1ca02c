"""File access: who besides this process can read or change a file that decides about trust.

Owns the rules, as functions of facts: mode, owner, group, access list, mount. They know the files of one's own, and how
Kubernetes (Secret and ConfigMap volumes), systemd (`LoadCredential=`) and Docker (`/run/secrets`) lay out theirs. Does
not own reading files (`bus.trust.keys.trusted_files`).
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Final

import msgspec

__all__ = [
    "FileFacts",
    "Mount",
    "ReaderFacts",
    "file_facts_of",
    "mount_of",
    "parse_mounts",
    "reader_of",
    "secret_fault",
    "writable_folder",
]

_ROOT: Final = 0
_ACL: Final = "system.posix_acl_access"
_ACL_VERSION: Final = 2
_USER, _GROUP_OWNER, _GROUP, _MASK = 0x02, 0x04, 0x08, 0x10
_READ: Final = 4
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_READ_BY_ALL: Final = 0o444
_DOCKER_SECRETS: Final = "/run/secrets"
_MOUNTS: Final = Path("/proc/self/mountinfo")


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """What is mounted at *point*: *root* is its place inside of its file system of *kind*."""

    point: str
    root: str
    kind: str
    is_read_only: bool

    @property
    def is_of_its_own(self) -> bool:
        """Whether the mount was made for this process: it is not a folder of the machine under its own name."""
        return self.is_read_only and (self.kind == "tmpfs" or self.root != self.point)


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Mode, owner and group of a file. *named* are the users and *named_groups* the groups that an access list adds."""

    mode: int
    owner: int
    group: int
    group_reads: bool
    """Whether the group itself may read it: with an access list its bits in *mode* are only an upper bound."""
    named: frozenset[int] = frozenset()
    named_groups: frozenset[int] = frozenset()


class ReaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The user of this process, its groups, and *shared*: who else is in the group in question."""

    user: int
    groups: frozenset[int]
    shared: tuple[str, ...] = ()


def secret_fault(file: FileFacts, reader: ReaderFacts, mount: Mount | None) -> str | None:
    """Return why others can read or change a secret *file* that lies on *mount*, or None if they cannot.

    Safe are: 0600 and stricter; 0440 of root or of the reader, and 0640 of root, where the group has the reader as its
    only member or an access list names only the reader; 0444 of root, as a Docker secret in memory.
    """
    mode = file.mode
    if not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return None
    if mode & _OTHERS_WRITE:
        return "group or others may write"
    if mode & stat.S_IRWXO:
        return None if mode == _READ_BY_ALL and _is_docker_secret(file, mount) else "group or others may read"
    if mode & stat.S_IXGRP or file.owner not in (_ROOT, reader.user):
        return "group or others may read"
    if mode & stat.S_IWUSR and file.owner == reader.user:
        # Nobody laid it out for this process: its owner can correct it.
        return "group or others may read"
    strangers = file.named - {_ROOT, reader.user}
    if strangers or file.named_groups:
        return "users or groups of an access list may read"
    if not file.group_reads:
        return None
    if file.group not in reader.groups:
        return f"the group {file.group}, to which this process does not belong, may read"
    if reader.shared:
        return f"others of its group ({', '.join(reader.shared[:3])}) may read"
    return None


def _is_docker_secret(file: FileFacts, mount: Mount | None) -> bool:
    """Tell whether *file* is mounted below /run/secrets for this container alone: read-only, in memory, of root."""
    return (
        file.owner == _ROOT
        and mount is not None
        and mount.is_read_only
        and mount.kind == "tmpfs"
        and (mount.point == _DOCKER_SECRETS or mount.point.startswith(f"{_DOCKER_SECRETS}/"))
    )


def file_facts_of(path: Path) -> FileFacts:
    """Return the facts of the file at *path*, links followed. Raises OSError."""
    found = path.stat()
    group_reads, named, named_groups = bool(found.st_mode & stat.S_IRGRP), frozenset[int](), frozenset[int]()
    if group_reads and (acl := _access_list(path)):
        mask = next((rights for tag, rights, _ in acl if tag == _MASK), 7)
        reads = [(tag, who) for tag, rights, who in acl if rights & mask & _READ]
        group_reads = any(tag == _GROUP_OWNER for tag, _ in reads)
        named = frozenset(who for tag, who in reads if tag == _USER)
        named_groups = frozenset(who for tag, who in reads if tag == _GROUP)
    return FileFacts(
        mode=stat.S_IMODE(found.st_mode),
        owner=found.st_uid,
        group=found.st_gid,
        group_reads=group_reads,
        named=named,
        named_groups=named_groups,
    )


def _access_list(path: Path) -> list[tuple[int, int, int]]:
    """Return the entries of the access list of *path*: tag, rights, id. Empty where there is none."""
    if not hasattr(os, "getxattr"):
        return []
    try:
        text = os.getxattr(path, _ACL)
    except OSError:
        return []
    version, entries = struct.unpack_from("<I", text)[0], text[4:]
    return list(struct.iter_unpack("<HHI", entries)) if version == _ACL_VERSION else []


def reader_of(group: int) -> ReaderFacts:
    """Return the facts of this process, and who else is in *group*."""
    user = os.geteuid()
    return ReaderFacts(
        user=user, groups=frozenset({os.getegid(), *os.getgroups()}), shared=tuple(sorted(_members(group, user)))
    )


def _members(group: int, user: int) -> set[str]:
    """Return the names in *group* other than those of *user* and root, who reads everything anyway."""
    import grp  # neither is there on Windows
    import pwd

    try:
        listed = set(grp.getgrgid(group).gr_mem)
    except KeyError:
        listed = set()
    everybody = pwd.getpwall()
    ours = {each.pw_name for each in everybody if each.pw_uid in (_ROOT, user)}
    return (listed | {each.pw_name for each in everybody if each.pw_gid == group}) - ours


def mount_of(path: Path) -> Mount | None:
    """Return the mount on which *path* lies, links followed; None where that is unknown."""
    try:
        mounts = parse_mounts(_MOUNTS.read_text("utf-8", "surrogateescape"))
    except OSError:
        return None
    resolved = path.resolve()
    # Of several at one point the last hides the others.
    on_the_way = [mount for mount in reversed(mounts) if resolved.is_relative_to(mount.point)]
    return max(on_the_way, key=lambda mount: len(mount.point), default=None)


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts in *text* of the form of mountinfo, proc(5)."""
    return [mount for line in text.splitlines() if (mount := _parsed(line)) is not None]


def _parsed(line: str) -> Mount | None:
    ours, _, theirs = line.partition(" - ")
    words, kind = ours.split(" "), theirs.partition(" ")[0]
    if len(words) < 6 or not kind:  # noqa: PLR2004 - id, parent, device, root, point, options
        return None
    options = {*words[5].split(","), *theirs.rpartition(" ")[2].split(",")}
    return Mount(point=_plain(words[4]), root=_plain(words[3]), kind=kind, is_read_only="ro" in options)


def _plain(text: str) -> str:
    for escaped, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escaped, plain)
    return text


def writable_folder(path: Path) -> Path | None:
    """Return the first folder on the way to *path* in which others could replace what lies in it. Raises OSError.

    The folders of links on the way count, too. The sticky bit protects a folder, and so does a
    read-only mount made for this process, as that of a ConfigMap (mode 0777). Above the folder of the file, a group of
    root, or one that has no other members, may write.
    """
    folder = path.resolve().parent
    for each in _folders(path):
        found = each.stat()
        mode = found.st_mode
        if not mode & _OTHERS_WRITE or mode & stat.S_ISVTX:
            continue
        if not mode & stat.S_IWOTH and each != folder and _is_own_group(found.st_gid) and not _access_list(each):
            continue
        mount = mount_of(each)
        if mount is None or not mount.is_of_its_own or Path(mount.point) != each or found.st_uid != _ROOT:
            return each
    return None


def _folders(path: Path) -> list[Path]:
    """Return every folder in which a part of *path* is looked up, also on the way of its links; the last one first."""
    found: dict[Path, None] = {}
    current, left = Path("/"), [*reversed(path.absolute().parts[1:])]
    while left:
        part = left.pop()
        if part == "..":
            current = current.parent
            continue
        found[current] = None
        entry = current / part
        if not entry.is_symlink():
            current = entry
            continue
        target = entry.readlink()
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        current = Path("/") if target.is_absolute() else current
    return [*reversed(found)]


def _is_own_group(group: int) -> bool:
    reader = reader_of(group)
    return group == _ROOT or (group in reader.groups and not reader.shared)
