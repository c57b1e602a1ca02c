"""Which keys a JWKS may hold, and the verdict about one signature in the order of PROTOCOL.md section 7."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ConfigurationError
from bus.protocol import signatures
from bus.protocol.base64url import to_base64url
from bus.protocol.envelope import Statement
from bus.protocol.proof_chain import encode_statement
from bus.protocol.signatures import Signature
from bus.protocol.timestamps import format_ms
from bus.trust.keys import key_directory
from bus.trust.keys.key_directory import KEPT_AFTER_END_MS, KeyDirectory, parse_keys, thumbprint
from bus.trust.keys.private_keys import PrivateKey, new_shared_secret, public_jwk
from tests.keyrings import jwks_of, key_of

NOW_MS = 1_767_225_600_000
PLANNER, EVE = key_of("planner@svc"), key_of("eve@svc")
DOMAIN = new_shared_secret(bytes(range(32)), "domain-2026")


def statement(**members: Any) -> Statement:
    plain = Statement(
        content_hash="sha256:" + "1" * 64,
        envelope_hash="sha256:" + "2" * 64,
        hops=0,
        message_id="m-1",
        message_type="job.run",
        namespace="agents",
        protocol="sealbus/1",
        sender="planner@svc",
        timestamp=format_ms(NOW_MS),
    )
    return msgspec.structs.replace(plain, **members)


def signed(stated: Statement, key: PrivateKey = PLANNER, **header: str) -> tuple[Signature, bytes]:
    payload = encode_statement(stated)
    parsed = signatures.parse_signature(signatures.sign(payload, key))
    assert parsed is not None
    return msgspec.structs.replace(parsed, **header), payload


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


def entry(key: PrivateKey = PLANNER, **members: Any) -> dict[str, Any]:
    return public_jwk(key, **{"principals": ["planner@svc"], **members})


def shared(**members: Any) -> dict[str, Any]:
    secret = to_base64url(DOMAIN.secret)
    return {"kty": "oct", "alg": "HS256", "k": secret, "kid": DOMAIN.kid, "principals": ["planner@svc"]} | members


def directory(*keys: dict[str, Any], closed: bool = False) -> KeyDirectory:
    return parse_keys({"a.json": jwks(*keys)}, domain="closed" if closed else "open")


def verdict(
    keys: KeyDirectory,
    stated: Statement,
    signature: Signature | None = None,
    *,
    now_ms: int = NOW_MS,
    append_ms: int | None = NOW_MS,
    is_link: bool = False,
) -> str | None:
    made, payload = signed(stated)
    return keys.judge(signature or made, stated, payload, now_ms=now_ms, append_ms=append_ms, is_link=is_link)


def test_a_good_signature_is_good() -> None:
    keys = directory(entry())
    assert verdict(keys, statement()) is None
    assert verdict(keys, statement(), is_link=True) is None
    assert verdict(keys, statement(), append_ms=None) is None


# The faults in their order: each record has all faults that come after the first, too.

FAULTS: list[tuple[str, str]] = [
    ("signature_invalid", "alg outside the set"),
    ("key_unknown", "kid"),
    ("signature_invalid", "other alg"),
    ("key_revoked", "revoked"),
    ("key_expired", "expired"),
    ("signature_invalid", "bytes"),
    ("sender_mismatch", "principals"),
]


@pytest.mark.parametrize("first", range(len(FAULTS)), ids=[f"{what}-{reason}" for reason, what in FAULTS])
def test_the_first_fault_decides(first: int) -> None:
    faults = {what for _, what in FAULTS[first:]}
    members: dict[str, Any] = {"types": ["other.*"]}
    if "revoked" in faults:
        members["revoked_at"] = format_ms(NOW_MS)
    if "expired" in faults:
        members["not_after"] = format_ms(NOW_MS - 1)
    if "principals" in faults:
        members["principals"] = ["somebody@else"]
    signature, payload = signed(statement())
    if "bytes" in faults:
        signature = msgspec.structs.replace(signature, raw=signature.raw[:-1])
    if "other alg" in faults:
        signature = msgspec.structs.replace(signature, alg="HS256")
    if "kid" in faults:
        signature = msgspec.structs.replace(signature, kid=EVE.kid)
    if "alg outside the set" in faults:
        signature = msgspec.structs.replace(signature, alg="none")
    for is_link in (False, True):
        found = directory(entry(**members)).judge(
            signature, statement(), payload, now_ms=NOW_MS, append_ms=NOW_MS, is_link=is_link
        )
        assert found == FAULTS[first][0]


@pytest.mark.parametrize("alg", ["none", "None", "EdDSA", "ed25519", "hs256", "RS256", "ES256", "Ed448", "HS512", ""])
def test_an_alg_outside_the_set_is_refused_before_the_kid_is_looked_up(alg: str) -> None:
    signature, _ = signed(statement(), kid="nobody", alg=alg)
    assert verdict(directory(entry()), statement(), signature) == "signature_invalid"


def test_a_public_key_is_refused_as_hs256_secret() -> None:
    confused = new_shared_secret(PLANNER.public, PLANNER.kid)
    signature, _ = signed(statement(), confused)
    assert verdict(directory(entry()), statement(), signature) == "signature_invalid"


def test_a_secret_is_refused_as_ed25519_key() -> None:
    signature, _ = signed(statement(), PLANNER, kid=DOMAIN.kid)
    assert verdict(directory(shared(), closed=True), statement(), signature) == "signature_invalid"
    good, _ = signed(statement(), DOMAIN)
    assert verdict(directory(shared(), closed=True), statement(), good) is None


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize(("offset_ms", "reason"), [(-1, None), (0, "key_revoked"), (1, "key_revoked")])
def test_a_key_is_revoked_from_its_millisecond_on_whatever_the_message_says(
    offset_ms: int, reason: str | None, is_link: bool
) -> None:
    keys = directory(entry(revoked_at=format_ms(NOW_MS)))
    for sealed_ms in (NOW_MS, NOW_MS - 1000, NOW_MS - 10 * 86_400_000):
        stated = statement(timestamp=format_ms(sealed_ms))
        assert verdict(keys, stated, now_ms=NOW_MS + offset_ms, is_link=is_link) == reason


@pytest.mark.parametrize(
    ("sealed_ms", "append_ms", "of_message", "of_link"),
    [
        (NOW_MS - 1, NOW_MS, "key_expired", "key_expired"),
        (NOW_MS, NOW_MS, None, None),
        (NOW_MS + 500, NOW_MS, None, None),
        (NOW_MS + 1000, NOW_MS + 1000, None, None),
        (NOW_MS + 1001, NOW_MS + 1001, "key_expired", "key_expired"),
        (NOW_MS, NOW_MS + 1000 + KEPT_AFTER_END_MS, None, None),
        (NOW_MS, NOW_MS + 1001 + KEPT_AFTER_END_MS, "key_expired", None),
        (NOW_MS, None, None, None),
    ],
)
def test_the_ends_of_a_key_are_inclusive(
    sealed_ms: int, append_ms: int | None, of_message: str | None, of_link: str | None
) -> None:
    keys = directory(entry(not_before=format_ms(NOW_MS), not_after=format_ms(NOW_MS + 1000)))
    stated = statement(timestamp=format_ms(sealed_ms))
    # A retired key's messages are judged by their sealed time, whenever that is.
    for now_ms in (NOW_MS, NOW_MS + 100 * 86_400_000):
        assert verdict(keys, stated, now_ms=now_ms, append_ms=append_ms) == of_message
        assert verdict(keys, stated, now_ms=now_ms, append_ms=append_ms, is_link=True) == of_link
    assert KEPT_AFTER_END_MS == 14 * 86_400_000


def test_a_key_speaks_for_its_principals_in_its_namespaces() -> None:
    keys = directory(entry(principals=["planner@svc", "second@svc"], namespaces=["agents"]))
    assert verdict(keys, statement()) is None
    assert verdict(keys, statement(sender="second@svc")) is None
    for wrong in ({"sender": "Planner@svc"}, {"sender": "planner@svc2"}, {"namespace": "prod"}):
        for is_link in (False, True):
            assert verdict(keys, statement(**wrong), is_link=is_link) == "sender_mismatch"


def test_a_key_without_principals_signs_for_no_agent() -> None:
    without = {name: value for name, value in entry().items() if name != "principals"}
    for key in (without, entry(principals=[])):
        assert verdict(directory(key), statement()) == "sender_mismatch"


@pytest.mark.parametrize(
    ("patterns", "allowed", "refused"),
    [
        (None, ["job.run", "a"], []),
        (["job.run"], ["job.run"], ["job.run2", "job", "ajob.run", "job-run"]),
        (["job.*"], ["job.run", "job.run.now"], ["job", "jobs.run"]),
        (["*.request"], ["a.request", "a.b.request"], ["request", "a.request.b"]),
        (["*"], ["job.run"], []),
        (["a", "b"], ["a", "b"], ["c", "ab"]),
        ([], [], ["job.run"]),
    ],
)
def test_the_types_that_a_key_signs(patterns: list[str] | None, allowed: list[str], refused: list[str]) -> None:
    keys = directory(entry(types=patterns))
    for name in [*allowed, *refused]:
        stated = statement(message_type=name)
        # For a message the gate `policy` asks, and says `unauthorized`.
        assert verdict(keys, stated) is None
        assert keys.may_sign(PLANNER.kid, name) == (name in allowed)
        assert verdict(keys, stated, is_link=True) == (None if name in allowed else "unauthorized")
    assert not keys.may_sign(EVE.kid, "job.run")


@pytest.mark.parametrize("message_type", ["approval.decision", "redrive.ordered", "trust.lifted"])
def test_a_shared_secret_carries_no_right_of_a_person_or_of_the_bus(message_type: str) -> None:
    keys = directory(shared(), entry(), closed=True)
    stated = statement(message_type=message_type)
    signature, _ = signed(stated, DOMAIN)
    assert not keys.may_sign(DOMAIN.kid, message_type)
    assert keys.may_sign(PLANNER.kid, message_type)
    assert keys.may_sign(DOMAIN.kid, "job.run")
    assert verdict(keys, stated, signature, is_link=True) == "unauthorized"


def test_the_memory_of_verified_signatures_accepts_no_other_payload_and_no_other_key() -> None:
    keys = directory(entry(), entry(EVE, principals=["planner@svc"]))
    signature, payload = signed(statement())
    other = statement(message_id="m-2")
    for _ in range(2):
        assert keys.judge(signature, statement(), payload, now_ms=NOW_MS) is None
        assert keys.judge(signature, other, encode_statement(other), now_ms=NOW_MS) == "signature_invalid"
        theirs = msgspec.structs.replace(signature, kid=EVE.kid)
        assert keys.judge(theirs, statement(), payload, now_ms=NOW_MS) == "signature_invalid"


def test_cached_signatures_are_separate_for_keys_with_similar_names() -> None:
    mine = new_shared_secret(bytes(32), f"my-{DOMAIN.kid}")
    keys = directory(shared(), shared(kid=mine.kid, k=to_base64url(mine.secret)), closed=True)
    signature, payload = signed(statement(), mine)
    assert keys.judge(signature, statement(), payload, now_ms=NOW_MS) is None
    other, _ = signed(statement(), DOMAIN, alg="HS256")
    for raw in (signature.raw + b"my-", b"my-" + signature.raw, signature.raw):
        moved = msgspec.structs.replace(other, raw=raw)
        assert keys.judge(moved, statement(), payload, now_ms=NOW_MS) == "signature_invalid"


def test_the_memory_forgets_no_verdict_that_time_or_sender_changes() -> None:
    keys = directory(entry(revoked_at=format_ms(NOW_MS + 1), not_after=format_ms(NOW_MS)))
    assert verdict(keys, statement()) is None
    assert verdict(keys, statement(), now_ms=NOW_MS + 1) == "key_revoked"
    assert verdict(keys, statement(), append_ms=NOW_MS + 2 * KEPT_AFTER_END_MS) == "key_expired"


def test_the_older_half_of_the_memory_accepts_no_other_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_directory, "_MAX_REMEMBERED", 8)
    keys, other = directory(entry()), encode_statement(statement(message_id="other"))
    remembered = [signed(statement(message_id=f"m-{number}")) for number in range(12)]
    for signature, payload in remembered:
        assert keys.judge(signature, statement(), payload, now_ms=NOW_MS) is None
        for known, _ in remembered:
            assert keys.judge(known, statement(), other, now_ms=NOW_MS) == "signature_invalid"


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_directory, "_MAX_REMEMBERED", 4)
    keys = directory(entry())
    for number in range(10):
        assert verdict(keys, statement(message_id=f"m-{number}")) is None
    assert len(keys._verified) + len(keys._verified_before) <= 4
    assert verdict(keys, statement(message_id="m-0")) is None


@given(
    faults=st.sets(st.sampled_from(["sender", "namespace", "revoked", "old", "young", "bytes", "kid", "alg"])),
    is_link=st.booleans(),
)
def test_a_signature_is_good_only_without_any_fault(faults: set[str], is_link: bool) -> None:
    members: dict[str, Any] = {"namespaces": ["agents"]}
    stated = statement()
    if "revoked" in faults:
        members["revoked_at"] = format_ms(NOW_MS - 1)
    if "old" in faults:
        members["not_after"] = format_ms(NOW_MS - 1)
    if "young" in faults:
        members["not_before"] = format_ms(NOW_MS + 1)
    if "sender" in faults:
        stated = msgspec.structs.replace(stated, sender="eve@svc")
    if "namespace" in faults:
        stated = msgspec.structs.replace(stated, namespace="prod")
    signature, payload = signed(stated)
    if "bytes" in faults:
        signature = msgspec.structs.replace(signature, raw=bytes(64))
    if "kid" in faults:
        signature = msgspec.structs.replace(signature, kid="nobody")
    if "alg" in faults:
        signature = msgspec.structs.replace(signature, alg="EdDSA")
    found = directory(entry(**members)).judge(signature, stated, payload, now_ms=NOW_MS, is_link=is_link)
    assert (found is None) == (not faults)


# Files.

SMALL_ORDER = "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"
NOT_CANONICAL = (2**255 - 19 + 1).to_bytes(32, "little").hex()


def weak(public: str) -> dict[str, Any]:
    point = bytes.fromhex(public)
    return entry() | {"x": to_base64url(point), "kid": thumbprint(point)}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "private member": (entry(d=to_base64url(PLANNER.secret)), "holds a private key"),
    "private member without value": (entry() | {"d": ""}, "holds a private key"),
    "secret in the open domain": (shared(), "shared secret"),
    "EdDSA": (entry() | {"alg": "EdDSA"}, "EdDSA is refused"),
    "no alg": ({name: value for name, value in entry().items() if name != "alg"}, "alg is required"),
    "none": (entry() | {"alg": "none"}, "alg is required"),
    "Ed25519 as oct": (entry() | {"kty": "oct"}, "none of OKP"),
    "Ed25519 with HS256": (entry() | {"alg": "HS256"}, "none of OKP"),
    "X25519": (entry() | {"crv": "X25519"}, "none of OKP"),
    "Ed448": (entry() | {"crv": "Ed448", "alg": "Ed448"}, "none of OKP"),
    "another key's kid": (entry() | {"kid": EVE.kid}, "thumbprint"),
    "kid is a name": (entry() | {"kid": "planner"}, "thumbprint"),
    "no kid": ({name: value for name, value in entry().items() if name != "kid"}, "thumbprint"),
    "small order": (weak(SMALL_ORDER), "not a public key"),
    "identity": (weak("01" + "00" * 31), "not a public key"),
    "not canonical": (weak(NOT_CANONICAL), "not a public key"),
    "off the curve": (weak("02" + "00" * 31), "not a public key"),
    "31 bytes": (weak("11" * 31), "not a public key"),
    "no x": ({name: value for name, value in entry().items() if name != "x"}, "not a public key"),
    "x is a number": (entry() | {"x": 7}, "not a public key"),
    "x with padding": (entry() | {"x": entry()["x"] + "="}, "not a public key"),
    "x in the other base64": (entry() | {"x": base64.b64encode(b"\xff" * 32).decode().rstrip("=")}, "not a public key"),
    "x with spare bits": (entry() | {"x": entry()["x"][:-1] + chr(ord(entry()["x"][-1]) + 1)}, "not a public key"),
    "x with white space": (entry() | {"x": entry()["x"] + "\n"}, "not a public key"),
    "unknown member": (entry() | {"principal": ["planner@svc"]}, "the nearest is principals"),
    "x5c": (entry() | {"x5c": []}, "no member 'x5c'"),
    "for encryption": (entry() | {"use": "enc"}, "not for signatures"),
    "key_ops": (entry() | {"key_ops": ["sign"]}, "not for signatures"),
    "principals is a text": (entry(principals="planner@svc"), "principals must be a list"),
    "principals has a number": (entry(principals=[1]), "principals must be a list"),
    "principals has an empty text": (entry(principals=[""]), "principals must be a list"),
    "principals has a control character": (entry(principals=["a\x00b"]), "principals must be a list"),
    "types is a text": (entry(types="task.*"), "types must be a list"),
    "types is not a pattern": (entry(types=["task.[a]"]), "not a pattern"),
    "types is upper case": (entry(types=["Task.run"]), "not a pattern"),
    "types has five stars": (entry(types=["*a*b*c*d*"]), "at most 4 stars"),
    "types has an empty pattern": (entry(types=[""]), "types must be a list"),
    "namespaces is a text": (entry(namespaces="agents"), "namespaces must be a list"),
    "not_before without zone": (entry(not_before="2026-01-01T00:00:00"), "not_before is"),
    "not_after with another zone": (entry(not_after="2026-01-01T00:00:00+02:00"), "not_after is"),
    "not_after on the 31st of June": (entry(not_after="2026-06-31T00:00:00Z"), "not_after is"),
    "revoked_at is a number": (entry(revoked_at=1767225600), "revoked_at is"),
    "revoked_at is a word": (entry(revoked_at="yesterday"), "revoked_at is"),
    "revoked_at is false": (entry() | {"revoked_at": False}, "revoked_at is"),
}


@pytest.mark.parametrize(("jwk", "said"), REFUSED.values(), ids=REFUSED)
def test_a_key_that_is_refused_is_named_with_its_file(jwk: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_keys({"good.json": jwks_of("other@svc"), "team/bad.json": jwks(entry(EVE), jwk)})
    assert "team/bad.json: key 1" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("jwk", "said"),
    [
        (shared(k=to_base64url(bytes(31))), "32 bytes"),
        (shared(k=to_base64url(bytes(64))), "32 bytes"),
        (shared(k=shared()["k"] + "="), "32 bytes"),
        (shared(k=None), "32 bytes"),
        (shared(kid=""), "kid is"),
        (shared(kid=None), "kid is"),
        (shared(kid="a\nb"), "kid is"),
        (shared(alg="HS512"), "none of OKP"),
        (shared(alg="Ed25519"), "none of OKP"),
    ],
)
def test_a_secret_that_is_refused_in_the_closed_domain(jwk: dict[str, Any], said: str) -> None:
    assert directory(shared(), closed=True).keys.keys() == {DOMAIN.kid}
    with pytest.raises(ConfigurationError, match=said):
        directory({name: value for name, value in jwk.items() if value is not None}, closed=True)


def test_a_refusal_shows_no_secret() -> None:
    secret = to_base64url(PLANNER.secret)
    for jwk in (entry(d=secret), shared(k=secret), shared(k=secret + "=")):
        for domain in ("open", "closed"):
            try:
                parse_keys({"a.json": jwks(jwk)}, domain=domain)
            except ConfigurationError as error:
                assert secret[:8] not in str(error)  # noqa: PT017 - one of them is good


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":null}',
        b"\xff\xfe",
        b'{"keys":[],"keys":[]}',
        b'{"keys":[' + b"[" * 100 + b"]" * 100 + b"]}",
    ],
)
def test_an_invalid_jwks_file_is_named(text: bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"team/a\.json"):
        parse_keys({"team/a.json": text})


@pytest.mark.parametrize("jwk", [1, "text", None, []])
def test_a_jwks_entry_that_is_not_an_object_is_named(jwk: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"a\.json: key 0"):
        directory(jwk)


def test_a_duplicate_member_in_a_key_is_refused() -> None:
    text = jwks(entry()).replace(b'"kty"', b'"principals": ["eve@svc"], "kty"', 1)
    with pytest.raises(ConfigurationError, match=r"a\.json"):
        parse_keys({"a.json": text})


def test_a_duplicate_kid_refuses_all_keys() -> None:
    with pytest.raises(ConfigurationError, match=r"a\.json: key 1.*twice"):
        directory(entry(), entry(principals=["eve@svc"]))
    with pytest.raises(ConfigurationError, match=r"b\.json: key 0.*twice"):
        parse_keys({"a.json": jwks(entry()), "b.json": jwks(entry(principals=["eve@svc"]))})


def test_without_keys_no_agent_is_trusted() -> None:
    assert verdict(directory(), statement()) == "key_unknown"


def test_times_may_have_fractions_of_up_to_six_digits() -> None:
    for text, expected_ms in [("2026-01-01T00:00:00Z", 0), ("2026-01-01T00:00:00.25Z", 250)]:
        (key,) = directory(entry(not_after=text)).keys.values()
        assert key.not_after_ms == NOW_MS + expected_ms


def test_the_thumbprint_is_that_of_rfc_8037() -> None:
    public = base64.urlsafe_b64decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo=")
    assert thumbprint(public) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
