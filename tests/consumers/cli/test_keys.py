"""`sealbus key`, and the verbs that are given keys: publish, verify and tail."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from bus.protocol.timestamps import format_ms
from bus.trust.keys.key_directory import parse_keys
from bus.trust.keys.key_folder import KeyFolder
from bus.trust.keys.private_keys import new_private_key, pem_of, read_private_key
from tests.keyrings import jwks_of, key_of, write_keys


def command_of(words: tuple[str, ...]) -> tuple[str, ...]:
    if words[0] == "check":
        return ("check", "--only", "keys", "--ignore", "keys-unused")
    return ("key", *words, *(("--yes",) if words[0] == "revoke" else ()))


def keys(folder: Any, *words: str, code: int = 0) -> list[dict[str, Any]]:
    """The objects that a verb prints."""
    result = folder.call(*command_of(words), "-o", "json")
    assert result.exit_code == code, result.output + result.stderr
    return list(folder.objects(result.stdout))


def refused(folder: Any, *words: str, code: int) -> str:
    """What a verb says that is refused, which is a sentence and no trace."""
    result = folder.call(*command_of(words))
    assert result.exit_code == code, result.output + result.stderr
    assert "Traceback" not in result.stderr
    return str(result.stderr)


def files(path: Path = Path("keys")) -> set[str]:
    return {entry.name for entry in path.iterdir()} if path.exists() else set()


# new


def test_new_makes_a_private_key_and_publishes_its_other_half(folder: Any) -> None:
    made = keys(folder, "new", "planner@svc", "worker@svc")
    assert [one["agent"] for one in made] == ["planner@svc", "worker@svc"]
    assert stat.S_IMODE(Path("keys").stat().st_mode) == 0o700
    directory = parse_keys({"jwks": Path("keys/jwks.json").read_bytes()})
    for one in made:
        private = Path(one["private"])
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
        assert read_private_key(private).kid == one["kid"]
        assert directory.keys[one["kid"]].principals == {one["agent"]}
        assert directory.keys[one["kid"]].types is None
    assert stat.S_IMODE(Path("keys/jwks.json").stat().st_mode) == 0o644
    assert len(files()) == 3
    assert b'"d"' not in Path("keys/jwks.json").read_bytes()


def test_no_kid_is_taken_for_an_option(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (number.to_bytes(32, "big") for number in itertools.count())
    hyphen = next(seed for seed in numbers if new_private_key(seed).kid.startswith("-"))
    seeds = itertools.chain([hyphen], numbers)
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: next(seeds) if size == len(hyphen) else real(size))
    (made,) = keys(folder, "new", "planner@svc")
    assert [one["kid"] for one in keys(folder, "list", made["kid"])] == [made["kid"]]
    assert new_private_key(hyphen).kid != made["kid"]


def test_new_says_the_settings_that_use_it(folder: Any) -> None:
    told = folder.call("key", "new", "planner@svc").stderr
    assert "trust.keys = 'keys/jwks.json'" in told
    assert "trust.key_file = 'keys'" in told


def test_new_limits_the_types_of_a_key(folder: Any) -> None:
    (made,) = keys(folder, "new", "reviewer@svc", "--types", "review.*", "--types", "status.update", "--dir", "a/b")
    key = parse_keys({"jwks": Path("a/b/jwks.json").read_bytes()}).keys[made["kid"]]
    assert key.types == ("review.*", "status.update")


def test_new_refuses_a_second_key_and_names_rotate(folder: Any) -> None:
    keys(folder, "new", "planner@svc")
    before = Path("keys/jwks.json").read_bytes()
    assert "sealbus key rotate planner@svc" in refused(folder, "new", "planner@svc", code=78)
    assert Path("keys/jwks.json").read_bytes() == before


@pytest.mark.parametrize(
    "agent",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "a/../../b",
        "..",
        ".",
        "~root",
        "a b",
        "a;rm -rf $HOME",
        "opencode://code-reviewer",
        "jwks",
        "jwks.json",
        "ÜNÏ@svc",
        "名前@svc",
        "x" * 256,
        '{"a": 1}',
        "%s%n",
    ],
)
def test_any_agent_id_makes_a_file_within_the_folder(folder: Any, agent: str) -> None:
    before = {path.name for path in folder.path.iterdir()}
    (made,) = keys(folder, "new", agent)
    assert Path(made["private"]).resolve().parent == Path("keys").resolve()
    assert {path.name for path in folder.path.iterdir()} == before | {"keys"}
    assert len(files()) == 2
    (listed,) = keys(folder, "list")
    assert listed["principals"] == [agent]
    assert [one["kid"] for one in keys(folder, "list", agent)] == [made["kid"]]


@pytest.mark.parametrize("agent", ["", "a\x1b[31m", "a\nb", "a\u202eb", "a\u2028b", "x" * 257])
def test_an_invalid_agent_id_is_refused(folder: Any, agent: str) -> None:
    told = refused(folder, "new", agent, code=2)
    assert "\x1b" not in told
    assert files() == set()


def test_ids_that_read_alike_have_files_of_their_own(folder: Any) -> None:
    keys(folder, "new", "a@svc", "A@svc", "a-svc", "a/svc")
    assert len(files()) == 5


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("new",), 2),
        (("new", "a@svc", "--types", "Task.*"), 78),
        (("new", "a@svc", "--types", "*a*b*c*d*"), 78),
        (("rotate",), 2),
        (("rotate", "a@svc", "b@svc"), 2),
        (("rotate", "a@svc", "--overlap", "soon"), 2),
        (("rotate", "a@svc", "--overlap", "-1s"), 2),
        (("rotate", "a@svc", "--overlap", "0s"), 2),
        (("rotate", "a@svc", "--overlap", "1ms"), 78),
        (("revoke",), 2),
        (("revoke", "a@svc", "--at", "yesterday"), 2),
        (("revoke", "a@svc"), 78),
        (("list", "a@svc"), 78),
        (("list",), 78),
        (("export",), 78),
        (("export", "gone.pem"), 78),
        (("publish",), 2),
        (("list", "--dir", "agents.py"), 2),
    ],
)
def test_wrong_arguments_leave_nothing_behind(folder: Any, words: tuple[str, ...], code: int) -> None:
    refused(folder, *words, code=code)
    assert {name for name in files() if not name.startswith(".")} == set()


@pytest.mark.medium
def test_two_at_once_lose_no_key(folder: Any) -> None:
    command = [sys.executable, "-m", "consumers.cli", "key", "new"]
    running = [
        subprocess.Popen(
            [*command, f"agent-{number}@svc"], cwd=folder.path, env=folder.environment(), stdout=DEVNULL, stderr=DEVNULL
        )
        for number in range(4)
    ]
    assert [process.wait(30) for process in running] == [0] * 4
    assert len(keys(folder, "list")) == 4
    assert len(files()) == 5
    keys(folder, "check")


@pytest.mark.medium
def test_of_two_that_make_the_same_key_one_does(folder: Any) -> None:
    command = [sys.executable, "-m", "consumers.cli", "key", "new", "planner@svc"]
    running = [
        subprocess.Popen(command, cwd=folder.path, env=folder.environment(), stdout=DEVNULL, stderr=DEVNULL)
        for _ in range(3)
    ]
    assert sorted(process.wait(30) for process in running) == [0, 78, 78]
    (listed,) = keys(folder, "list")
    private = next(Path("keys").glob("*.pem"))
    assert read_private_key(private).kid == listed["kid"]


# A folder that cannot be written.


@pytest.mark.parametrize("fails_at", [1, 2])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_folder_leaves_what_was_and_the_verb_can_be_repeated(
    folder: Any, monkeypatch: pytest.MonkeyPatch, fails_at: int, number: int
) -> None:
    keys(folder, "new", "worker@svc")
    before = files()
    calls = 0
    real = os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    told = refused(folder, "new", "planner@svc", code=78)
    assert os.strerror(number) in told
    monkeypatch.setattr(os, "fsync", real)
    # No private key that nobody believes, and no half of a file.
    assert files() == before
    keys(folder, "new", "planner@svc")
    directory = parse_keys({"jwks": Path("keys/jwks.json").read_bytes()})
    private = KeyFolder(Path("keys")).private_key("planner@svc")
    assert directory.keys[private.kid].principals == {"planner@svc"}
    keys(folder, "check")


def test_a_folder_that_is_a_file_is_refused(folder: Any) -> None:
    Path("keys").write_text("x")
    assert "keys cannot be used: File exists" in refused(folder, "new", "planner@svc", code=78)
    refused(folder, "new", "planner@svc", "--dir", "keys", code=2)
    refused(folder, "new", "planner@svc", "--dir", "keys/below", code=78)


def test_a_jwks_that_others_may_write_is_not_gone_on_with(folder: Any) -> None:
    keys(folder, "new", "planner@svc")
    Path("keys/jwks.json").chmod(0o666)
    for words in (("new", "worker@svc"), ("rotate", "planner@svc", "--overlap", "1ms"), ("list",), ("check",)):
        assert "chmod go-w" in refused(folder, *words, code=78)
    assert len(files()) == 2


def test_a_broken_jwks_is_left_as_it_is(folder: Any) -> None:
    keys(folder, "new", "planner@svc")
    Path("keys/jwks.json").write_bytes(b'{"keys": [')
    for words in (("new", "worker@svc"), ("rotate", "planner@svc", "--overlap", "1ms"), ("revoke", "planner@svc")):
        assert "jwks.json" in refused(folder, *words, code=78)
    assert Path("keys/jwks.json").read_bytes() == b'{"keys": ['
    assert len(files()) == 2


# list, show, export


def test_list_and_show_print_public_members_alone(folder: Any) -> None:
    keys(folder, "new", "planner@svc", "worker@svc")
    private = KeyFolder(Path("keys")).private_key("planner@svc")
    table = folder.call("key", "list").stdout
    assert table.splitlines()[0].split() == ["KID", "ALG", "AGENTS", "TYPES", "UNTIL", "STATE"]
    assert len(table.splitlines()) == 3
    (shown,) = keys(folder, "list", "planner@svc")
    assert (shown["kid"], shown["state"], shown["principals"]) == (private.kid, "good", ["planner@svc"])
    assert keys(folder, "list", private.kid) == [shown]
    for text in (table, json.dumps(shown), json.dumps(keys(folder, "list"))):
        assert private.secret.hex() not in text
        assert '"d"' not in text
    assert "the nearest is planner@svc" in refused(folder, "list", "plannr@svc", code=1)


def test_a_shared_secret_is_never_shown(folder: Any) -> None:
    shared = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    jwk = {"kty": "oct", "alg": "HS256", "k": shared, "kid": "domain", "principals": ["planner@svc"]}
    Path("keys").mkdir(mode=0o700)
    Path("keys/jwks.json").write_text(json.dumps({"keys": [jwk]}))
    Path("keys/jwks.json").chmod(0o600)
    env = {"SEALBUS_TRUST__DOMAIN": "closed"}
    for words in (("list",), ("list", "-o", "json"), ("list", "domain"), ("export",), ("check",)):
        result = folder.call(*command_of(words), env=env)
        assert result.exit_code == 0, result.stderr
        assert shared[:8] not in result.output + result.stderr
    assert json.loads(folder.call("key", "export", env=env).stdout) == {"keys": []}
    Path("one.jwk").write_text(json.dumps(jwk))
    Path("one.jwk").chmod(0o600)
    assert "no public half" in refused(folder, "export", "one.jwk", code=78)


def test_export_writes_what_others_can_believe(folder: Any) -> None:
    keys(folder, "new", "planner@svc", "--types", "task.*")
    exported = folder.call("key", "export").stdout.encode()
    assert parse_keys({"a": exported}).keys == parse_keys({"b": Path("keys/jwks.json").read_bytes()}).keys
    private = str(next(Path("keys").glob("*.pem")))
    one = parse_keys({"c": folder.call("key", "export", private, "--agent", "planner@svc").stdout.encode()})
    assert one.keys.keys() == parse_keys({"a": exported}).keys.keys()
    nobody = parse_keys({"d": folder.call("key", "export", private).stdout.encode()})
    assert [key.principals for key in nobody.keys.values()] == [frozenset()]


# rotate, revoke, check


def test_rotate_replaces_the_private_key_and_lets_the_old_one_end(folder: Any) -> None:
    (old,) = keys(folder, "new", "planner@svc", "--types", "task.*")
    (made,) = keys(folder, "rotate", "planner@svc", "--overlap", "1ms")
    assert made["replaces"] == old["kid"] != made["kid"]
    private = KeyFolder(Path("keys")).private_key("planner@svc")
    assert private.kid == made["kid"]
    assert stat.S_IMODE(Path(old["private"]).stat().st_mode) == 0o600
    found = {one["kid"]: one for one in keys(folder, "list")}
    assert "not_after" in found[old["kid"]]
    assert "not_after" not in found[made["kid"]]
    assert found[made["kid"]]["types"] == found[old["kid"]]["types"] == ["task.*"]
    assert found[made["kid"]]["principals"] == ["planner@svc"]
    keys(folder, "check")


@pytest.mark.medium
def test_an_interrupted_rotation_leaves_the_signing_key_unchanged(folder: Any) -> None:
    (old,) = keys(folder, "new", "planner@svc")
    rotating = folder.start("key", "rotate", "planner@svc", "--overlap", "1h")
    assert "it signs in 3600 s" in rotating.stderr.readline()
    assert folder.end(rotating, signal.SIGINT) == 130
    assert KeyFolder(Path("keys")).private_key("planner@svc").kid == old["kid"]
    assert all(one["state"] == "good" and "not_after" not in one for one in keys(folder, "list"))
    keys(folder, "check")
    (made,) = keys(folder, "rotate", "planner@svc", "--overlap", "1ms")
    assert made["replaces"] == old["kid"]


@pytest.mark.medium
def test_two_rotations_at_once_leave_a_key_that_is_believed(folder: Any) -> None:
    (old,) = keys(folder, "new", "planner@svc")
    running = [folder.start("key", "rotate", "planner@svc", "--overlap", "500ms") for _ in range(2)]
    assert [process.wait(30) for process in running] == [0, 0]
    found = {one["kid"]: one for one in keys(folder, "list")}
    private = KeyFolder(Path("keys")).private_key("planner@svc")
    assert len(found) == 3
    assert "not_after" in found[old["kid"]]
    assert "not_after" not in found[private.kid]
    keys(folder, "check")


@pytest.mark.parametrize(
    "limits",
    [
        {"namespaces": ["agents"], "types": ["task.*"], "principals": ["planner@svc", "second@svc"]},
        {"types": []},
        {"principals": []},
        {"namespaces": []},
    ],
)
def test_rotate_widens_no_limit_of_a_key(folder: Any, limits: dict[str, list[str]]) -> None:
    (old,) = keys(folder, "new", "planner@svc")
    path = Path("keys/jwks.json")
    jwks = json.loads(path.read_bytes())
    jwks["keys"][0] |= limits
    path.write_text(json.dumps(jwks))
    (made,) = keys(folder, "rotate", "planner@svc", "--overlap", "1ms")
    directory = parse_keys({"jwks": path.read_bytes()}).keys
    before, after = directory[old["kid"]], directory[made["kid"]]
    assert (after.principals, after.types, after.namespaces) == (before.principals, before.types, before.namespaces)


def test_revoke_counts_from_now_and_an_earlier_one_stands(folder: Any) -> None:
    (made,) = keys(folder, "new", "planner@svc")
    (first,) = keys(folder, "revoke", "planner@svc", "--at", "2026-01-31T12:00:00Z")
    assert (first["state"], first["revoked_at"]) == ("revoked", "2026-01-31T12:00:00.000Z")
    (second,) = keys(folder, "revoke", made["kid"])
    assert second["revoked_at"] == first["revoked_at"]
    (third,) = keys(folder, "revoke", made["kid"], "--at", "2026-01-01T00:00:00Z")
    assert third["revoked_at"] == "2026-01-01T00:00:00.000Z"
    (fault,) = keys(folder, "check", code=1)
    assert "revoked" in fault["what"] + fault["fix"]
    assert "rotate planner@svc" in fault["what"] + fault["fix"]


def test_an_earlier_revocation_that_was_written_by_hand_stands(folder: Any) -> None:
    (made,) = keys(folder, "new", "planner@svc")
    path = Path("keys/jwks.json")
    jwks = json.loads(path.read_bytes())
    jwks["keys"][0]["revoked_at"] = "2026-01-31T12:00:00Z"
    path.write_text(json.dumps(jwks))
    (found,) = keys(folder, "revoke", made["kid"], "--at", "2026-01-31T12:00:00.500Z")
    assert found["revoked_at"] == "2026-01-31T12:00:00.000Z"


def test_revoke_of_an_agent_takes_all_its_keys(folder: Any) -> None:
    keys(folder, "new", "planner@svc", "worker@svc")
    keys(folder, "rotate", "planner@svc", "--overlap", "1ms")
    assert len(keys(folder, "revoke", "planner@svc")) == 2
    states = sorted((one["principals"][0], one["state"]) for one in keys(folder, "list"))
    assert states == [("planner@svc", "revoked"), ("planner@svc", "revoked"), ("worker@svc", "good")]


def test_a_revoked_agent_gets_a_new_key_by_rotating(folder: Any) -> None:
    keys(folder, "new", "planner@svc")
    keys(folder, "revoke", "planner@svc")
    keys(folder, "rotate", "planner@svc", "--overlap", "1ms")
    keys(folder, "check")
    assert sorted(one["state"] for one in keys(folder, "list")) == ["good", "revoked"]


def test_check_finds_what_needs_to_be_done(folder: Any) -> None:
    (made,) = keys(folder, "new", "planner@svc")
    assert keys(folder, "check") == []
    path = Path("keys/jwks.json")
    good = json.loads(path.read_bytes())
    for members, said in (
        ({"principals": []}, "signs for no agent"),
        ({"not_after": "2026-01-01T00:00:00Z"}, "ended at"),
    ):
        path.write_text(json.dumps({"keys": [good["keys"][0] | members]}))
        assert said in json.dumps(keys(folder, "check", code=1))
    path.write_text(json.dumps({"keys": []}))
    assert "are refused" in json.dumps(keys(folder, "check", code=1))
    path.write_text(json.dumps(good))
    Path(made["private"]).chmod(0o644)
    assert "chmod 600" in json.dumps(keys(folder, "check", code=1))
    Path(made["private"]).write_text("x")
    Path(made["private"]).chmod(0o600)
    assert Path(made["private"]).name in json.dumps(keys(folder, "check", code=1))


def test_check_names_a_key_that_is_not_valid_yet(folder: Any) -> None:
    keys(folder, "new", "planner@svc")
    path = Path("keys/jwks.json")
    made = json.loads(path.read_bytes())
    path.write_text(json.dumps({"keys": [made["keys"][0] | {"not_before": "2999-01-01T00:00:00Z"}]}))
    (fault,) = keys(folder, "check", code=1)
    assert "valid from 2999-01-01T00:00:00.000Z on; until then planner@svc has no key" in fault["what"] + fault["fix"]


def test_check_tells_of_a_successor_that_is_not_valid_yet_without_a_fault(folder: Any) -> None:
    keys(folder, "new", "planner@svc")
    path = Path("keys/jwks.json")
    (old,) = json.loads(path.read_bytes())["keys"]
    keys(folder, "rotate", "planner@svc", "--overlap", "1ms")
    (successor,) = [each for each in json.loads(path.read_bytes())["keys"] if each["kid"] != old["kid"]]
    (signing,) = Path("keys").glob("*.pem")
    signing.rename(signing.with_suffix(".later"))
    path.write_text(json.dumps({"keys": [old, successor | {"not_before": "2999-01-01T00:00:00Z"}]}))
    told = folder.call("check", "--only", "keys")
    assert told.exit_code == 0, told.output
    assert f"{successor['kid']}: is valid from 2999-01-01T00:00:00.000Z on" in told.stdout


def test_check_finds_an_unused_private_key_of_an_agent_with_another(folder: Any) -> None:
    keys(folder, "new", "planner@svc")
    path = Path("keys/jwks.json")
    (old,) = json.loads(path.read_bytes())["keys"]
    keys(folder, "rotate", "planner@svc", "--overlap", "1ms")
    (successor,) = [each for each in json.loads(path.read_bytes())["keys"] if each["kid"] != old["kid"]]
    path.write_text(json.dumps({"keys": [old, successor | {"not_before": "2999-01-01T00:00:00Z"}]}))
    (fault, _) = keys(folder, "check", code=1)
    assert "signs nothing yet" in fault["what"] + fault["fix"]


# Verbs that are given keys.


def published(folder: Any, *options: str) -> bytes:
    """The sealed bytes of one message that planner@svc has published."""
    sent = folder.call(
        "publish", "job.run", "--app", "agents:app", "--as", "planner@svc", *options, stdin='{"number":7}'
    )
    assert sent.exit_code == 0, sent.stderr
    record = folder.objects(folder.call("tail", "job.run", "-n", "1", "-o", "json").stdout)[-1]
    return json.dumps(record["value"], separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize("named", ["folder", "file"])
def test_publish_signs_with_a_key_file_and_verify_and_tail_believe_it(folder: Any, named: str) -> None:
    (made,) = keys(folder, "new", "planner@svc")
    value = published(folder, "--key-file", "keys" if named == "folder" else made["private"])
    Path("message.json").write_bytes(value)
    assert folder.call("verify", "--file", "message.json", "--trusted-keys", "keys/jwks.json").exit_code == 0
    assert folder.call("verify", "--file", "message.json", "--trusted-keys", "keys", "--risk", "high").exit_code == 0
    tailed = folder.call("tail", "job.run", "--from", "start", "--verify", "--trusted-keys", "keys/jwks.json")
    assert tailed.exit_code == 0
    assert "1 valid, 0 invalid" in tailed.stderr


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("unsigned", "signature_missing"),
        ("unknown", "key_unknown"),
        ("other", "sender_mismatch"),
        ("revoked", "key_revoked"),
    ],
)
def test_verify_and_tail_name_the_reason(folder: Any, how: str, reason: str) -> None:
    write_keys(Path("keys"), "planner@svc", "eve@svc")
    # What lies beside no JWKS is whoever's it says it is.
    Path("away").mkdir(mode=0o700)
    Path("keys/eve.pem").rename("away/eve.pem")
    options = {"unsigned": (), "other": ("--key-file", "away/eve.pem")}.get(how, ("--key-file", "keys/planner.pem"))
    Path("message.json").write_bytes(published(folder, *options))
    if how == "unknown":
        Path("keys/jwks.json").write_bytes(jwks_of("eve@svc"))
    if how == "revoked":
        keys(folder, "revoke", key_of("planner@svc").kid)
    result = folder.call("verify", "--file", "message.json", "--trusted-keys", "keys/jwks.json", "-o", "json")
    (answer,) = folder.objects(result.stdout)
    assert (result.exit_code, answer["check"], answer["reason"]) == (1, "authenticity", reason)
    tailed = folder.call("tail", "job.run", "--from", "start", "--verify", "--trusted-keys", "keys/jwks.json")
    assert tailed.exit_code == 1
    assert f"0 valid, 1 invalid (1 {reason})" in tailed.stderr


def test_without_an_agent_it_is_whom_the_key_speaks_for(folder: Any) -> None:
    (made,) = keys(folder, "new", "planner@svc")
    for trusted in ({}, {"SEALBUS_TRUST__KEYS": "keys/jwks.json"}):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in trusted.items():
                patch.setenv(name, value)
            sent = folder.call(
                "publish", "job.run", "--app", "agents:app", "--key-file", made["private"], stdin='{"number":7}'
            )
        assert sent.exit_code == 0, sent.stderr
        record = folder.objects(folder.call("tail", "job.run", "-n", "1", "-o", "json").stdout)[-1]
        assert record["value"]["metadata"]["sender"]["id"] == "planner@svc"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--as", "eve@svc", "--key-file", "keys/planner.pem"), "signs for planner@svc, not for eve@svc"),
        (("--key-file", "away.pem"), "name its agent with --as"),
        (("--key-file", "keys/both.pem"), "signs for a@svc, b@svc: name the acting agent with --as"),
    ],
)
def test_an_agent_and_a_key_that_do_not_fit_are_refused_before_anything_is_sent(
    folder: Any, options: tuple[str, ...], said: str
) -> None:
    write_keys(Path("keys"), "planner@svc")
    listed = (
        json.loads(jwks_of("planner@svc"))["keys"] + json.loads(jwks_of("both", principals=["a@svc", "b@svc"]))["keys"]
    )
    Path("keys/jwks.json").write_text(json.dumps({"keys": listed}))
    for name, path in (("both", "keys/both.pem"), ("away", "away.pem")):
        Path(path).write_bytes(pem_of(key_of(name)))
        Path(path).chmod(0o600)
    for words in (
        ("publish", "job.run", "--app", "agents:app"),
        ("approval", "approve", "0123"),
        ("approval", "reject", "0123", "--why", "no"),
        ("dlq", "redrive", "--yes"),
        ("ask", "helper@svc", "help"),
        ("serve", "console"),
    ):
        result = folder.call(*words, *options, stdin='{"number":7}')
        assert result.exit_code == 78, (words, result.output, result.stderr)
        assert said in result.stderr
    assert not list(folder.path.glob("*.db"))


@pytest.mark.parametrize(
    ("members", "reason", "said"),
    [
        (
            {"not_after": "2026-01-01T00:00:00Z"},
            "key_expired",
            "ended at 2026-01-01T00:00:00.000Z: `sealbus key rotate",
        ),
        ({"not_before": "2999-01-01T00:00:00Z"}, "key_expired", "is not valid before 2999-01-01T00:00:00.000Z"),
        ({"revoked_at": "2026-01-01T00:00:00Z"}, "key_revoked", "was revoked at"),
        ({"types": ["other.*"]}, "unauthorized", "may not sign job.run (its types: other.*)"),
        ({"namespaces": ["elsewhere"]}, "sender_mismatch", "signs in elsewhere, not in agents"),
    ],
)
def test_what_a_key_may_not_sign_is_rejected_line_by_line(
    folder: Any, monkeypatch: pytest.MonkeyPatch, members: dict[str, Any], reason: str, said: str
) -> None:
    write_keys(Path("keys"), "planner@svc")
    Path("keys/jwks.json").write_bytes(jwks_of("planner@svc", **members))
    monkeypatch.setenv("SEALBUS_TRUST__KEYS", "keys/jwks.json")
    sent = folder.call(
        "publish",
        "job.run",
        "--app",
        "agents:app",
        "--key-file",
        "keys/planner.pem",
        stdin='{"number":7}\n{"number":8}',
    )
    assert sent.exit_code == 1
    answers = folder.objects(sent.stdout)
    assert [answer.get("reason") for answer in answers] == [reason, reason]
    assert all(said in json.dumps(answer) for answer in answers)
    assert folder.objects(folder.call("tail", "job.run", "--from", "start", "-o", "json").stdout) == []


@pytest.mark.parametrize(
    "case",
    [
        ({}, True, "ok", "it signs"),
        ({"not_after": "2026-01-01T00:00:00Z"}, True, "fault", "ended at 2026-01-01T00:00:00.000Z"),
        ({"not_before": "2999-01-01T00:00:00Z"}, True, "fault", "is not valid before"),
        ({"soon": True}, True, "hint", "then it signs nothing"),
        ({"principals": ["eve@svc"]}, True, "fault", "the agent and its key do not fit"),
        ({"soon": True}, False, "hint", "ends at"),
        ({"not_after": "2026-01-01T00:00:00Z"}, False, "fault", "ended at"),
    ],
)
def test_doctor_tells_of_the_key_with_which_an_app_signs(
    folder: Any, monkeypatch: pytest.MonkeyPatch, case: tuple[dict[str, Any], bool, str, str]
) -> None:
    members, with_app, state, said = dict(case[0]), *case[1:]
    write_keys(Path("keys"), "worker@svc")
    if members.pop("soon", False):
        members["not_after"] = format_ms(time.time_ns() // 1_000_000 + 10 * 86_400_000)
    Path("keys/jwks.json").write_bytes(jwks_of("worker@svc", **members))
    monkeypatch.setenv("SEALBUS_TRUST__KEYS", "keys/jwks.json")
    monkeypatch.setenv("SEALBUS_TRUST__KEY_FILE", "keys/worker.pem")
    result = folder.call("doctor", *(["agents:app"] if with_app else []), "-o", "json")
    found = [line for line in folder.objects(result.stdout) if line["area"] == "keys" and said in json.dumps(line)]
    assert [line["state"] for line in found] == [state], result.stdout


@pytest.mark.parametrize("verb", ["doctor", "status"])
def test_a_private_key_with_which_no_worker_starts_is_a_fault_without_naming_an_app(
    folder: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    write_keys(Path("keys"), "worker@svc", "other@svc")
    monkeypatch.setenv("SEALBUS_TRUST__KEYS", "keys/jwks.json")
    monkeypatch.setenv("SEALBUS_TRUST__KEY_FILE", "keys")
    published(folder)
    Path("keys/other.pem").chmod(0o644)
    told = folder.call(verb).output
    assert "no worker starts with this key" in told
    assert "other.pem (mode 0644)" in told
    Path("keys/other.pem").chmod(0o600)
    assert "no worker starts" not in folder.call(verb).output


def test_keys_that_cannot_be_used_stop_the_verb(folder: Any) -> None:
    Path("message.json").write_bytes(published(folder))
    Path("open.json").write_bytes(jwks_of("planner@svc"))
    Path("open.json").chmod(0o666)
    Path("key.pem").write_text("x")
    Path("key.pem").chmod(0o600)
    for words in (
        ("verify", "--file", "message.json", "--trusted-keys", "gone.json"),
        ("verify", "--file", "message.json", "--trusted-keys", "open.json"),
        ("tail", "job.run", "--verify", "--trusted-keys", "open.json"),
        ("publish", "job.run", "--app", "agents:app", "--key-file", "key.pem"),
        ("publish", "job.run", "--app", "agents:app", "--key-file", "gone.pem"),
    ):
        result = folder.call(*words, stdin='{"number":7}')
        assert result.exit_code == 78, (words, result.output, result.stderr)
        assert "Traceback" not in result.stderr


@pytest.mark.medium
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('[trust]\nkeys = "gone.json"', "gone.json"),
        ('[trust]\nkeys = "open.json"', "chmod go-w"),
        ('[trust]\nkeys = "broken.json"', "broken.json"),
        ('[trust]\nkey_file = "open.json"', "chmod 600"),
        ('[policy]\nfile = "gone.toml"', "gone.toml"),
        ('[policy]\nfile = "broken.json"', "broken.json"),
    ],
)
def test_a_worker_does_not_start_with_keys_or_a_policy_that_cannot_be_used(folder: Any, config: str, said: str) -> None:
    told = _worker_that_does_not_start(folder, config, within_s=30)
    assert said in told


@pytest.mark.medium
@pytest.mark.parametrize("keys_too", [True, False])
def test_a_worker_with_a_raised_risk_needs_a_policy_and_keys(folder: Any, keys_too: bool) -> None:
    config = '[trust]\nhigh_risk = ["job.run"]\n' + ('keys = "good.json"' if keys_too else "")
    assert "job.run" in _worker_that_does_not_start(folder, config, within_s=30)


def _worker_that_does_not_start(folder: Any, config: str, *, within_s: float) -> str:
    """What it says."""
    for name, text, mode in (
        ("good.json", jwks_of("planner@svc"), 0o600),
        ("open.json", jwks_of("planner@svc"), 0o666),
        ("broken.json", b"{", 0o600),
        ("sealbus.toml", config.encode(), 0o600),
    ):
        Path(name).write_bytes(text)
        Path(name).chmod(mode)
    worker = folder.start("run", "agents:app", "--config", "sealbus.toml")
    _, told = worker.communicate(timeout=within_s)
    assert worker.returncode == 78, told
    assert "Traceback" not in told
    return str(told)
