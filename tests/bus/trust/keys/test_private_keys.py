"""Private keys: which files hold one, who may read them, and how a running agent follows its successor."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from bus.clock import ManualClock
from bus.errors import ConfigurationError
from bus.protocol import signatures
from bus.protocol.base64url import to_base64url
from bus.trust.keys.private_keys import SigningKey, pem_of, public_jwk, read_private_key
from bus.trust.keys.signature_algorithms import ed25519_checker, hs256_checker
from tests.keyrings import key_of

KEY, NEXT = key_of("planner@svc"), key_of("planner@svc next")
SECRET = bytes(range(32))


def write(path: Path, text: bytes, mode: int = 0o600) -> Path:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(text)
    part.chmod(mode)
    part.replace(path)
    return path


def jwk(**members: Any) -> bytes:
    return json.dumps(public_jwk(KEY) | {"d": to_base64url(KEY.secret)} | members).encode()


def shared(**members: Any) -> bytes:
    return json.dumps({"kty": "oct", "alg": "HS256", "k": to_base64url(SECRET), "kid": "domain"} | members).encode()


def pem(key: Any, *, password: bytes | None = None, form: str = "PKCS8") -> bytes:
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    text: bytes = key.private_bytes(serialization.Encoding.PEM, getattr(serialization.PrivateFormat, form), hidden)
    return text


GOOD: dict[str, tuple[str, bytes]] = {
    "PKCS#8 PEM": ("a.pem", pem_of(KEY)),
    "PEM after white space": ("a.pem", b"\n  " + pem_of(KEY)),
    "PEM of another library": ("a.pem", pem(ed25519.Ed25519PrivateKey.from_private_bytes(KEY.secret))),
    "JWK": ("a.jwk", jwk()),
    "JWK of RFC 8037 alone": (
        "a.jwk",
        json.dumps({"kty": "OKP", "crv": "Ed25519", "d": to_base64url(KEY.secret)}).encode(),
    ),
}


@pytest.mark.parametrize(("name", "text"), GOOD.values(), ids=GOOD)
def test_the_forms_of_a_private_key(tmp_path: Path, name: str, text: bytes) -> None:
    key = read_private_key(write(tmp_path / name, text))
    assert (key.kid, key.alg, key.public) == (KEY.kid, "Ed25519", KEY.public)
    assert ed25519_checker(KEY.public)(key.sign(b"text"), b"text")


def test_a_shared_secret(tmp_path: Path) -> None:
    key = read_private_key(write(tmp_path / "a.jwk", shared()))
    assert (key.kid, key.alg, key.public) == ("domain", "HS256", b"")
    assert hs256_checker(SECRET)(key.sign(b"text"), b"text")


REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "text": b"not a key",
    "bytes": bytes(range(256)),
    "half a PEM": pem_of(KEY)[:40],
    "PEM with a password": pem(ed25519.Ed25519PrivateKey.from_private_bytes(KEY.secret), password=b"secret"),
    "public PEM": ed25519.Ed25519PrivateKey.from_private_bytes(KEY.secret)
    .public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    "Ed448": pem(ed448.Ed448PrivateKey.generate()),
    "P-256": pem(ec.generate_private_key(ec.SECP256R1())),
    "RSA": pem(rsa.generate_private_key(65537, 2048)),
    "public JWK": json.dumps(public_jwk(KEY)).encode(),
    "JWK with the kid of another key": jwk(kid=NEXT.kid),
    "JWK with the x of another key": jwk(x=to_base64url(NEXT.public)),
    "JWK with a short d": jwk(d=to_base64url(KEY.secret[:31])),
    "JWK with padding": jwk(d=to_base64url(KEY.secret) + "="),
    "JWK with a number": jwk(d=1),
    "JWK for agreement": jwk(crv="X25519"),
    "JWK of another kind": jwk(kty="EC"),
    "list": b"[]",
    "JWKS": json.dumps({"keys": [json.loads(jwk())]}).encode(),
    "short secret": shared(k=to_base64url(SECRET[:16])),
    "secret without kid": shared(kid=None),
    "secret for another algorithm": shared(alg="HS512"),
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_an_error_names_a_file_without_a_key_but_not_its_content(tmp_path: Path, text: bytes) -> None:
    path = write(tmp_path / "a.pem", text)
    with pytest.raises(ConfigurationError, match=r"a\.pem") as caught:
        read_private_key(path)
    shown = str(caught.value)
    assert to_base64url(KEY.secret)[:8] not in shown
    assert to_base64url(SECRET)[:8] not in shown


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o606, 0o644, 0o620, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "a.pem", pem_of(KEY), mode)
    with pytest.raises(ConfigurationError, match=rf"{path} \(mode {mode:04o}\).*chmod 600"):
        SigningKey(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_its_owner_alone_is_good(tmp_path: Path, mode: int) -> None:
    assert SigningKey(write(tmp_path / "a.pem", pem_of(KEY), mode)).kid == KEY.kid


def test_a_folder_with_several_keys_needs_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    write(folder / "a.pem", pem_of(KEY))
    assert SigningKey(folder).kid == KEY.kid
    write(folder / "b.pem", pem_of(NEXT))
    with pytest.raises(ConfigurationError, match="holds 2 private keys: name one of them"):
        SigningKey(folder)


def test_a_key_does_not_show_its_secret() -> None:
    for text in (repr(KEY), str(KEY), f"{KEY}"):
        assert KEY.kid in text
        assert "secret" not in text
        assert to_base64url(KEY.secret)[:8] not in text
    with pytest.raises(Exception, match=r"pickle|Private"):
        pickle.dumps(KEY)


def test_a_signer_follows_its_file_within_a_second(tmp_path: Path) -> None:
    path, clock = write(tmp_path / "a.pem", pem_of(KEY)), ManualClock()
    signer = SigningKey(path, clock=clock)
    write(path, pem_of(NEXT))
    clock.advance(0.9)
    assert signer.kid == KEY.kid
    clock.advance(0.1)
    assert signer.kid == NEXT.kid
    assert ed25519_checker(NEXT.public)(signer.sign(b"text"), b"text")


BREAK: dict[str, Callable[[Path], object]] = {
    "another text": lambda path: write(path, b"not a key"),
    "gone": lambda path: path.unlink(),
    "readable by others": lambda path: path.chmod(0o644),
    "a key of another algorithm": lambda path: write(path, pem(ed448.Ed448PrivateKey.generate())),
}


@pytest.mark.parametrize("break_it", BREAK.values(), ids=BREAK)
def test_a_file_that_breaks_keeps_the_last_key_and_alarms_once(
    tmp_path: Path, break_it: Callable[[Path], object]
) -> None:
    path, clock, alarms = write(tmp_path / "a.pem", pem_of(KEY)), ManualClock(), list[str | None]()
    signer = SigningKey(path, clock=clock, alarm=alarms.append)
    break_it(path)
    for _ in range(20):
        clock.advance(1.0)
        assert signer.kid == KEY.kid
    assert len(alarms) == 1
    assert "a.pem" in str(alarms[0])
    write(path, pem_of(NEXT))
    clock.advance(1.0)
    assert signer.kid == NEXT.kid
    assert alarms[1:] == [None]


def test_header_and_signature_are_of_one_key_though_the_file_changes_between_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pem", pem_of(KEY))

    class Leaping(ManualClock):
        """Each look at the clock is a second later than the last, so that every look finds the other key."""

        looks = 0

        def monotonic_s(self) -> float:
            self.looks += 1
            write(path, pem_of(NEXT if self.looks % 2 else KEY))
            return float(self.looks)

    signer = SigningKey(path, clock=Leaping())
    kids = set()
    for _ in range(6):
        parsed = signatures.parse_signature(signatures.sign(b"payload", signer))
        assert parsed is not None
        public = {KEY.kid: KEY.public, NEXT.kid: NEXT.public}[parsed.kid]
        assert ed25519_checker(public)(parsed.raw, signatures.signing_input(parsed.header, b"payload"))
        kids.add(parsed.kid)
    assert kids == {KEY.kid, NEXT.kid}
