"""Files that decide about trust: who may write them, and how a running process follows them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.clock import ManualClock
from bus.errors import ConfigurationError
from bus.protocol import signatures
from bus.protocol.envelope import Statement
from bus.protocol.proof_chain import encode_statement
from bus.protocol.timestamps import format_ms
from bus.trust.keys import trusted_files
from bus.trust.keys.key_directory import parse_keys
from bus.trust.keys.private_keys import new_shared_secret, public_jwk
from bus.trust.keys.trusted_files import Reloaded, check_secret_file, check_trusted_file, files_of, read_files
from bus.trust.keys.trusted_keys import TrustedKeys
from tests.keyrings import jwks_of, key_of

PLANNER, EVE = key_of("planner@svc"), key_of("eve@svc")
ENDINGS = (".json", ".jwks")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "keys"
    made.mkdir(mode=0o700)
    yield made
    made.chmod(0o700)


def write(path: Path, text: bytes, mode: int = 0o644) -> Path:
    """Replace *path*, as an editor or `sealbus key` does."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(text)
    part.chmod(mode)
    part.replace(path)
    return path


# Who may write.


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o664, 0o622])
def test_a_file_writable_by_others_is_refused_with_the_fix(folder: Path, mode: int) -> None:
    path = write(folder / "jwks.json", jwks_of("planner@svc"), mode)
    with pytest.raises(ConfigurationError, match=rf"may write {path} \(mode {mode:04o}\).*chmod go-w {path}"):
        TrustedKeys(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o644, 0o444, 0o640])
def test_a_file_that_only_its_owner_may_write_is_good(folder: Path, mode: int) -> None:
    assert TrustedKeys(write(folder / "jwks.json", jwks_of("planner@svc"), mode)).directory.keys


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    path = write(folder / "jwks.json", jwks_of("planner@svc"))
    folder.chmod(mode)
    for named in (path, folder):
        with pytest.raises(ConfigurationError, match=f"may write {folder}"):
            TrustedKeys(named)
    # Where the sticky bit is set, only its owner can replace a file.
    folder.chmod(0o1777)
    assert TrustedKeys(path).directory.keys


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o660, 0o602, 0o610])
def test_a_secret_that_others_may_use_is_refused(folder: Path, mode: int) -> None:
    path = write(folder / "a.pem", b"x", mode)
    with pytest.raises(ConfigurationError, match=rf"may (read|write) {path} .*chmod 600 {path}"):
        check_secret_file(path)


def test_a_jwks_with_shared_secrets_is_a_secret(folder: Path) -> None:
    secret = new_shared_secret(bytes(range(32)), "domain")
    jwk = {"kty": "oct", "alg": "HS256", "k": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8", "kid": secret.kid}
    path = write(folder / "jwks.json", json.dumps({"keys": [jwk]}).encode(), 0o644)
    with pytest.raises(ConfigurationError, match="may read"):
        TrustedKeys(path, domain="closed")
    path.chmod(0o600)
    assert TrustedKeys(path, domain="closed").directory.keys.keys() == {"domain"}
    with pytest.raises(ConfigurationError, match="shared secret"):
        TrustedKeys(path)


# Which files.


def test_a_folder_means_all_its_files_but_hidden_and_foreign_ones(folder: Path) -> None:
    for name in ("b.jwks", "a.json", ".hidden.json", "README.md", "a.json~", "a.pem"):
        write(folder / name, b"{}")
    assert [path.name for path in files_of(folder, ENDINGS)] == ["a.json", "b.jwks"]


def test_a_folder_without_files_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds no \.json or \.jwks file"):
        TrustedKeys(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone\.json cannot be read: No such file"):
        TrustedKeys(folder / "gone.json")


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_not(folder: Path) -> None:
    outside = write(folder.parent / "outside.json", jwks_of("eve@svc"))
    write(folder / "jwks.json", jwks_of("planner@svc"))
    (folder / "link.json").symlink_to(outside)
    with pytest.raises(ConfigurationError, match="link out of its folder"):
        TrustedKeys(folder)
    (folder / "link.json").unlink()
    (folder / "real").write_bytes(jwks_of("second@svc"))
    (folder / "link.json").symlink_to("real")
    assert len(TrustedKeys(folder).directory.keys) == 2


def test_a_link_by_itself_is_judged_by_the_folder_it_leads_to(folder: Path) -> None:
    open_folder = folder.parent / "open"
    open_folder.mkdir()
    write(open_folder / "jwks.json", jwks_of("planner@svc"))
    open_folder.chmod(0o777)
    (folder / "jwks.json").symlink_to(open_folder / "jwks.json")
    with pytest.raises(ConfigurationError, match=f"may write {open_folder}"):
        check_trusted_file(folder / "jwks.json")


@pytest.mark.timeout(10)
@pytest.mark.parametrize("what", ["fifo", "folder", "device"])
def test_a_pipe_or_device_is_refused_without_waiting(folder: Path, what: str) -> None:
    path = folder / "jwks.json"
    if what == "fifo":
        os.mkfifo(path, 0o600)
    elif what == "folder":
        path.mkdir(mode=0o700)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ConfigurationError):
        read_files([path], lambda _: None)
    with pytest.raises(ConfigurationError):
        TrustedKeys(folder)


def test_a_file_that_is_too_large_and_a_folder_with_too_many_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusted_files, "_MAX_BYTES", 2 * 1_048_576)
    path = write(folder / "jwks.json", jwks_of("planner@svc") + b" " * 2 * 1_048_576)
    with pytest.raises(ConfigurationError, match="more than 2 MiB"):
        TrustedKeys(path)
    path.unlink()
    monkeypatch.setattr(trusted_files, "_MAX_FILES", 3)
    for number in range(4):
        write(folder / f"{number}.json", jwks_of(f"{number}@svc"))
    with pytest.raises(ConfigurationError, match="holds 4 files, at most 3"):
        TrustedKeys(folder)


