"""The trust of one agent: what a program gives is used as it is, and the settings say the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bus.clock import ManualClock
from bus.errors import ConfigurationError
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.topics.names import agent_slug
from bus.trust.keys.generated_keys import GeneratedKeys
from bus.trust.keys.private_keys import pem_of
from bus.trust.keys.trusted_keys import TrustedKeys
from bus.trust.opening import Trust, key_file_of, open_trust
from bus.trust.policy.policy import NO_POLICY, AllowAll
from bus.trust.policy.policy_file import PolicyFile
from tests.keyrings import jwks_of, key_of

PLANNER = "planner@svc"


def settings(**flags: object) -> Settings:
    return load(flags={name.replace("__", "."): value for name, value in flags.items()}, env={}, file=None).settings


def opened(given: Settings, agent: str = PLANNER, **options: Any) -> Trust:
    return open_trust(given, agent, clock=ManualClock(), **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As `sealbus key new planner@svc` writes it."""
    write(tmp_path / f"{agent_slug(PLANNER)}.pem", pem_of(key_of(PLANNER)))
    write(tmp_path / "jwks.json", jwks_of(PLANNER))
    return tmp_path


def write(path: Path, text: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text)
    path.chmod(mode)
    return path


def test_trust_is_off_by_default() -> None:
    found = opened(settings())
    assert (found.signer, found.verifier, found.policy) == (None, None, NO_POLICY)


def test_the_settings_open_keys_and_policy(folder: Path) -> None:
    write(folder / "policy.toml", b'[[rules]]\nid = "a"\neffect = "allow"\naction = "publish"\n')
    files = {"trust__keys": str(folder / "jwks.json"), "trust__key_file": str(folder)}
    found = opened(settings(**files, policy__file=str(folder / "policy.toml")))
    assert found.signer is not None
    assert found.signer.kid == key_of(PLANNER).kid
    assert isinstance(found.verifier, TrustedKeys)
    assert isinstance(found.policy, PolicyFile)
    assert isinstance(opened(settings(**files, policy__file="allow-all")).policy, AllowAll)


def test_what_a_program_gives_wins(folder: Path) -> None:
    given = GeneratedKeys(ManualClock().now_ms, b"x")
    files = settings(
        trust__keys=str(folder / "jwks.json"), trust__key_file=str(folder), policy__file=str(folder / "no")
    )
    policy = AllowAll()
    found = opened(files, signer=given.signer(PLANNER), verifier=given, policy=policy)
    assert (found.signer, found.verifier, found.policy) == (given.signer(PLANNER), given, policy)


def test_an_agent_without_a_key_in_the_folder_publishes_unsigned_with_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opened(settings(trust__key_file=str(folder)), "worker@svc").signer is None
    told = capsys.readouterr()
    assert "sealbus key new worker@svc" in told.err + told.out


def test_the_key_of_an_agent_is_the_file_with_its_name(folder: Path) -> None:
    pem = folder / f"{agent_slug(PLANNER)}.pem"
    assert key_file_of(folder, PLANNER) == pem
    assert key_file_of(pem, "worker@svc") == pem
    jwk = write(folder / f"{agent_slug('worker@svc')}.jwk", b"{}")
    assert key_file_of(folder, "worker@svc") == jwk
    # An id is no path.
    for hostile in ("../planner@svc", "/etc/passwd", "..", f"x/../{PLANNER}"):
        assert key_file_of(folder, hostile).parent == folder


@pytest.mark.parametrize("name", ["trust__keys", "trust__key_file", "policy__file"])
@pytest.mark.parametrize("what", ["missing", "broken", "open", "empty"])
def test_a_file_that_is_named_and_cannot_be_used_is_refused_at_start(folder: Path, name: str, what: str) -> None:
    path = folder / "bad.toml"
    if what != "missing":
        texts = {"trust__keys": jwks_of(PLANNER), "trust__key_file": pem_of(key_of(PLANNER)), "policy__file": b""}
        write(path, {"broken": b"{", "empty": b"\xff"}.get(what, texts[name]), 0o666 if what == "open" else 0o600)
    with pytest.raises(ConfigurationError, match=r"bad\.toml"):
        opened(settings(**{name: str(path)}))


def test_generated_keys_believe_their_own(folder: Path) -> None:
    keys = GeneratedKeys(ManualClock().now_ms, b"secret")
    assert keys.signer(PLANNER) is keys.signer(PLANNER)
    assert keys.signer(PLANNER).kid != keys.signer("worker@svc").kid
    assert keys.may_sign(keys.signer(PLANNER).kid, "job.run")
    assert not keys.may_sign(key_of(PLANNER).kid, "job.run")
