"""Writes `envelopes.json`, the golden vectors of protocol sealbus/1, from fixed inputs: `python
tests/vectors/make_vectors.py`.

Uses nothing of the project, only hashing and RFC 8785. Run it only when the contract changes: a vector that changes is
another protocol.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import rfc8785

KEY = {
    "kid": "domain-2026",
    "alg": "HS256",
    "secret": "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    "principals": ["planner@svc", "researcher@svc", "writer@svc"],
}
NOW = "2026-01-01T00:10:00.000Z"
ANOTHER_PARENT = "sha256:" + "5" * 64
Tree = dict[str, Any]


def digest(value: object) -> str:
    return "sha256:" + hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(statement: Tree, header: Tree | None = None) -> str:
    protected = base64url(rfc8785.dumps(header or {"alg": "HS256", "b64": False, "crit": ["b64"], "kid": KEY["kid"]}))
    mac = hmac.new(
        bytes.fromhex(str(KEY["secret"])), f"{protected}.".encode() + rfc8785.dumps(statement), hashlib.sha256
    )
    return f"{protected}..{base64url(mac.digest())}"


def statement_of(tree: Tree) -> Tree:
    metadata, verification = tree["metadata"], tree["verification"]
    statement = {
        "content_hash": digest(tree["data"]),
        "envelope_hash": digest({"metadata": metadata, "routing": tree["routing"]}),
        "sender": metadata["sender"]["id"],
    } | {name: metadata[name] for name in ("hops", "message_id", "message_type", "namespace", "protocol", "timestamp")}
    if "proof_chain" in verification:
        statement["links"] = len(verification["proof_chain"])
    if "parents" in verification:
        statement["parents"] = verification["parents"]
    if "authority" in metadata:
        statement["authority"] = metadata["authority"]
    if "recipient" in metadata:
        statement["recipient"] = {
            name: metadata["recipient"][name] for name in ("id", "role") if name in metadata["recipient"]
        }
        if "id" in statement["recipient"]:
            statement["recipient"].pop("role", None)
    for name in ("data_classification", "trust_level"):
        if name in metadata.get("security", {}):
            statement[name] = metadata["security"][name]
    return statement


def sealed(tree: Tree, *, signed: bool = False) -> Tree:
    """*tree* with its hashes, seal and signature put in."""
    tree = copy.deepcopy(tree)
    verification = tree["verification"]
    verification.pop("signature", None)
    verification["content_hash"] = digest(tree["data"])
    statement = statement_of(tree)
    verification["seal"] = digest(statement)
    if signed:
        verification["signature"] = sign(statement)
    return tree


def chain_for_children(tree: Tree) -> list[Tree]:
    link = {"statement": statement_of(tree)}
    if "signature" in tree["verification"]:
        link["signature"] = tree["verification"]["signature"]
    return [*tree["verification"].get("proof_chain", []), link][-16:]


def message(
    number: int,
    data: Tree,
    cause: Tree | None = None,
    *,
    metadata: Tree | None = None,
    routing: Tree | None = None,
    parents: tuple[str, ...] = (),
    carries: bool = True,
    signed: bool = False,
) -> Tree:
    seconds = number % 60
    tree: Tree = {
        "data": data,
        "metadata": {
            "conversation_id": "conversation-1",
            "hops": cause["metadata"]["hops"] + 1 if cause else 0,
            "message_id": f"019b7a3c-4c00-7000-8000-{number:012d}",
            "message_type": "research.request",
            "namespace": "agents",
            "protocol": "sealbus/1",
            "schema_version": "1.0.0",
            "sender": {"id": "planner@svc", "type": "agent"},
            "timestamp": f"2026-01-01T00:00:{seconds:02d}.000Z",
        }
        | (metadata or {}),
        "routing": {"expires_at": f"2026-01-01T01:00:{seconds:02d}.000Z"} | (routing or {}),
        "verification": {},
    }
    if cause is not None:
        tree["metadata"]["causation_id"] = cause["metadata"]["message_id"]
        tree["verification"]["parents"] = [cause["verification"]["seal"], *parents]
        if carries:
            tree["verification"]["proof_chain"] = chain_for_children(cause)
    return sealed(tree, signed=signed)


def messages() -> dict[str, Tree]:
    made: dict[str, Tree] = {}
    made["first"] = message(1, {"max_sources": 5, "question": "why?"})
    made["caused"] = message(
        2,
        {"answer": "because", "confidence": 0.75},
        made["first"],
        metadata={
            "message_type": "research.output",
            "sender": {"id": "researcher@svc", "type": "agent"},
            "correlation_id": "019b7a3c-4c00-7000-8000-000000000001",
        },
        parents=(ANOTHER_PARENT,),
    )
    made["third"] = message(3, {"question": "is that so?"}, made["caused"])
    made["three links"] = message(
        4,
        {"answer": "yes"},
        made["third"],
        metadata={"message_type": "research.output", "sender": {"id": "writer@svc"}},
    )
    made["signed"] = message(5, {"question": "who says so?"}, signed=True)
    made["signed, caused"] = message(
        6,
        {"answer": "I do"},
        made["signed"],
        metadata={"message_type": "research.output", "sender": {"id": "researcher@svc"}},
        signed=True,
    )
    made["without chain"] = message(
        7,
        {"progress": 50},
        made["first"],
        metadata={"message_type": "status.update", "sender": {"id": "researcher@svc"}},
        carries=False,
    )
    made["reply wanted"] = message(
        8,
        {"question": "and you?"},
        metadata={
            "recipient": {"role": "reviewer"},
            "performative": "query",
            "intent": "get an opinion",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        },
        routing={"reply_to": "agents._reply.planner-svc-3f2a9b1c", "key": "order-4821", "priority": 7, "max_hops": 4},
    )
    made["retry wanted"] = message(
        9,
        {},
        metadata={
            "task_id": "task-9",
            "parent_task_id": "task-1",
            "run_id": "run-1",
            "sequence": 0,
            "critical_fields": ["/data/amount", "/routing/retry"],
        },
        routing={
            "idempotency_key": "task-9",
            "retry": {"backoff": "exponential", "base_ms": 200, "cap_ms": 300_000, "max_attempts": 3},
        },
    )
    made["unicode"] = message(
        10,
        {
            "\u20ac": "euro",
            "\r": "return",
            "\ufb33": "dalet",
            "1": "one",
            "\U0001f600": "face",
            "\u0080": "control",
            "\u00f6": "o",
            "escapes": '\b\t\n\f\r"\\/\x00\x1f\x7f\u2028',
        },
        metadata={
            "conversation_id": "\u00fcber-\u4f1a\u8b70-\U0001f600",
            "sender": {"id": "planner@svc", "role": "\u0440\u043e\u043b\u044c"},
        },
    )
    made["numbers"] = message(
        11,
        {
            "numbers": [
                0,
                -1,
                1.5,
                1e-7,
                0.000001,
                1e21,
                1e20,
                5e-324,
                1.7976931348623157e308,
                9007199254740991,
                9007199254740992.0,
                333333333.3333333,
                -0.25,
                4.5,
                1e15,
            ]
        },
    )
    made["extended"] = message(
        12,
        {"nested": [None, True, {"": []}]},
        metadata={
            "protocol": "sealbus/1.3",
            "later_field": {"kept": ["and", "ignored", 1, False]},
            "security": {
                "trust_level": "user_request",
                "contains_untrusted_content": True,
                "policy_tags": ["pii"],
                "later": "kept",
            },
            "authority": {
                "decision_right": "propose",
                "can_read": ["docs/*"],
                "cannot_execute": ["*"],
                "later": {"kept": [1, True]},
            },
        },
        routing={"later_field": -1},
    )
    made["answered an extended one"] = message(
        18,
        {"answer": "I see"},
        made["extended"],
        metadata={"message_type": "research.output", "sender": {"id": "researcher@svc"}},
    )
    made["addressed"] = message(
        13,
        {"question": "may I?"},
        metadata={
            "recipient": {"id": "researcher@svc", "role": "researcher", "host": "node-7"},
            "security": {"data_classification": "confidential", "trust_level": "task_instruction"},
            "authority": {"can_read": ["docs/*"], "max_side_effect": "read"},
        },
        routing={"reply_to": "agents._mail.planner", "max_hops": 64},
    )
    made["answered by the addressee"] = message(
        14,
        {"answer": "you may"},
        made["addressed"],
        metadata={"message_type": "research.output", "sender": {"id": "researcher@svc"}},
    )
    made["gone on by its own sender"] = message(15, {"question": "still?"}, made["addressed"])
    made["addressed to a role"] = message(16, {"question": "anybody?"}, metadata={"recipient": {"role": "reviewer"}})
    made["answered by somebody of that role"] = message(
        17,
        {"answer": "me"},
        made["addressed to a role"],
        metadata={"message_type": "research.output", "sender": {"id": "reviewer-2@svc"}},
    )
    made["progress wanted"] = message(
        21,
        {"question": "how far are you?"},
        metadata={"recipient": {"id": "researcher@svc"}},
        routing={"accepts_progress": True, "reply_to": "agents._reply.planner-svc-3f2a9b1c"},
    )
    made["progress"] = message(
        22,
        {"chapter": 3},
        made["progress wanted"],
        metadata={
            "message_type": "research.chapter",
            "sender": {"id": "researcher@svc"},
            "recipient": {"id": "planner@svc"},
            "correlation_id": "019b7a3c-4c00-7000-8000-000000000021",
        },
        routing={"priority": 5, "progress": True},
    )
    return made


def put(tree: Tree, pointer: str, value: object) -> Tree:
    tree = copy.deepcopy(tree)
    *path, last = pointer[1:].split("/")
    place: Any = tree
    for token in path:
        place = place[int(token)] if isinstance(place, list) else place[token]
    if value is ...:
        del place[int(last) if isinstance(place, list) else last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return tree


def rechained(tree: Tree, change: Callable[[list[Tree]], object], *, signed: bool = False) -> Tree:
    """*tree* with its chain changed and everything hashed anew: what a forger without keys can do."""
    tree = copy.deepcopy(tree)
    chain = tree["verification"]["proof_chain"]
    change(chain)
    for link, later in pairwise(chain):
        later["statement"]["parents"] = [digest(link["statement"]), *later["statement"].get("parents", [])[1:]]
    if chain:
        tree["verification"]["parents"][0] = digest(chain[-1]["statement"])
    return sealed(tree, signed=signed)


def _authorities(made: dict[str, Tree], case: Callable[..., Tree]) -> Iterator[Tree]:
    """The form of an authority, in a message and in the links of its children."""
    place = "/metadata/authority"
    deep: Any = []
    for _ in range(6):
        deep = [deep]
    for name, authority, pointer in (
        ("an authority of 8 levels", {"later": deep}, None),
        ("an authority of 9 levels", {"later": [deep]}, f"/later{'/0' * 7}"),
        ("a glob with stars in 8 places", {"can_read": ["*a*b*c*d*e*f*g*"]}, None),
        ("a glob with stars in 9 places", {"can_read": ["ok", "*a*b*c*d*e*f*g*h*"]}, "/can_read/1"),
        ("a glob that crosses / in 3 places", {"can_write": ["**/a/**/b/***"]}, None),
        ("a glob that crosses / in 4 places", {"can_write": ["**/a/**/b/***/c/**"]}, "/can_write/0"),
        ("256 globs", {"can_execute": [""] * 256}, None),
        ("257 globs", {"can_execute": [""] * 257}, "/can_execute"),
        ("stars that are no globs", {"cannot_execute": ["**a**b**c**d**"]}, None),
    ):
        first = sealed(put(made["first"], place, authority))
        child = message(20, {}, first, metadata={"sender": {"id": "researcher@svc"}})
        in_link = "/verification/proof_chain/0/statement/authority"
        if pointer is None:
            yield case(name, first, None)
            yield case(f"{name}, in a link", child, None)
        else:
            yield case(name, first, "malformed", place + pointer)
            yield case(f"{name}, in a link", child, "malformed", in_link + pointer)


def _hopping(tree: Tree, hops: int) -> Tree:
    tree = put(tree, "/metadata/hops", hops)
    tree["verification"].pop("proof_chain", None)
    return sealed(tree)


def tampered(made: dict[str, Tree]) -> Iterator[Tree]:  # noqa: PLR0915 - one table
    def case(
        name: str,
        value: bytes | Tree,
        reason: str | None,
        pointer: str = "",
        *,
        risk: str = "medium",
        now: str = NOW,
        keys: bool = False,
    ) -> Tree:
        data = rfc8785.dumps(value) if isinstance(value, dict) else value
        found: Tree = {
            "name": name,
            "risk": risk,
            "now": now,
            "keys": keys,
            "gate": GATES.get(reason or ""),
            "reason": reason,
            "pointer": pointer,
        }
        try:
            return found | {"value": data.decode()}
        except UnicodeDecodeError:
            return found | {"value_hex": data.hex()}

    first, caused, chain, signed, answer = (
        made[name] for name in ("first", "caused", "three links", "signed", "signed, caused")
    )
    text = rfc8785.dumps(first)
    yield case("white space", text.replace(b',"metadata"', b', "metadata"'), "malformed")
    yield case(
        "layers in another order",
        b"{"
        + b",".join(
            b'"%s":%s' % (n.encode(), rfc8785.dumps(first[n])) for n in ("metadata", "data", "routing", "verification")
        )
        + b"}",
        "malformed",
    )
    yield case("a duplicate key", text.replace(b'"hops":0', b'"hops":0,"hops":0'), "malformed")
    yield case("a duplicate layer by an escape", text.replace(b'{"data"', b'{"d\\u0061ta":{},"data"'), "malformed")
    yield case("1.0 for 1", text.replace(b'"max_sources":5', b'"max_sources":5.0'), "malformed")
    yield case(
        "an integer that is no double", text.replace(b'"max_sources":5', b'"max_sources":9007199254740993'), "malformed"
    )
    yield case("another escape", text.replace(b"why?", b"wh\\u0079?"), "malformed")
    yield case("invalid UTF-8", text.replace(b"why?", b"\xff"), "malformed")
    yield case("a lone surrogate", text.replace(b"why?", b"\\ud800"), "malformed")
    yield case("a byte order mark", b"\xef\xbb\xbf" + text, "malformed")
    yield case("a number that overflows", text.replace(b'"max_sources":5', b'"max_sources":1e999'), "malformed")
    yield case("depth 65", text.replace(b'"max_sources":5', b'"max_sources":' + b"[" * 63 + b"]" * 63), "malformed")
    yield case("empty", b"", "malformed")
    yield case("a null in an optional field", put(first, "/metadata/intent", None), "malformed", "/metadata/intent")
    yield case(
        "a fraction outside data", put(first, "/metadata/later_field", 1.5), "malformed", "/metadata/later_field"
    )
    yield case("a fifth layer", put(first, "/extra", {}), "malformed", "/extra")
    yield case(
        "an unknown member of verification", put(first, "/verification/extra", "x"), "malformed", "/verification/extra"
    )
    yield case(
        "an unknown member of a statement",
        put(chain, "/verification/proof_chain/1/statement/extra", "x"),
        "malformed",
        "/verification/proof_chain/1/statement/extra",
    )
    yield case("no sender", put(first, "/metadata/sender", ...), "malformed", "/metadata/sender")
    yield case("a cause without hops", put(first, "/metadata/causation_id", "m-0"), "malformed", "/metadata/hops")
    yield case("no parents", put(caused, "/verification/parents", ...), "malformed", "/verification/parents")
    yield case(
        "30 February", put(first, "/metadata/timestamp", "2026-02-30T00:00:00.000Z"), "malformed", "/metadata/timestamp"
    )
    yield case(
        "a reply address elsewhere",
        put(first, "/routing/reply_to", "other._reply.a-00000000"),
        "malformed",
        "/routing/reply_to",
    )
    yield case(
        "a later major", put(first, "/metadata/protocol", "sealbus/2"), "unsupported_protocol", "/metadata/protocol"
    )
    yield case(
        "a later major in another form",
        b'{"metadata":{"protocol":"sealbus/2"} }',
        "unsupported_protocol",
        "/metadata/protocol",
    )
    yield case("another question", put(first, "/data/question", "what?"), "hash_mismatch", "/verification/content_hash")
    yield case(
        "another sender", put(first, "/metadata/sender/id", "mallory@svc"), "seal_mismatch", "/verification/seal"
    )
    yield case(
        "a longer life",
        put(first, "/routing/expires_at", "2026-01-02T00:00:00.000Z"),
        "seal_mismatch",
        "/verification/seal",
    )
    yield case("a shorter chain", put(chain, "/verification/proof_chain/0", ...), "seal_mismatch", "/verification/seal")
    yield case("a later field added", put(first, "/metadata/later_field", "x"), "seal_mismatch", "/verification/seal")
    at_chain = "/verification/proof_chain"
    yield case("no chain at medium risk", made["without chain"], "proof_invalid", at_chain)
    yield case("no chain at low risk", made["without chain"], None, risk="low")
    yield case(
        "a chain that does not hold, at low risk",
        rechained(chain, lambda links: links[1]["statement"].update(hops=2)),
        "proof_invalid",
        at_chain,
        risk="low",
    )
    yield case(
        "a link of another namespace",
        rechained(chain, lambda links: links[0]["statement"].update(namespace="other")),
        "proof_invalid",
        at_chain,
    )
    yield case("a chain cut at its old end", rechained(chain, lambda links: links.pop(0)), "proof_invalid", at_chain)
    yield case("a chain cut at its new end", rechained(chain, lambda links: links.pop()), "proof_invalid", at_chain)
    yield case(
        "an id twice in the chain",
        rechained(chain, lambda links: links[0]["statement"].update(message_id=links[1]["statement"]["message_id"])),
        "proof_invalid",
        at_chain,
    )
    yield case(
        "links out of range",
        rechained(chain, lambda links: links[0]["statement"].update(links=17)),
        "proof_invalid",
        at_chain,
    )
    yield case(
        "time backwards by 120 s",
        rechained(chain, lambda links: links[1]["statement"].update(timestamp="2026-01-01T00:02:03.000Z")),
        None,
    )
    yield case(
        "time backwards by more",
        rechained(chain, lambda links: links[1]["statement"].update(timestamp="2026-01-01T00:02:03.001Z")),
        "proof_invalid",
        at_chain,
    )
    yield case(
        "a link 224 days old",
        rechained(chain, lambda links: links[0]["statement"].update(timestamp="2025-05-22T00:00:04.000Z")),
        None,
    )
    yield case(
        "a link older than that",
        rechained(chain, lambda links: links[0]["statement"].update(timestamp="2025-05-22T00:00:03.999Z")),
        "proof_invalid",
        at_chain,
    )
    at_signature = "/verification/signature"
    yield case("unsigned at high risk", first, "signature_missing", at_signature, risk="high")
    yield case("unsigned at medium risk where keys are configured", first, "signature_missing", at_signature, keys=True)
    yield case("unsigned at low risk where keys are configured", first, None, risk="low", keys=True)
    yield case("signed at high risk without keys", signed, "key_unknown", at_signature, risk="high")
    yield case(
        "no signature form at high risk without keys",
        put(signed, at_signature, "x..y"),
        "signature_invalid",
        at_signature,
        risk="high",
    )
    yield case("no signature form at medium risk without keys", put(signed, at_signature, "x..y"), None)
    yield case(
        "another signature",
        put(signed, at_signature, answer["verification"]["signature"]),
        "signature_invalid",
        at_signature,
        keys=True,
    )
    yield case(
        "padding",
        put(signed, at_signature, signed["verification"]["signature"] + "="),
        "signature_invalid",
        at_signature,
        keys=True,
    )
    header = {"alg": "HS256", "b64": False, "crit": ["b64"], "kid": "nobody"}
    yield case(
        "an unknown key",
        put(signed, at_signature, sign(statement_of(signed), header)),
        "key_unknown",
        at_signature,
        keys=True,
    )
    header = {"alg": "Ed25519", "b64": False, "crit": ["b64"], "kid": KEY["kid"]}
    yield case(
        "another algorithm",
        put(signed, at_signature, sign(statement_of(signed), header)),
        "signature_invalid",
        at_signature,
        keys=True,
    )
    mallory = sealed(put(signed, "/metadata/sender", {"id": "mallory@svc"}), signed=True)
    yield case("a sender the key may not speak for", mallory, "sender_mismatch", at_signature, keys=True)
    unsigned = copy.deepcopy(answer)
    del unsigned["verification"]["proof_chain"][0]["signature"]
    yield case("an unsigned link where keys are configured", unsigned, "proof_invalid", at_chain, keys=True, risk="low")
    yield case("an unsigned link without keys", unsigned, None)
    bare = copy.deepcopy(answer)
    del bare["verification"]["signature"]
    signature_at = "/verification/signature"
    for risk, reason, place in (
        ("low", "proof_invalid", at_chain),
        ("medium", "signature_missing", signature_at),
        ("high", "signature_missing", signature_at),
    ):
        name = f"an unsigned message with a chain where keys are configured, {risk} risk"
        yield case(name, bare, reason, place, keys=True, risk=risk)
    for name, value in (("accepts_progress", "yes"), ("accepts_progress", 1), ("progress", {"pct": 40})):
        fault = sealed(put(first, f"/routing/{name}", value))
        yield case(f"{name} as {type(value).__name__}", fault, "malformed", f"/routing/{name}")
    no_progress = sealed(put(put(first, "/routing/accepts_progress", False), "/routing/progress", False))
    yield case("neither takes progress nor is any", no_progress, None)
    delayed = sealed(put(first, "/routing/not_before", "2026-01-01T00:05:00.000Z"))
    yield case("a delay that no critical field names", delayed, None)
    hash_of = "sha256:" + "0" * 64
    for name, other in (
        ("the own version as the other one", {"schema_version": "1.0.0"}),
        ("the newer version without a hash", {"schema_version": "0.9.0"}),
        ("the older version with a hash", {"schema_version": "2.0.0", "content_hash": hash_of}),
    ):
        yield case(name, sealed(put(first, "/metadata/other_version", other)), None)
    yield case("still alive", first, None, now="2026-01-01T01:00:06.000Z")
    yield case("expired", first, "expired", "/routing/expires_at", now="2026-01-01T01:00:06.001Z")
    yield case("seven days of life", sealed(put(first, "/routing/expires_at", "2026-01-08T00:00:01.000Z")), None)
    yield case(
        "a millisecond more",
        sealed(put(first, "/routing/expires_at", "2026-01-08T00:00:01.001Z")),
        "ttl_too_long",
        "/routing/expires_at",
        now="2027-01-01T00:00:00.000Z",
    )
    addressed = made["addressed"]
    stranger = {"message_type": "research.output", "sender": {"id": "mallory@svc"}}
    yield case("gone on by a stranger", message(19, {}, addressed, metadata=stranger), "proof_invalid", at_chain)
    for name, value in (
        ("authority", {"can_read": ["docs/**"]}),
        ("data_classification", "public"),
        ("recipient", {"id": "mallory@svc"}),
    ):
        changed = copy.deepcopy(made["answered by the addressee"])
        changed["verification"]["proof_chain"][0]["statement"][name] = value
        yield case(f"another {name} in a link", sealed(changed), "proof_invalid", at_chain)
    both = copy.deepcopy(made["answered by the addressee"])
    both["verification"]["proof_chain"][0]["statement"]["recipient"]["role"] = "researcher"
    yield case("an id and a role in a statement", both, "malformed", f"{at_chain}/0/statement/recipient")
    room = 1_024 - len(rfc8785.dumps({"later": ""}))
    yield case("an authority of 1 KiB", sealed(put(first, "/metadata/authority", {"later": "x" * room})), None)
    yield case(
        "a larger authority",
        sealed(put(first, "/metadata/authority", {"later": "x" * (room + 1)})),
        "malformed",
        "/metadata/authority",
    )
    yield from _authorities(made, case)
    yield case(
        "a mailbox elsewhere", put(first, "/routing/reply_to", "other._mail.planner"), "malformed", "/routing/reply_to"
    )
    yield case(
        "65 critical fields",
        put(first, "/metadata/critical_fields", ["/data"] * 65),
        "malformed",
        "/metadata/critical_fields",
    )
    digits = put(first, "/metadata/schema_version", f"1.0.{'1' * 65}")
    yield case("a version of 65 digits", digits, "malformed", "/metadata/schema_version")
    sixteen = copy.deepcopy(made["three links"])
    sixteen["metadata"]["hops"] = 17
    yield case("17 hops, and nothing asked for", _hopping(sixteen, 17), "too_many_hops", "/metadata/hops", risk="low")
    sixteen["routing"]["max_hops"] = 64
    yield case("64 hops, asked for", _hopping(sixteen, 64), None, risk="low")
    sixteen["routing"]["max_hops"] = 65
    yield case("65 hops, asked for", _hopping(sixteen, 65), "too_many_hops", "/metadata/hops", risk="low")
    far = sealed(put(made["retry wanted"], "/routing/max_hops", 0))
    yield case("no hops allowed, none made", far, None)
    hopping = copy.deepcopy(caused)
    hopping["routing"]["max_hops"] = 0
    yield case("no hops allowed, one made", sealed(hopping), "too_many_hops", "/metadata/hops")
    yield case("sealed 120 s ahead", first, None, now="2025-12-31T23:58:01.000Z")
    yield case("sealed further ahead", first, "clock_skew", "/metadata/timestamp", now="2025-12-31T23:58:00.999Z")


def levels(made: dict[str, Tree]) -> Iterator[Tree]:
    """Messages with the effective level that they have where there are keys and no policy."""
    first, signed = made["first"], made["signed"]
    signer = {"sender": {"id": "researcher@svc"}, "performative": "request"}

    def with_level(level: str) -> Tree:
        return {**signer, "security": {"trust_level": level}}

    for name, tree, level in (
        ("a signed first message", signed, "user_request"),
        ("an unsigned first message", first, "untrusted_content"),
        ("an answer with its chain", made["signed, caused"], "user_request"),
        (
            "one parent, no chain, no level",
            message(21, {}, signed, metadata=signer, carries=False, signed=True),
            "untrusted_content",
        ),
        (
            "one parent, no chain, a level",
            message(22, {}, signed, metadata=with_level("model_generated"), carries=False, signed=True),
            "model_generated",
        ),
        (
            "one parent, no chain, more than a ceiling",
            message(23, {}, signed, metadata=with_level("platform_policy"), carries=False, signed=True),
            "user_request",
        ),
        (
            "two parents and no level",
            message(24, {}, signed, metadata=signer, parents=(ANOTHER_PARENT,), signed=True),
            "untrusted_content",
        ),
        (
            "two parents and a level",
            message(25, {}, signed, metadata=with_level("user_request"), parents=(ANOTHER_PARENT,), signed=True),
            "user_request",
        ),
        (
            "a level that there is not",
            message(26, {}, metadata={"security": {"trust_level": "User_Request"}}, signed=True),
            "untrusted_content",
        ),
        (
            "what comes from outside",
            message(27, {}, metadata={"message_type": "tool.result"}, signed=True),
            "untrusted_content",
        ),
        (
            "what rests on a lower level",
            message(
                28,
                {},
                message(29, {}, metadata={"security": {"trust_level": "untrusted_content"}}, signed=True),
                metadata=with_level("user_request"),
                signed=True,
            ),
            "untrusted_content",
        ),
    ):
        yield {"name": name, "value": rfc8785.dumps(tree).decode(), "level": level}


SEALED, END = "2026-01-01T00:00:05.000Z", "2026-01-01T00:00:04.999Z"
LATER, MUCH_LATER, TOO_LATE = "2026-01-01T00:10:00.000Z", "2026-01-15T00:00:05.000Z", "2026-01-15T00:00:05.001Z"
KEYS: list[tuple[Tree, str, str | None, str | None]] = [
    # Further members of the key, the time of judging, that of appending, and the reason of the gate `authenticity`.
    ({}, LATER, LATER, None),
    ({"not_before": SEALED, "not_after": SEALED}, LATER, LATER, None),
    ({"not_before": "2026-01-01T00:00:05.001Z"}, LATER, LATER, "key_expired"),
    ({"not_after": END}, LATER, LATER, "key_expired"),
    ({"not_after": SEALED}, MUCH_LATER, MUCH_LATER, None),
    ({"not_after": SEALED}, TOO_LATE, TOO_LATE, "key_expired"),
    ({"not_after": SEALED}, TOO_LATE, None, None),
    ({"revoked_at": LATER}, "2026-01-01T00:09:59.999Z", SEALED, None),
    ({"revoked_at": LATER}, LATER, SEALED, "key_revoked"),
    ({"revoked_at": LATER, "not_after": END}, LATER, SEALED, "key_revoked"),
    ({"namespaces": ["agents", "others"]}, LATER, LATER, None),
    ({"namespaces": ["others"]}, LATER, LATER, "sender_mismatch"),
    ({"principals": ["researcher@svc"]}, LATER, LATER, "sender_mismatch"),
    ({"principals": []}, LATER, LATER, "sender_mismatch"),
]

REQUEST = {"action": "deploy", "reason": "why", "request_id": "r", "resource": {"id": "i", "type": "x"}}


def approval(action: Tree, **members: Any) -> Tree:
    """What an `approval.request` of the first version becomes."""
    risk = {"risk_level": members.pop("risk_level", "medium")}
    rest = {
        "approval_id": "r",
        "action": action,
        "action_hash": digest(action),
        "reason": "why",
        "risk_assessment": risk,
    }
    return rest | members


def remark(finding: str, *, blocking: bool) -> Tree:
    return {"blocking": blocking, "category": "comment", "finding": finding, "severity": "low"}


OLDER: list[tuple[str, Tree, str | None, Tree | None]] = [
    # Type, data of version 1.0.0, the pointer where its schema refuses them, and what they become where it does not.
    ("review.result", {"verdict": "approved"}, None, {"verdict": "approved"}),
    (
        "review.result",
        {"comments": ["x", ""], "items": [{"finding": "y"}], "verdict": "changes_requested"},
        None,
        {"items": [remark("x", blocking=True)], "verdict": "changes_requested"},
    ),
    (
        "review.result",
        {"comments": ["x", "y"], "verdict": "needs_discussion"},
        None,
        {"items": [remark("x", blocking=False), remark("y", blocking=False)], "verdict": "needs_discussion"},
    ),
    ("review.result", {}, "/data/verdict", None),
    ("review.result", {"comments": {"a": 1}, "verdict": "approved"}, "/data/comments", None),
    ("review.result", {"comments": "abc", "verdict": "approved"}, "/data/comments", None),
    ("review.result", {"comments": [1], "verdict": "approved"}, "/data/comments/0", None),
    (
        "approval.request",
        REQUEST,
        None,
        approval({"description": "why", "resource": REQUEST["resource"], "type": "deploy"}),
    ),
    (
        "approval.request",
        REQUEST | {"action": "Deploy to production", "risk_level": "low", "timeout_seconds": 60},
        None,
        approval(
            {
                "description": "Deploy to production: why",
                "resource": REQUEST["resource"],
                "type": "deploy_to_production",
            },
            risk_level="low",
            timeout_seconds=60,
        ),
    ),
    (
        "approval.request",
        REQUEST | {"action": "7 of 9"},
        None,
        approval({"description": "7 of 9: why", "resource": REQUEST["resource"], "type": "action"}),
    ),
    ("approval.request", REQUEST | {"action": {"type": "deploy"}}, "/data/action", None),
    ("approval.request", REQUEST | {"timeout_seconds": 0}, "/data/timeout_seconds", None),
    ("approval.request", REQUEST | {"resource": "x"}, "/data/resource", None),
]

FOLDERS = [f"src/m{number}/**" for number in range(14)]
NARROWING: list[tuple[list[str], list[str], bool]] = [
    # What a cause grants, what its effect asks for, and whether every text of the second is one of the first.
    (["**/src/**/test_*.py"], ["**/src/**/test_*.py"], True),
    (["**/src/**"], ["**/src/**/test_*.py"], True),
    (["**/src/**/test_*.py"], ["**/src/**"], False),
    (["docs/**"], ["docs/*/*/*/*/*.md"], True),
    (["docs/*/*/*/*/*.md"], ["docs/a/b/c/d/e.md"], True),
    (["docs/*/*/*/*/*.md"], ["docs/a/b/c/d.md"], False),
    (FOLDERS, ["src/m1/*.py"], True),
    (FOLDERS, ["src/m14/*.py"], False),
    (FOLDERS, [*FOLDERS, "src/m13/a/**/b"], True),
    (["a***"], ["a**"], True),
    (["a**"], ["a***", "a****b"], True),
    (["a*"], ["a**"], False),
    (["*", "**/**"], ["**"], True),
    (["*", "*/*", "**/*/*/**"], ["**"], False),
    (["*", "*/*", "*/*/*", "**/*/*/**"], ["**"], True),
    (["*/**"], ["**/*"], True),
    (["a", "a*b"], ["a*"], False),
    (["**"], ["x" * 1_000], True),
    (["x" * 1_000], ["x" * 1_000], True),
    (["a\\*"], ["a*"], False),
    (["*"], [""], True),
    ([], ["a"], False),
    ([], [], True),
]

GATES = {
    reason: gate
    for gate, reasons in {
        "parse": ("malformed", "unsupported_protocol"),
        "integrity": ("hash_mismatch", "seal_mismatch"),
        "authenticity": (
            "signature_missing",
            "signature_invalid",
            "key_unknown",
            "key_revoked",
            "key_expired",
            "sender_mismatch",
            "proof_invalid",
        ),
        "lifetime": ("ttl_too_long", "expired", "too_many_hops", "clock_skew"),
    }.items()
    for reason in reasons
}


def parts_of(name: str, tree: Tree) -> Tree:
    """Everything about one message that an implementation can compare, byte by byte."""
    statement = statement_of(tree)
    layers = {layer: rfc8785.dumps(tree[layer]).decode() for layer in ("data", "metadata", "routing", "verification")}
    return {
        "name": name,
        "layers": layers,
        "statement": rfc8785.dumps(statement).decode(),
        "content_hash": digest(tree["data"]),
        "envelope_hash": statement["envelope_hash"],
        "seal": digest(statement),
        "signature": tree["verification"].get("signature"),
        "key": tree["routing"].get("key", tree["metadata"]["conversation_id"]),
        "value": rfc8785.dumps(tree).decode(),
    }


def vectors() -> Tree:
    made = messages()
    return {
        "protocol": "sealbus/1",
        "contract_revision": 10,
        "key": KEY,
        "now": NOW,
        "messages": [parts_of(name, tree) for name, tree in made.items()],
        "tampered": list(tampered(made)),
        "levels": list(levels(made)),
        "keys": [
            {"of": "signed", "limits": limits, "now": now, "appended": appended, "reason": reason}
            for limits, now, appended, reason in KEYS
        ],
        "older": [
            {
                "type": kind,
                "version": "1.0.0",
                "data": data,
                "reason": pointer and "schema_violation",
                "pointer": pointer,
            }
            | {"upcast": upcast}
            for kind, data, pointer, upcast in OLDER
        ],
        "narrowing": [{"granted": granted, "asked": asked, "within": within} for granted, asked, within in NARROWING],
    }


if __name__ == "__main__":
    target = Path(__file__).with_name("envelopes.json")
    target.write_text(json.dumps(vectors(), ensure_ascii=True, indent=1) + "\n")
    print(f"{target.name}: {len(vectors()['messages'])} messages, {len(vectors()['tampered'])} tampered")
