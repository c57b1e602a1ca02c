"""Keys and agents: before anything is sealed it is said of a key what its readers would say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ConfigurationError
from bus.protocol.envelope import Statement
from bus.protocol.proof_chain import encode_statement
from bus.protocol.signatures import parse_signature, sign
from bus.protocol.timestamps import format_ms
from bus.trust.keys.key_directory import KeyDirectory, TrustedKey
from bus.trust.keys.key_pairing import SOON_MS, KeyGuard, agent_of_key, check_pair, ending_keys, fault_of_key
from tests.keyrings import key_of

NOW_MS = 1_767_225_600_000
PRIVATE = key_of("a@svc")
times = st.none() | st.integers(NOW_MS - 3, NOW_MS + 3)


def trusted(name: str = "a@svc", **members: Any) -> TrustedKey:
    private = key_of(name)
    key = TrustedKey(kid=private.kid, alg=private.alg, material=private.public, principals=frozenset({name}))
    return msgspec.structs.replace(key, **members)


limits = st.builds(
    trusted,
    not_before_ms=times,
    not_after_ms=times,
    revoked_at_ms=times,
    principals=st.sampled_from(
        [frozenset({"a@svc"}), frozenset({"b@svc", "a@svc"}), frozenset({"b@svc"}), frozenset()]
    ),
    namespaces=st.none() | st.sampled_from([frozenset({"agents"}), frozenset({"others"}), frozenset()]),
    types=st.none() | st.sampled_from([("x.*",), ("y.z",), ()]),
)


@given(limits, st.sampled_from(["x.y", "y.z"]))
def test_signer_and_reader_refuse_the_same_statements(key: TrustedKey, message_type: str) -> None:
    statement = Statement(
        content_hash="sha256:" + "0" * 64,
        envelope_hash="sha256:" + "0" * 64,
        hops=0,
        message_id="m",
        message_type=message_type,
        namespace="agents",
        protocol="sealbus/1",
        sender="a@svc",
        timestamp=format_ms(NOW_MS),
    )
    text = encode_statement(statement)
    signature = parse_signature(sign(text, PRIVATE))
    assert signature is not None
    directory = KeyDirectory([key])
    reason = directory.judge(signature, statement, text, now_ms=NOW_MS)
    if reason is None and not directory.may_sign(key.kid, message_type):
        reason = "unauthorized"
    fault = fault_of_key(key, "a@svc", namespace="agents", now_ms=NOW_MS, message_type=message_type)
    assert (None if fault is None else fault.reason) == reason
    assert fault is None or key.kid in fault.text


def test_a_key_that_is_not_known_is_not_judged() -> None:
    verifier: Any = KeyDirectory([])
    assert KeyGuard(PRIVATE, verifier, lambda: NOW_MS).fault("a@svc", "agents") is None
    assert KeyGuard(PRIVATE, None, lambda: NOW_MS).fault("a@svc", "agents") is None
    check_pair(PRIVATE, verifier, "b@svc")
    check_pair(None, KeyDirectory([trusted()]), "b@svc")


def test_a_signer_that_cannot_say_its_name_is_asked_when_it_signs() -> None:
    class Away:
        alg = "Ed25519"

        @property
        def kid(self) -> str:
            raise OSError("the keys are away")

        def sign(self, signing_input: bytes) -> bytes:
            raise OSError("the keys are away")

    check_pair(Away(), KeyDirectory([trusted()]), "b@svc")


def test_an_agent_and_a_key_are_a_pair_whatever_the_time() -> None:
    ended = KeyDirectory([trusted(not_after_ms=0, revoked_at_ms=0)])
    check_pair(PRIVATE, ended, "a@svc")
    with pytest.raises(ConfigurationError, match=r"signs for a@svc, not for b@svc: give the key of b@svc"):
        check_pair(PRIVATE, ended, "b@svc")


def test_whom_a_key_speaks_for() -> None:
    assert agent_of_key(PRIVATE.kid, KeyDirectory([trusted()])) == "a@svc"
    for directory, said in (
        (None, "not among the trusted keys"),
        (KeyDirectory([]), "not among the trusted keys"),
        (
            KeyDirectory([trusted(principals=frozenset({"b", "a"}))]),
            "signs for a, b: name the acting agent with --as",
        ),
        (KeyDirectory([trusted(principals=frozenset())]), "signs for nobody"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            agent_of_key(PRIVATE.kid, directory)


@pytest.mark.parametrize(
    ("others", "end_ms", "found"),
    [
        ((), NOW_MS - 1, [True]),
        ((), NOW_MS + SOON_MS - 1, [False]),
        ((), NOW_MS + SOON_MS, []),
        ((), None, []),
        (({},), NOW_MS - 1, []),
        (({"not_after_ms": NOW_MS + SOON_MS + 1},), NOW_MS + 1, []),
        (({"not_after_ms": NOW_MS + SOON_MS - 1},), NOW_MS + 1, [False, False]),
        (({"revoked_at_ms": NOW_MS},), NOW_MS + 1, [False]),
        (({"principals": frozenset({"b@svc"})},), NOW_MS + 1, [False]),
    ],
)
def test_keys_that_end_soon_and_that_no_other_follows(
    others: tuple[dict[str, Any], ...], end_ms: int | None, found: list[bool]
) -> None:
    more = [trusted("c@svc", **{"principals": frozenset({"a@svc"}), **members}) for members in others]
    directory = KeyDirectory([trusted(not_after_ms=end_ms), *more])
    assert [has_ended for _, has_ended in ending_keys(directory, NOW_MS)] == found