# Reloading.


class Followed:
    """A directory of keys whose files change."""

    def __init__(self, folder: Path, *, stale_after_s: float = 900.0) -> None:
        self.path = write(folder / "jwks.json", jwks_of("planner@svc"))
        self.clock = ManualClock()
        self.keys = TrustedKeys(self.path, clock=self.clock, stale_after_s=stale_after_s)

    def judge(self, agent: str = "planner@svc") -> str | None:
        stated = Statement(
            content_hash="sha256:" + "1" * 64,
            envelope_hash="sha256:" + "2" * 64,
            hops=0,
            message_id="m-1",
            message_type="job.run",
            namespace="agents",
            protocol="sealbus/1",
            sender=agent,
            timestamp=format_ms(self.clock.now_ms()),
        )
        payload = encode_statement(stated)
        signature = signatures.parse_signature(signatures.sign(payload, key_of(agent)))
        assert signature is not None
        return self.keys.judge(signature, stated, payload)

    def revoke(self) -> None:
        now = format_ms(self.clock.now_ms())
        write(
            self.path, json.dumps({"keys": [public_jwk(PLANNER, principals=["planner@svc"], revoked_at=now)]}).encode()
        )


@pytest.fixture
def followed(folder: Path) -> Followed:
    return Followed(folder)


def test_a_change_is_seen_within_a_second(followed: Followed) -> None:
    assert followed.judge() is None
    followed.revoke()
    followed.clock.advance(0.999)
    assert followed.judge() is None
    followed.clock.advance(0.001)
    assert followed.judge() == "key_revoked"
    assert followed.keys.generation == 1


