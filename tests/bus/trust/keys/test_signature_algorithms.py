"""Ed25519 and HS256 have one rule for every edge case, and another implementation of JWS agrees with it."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.errors import BadSignatureError
from joserfc.jwk import OctKey, OKPKey

from bus.protocol import signatures
from bus.protocol.base64url import to_base64url
from bus.protocol.envelope import Statement
from bus.protocol.proof_chain import encode_statement
from bus.trust.keys.private_keys import PrivateKey, new_private_key, new_shared_secret, public_jwk
from bus.trust.keys.signature_algorithms import ed25519_checker, ed25519_private_key, hs256_checker, is_strong_point

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493

# The eight points whose order divides 8, as RFC 8032 encodes them.
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
]
NOT_CANONICAL = [
    *((P + y).to_bytes(32, "little").hex() for y in range(19)),
    "0100000000000000000000000000000000000000000000000000000000000080",  # x is 0 and has a sign
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]


def a_key(number: int = 1) -> PrivateKey:
    return new_private_key(hashlib.sha256(str(number).encode()).digest())


@pytest.mark.parametrize("encoded", [*SMALL_ORDER, *NOT_CANONICAL, "", "00" * 31, "11" * 33])
def test_a_weak_or_non_canonical_point_is_not_a_key(encoded: str) -> None:
    assert not is_strong_point(bytes.fromhex(encoded))


def test_a_point_that_is_on_no_curve_or_has_a_part_of_small_order_is_no_key() -> None:
    found = {is_strong_point(number.to_bytes(32, "little")) for number in range(2, 40)}
    assert found == {False, True}
    # y of a strong point with the other sign is its negative, which is as strong.
    public = bytearray(a_key().public)
    public[31] ^= 0x80
    assert is_strong_point(bytes(public))


@given(st.binary(min_size=32, max_size=32))
def test_every_key_that_is_made_is_a_strong_point(seed: bytes) -> None:
    assert is_strong_point(new_private_key(seed).public)


@pytest.mark.parametrize(
    ("seed", "public", "message", "r", "s"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155",
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da",
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ],
)
def test_the_vectors_of_rfc_8032(seed: str, public: str, message: str, r: str, s: str) -> None:
    key = ed25519_private_key(bytes.fromhex(seed))
    assert key.public_key().public_bytes_raw().hex() == public
    assert key.sign(bytes.fromhex(message)).hex() == r + s
    assert ed25519_checker(bytes.fromhex(public))(bytes.fromhex(r + s), bytes.fromhex(message))


@pytest.mark.parametrize("encoded", [*SMALL_ORDER, *NOT_CANONICAL[:2]])
def test_a_signature_whose_r_is_of_small_order_is_refused(encoded: str) -> None:
    check = ed25519_checker(a_key().public)
    for s in (bytes(32), (1).to_bytes(32, "little"), (L - 1).to_bytes(32, "little")):
        assert not check(bytes.fromhex(encoded) + s, b"text")


def test_a_signature_that_holds_with_r_of_small_order_is_refused() -> None:
    """Made by the key's owner with nonce 0: R is the identity and the equation holds, so implementations differ."""
    seed = hashlib.sha256(b"1").digest()
    scalar = bytearray(hashlib.sha512(seed).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    public, point = new_private_key(seed).public, bytes.fromhex(SMALL_ORDER[0])
    challenge = int.from_bytes(hashlib.sha512(point + public + b"text").digest(), "little") % L
    s = challenge * int.from_bytes(scalar, "little") % L
    assert not ed25519_checker(public)(point + s.to_bytes(32, "little"), b"text")


def test_s_is_below_the_order_of_the_group() -> None:
    key = a_key()
    good = key.sign(b"text")
    check = ed25519_checker(key.public)
    assert check(good, b"text")
    s = int.from_bytes(good[32:], "little")
    for multiple in range(1, 15):
        assert not check(good[:32] + (s + multiple * L).to_bytes(32, "little"), b"text")


def test_a_signature_of_another_length_is_refused() -> None:
    key = a_key()
    good = key.sign(b"text")
    check = ed25519_checker(key.public)
    assert not any(check(wrong, b"text") for wrong in (b"", good[:-1], good + b"\0", good * 2, good[:32]))


@given(st.binary(max_size=64), st.integers(0, 511))
def test_one_bit_makes_a_signature_bad(text: bytes, bit: int) -> None:
    key = a_key()
    flipped = bytearray(key.sign(text))
    flipped[bit // 8] ^= 1 << bit % 8
    assert ed25519_checker(key.public)(key.sign(text), text)
    assert not ed25519_checker(key.public)(bytes(flipped), text)


def test_hs256_is_compared_whole() -> None:
    key = new_shared_secret(bytes(range(32)), "domain")
    good, check = key.sign(b"text"), hs256_checker(bytes(range(32)))
    assert check(good, b"text")
    assert not any(check(wrong, b"text") for wrong in (b"", good[:-1], good + b"\0", bytes(32)))
    assert not check(good, b"texT")


# Another implementation of RFC 7515, 7797 and 9864.

STATEMENT = Statement(
    content_hash="sha256:" + "1" * 64,
    envelope_hash="sha256:" + "2" * 64,
    hops=0,
    message_id="m-1",
    message_type="job.run",
    namespace="agents",
    protocol="sealbus/1",
    sender="planner@svc",
    timestamp="2026-01-01T00:00:00.000Z",
)
PAYLOAD = encode_statement(STATEMENT)


def keys_of(alg: str) -> tuple[PrivateKey, OKPKey | OctKey]:
    if alg == "HS256":
        secret = bytes(range(32))
        return new_shared_secret(secret, "domain"), OctKey.import_key(secret)
    key = a_key()
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": to_base64url(key.public), "d": to_base64url(key.secret)}
    return key, OKPKey.import_key(jwk)


@pytest.mark.parametrize("alg", ["Ed25519", "HS256"])
def test_our_signatures_verify_in_joserfc_as_detached_jws(alg: str) -> None:
    ours, other = keys_of(alg)
    text = signatures.sign(PAYLOAD, ours)
    found = jws.deserialize_compact(text, other, algorithms=[alg], payload=PAYLOAD)
    assert found.headers() == {"alg": alg, "b64": False, "crit": ["b64"], "kid": ours.kid}
    with pytest.raises(BadSignatureError):
        jws.deserialize_compact(text, other, algorithms=[alg], payload=PAYLOAD + b" ")


@pytest.mark.parametrize("alg", ["Ed25519", "HS256"])
def test_signatures_of_joserfc_verify_here(alg: str) -> None:
    ours, other = keys_of(alg)
    header = {"alg": alg, "b64": False, "crit": ["b64"], "kid": ours.kid}
    text = jws.serialize_compact(header, PAYLOAD, other, algorithms=[alg])
    assert text == signatures.sign(PAYLOAD, ours)
    parsed = signatures.parse_signature(text)
    assert parsed is not None
    check = ed25519_checker(ours.public) if alg == "Ed25519" else hs256_checker(ours.secret)
    assert check(parsed.raw, signatures.signing_input(parsed.header, PAYLOAD))


def test_both_libraries_name_a_key_by_the_same_thumbprint() -> None:
    key = a_key()
    assert OKPKey.import_key(public_jwk(key)).thumbprint() == key.kid


HEADER = {"alg": "Ed25519", "b64": False, "crit": ["b64"], "kid": "k"}


def compact(header: object, raw: bytes = b"s" * 64) -> str:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    return f"{to_base64url(text)}..{to_base64url(raw)}"


@pytest.mark.parametrize(
    "text",
    [
        compact(HEADER | {"jwk": {"kty": "OKP"}}),
        compact(HEADER | {"jku": "https://evil.test"}),
        compact(HEADER | {"x5c": []}),
        compact(HEADER | {"typ": "JWT"}),
        compact(HEADER | {"b64": True}),
        compact(HEADER | {"b64": 0}),
        compact(HEADER | {"crit": []}),
        compact(HEADER | {"crit": ["b64", "b64"]}),
        compact(HEADER | {"crit": ["b64", "exp"]}),
        compact(HEADER | {"alg": None}),
        compact(HEADER | {"kid": 1}),
        compact({name: value for name, value in HEADER.items() if name != "kid"}),
        compact(json.dumps(HEADER).encode()),
        compact(b'{"kid":"k","alg":"Ed25519","b64":false,"crit":["b64"]}'),
        compact(b'{"alg":"Ed25519","alg":"Ed25519","b64":false,"crit":["b64"],"kid":"k"}'),
        compact(b"[]"),
        compact(b"\xef\xbb\xbf{}"),
        compact(HEADER, b""),
        compact(HEADER).replace("..", "."),
        compact(HEADER).replace("..", "..."),
        compact(HEADER).replace("..", ".e30."),
        compact(HEADER) + "=",
        compact(HEADER) + "==",
        compact(HEADER) + "\n",
        compact(HEADER) + " ",
        compact(HEADER) + ".",
        " " + compact(HEADER),
        compact(HEADER)[:-1] + "+",
        compact(HEADER)[:-1] + "/",
        compact(HEADER)[:-1] + "é",
        compact(HEADER | {"kid": "k" * 2000}),
        "",
        "..",
        "e30..",
    ],
)
def test_only_one_encoding_is_a_signature(text: str) -> None:
    assert signatures.parse_signature(compact(HEADER)) is not None
    assert signatures.parse_signature(text) is None


def test_spare_bits_are_zero() -> None:
    text = compact(HEADER)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    # 64 bytes leave four spare bits in the last character: sixteen spellings of one signature, of which one is right.
    same = [
        text[:-1] + letter
        for letter in alphabet
        if base64.urlsafe_b64decode(text.split("..")[1][:-1] + letter + "==") == b"s" * 64
    ]
    assert len(same) == 16
    assert [one for one in same if signatures.parse_signature(one) is not None] == [text]
