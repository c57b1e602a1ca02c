"""A signature is one form of detached JWS; anything else is no signature."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import SigningError
from bus.protocol.signatures import parse_signature, sign, signing_input

PAYLOAD = b'{"a":1}'
HEADER = {"alg": "HS256", "b64": False, "crit": ["b64"], "kid": "k1"}


class Domain:
    kid = "k1"
    alg = "HS256"

    def sign(self, signing_input: bytes) -> bytes:
        return hmac.new(b"secret", signing_input, hashlib.sha256).digest()


class Rotating(Domain):
    """Reads which key it has each time; just now there is none."""

    @property
    def kid(self) -> str:
        raise OSError("the keys are away")


def coded(data: bytes | str) -> str:
    raw = data.encode() if isinstance(data, str) else data
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def with_header(header: object, raw: bytes = b"x" * 32) -> str:
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"), sort_keys=True)
    return f"{coded(text)}..{coded(raw)}"


def test_the_signature_covers_header_dot_and_statement() -> None:
    text = sign(PAYLOAD, Domain())
    header, _, tail = text.partition("..")
    expected = hmac.new(b"secret", header.encode() + b"." + PAYLOAD, hashlib.sha256).digest()
    assert coded(expected) == tail
    assert signing_input(header, PAYLOAD) == header.encode() + b"." + PAYLOAD


def test_the_header_is_the_canonical_form_of_exactly_four_members() -> None:
    header = sign(PAYLOAD, Domain()).partition("..")[0]
    assert (
        base64.urlsafe_b64decode(header + "=" * (-len(header) % 4))
        == b'{"alg":"HS256","b64":false,"crit":["b64"],"kid":"k1"}'
    )


def test_a_signature_is_read_back() -> None:
    signature = parse_signature(sign(PAYLOAD, Domain()))
    assert signature is not None
    assert (signature.alg, signature.kid, len(signature.raw)) == ("HS256", "k1", 32)


@given(
    st.binary(min_size=1, max_size=70),
    st.text(min_size=1, max_size=9, alphabet=st.characters(exclude_categories=["Cs"])),
)
def test_any_bytes_and_any_kid_are_read_back(raw: bytes, kid: str) -> None:
    class Other(Domain):
        def sign(self, signing_input: bytes) -> bytes:
            return raw

    signer = Other()
    signer.kid = kid
    signature = parse_signature(sign(PAYLOAD, signer))
    assert signature is not None
    assert (signature.raw, signature.kid) == (raw, kid)


def test_a_signer_that_does_not_know_its_key_has_failed() -> None:
    with pytest.raises(SigningError, match="the keys are away"):
        sign(PAYLOAD, Rotating())


@pytest.mark.parametrize("name", ["alg", "kid"])
@pytest.mark.parametrize("value", [None, 1, ["k1"], b"k1", "\ud83d"])
def test_nothing_is_signed_under_a_name_that_no_receiver_reads(name: str, value: Any) -> None:
    signer = Domain()
    setattr(signer, name, value)
    with pytest.raises(SigningError):
        sign(PAYLOAD, signer)


GOOD = with_header(HEADER)
BAD_FORMS = {
    "empty": "",
    "dots only": "..",
    "no signature": f"{coded(json.dumps(HEADER))}..",
    "no header": f"..{coded(b'x')}",
    "payload in between": GOOD.replace("..", f".{coded(PAYLOAD)}."),
    "one dot": GOOD.replace("..", "."),
    "three dots": GOOD.replace("..", "..."),
    "a dot after": GOOD + ".",
    "padding after": with_header(HEADER, b"x") + "==",
    "padding in the header": GOOD.replace("..", "=.."),
    "plus for minus": with_header(HEADER, b"\xfb\xef\xbe").replace("-", "+"),
    "slash for underscore": with_header(HEADER, b"\xff\xff\xff").replace("_", "/"),
    "white space": GOOD + " ",
    "a newline": GOOD + "\n",
    "newline within": GOOD[:10] + "\n" + GOOD[10:],
    "not ASCII": GOOD + "\u00e9",
    "spare bits": with_header(HEADER, b"x")[:-1] + "B",
    "one character": GOOD.partition("..")[0] + "..A",
    "spare bits in the header": coded(json.dumps(HEADER, separators=(",", ":")) + "x")[:-2] + "B.." + coded(b"x"),
}
BAD_HEADERS: dict[str, object] = {
    "not JSON": "{",
    "no object": "[]",
    "a text": '"x"',
    "white space": json.dumps(HEADER, sort_keys=True),
    "another order": '{"kid":"k1","alg":"HS256","b64":false,"crit":["b64"]}',
    "a member twice": '{"alg":"none","alg":"HS256","b64":false,"crit":["b64"],"kid":"k1"}',
    "escapes": '{"alg":"HS256","b64":false,"crit":["b64"],"kid":"\\u006b1"}',
    "no alg": {name: value for name, value in HEADER.items() if name != "alg"},
    "no b64": {name: value for name, value in HEADER.items() if name != "b64"},
    "no crit": {name: value for name, value in HEADER.items() if name != "crit"},
    "no kid": {name: value for name, value in HEADER.items() if name != "kid"},
    "one member more": HEADER | {"typ": "JOSE"},
    "b64 true": HEADER | {"b64": True},
    "b64 zero": HEADER | {"b64": 0},
    "crit empty": HEADER | {"crit": []},
    "crit more": HEADER | {"crit": ["b64", "exp"]},
    "crit a text": HEADER | {"crit": "b64"},
    "alg a number": HEADER | {"alg": 1},
    "kid null": HEADER | {"kid": None},
    "kid a list": HEADER | {"kid": ["k1"]},
}


def test_the_good_form_is_good() -> None:
    assert parse_signature(GOOD) is not None


@pytest.mark.parametrize("name", BAD_FORMS)
def test_another_form_is_not_a_signature(name: str) -> None:
    assert parse_signature(BAD_FORMS[name]) is None


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_another_header_is_not_a_signature(name: str) -> None:
    assert parse_signature(with_header(BAD_HEADERS[name])) is None


def test_a_header_outside_utf_8_is_not_a_signature() -> None:
    header = b'{"alg":"HS256","b64":false,"crit":["b64"],"kid":"\xff"}'
    assert parse_signature(f"{coded(header)}..{coded(b'x')}") is None


@given(st.text(max_size=60, alphabet=st.characters(min_codepoint=0, max_codepoint=0x2FF)))
def test_arbitrary_text_is_rejected_as_a_signature(text: str) -> None:
    assert parse_signature(text) is None


@given(st.data())
def test_no_two_texts_are_the_same_signature(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(GOOD) - 1))
    other = GOOD[:at] + data.draw(st.characters(min_codepoint=33, max_codepoint=126)) + GOOD[at + 1 :]
    if other != GOOD:
        assert parse_signature(other) != parse_signature(GOOD)
