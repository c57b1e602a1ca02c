"""One message, one byte form: sealing, strict reading, integrity; hostile records cost one refusal and little time."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

import msgspec
import pytest
import rfc8785

from bus import native
from bus.errors import ContractError
from bus.payloads.payload_types import Registry, encode_payload, payload
from bus.protocol import sealing
from bus.protocol.envelope import Agent, Metadata, Routing, Security
from bus.protocol.sealing import Message

MIB = 1 << 20


@payload("research.request", version="1.0.0", overrides=True)
class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    question: str
    weight: float = 0.5
    count: int | None = None
    tags: tuple[str, ...] = ()


REGISTRY = Registry([Request])


def metadata(**changes: Any) -> Metadata:
    fields: dict[str, Any] = {
        "conversation_id": "talk",
        "hops": 0,
        "message_id": "m-1",
        "message_type": "research.request",
        "namespace": "agents",
        "protocol": "sealbus/1",
        "schema_version": "1.0.0",
        "sender": Agent(id="planner@svc"),
        "timestamp": "2026-01-01T00:00:00.000Z",
    }
    return Metadata(**fields | changes)


def sealed(data: bytes = b'{"question":"why?"}', **changes: Any) -> Message:
    return sealing.seal(data, metadata(**changes), Routing(expires_at="2026-01-01T01:00:00.000Z"))


def caused(by: Message, message_id: str, data: bytes = b'{"question":"and?"}', **changes: Any) -> Message:
    return sealing.seal(
        data,
        metadata(message_id=message_id, causation_id=by.message_id, hops=by.metadata.hops + 1, **changes),
        Routing(expires_at="2026-01-01T01:00:00.000Z", priority=7),
        parents=(by.seal,),
        proof_chain=by.chain_for_children(),
    )


def outcome(call: Callable[..., Any], *arguments: object) -> Any:
    try:
        return call(*arguments)
    except ContractError as error:
        return error.reason, error.pointer


def verdict(value: bytes | None) -> Any:
    """The message in *value*, or its reason and pointer; the same with a registry, and by the quick and the exact
    way."""
    told = outcome(sealing.parse, value)
    proven = outcome(sealing.parse, value, REGISTRY.prove)
    if isinstance(told, Message):
        assert msgspec.structs.replace(proven, payload=None) == told
    else:
        assert proven == told
    if value:
        exact, quick = outcome(sealing._parse_any, value), outcome(sealing._parse_known, value, None)
        assert exact == told
        assert quick in (None, told)
    return told


def digest(value: object) -> str:
    return "sha256:" + sha256(rfc8785.dumps(value)).hexdigest()


def tree_of(message: Message) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(message.value)
    return tree


FIRST = sealed()
CHAINED = caused(caused(FIRST, "m-2"), "m-3")
TEXT = FIRST.value.decode()

# --- sealing ----------------------------------------------------------------------------------------------------------


def test_the_value_is_the_canonical_form_of_the_four_layers() -> None:
    assert list(tree_of(FIRST)) == ["data", "metadata", "routing", "verification"]
    assert FIRST.value == rfc8785.dumps(tree_of(FIRST))


def test_the_content_hash_is_that_of_data() -> None:
    assert FIRST.verification.content_hash == digest(tree_of(FIRST)["data"])


def test_the_seal_is_the_hash_of_the_statement() -> None:
    tree = tree_of(CHAINED)
    statement = {
        "content_hash": digest(tree["data"]),
        "envelope_hash": digest({"metadata": tree["metadata"], "routing": tree["routing"]}),
        "hops": 2,
        "links": 2,
        "message_id": "m-3",
        "message_type": "research.request",
        "namespace": "agents",
        "parents": tree["verification"]["parents"],
        "protocol": "sealbus/1",
        "sender": "planner@svc",
        "timestamp": "2026-01-01T00:00:00.000Z",
    }
    assert CHAINED.seal == digest(statement)


def test_the_statement_names_the_trust_level_where_there_is_one() -> None:
    assert sealed(security=Security(trust_level="user_request")).statement.trust_level == "user_request"
    assert sealed(security=Security(policy_tags=("a",))).statement.trust_level is None


def test_a_sealed_message_round_trips() -> None:
    for message in (FIRST, CHAINED):
        assert sealing.parse(message.value) == message
        sealing.check_integrity(message)


def test_the_key_is_the_conversation_unless_routing_names_one() -> None:
    assert FIRST.key == b"talk"
    keyed = sealing.seal(b"{}", metadata(), Routing(expires_at="2026-01-01T01:00:00.000Z", key="\u00e9"))
    assert keyed.key == "\u00e9".encode()


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"sender": Agent()}, "/metadata/sender/id"),
        ({"recipient": Agent(type="human")}, "/metadata/recipient"),
        ({"hops": 1}, "/metadata/hops"),
        ({"timestamp": "2026-01-01T01:00:00.000Z"}, "/routing/expires_at"),
        ({"message_type": "a.dlq"}, "/metadata/message_type"),
        ({"protocol": "sealbus/2"}, "/metadata/protocol"),
        ({"intent": "x" * 201}, "/metadata/intent"),
    ],
)
def test_messages_that_receivers_would_refuse_are_not_sealed(change: dict[str, Any], pointer: str) -> None:
    assert outcome(lambda: sealed(**change))[1] == pointer


@pytest.mark.parametrize(
    "change",
    [
        {"conversation_id": "\ud800"},
        {"sender": Agent(id="a\udfff")},
        {"intent": "\ud800"},
        {"security": Security(trust_level="\ud800")},
    ],
)
def test_a_lone_surrogate_is_not_sealed(change: dict[str, Any]) -> None:
    reason, pointer = outcome(lambda: sealed(**change))
    assert reason == "malformed"
    assert pointer.startswith("/metadata")


def test_parents_without_a_cause_are_not_sealed() -> None:
    def seal() -> Message:
        return sealing.seal(b"{}", metadata(), Routing(expires_at="2026-01-01T01:00:00.000Z"), parents=(FIRST.seal,))

    assert outcome(seal) == ("malformed", "/verification/parents")


def test_seventeen_parents_are_not_sealed() -> None:
    parents = tuple(f"sha256:{number:064x}" for number in range(17))

    def seal() -> Message:
        late = metadata(message_id="m-2", causation_id="m-1", hops=1)
        return sealing.seal(b"{}", late, Routing(expires_at="2026-01-01T01:00:00.000Z"), parents=parents)

    assert outcome(seal) == ("malformed", "/verification/parents")


# --- integrity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "reason", "pointer"),
    [
        ("data.question", "what?", "hash_mismatch", "/verification/content_hash"),
        ("verification.content_hash", "sha256:" + "0" * 64, "hash_mismatch", "/verification/content_hash"),
        ("verification.seal", "sha256:" + "0" * 64, "seal_mismatch", "/verification/seal"),
        ("metadata.sender.role", "admin", "seal_mismatch", "/verification/seal"),
        ("metadata.new_field", "x", "seal_mismatch", "/verification/seal"),
        ("metadata.timestamp", "2026-01-01T00:00:00.001Z", "seal_mismatch", "/verification/seal"),
        ("routing.expires_at", "2026-01-01T02:00:00.000Z", "seal_mismatch", "/verification/seal"),
        ("routing.priority", 9, "seal_mismatch", "/verification/seal"),
        ("verification.parents", ["sha256:" + "0" * 64], "seal_mismatch", "/verification/seal"),
    ],
)
def test_any_change_breaks_a_hash(path: str, value: object, reason: str, pointer: str) -> None:
    tree = tree_of(CHAINED)
    *outer, last = path.split(".")
    place = tree
    for name in outer:
        place = place[name]
    place[last] = value
    assert outcome(sealing.check_integrity, sealing.parse(rfc8785.dumps(tree))) == (reason, pointer)


def test_a_shortened_chain_breaks_the_seal() -> None:
    tree = tree_of(CHAINED)
    del tree["verification"]["proof_chain"][0]
    assert outcome(sealing.check_integrity, sealing.parse(rfc8785.dumps(tree))) == (
        "seal_mismatch",
        "/verification/seal",
    )


def test_a_signature_is_outside_the_seal() -> None:
    tree = tree_of(CHAINED)
    tree["verification"]["signature"] = "judged elsewhere"
    sealing.check_integrity(sealing.parse(rfc8785.dumps(tree)))


# --- hostile records --------------------------------------------------------------------------------------------------


def with_data(data: str | bytes) -> bytes:
    body = data.encode() if isinstance(data, str) else data
    return FIRST.value.replace(b'{"question":"why?"}', body)


def replaced(old: str, new: str | bytes) -> bytes:
    assert TEXT.count(old) >= 1
    return FIRST.value.replace(old.encode(), new.encode() if isinstance(new, str) else new, 1)


def duplicates() -> Iterable[tuple[str, bytes]]:
    yield "a layer twice", TEXT.replace('{"data"', '{"data":{},"data"').encode()
    yield "a layer twice, alike", TEXT.replace('{"data":', '{"data":{"question":"why?"},"data":').encode()
    yield "a layer twice by escapes", TEXT.replace('{"data"', r'{"d\u0061ta":{},"data"').encode()
    yield "in data", with_data('{"question":"a","question":"why?"}')
    yield "in data, alike", with_data('{"question":"why?","question":"why?"}')
    yield "in data by escapes", with_data(r'{"qu\u0065stion":"a","question":"why?"}')
    yield "in metadata", replaced('"hops":0', '"hops":0,"hops":0')
    yield "in metadata by escapes", replaced('"hops":0', r'"hops":0,"h\u006fps":1')
    yield "in the sender", replaced('"id":"planner@svc"', '"id":"planner@svc","id":"admin@svc"')
    yield "in routing", replaced('"expires_at"', '"expires_at":"2026-01-01T01:00:00.000Z","expires_at"')
    yield "in verification", replaced('"seal"', '"seal":"sha256:","seal"')
    yield "of unknown fields", replaced('"hops":0', '"hops":0,"x":1,"x":1')
    yield "in a statement", CHAINED.value.replace(b'"links":1,', b'"links":1,"links":1,')
    yield "protocol", replaced('"protocol":"sealbus/1"', '"protocol":"sealbus/1","protocol":"sealbus/1"')


def spellings() -> Iterable[tuple[str, bytes]]:
    for literal in (
        "1.0",
        "1e2",
        "-0",
        "1E2",
        "0.10",
        "1e-6",
        "1e+2",
        "100000000000000000000000",
        "9007199254740993",
        "-9007199254740993",
    ):
        yield f"{literal} in data", with_data(f'{{"count":{literal},"question":"why?"}}')
    for literal in ("0.0", "0e0", "-0", "00", "+0"):
        yield f"hops {literal}", replaced('"hops":0', f'"hops":{literal}')
    for literal in ("1e999", "-1e999", "9" * 400, "NaN", "Infinity", "-Infinity", "nan", "0x10", ".5", "1."):
        yield f"{literal[:9]} in data", with_data(f'{{"count":{literal}}}')
        yield f"{literal[:9]} in an unknown field", replaced('"hops":0', f'"hops":0,"i":{literal}')
    yield "2^53+1 in metadata", replaced('"hops":0', '"hops":0,"i":9007199254740993')
    yield "2^53+1 as hops", replaced('"hops":0', '"hops":9007199254740993')
    yield "an integer of a million digits", with_data('{"count":' + "9" * 1_000_000 + "}")
    yield "hops of a hundred thousand digits", replaced('"hops":0', '"hops":' + "9" * 100_000)


def encodings() -> Iterable[tuple[str, bytes]]:
    yield "BOM", b"\xef\xbb\xbf" + FIRST.value
    yield "UTF-16", TEXT.encode("utf-16")
    yield "UTF-16 without BOM", TEXT.encode("utf-16-le")
    yield "UTF-32", TEXT.encode("utf-32")
    yield "NUL before", b"\x00" + FIRST.value
    yield "NUL after", FIRST.value + b"\x00"
    yield "NUL in a string", replaced("why?", "wh\x00y")
    for name, broken in (
        ("0xff", b"\xff"),
        ("overlong", b"\xc0\xaf"),
        ("a surrogate", b"\xed\xa0\x80"),
        ("cut off", b"\xe2\x82"),
        ("beyond U+10FFFF", b"\xf4\x90\x80\x80"),
    ):
        yield f"invalid UTF-8 ({name}) in a string", replaced("why?", broken)
        yield f"invalid UTF-8 ({name}) in a key", replaced("question", broken)
        yield f"invalid UTF-8 ({name}) in an unknown field", replaced('"hops":0', b'"hops":0,"i":"' + broken + b'"')
        yield f"invalid UTF-8 ({name}) in an unknown key", replaced('"hops":0', b'"hops":0,"i' + broken + b'":1')
        yield f"invalid UTF-8 ({name}) in a text id", replaced("talk", broken)
        yield (
            f"invalid UTF-8 ({name}) in tracestate",
            replaced(
                '"timestamp":"2026-01-01T00:00:00.000Z"',
                b'"timestamp":"2026-01-01T00:00:00.000Z","tracestate":"' + broken + b'"',
            ),
        )
    for escaped in (r"\ud800", r"\udc00", r"\udc00\ud800", r"\ud83dx", r"\uD800"):
        yield f"{escaped} in a string", replaced("why?", escaped)
        yield f"{escaped} in a key", replaced("question", escaped)
        yield f"{escaped} in a text id", replaced("talk", escaped)
        yield f"{escaped} in an unknown field", replaced('"hops":0', f'"hops":0,"i":"{escaped}"')
    for escaped in (r"wh\u0079?", r"wh\/y?", r"why\u003f", r"wh\u0008", r"wh\u001F", r"\ud83d\ude00", r"\x41", "wh\ty"):
        yield f"{escaped!r} in a string", replaced("why?", escaped)
        yield f"{escaped!r} in a text id", replaced("talk", escaped)


def forms() -> Iterable[tuple[str, bytes | None]]:
    yield "null value", None
    yield "empty", b""
    yield "no object", b"[]"
    yield "null", b"null"
    yield "a string", b'"sealbus/1"'
    yield "a space before", b" " + FIRST.value
    yield "a newline after", FIRST.value + b"\n"
    yield "a space between", replaced(',"metadata"', ', "metadata"')
    yield "a space in data", with_data('{"question": "why?"}')
    yield "a newline in metadata", replaced('"hops":0', '"hops":\n0')
    yield "a mebibyte of white space", FIRST.value + b" " * (MIB - len(FIRST.value))
    yield "two values", FIRST.value * 2
    yield "cut off", FIRST.value[:-1]
    yield "one more bracket", FIRST.value + b"}"
    yield "layers in another order", rfc_unsorted(tree_of(FIRST), ["metadata", "data", "routing", "verification"])
    yield "verification first", rfc_unsorted(tree_of(FIRST), ["verification", "data", "metadata", "routing"])
    yield "keys of data in another order", with_data('{"question":"why?","count":1}')
    yield (
        "keys of metadata in another order",
        replaced('"conversation_id":"talk","hops":0', '"hops":0,"conversation_id":"talk"'),
    )
    yield "keys in UTF-8 order where UTF-16 differs", with_data('{"\ufb33":1,"\U0001f600":2}')
    yield "a trailing comma", replaced('"hops":0,', '"hops":0,,')
    yield "a comment", replaced('"hops":0', '/**/"hops":0')
    yield "data is a list", with_data("[]")
    yield "data is null", with_data("null")


def sizes() -> Iterable[tuple[str, bytes]]:
    yield "depth 65 in data", with_data('{"a":' * 64 + "1" + "}" * 64)
    yield "depth 65 of lists", with_data('{"a":' + "[" * 63 + "]" * 63 + "}")
    yield "depth 65 in metadata", replaced('"hops":0', '"hops":0,"i":' + "[" * 63 + "]" * 63)
    yield "depth 200,000", with_data('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")
    yield "depth 200,000 in metadata", replaced('"hops":0', '"hops":0,"i":' + '{"a":' * 100_000 + "1" + "}" * 100_000)
    yield "depth 200,000, open", b"[" * 200_000
    yield "a key of 1 MB twice", with_data('{"' + "k" * 500_000 + '":1,"' + "k" * 500_000 + '":2}')
    yield "an unknown layer of 1 MB", TEXT.replace('{"data"', '{"' + "a" * 1_000_000 + '":1,"data"').encode()
    yield "an unknown member of 1 MB", replaced('"seal"', '"' + "d" * 1_000_000 + '":1,"seal"')
    yield "a text id of 1 MB", replaced("talk", "t" * 1_000_000)
    yield "an intent of 1 MB", replaced('"hops":0', '"hops":0,"intent":"' + "i" * 1_000_000 + '"')
    yield "half a million parents", replaced('"seal"', '"parents":[' + ",".join(['""'] * 300_000) + '],"seal"')
    yield "a hundred thousand links", replaced('"seal"', '"proof_chain":[' + ",".join(["{}"] * 100_000) + '],"seal"')
    yield (
        "three hundred thousand pointers",
        replaced('"hops":0', '"critical_fields":[' + ",".join(['"a"'] * 250_000) + '],"hops":0'),
    )
    yield "a hundred thousand duplicate keys", with_data("{" + ",".join(['"a":1'] * 100_000) + "}")
    yield "a protocol of 1 MB", replaced('"sealbus/1"', '"' + "s" * 1_000_000 + '"')


LARGE = {
    "strings": replaced('"hops":0', '"hops":0,"i":[' + ",".join(['""'] * 300_000) + "]"),
    "integers": replaced('"hops":0', '"hops":0,"i":[' + ",".join(["1"] * 500_000) + "]"),
    "lists": replaced('"hops":0', '"hops":0,"i":[' + ",".join(["[]"] * 300_000) + "]"),
    "objects": replaced('"hops":0', '"hops":0,"i":[' + ",".join(["{}"] * 300_000) + "]"),
}


def rfc_unsorted(tree: dict[str, Any], order: list[str]) -> bytes:
    return ("{" + ",".join(f'"{name}":' + rfc8785.dumps(tree[name]).decode() for name in order) + "}").encode()


HOSTILE: dict[str, bytes | None] = dict((*duplicates(), *spellings(), *encodings(), *forms(), *sizes()))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_record_is_refused(name: str) -> None:
    expected = "unsupported_protocol" if name == "a protocol of 1 MB" else "malformed"
    assert verdict(HOSTILE[name])[0] == expected


@pytest.mark.medium
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_record_costs_less_than_fifty_milliseconds(name: str, best_of_many: Callable[..., float]) -> None:
    assert best_of_many(lambda: outcome(sealing.parse, HOSTILE[name], REGISTRY.prove), 0.05) < 0.05


@pytest.mark.medium
@pytest.mark.parametrize("name", LARGE)
def test_a_large_unknown_field_costs_less_than_two_hundred_milliseconds(
    name: str, best_of_many: Callable[..., float]
) -> None:
    assert best_of_many(lambda: sealing.parse(LARGE[name]), 0.2) < 0.2


def test_depth_sixty_four_is_accepted() -> None:
    assert isinstance(verdict(with_data('{"a":' * 63 + "1" + "}" * 63)), Message)
    assert isinstance(verdict(replaced('"hops":0', '"hops":0,"i":' + "[" * 62 + "]" * 62)), Message)


@pytest.mark.parametrize(
    "literal", ["9007199254740992", "18446744073709552000", "1e+21", "1e-7", "0.000001", "-1.5", "5e-324"]
)
def test_a_number_in_data_is_the_canonical_form_of_its_double(literal: str) -> None:
    assert isinstance(verdict(with_data(f'{{"a":{literal}}}')), Message)


def test_a_key_of_one_megabyte_in_data_is_only_long() -> None:
    assert isinstance(verdict(with_data('{"' + "k" * 1_000_000 + '":1}')), Message)


@pytest.mark.parametrize("text", ["\x7f", "\u2028", "/", "<&>", "\u0080", "\uffff", "\U0010ffff", "\ufeff"])
def test_the_canonical_form_leaves_ordinary_characters_unescaped(text: str) -> None:
    assert isinstance(verdict(with_data(f'{{"a":"{text}"}}')), Message)
    assert isinstance(
        verdict(
            replaced(
                '"timestamp":"2026-01-01T00:00:00.000Z"',
                f'"timestamp":"2026-01-01T00:00:00.000Z","tracestate":"{text}"',
            )
        ),
        Message,
    )


@pytest.mark.parametrize("escape", [r"\b", r"\t", r"\n", r"\f", r"\r", r"\u0000", r"\u000b", r"\u001f", r"\\", r"\""])
def test_what_the_canonical_form_escapes_is_escaped_in_every_layer(escape: str) -> None:
    assert isinstance(verdict(with_data(f'{{"a":"{escape}"}}')), Message)
    assert isinstance(
        verdict(
            replaced(
                '"timestamp":"2026-01-01T00:00:00.000Z"',
                f'"timestamp":"2026-01-01T00:00:00.000Z","tracestate":"{escape}"',
            )
        ),
        Message,
    )


# --- one meaning ------------------------------------------------------------------------------------------------------

TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9.eE+-]+|[{}\[\],:]|true|false|null')
INSERTS = (
    b" ",
    b"\n",
    b",",
    b":",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b"\\",
    b"0",
    b"-",
    b".0",
    b"e0",
    b"E1",
    b"null",
    b"true",
    b"1.0",
    b"\xff",
    b"\x00",
    b'"x":1,',
    b'"hops":0,',
    b'"a":null,',
    b'"seal":"",',
    b"\xf0\x9f\x98\x80",
    b"\\u0061",
    b"\xed\xa0\x80",
    b"9007199254740993",
    b"\xef\xbb\xbf",
)


def flipped(rng: random.Random, value: bytes) -> bytes:
    at = rng.randrange(len(value))
    return value[:at] + bytes([value[at] ^ (1 << rng.randrange(8))]) + value[at + 1 :]


def inserted(rng: random.Random, value: bytes) -> bytes:
    at = rng.randrange(len(value) + 1)
    return value[:at] + rng.choice(INSERTS) + value[at:]


def deleted(rng: random.Random, value: bytes) -> bytes:
    at = rng.randrange(len(value))
    return value[:at] + value[at + rng.choice((1, 1, 1, 2, 5, 20)) :]


def swapped(rng: random.Random, value: bytes) -> bytes:
    one, other = sorted(match.span() for match in rng.sample(list(TOKENS.finditer(value)), 2))
    return value[: one[0]] + value[slice(*other)] + value[one[1] : other[0]] + value[slice(*one)] + value[other[1] :]


def replaced_token(rng: random.Random, value: bytes) -> bytes:
    match = rng.choice(list(TOKENS.finditer(value)))
    return (
        value[: match.start()]
        + rng.choice((*INSERTS, b'""', b"[]", b"{}", b"1e+21", b"0.5", b"10", b'"a"'))
        + value[match.end() :]
    )


def repeated_member(rng: random.Random, value: bytes) -> bytes:
    match = rng.choice(list(re.finditer(rb'"[a-z_]+":(?:"[^"]*"|[0-9]+)', value)))
    return value[: match.start()] + match[0] + b"," + value[match.start() :]


def escaped_anew(rng: random.Random, value: bytes) -> bytes:
    match = rng.choice(list(re.finditer(rb"[a-z]", value)))
    return value[: match.start()] + b"\\u%04x" % match[0][0] + value[match.end() :]


MUTATIONS = (flipped, inserted, deleted, swapped, replaced_token, repeated_member, escaped_anew)


def as_read_by_the_reference(value: bytes) -> bytes:
    def number(text: str) -> float | int:
        return int(text) if abs(float(text)) < 2**53 else float(text)

    return rfc8785.dumps(json.loads(value, parse_int=number))


def seeds() -> list[bytes]:
    rich = sealing.seal(
        encode_payload(Request(question='q "\\\n\x7f\u2028\U0001f600', weight=1e-7, count=3, tags=("a", "\ufb33"))),
        metadata(
            recipient=Agent(id="b", role="c", type="service"),
            security=Security(trust_level="user_request", contains_untrusted_content=True, policy_tags=("x",)),
            critical_fields=("/data/question",),
            intent="look",
            sequence=4,
            tracestate="a=\x01",
        ),
        Routing(expires_at="2026-01-01T01:00:00.000Z", key="k", priority=3, reply_to="agents._reply.planner-0123abcd"),
    )
    extended = copy.deepcopy(tree_of(FIRST))
    extended["metadata"]["extra"] = {"\U0001f600": [1, True, {"\ufb33": "x"}]}
    return [FIRST.value, CHAINED.value, rich.value, rfc8785.dumps(extended)]


@pytest.mark.slow  # twenty-five thousand cases
def test_twenty_five_thousand_mutations_are_refused_or_have_one_meaning() -> None:
    rng = random.Random(4)
    values = seeds()
    accepted = 0
    for number in range(25_000):
        value = values[number % len(values)]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            value = rng.choice(MUTATIONS)(rng, value)
        if isinstance(verdict(value), Message):
            accepted += 1
            assert as_read_by_the_reference(value) == value
    assert accepted > 100, "too few mutations reach the end to say anything"


@pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")
def test_records_are_distinguished_by_their_bytes_only() -> None:
    assert sealing.parse(FIRST.value).payload is None
    assert sealing.parse(FIRST.value, REGISTRY.prove).payload == Request(question="why?")