def test_files_are_looked_at_once_a_second(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []
    real = trusted_files.files_of
    monkeypatch.setattr(trusted_files, "files_of", lambda path, endings: looks.append(path) or real(path, endings))
    for _ in range(500):
        followed.clock.advance(0.01)
        assert followed.judge() is None
    assert 4 <= len(looks) <= 5


def test_a_new_key_counts_at_once(followed: Followed) -> None:
    assert followed.judge("eve@svc") == "key_unknown"
    followed.clock.advance(0.25)
    write(followed.path, jwks_of("planner@svc", "eve@svc"))
    assert followed.judge("eve@svc") is None


def test_unknown_kids_do_not_make_a_receiver_read_files_all_the_time(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    real = trusted_files.files_of
    monkeypatch.setattr(trusted_files, "files_of", lambda path, endings: looks.append(path) or real(path, endings))
    for _ in range(1000):
        followed.clock.advance(0.001)
        assert followed.judge("eve@svc") == "key_unknown"
    assert len(looks) <= 6


BREAK: dict[str, Callable[[Path], object]] = {
    "half written": lambda path: write(path, jwks_of("planner@svc")[:-7]),
    "empty": lambda path: write(path, b""),
    "a key that is refused": lambda path: write(path, jwks_of("planner@svc", alg="EdDSA")),
    "gone": lambda path: path.unlink(),
    "writable by others": lambda path: path.chmod(0o666),
    "in an open folder": lambda path: path.parent.chmod(0o777),
    "a link that leads nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("break_it", BREAK.values(), ids=BREAK)
def test_a_change_that_cannot_be_used_keeps_the_last_good_keys_and_alarms_once(
    folder: Path, break_it: Callable[[Path], object]
) -> None:
    alarms: list[str | None] = []
    path = write(folder / "jwks.json", jwks_of("planner@svc"))
    clock = ManualClock()
    found = Reloaded(path, parse_keys, clock=clock, endings=ENDINGS, alarm=alarms.append)
    first = found.current()
    break_it(path)
    for _ in range(30):
        clock.advance(1.0)
        assert found.current() is first
    assert len(alarms) == 1
    assert str(folder) in str(alarms[0])
    assert found.age_s() == pytest.approx(30.0)
    folder.chmod(0o700)
    path.unlink(missing_ok=True)
    write(path, jwks_of("planner@svc", "eve@svc"))
    clock.advance(1.0)
    assert EVE.kid in found.current().keys
    assert alarms[1:] == [None]
    assert found.age_s() == 0.0


def test_a_revocation_that_comes_with_a_broken_file_arrives_when_it_is_mended(followed: Followed) -> None:
    write(followed.path, b"{")
    followed.clock.advance(5.0)
    assert followed.judge() is None
    followed.revoke()
    followed.clock.advance(1.0)
    assert followed.judge() == "key_revoked"


def test_keys_are_stale_when_they_have_been_unusable_for_too_long(followed: Followed) -> None:
    followed.clock.advance(10_000.0)
    assert not followed.keys.is_stale
    followed.path.unlink()
    followed.clock.advance(900.0)
    assert not followed.keys.is_stale
    followed.clock.advance(1.0)
    assert followed.keys.is_stale
    assert followed.judge() is None
    write(followed.path, jwks_of("planner@svc"))
    followed.clock.advance(1.0)
    assert not followed.keys.is_stale
    assert followed.keys.age_s() == 0.0


def test_files_that_come_and_go_in_a_folder_count(folder: Path) -> None:
    write(folder / "a.json", jwks_of("planner@svc"))
    clock = ManualClock()
    keys = TrustedKeys(folder, clock=clock)
    write(folder / "b.json", jwks_of("eve@svc"))
    clock.advance(1.0)
    assert keys.directory.keys.keys() == {PLANNER.kid, EVE.kid}
    (folder / "a.json").unlink()
    clock.advance(1.0)
    assert keys.directory.keys.keys() == {EVE.kid}
    write(folder / "c.json", jwks_of("eve@svc"))
    clock.advance(1.0)
    assert keys.directory.keys.keys() == {EVE.kid}
    assert keys.age_s() == pytest.approx(1.0)


def test_a_change_of_the_same_size_and_second_is_seen(followed: Followed) -> None:
    """An editor that writes in place, within the resolution of what `ls` shows."""
    before = followed.path.stat()
    text = jwks_of("planner@svc").replace(b"planner@svc", b"somebody@sv")
    assert len(text) == before.st_size
    followed.path.write_bytes(text)
    os.utime(followed.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    followed.clock.advance(1.0)
    assert followed.judge() == "sender_mismatch"


def test_a_file_that_is_a_link_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "keys", tmp_path / "elsewhere"
    for folder in (inside, outside):
        folder.mkdir(mode=0o700)
    (outside / "jwks.json").write_bytes(b"{}")
    (inside / "jwks.json").symlink_to(outside / "jwks.json")
    with pytest.raises(ConfigurationError, match="link out of its folder"):
        files_of(inside / "jwks.json", (".json",))
    (inside / "..data").mkdir(mode=0o700)
    (inside / "..data" / "policy.toml").write_bytes(b"")
    (inside / "policy.toml").symlink_to(inside / "..data" / "policy.toml")
    assert files_of(inside / "policy.toml", (".toml",)) == [inside / "policy.toml"]
