"""A second implementation of protocol sealbus/1, written from PROTOCOL.md alone: a sealer and a verifier without keys.

Imports nothing of the project: the standard library and a package for RFC 8785. Plain rather than quick.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NoReturn

import rfc8785

MAX_BYTES = 1_048_576
SAFE = 2**53 - 1
LAYERS = ["data", "metadata", "routing", "verification"]

SEGMENT = "[a-z][a-z0-9]*(-[a-z0-9]+)*"
HASH = re.compile("sha256:[0-9a-f]{64}")
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{3}Z")
POINTER = re.compile("(/([^~/]|~[01])*)*")
PERFORMATIVES = [
    "request",
    "inform",
    "propose",
    "accept",
    "reject",
    "query",
    "confirm",
    "error",
    "call_for_proposal",
    "subscribe",
    "cancel",
]
FORBIDDEN = [
    "0000-001F",
    "007F-009F",
    "00AD",
    "0600-0605",
    "061C",
    "06DD",
    "070F",
    "0890-0891",
    "08E2",
    "180E",
    "200B-200F",
    "2028-202E",
    "2060-2064",
    "2066-206F",
    "FEFF",
    "FFF9-FFFB",
    "110BD",
    "110CD",
    "13430-1343F",
    "1BCA0-1BCA3",
    "1D173-1D17A",
    "E0001",
    "E0020-E007F",
]
RANGES = [(int(first, 16), int(last or first, 16)) for first, _, last in (item.partition("-") for item in FORBIDDEN)]


class RefusedError(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def refuse(reason: str = "malformed") -> NoReturn:
    raise RefusedError(reason)


def need(holds: object, reason: str = "malformed") -> None:
    if not holds:
        refuse(reason)


def digest(value: object) -> str:
    return "sha256:" + hashlib.sha256(rfc8785.dumps(value)).hexdigest()


# --- strict reading ---------------------------------------------------------------------------------------------------


def read(value: bytes) -> Any:
    """Strict JSON; duplicate keys pass here (the last wins) and fail the comparison with the canonical form."""
    try:
        text = value.decode("utf-8")
        need(not text.startswith("\ufeff") and depth_of(text) <= 64)
        tree = json.loads(text, parse_int=integer, parse_float=real, parse_constant=lambda _: refuse())
    except (ValueError, RecursionError):
        refuse()
    check_text(tree)
    return tree


def integer(literal: str) -> int | float:
    value = real(literal)
    return value if abs(value) > SAFE else int(literal)


def real(literal: str) -> float:
    value = float(literal)
    need(abs(value) != float("inf"))
    return value


def depth_of(text: str) -> int:
    depth = deepest = 0
    inside = escaped = False
    for character in text:
        if inside:
            inside = escaped or character != '"'
            escaped = not escaped and character == "\\"
        elif character == '"':
            inside = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def check_text(value: Any) -> None:
    if isinstance(value, str):
        need(not any(0xD800 <= ord(character) <= 0xDFFF for character in value))
    elif isinstance(value, dict):
        for name, member in value.items():
            check_text(name)
            check_text(member)
    elif isinstance(value, list):
        for member in value:
            check_text(member)


# --- forms ------------------------------------------------------------------------------------------------------------


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_text_id(value: Any) -> bool:
    return (
        is_text(value)
        and 1 <= len(value) <= 256
        and not any(first <= ord(one) <= last for one in value for first, last in RANGES)
    )


def is_message_id(value: Any) -> bool:
    return is_text(value) and 1 <= len(value) <= 128 and all("!" <= one <= "~" for one in value)


def is_namespace(value: Any) -> bool:
    return is_text(value) and len(value) <= 63 and re.fullmatch(SEGMENT, value) is not None


def is_message_type(value: Any) -> bool:
    return (
        is_text(value)
        and len(value) <= 120
        and re.fullmatch(rf"{SEGMENT}(\.{SEGMENT})*", value) is not None
        and value.split(".")[-1] != "dlq"
    )


def is_protocol(value: Any) -> bool:
    return is_text(value) and re.fullmatch(r"sealbus/1(\.(0|[1-9][0-9]{0,63}))?", value) is not None


def is_hash(value: Any) -> bool:
    return is_text(value) and HASH.fullmatch(value) is not None


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SAFE


def is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def time_ms(value: Any) -> int | None:
    if not is_text(value) or not TIME.fullmatch(value):
        return None
    try:
        moment = datetime.strptime(value[:-1] + "000+0000", "%Y-%m-%dT%H:%M:%S.%f%z")
    except ValueError:
        return None
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def is_reply_to(value: Any, namespace: str) -> bool:
    if not is_text(value):
        return False
    mailbox = re.fullmatch(re.escape(namespace) + rf"\._mail\.({SEGMENT})", value)
    return (
        bool(mailbox and is_namespace(mailbox[1]))
        or re.fullmatch(re.escape(namespace) + r"\._reply\.[a-z0-9-]{1,64}-[0-9a-f]{8}", value) is not None
    )


# --- gate: parse ------------------------------------------------------------------------------------------------------


def parse(value: bytes | None) -> dict[str, Any]:
    need(value)
    assert value is not None
    tree = read(value)
    need(isinstance(tree, dict))
    metadata = tree.get("metadata")
    need(isinstance(metadata, dict))
    need(is_text(metadata.get("protocol")))
    need(is_protocol(metadata["protocol"]), "unsupported_protocol")
    try:
        need(rfc8785.dumps(tree) == value)
    except rfc8785.CanonicalizationError:
        refuse()
    need(list(tree) == LAYERS and all(isinstance(tree[layer], dict) for layer in LAYERS))
    for layer in LAYERS[1:]:
        check_plain(tree[layer])
    check_metadata(metadata)
    check_routing(tree["routing"], metadata)
    check_verification(tree["verification"], metadata)
    return tree


def check_plain(value: Any) -> None:
    need(value is not None and not isinstance(value, float))
    if isinstance(value, dict):
        for member in value.values():
            check_plain(member)
    elif isinstance(value, list):
        for member in value:
            check_plain(member)


def check_members(layer: Any, required: dict[str, Any], optional: dict[str, Any], *, closed: bool = False) -> None:
    need(isinstance(layer, dict))
    need(all(name in layer for name in required))
    for name, rule in (required | optional).items():
        need(name not in layer or rule(layer[name]))
    need(not closed or set(layer) <= set(required | optional))


def is_agent(value: Any) -> bool:
    texts = dict.fromkeys(("id", "role", "version", "framework", "host", "session_id"), is_text_id)
    check_members(value, {}, texts | {"type": lambda kind: kind in ("agent", "human", "service", "bus")})
    return True


def is_glob(value: Any) -> bool:
    if not is_text(value) or len(value) > 1_024:
        return False
    runs = re.findall("[*]+", value)
    return len(runs) <= 8 and sum(len(run) >= 2 for run in runs) <= 3


def is_authority(value: Any) -> bool:
    globs = dict.fromkeys(
        ("can_read", "can_write", "can_execute"),
        lambda some: isinstance(some, list) and len(some) <= 256 and all(map(is_glob, some)),
    )
    lists = globs | dict.fromkeys(("cannot_execute", "requires_human_approval"), is_strings)
    check_members(value, {}, lists | {"decision_right": is_text, "max_side_effect": is_text})
    text = rfc8785.dumps(value)
    return len(text) <= 1_024 and depth_of(text.decode()) <= 8


def is_security(value: Any) -> bool:
    optional = {"trust_level": is_text, "data_classification": is_text, "policy_tags": is_strings}
    check_members(value, {}, optional | {"contains_untrusted_content": lambda flag: isinstance(flag, bool)})
    return True


def is_intent(value: Any) -> bool:
    return is_text(value) and len(value) <= 200 and not any(one <= "\x1f" or "\x7f" <= one <= "\x9f" for one in value)


def is_critical(value: Any) -> bool:
    return (
        is_strings(value)
        and 1 <= len(value) <= 64
        and all(len(pointer) <= 1_024 and POINTER.fullmatch(pointer) for pointer in value)
    )


def check_metadata(metadata: dict[str, Any]) -> None:
    required = {
        "protocol": is_protocol,
        "namespace": is_namespace,
        "message_id": is_message_id,
        "message_type": is_message_type,
        "schema_version": lambda text: (
            is_text(text) and re.fullmatch(r"(0|[1-9][0-9]{0,63})(\.(0|[1-9][0-9]{0,63})){2}", text)
        ),
        "timestamp": lambda text: time_ms(text) is not None,
        "sender": is_agent,
        "conversation_id": is_text_id,
        "hops": is_count,
    }
    optional = {
        "recipient": is_agent,
        "causation_id": is_message_id,
        "sequence": is_count,
        "traceparent": is_text,
        "tracestate": is_text,
        "intent": is_intent,
        "performative": lambda word: word in PERFORMATIVES,
        "authority": is_authority,
        "security": is_security,
        "critical_fields": is_critical,
        **dict.fromkeys(("correlation_id", "task_id", "parent_task_id", "run_id"), is_text_id),
    }
    check_members(metadata, required, optional)
    need("id" in metadata["sender"])
    recipient = metadata.get("recipient")
    need(recipient is None or "id" in recipient or "role" in recipient)
    need(metadata.get("causation_id") != metadata["message_id"])
    need((metadata["hops"] == 0) == ("causation_id" not in metadata))


def is_retry(value: Any) -> bool:
    required = {
        "max_attempts": lambda number: is_count(number) and 1 <= number <= 100,
        "backoff": lambda word: word in ("constant", "linear", "exponential"),
        "base_ms": is_count,
        "cap_ms": is_count,
    }
    check_members(value, required, {})
    return bool(value["cap_ms"] >= value["base_ms"])


def check_routing(routing: dict[str, Any], metadata: dict[str, Any]) -> None:
    optional = {
        "priority": lambda number: is_count(number) and number <= 9,
        "retry": is_retry,
        "idempotency_key": is_text_id,
        "max_hops": is_count,
        "not_before": lambda text: time_ms(text) is not None,
        "accepts_progress": lambda flag: isinstance(flag, bool),
        "progress": lambda flag: isinstance(flag, bool),
        "key": lambda key: is_text_id(key) and key != metadata["conversation_id"],
        "reply_to": lambda topic: is_reply_to(topic, metadata["namespace"]),
    }
    check_members(routing, {"expires_at": lambda text: time_ms(text) is not None}, optional)
    need((time_ms(routing["expires_at"]) or 0) > (time_ms(metadata["timestamp"]) or 0))
    need("not_before" not in routing or metadata["timestamp"] < routing["not_before"] < routing["expires_at"])


def is_parents(value: Any) -> bool:
    return (
        isinstance(value, list) and 1 <= len(value) <= 16 and all(map(is_hash, value)) and len(set(value)) == len(value)
    )


def is_link(value: Any) -> bool:
    check_members(value, {"statement": is_statement}, {"signature": lambda text: is_text(text) and text}, closed=True)
    return True


def is_statement(value: Any) -> bool:
    required = {
        "content_hash": is_hash,
        "envelope_hash": is_hash,
        "hops": is_count,
        "message_id": is_message_id,
        "message_type": is_message_type,
        "namespace": is_namespace,
        "protocol": is_protocol,
        "sender": is_text_id,
        "timestamp": lambda text: time_ms(text) is not None,
    }
    optional = {
        "authority": is_authority,
        "data_classification": is_text,
        "links": lambda number: isinstance(number, int) and not isinstance(number, bool),
        "parents": is_parents,
        "recipient": is_addressee,
        "trust_level": is_text,
    }
    check_members(value, required, optional, closed=True)
    return True


def is_addressee(value: Any) -> bool:
    check_members(value, {}, {"id": is_text_id, "role": is_text_id}, closed=True)
    return len(value) == 1


def check_verification(verification: dict[str, Any], metadata: dict[str, Any]) -> None:
    optional = {
        "parents": is_parents,
        "signature": lambda text: is_text(text) and text,
        "proof_chain": lambda chain: isinstance(chain, list) and 1 <= len(chain) <= 16 and all(map(is_link, chain)),
    }
    check_members(verification, {"content_hash": is_hash, "seal": is_hash}, optional, closed=True)
    need((metadata["hops"] == 0) == ("parents" not in verification))


# --- gates: integrity, authenticity, lifetime -------------------------------------------------------------------------


def statement_of(tree: dict[str, Any]) -> dict[str, Any]:
    metadata, verification = tree["metadata"], tree["verification"]
    statement = {
        name: metadata[name] for name in ("hops", "message_id", "message_type", "namespace", "protocol", "timestamp")
    }
    statement["content_hash"] = digest(tree["data"])
    statement["envelope_hash"] = digest({"metadata": metadata, "routing": tree["routing"]})
    statement["sender"] = metadata["sender"]["id"]
    if "parents" in verification:
        statement["parents"] = verification["parents"]
    if "proof_chain" in verification:
        statement["links"] = len(verification["proof_chain"])
    if "authority" in metadata:
        statement["authority"] = metadata["authority"]
    if "recipient" in metadata:
        name = "id" if "id" in metadata["recipient"] else "role"
        statement["recipient"] = {name: metadata["recipient"][name]}
    for name in ("data_classification", "trust_level"):
        if name in metadata.get("security", {}):
            statement[name] = metadata["security"][name]
    return statement


def check_integrity(tree: dict[str, Any]) -> None:
    need(tree["verification"]["content_hash"] == digest(tree["data"]), "hash_mismatch")
    need(tree["verification"]["seal"] == digest(statement_of(tree)), "seal_mismatch")


def is_signature(text: str) -> bool:
    header, dots, tail = text.partition("..")
    protected, raw = decoded(header), decoded(tail)
    if not dots or not protected or not raw:
        return False
    try:
        fields = read(protected)
        written = rfc8785.dumps(fields)
    except (RefusedError, rfc8785.CanonicalizationError):
        return False
    if written != protected or not isinstance(fields, dict) or set(fields) != {"alg", "b64", "crit", "kid"}:
        return False
    return is_text(fields["alg"]) and is_text(fields["kid"]) and fields["b64"] is False and fields["crit"] == ["b64"]


def decoded(text: str) -> bytes | None:
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return data if base64.urlsafe_b64encode(data).rstrip(b"=").decode() == text else None


def check_authenticity(tree: dict[str, Any], risk: str) -> None:
    """Without keys."""
    verification = tree["verification"]
    if risk == "high":
        need("signature" in verification, "signature_missing")
        need(is_signature(verification["signature"]), "signature_invalid")
        refuse("key_unknown")
    if "proof_chain" in verification:
        check_chain(tree)
    else:
        need("parents" not in verification or risk == "low", "proof_invalid")


def check_chain(tree: dict[str, Any]) -> None:
    own = statement_of(tree)
    statements = [link["statement"] for link in tree["verification"]["proof_chain"]] + [own]
    need(statements[-2]["message_id"] == tree["metadata"].get("causation_id"), "proof_invalid")
    need(len({statement["message_id"] for statement in statements}) == len(statements), "proof_invalid")
    for older, newer in pairwise(statements):
        need(digest(older) == newer.get("parents", [None])[0], "proof_invalid")
        need(older["hops"] == newer["hops"] - 1 and older["namespace"] == newer["namespace"], "proof_invalid")
        need((older["hops"] == 0) == ("parents" not in older), "proof_invalid")
        need("links" not in older or 1 <= older["links"] <= 16, "proof_invalid")
        need(newer.get("links") == min(16, older.get("links", 0) + 1), "proof_invalid")
        addressee = older.get("recipient", {}).get("id", newer["sender"])
        need(newer["sender"] in (addressee, older["sender"]), "proof_invalid")
        older_ms, newer_ms, own_ms = (time_ms(statement["timestamp"]) or 0 for statement in (older, newer, own))
        need(older_ms <= newer_ms + 120_000 and older_ms >= own_ms - 16 * 14 * 86_400_000, "proof_invalid")


def check_lifetime(tree: dict[str, Any], now_ms: int, append_ms: int) -> None:
    metadata, routing = tree["metadata"], tree["routing"]
    need(
        (time_ms(routing["expires_at"]) or 0) - (time_ms(metadata["timestamp"]) or 0) <= 7 * 86_400_000, "ttl_too_long"
    )
    need(now_ms <= (time_ms(routing["expires_at"]) or 0) + 5_000, "expired")
    need(metadata["hops"] <= min(routing.get("max_hops", 16), 64), "too_many_hops")
    need((time_ms(metadata["timestamp"]) or 0) <= append_ms + 120_000, "clock_skew")


def verify(value: bytes | None, *, risk: str, now_ms: int) -> str | None:
    """The reason of the first gate that refuses *value*, or None."""
    try:
        need(value is None or len(value) <= MAX_BYTES, "oversized")
        tree = parse(value)
        check_integrity(tree)
        check_authenticity(tree, risk)
        check_lifetime(tree, now_ms, now_ms)
    except RefusedError as error:
        return error.reason
    return None


# --- sealing ----------------------------------------------------------------------------------------------------------


def seal(data: dict[str, Any], metadata: dict[str, Any], routing: dict[str, Any], cause: bytes | None = None) -> bytes:
    """The value of a message that was caused by the message in *cause*, with its chain."""
    tree = {"data": data, "metadata": metadata, "routing": routing, "verification": {}}
    if cause is not None:
        before = read(cause)
        link = {"statement": statement_of(before)}
        if "signature" in before["verification"]:
            link["signature"] = before["verification"]["signature"]
        tree["verification"] = {
            "parents": [before["verification"]["seal"]],
            "proof_chain": [*before["verification"].get("proof_chain", []), link][-16:],
        }
    tree["verification"]["content_hash"] = digest(data)
    tree["verification"]["seal"] = digest(statement_of(tree))
    return rfc8785.dumps(tree)


# --- records ----------------------------------------------------------------------------------------------------------


def partition_of(key: bytes, partitions: int) -> int:
    """murmur2 of Kafka's Java client."""
    state = 0x9747B28C ^ len(key)
    for start in range(0, len(key) - len(key) % 4, 4):
        word = int.from_bytes(key[start : start + 4], "little") * 0x5BD1E995 % 2**32
        word = (word ^ word >> 24) * 0x5BD1E995 % 2**32
        state = state * 0x5BD1E995 % 2**32 ^ word
    if len(key) % 4:
        state ^= int.from_bytes(key[len(key) - len(key) % 4 :], "little")
        state = state * 0x5BD1E995 % 2**32
    state = (state ^ state >> 13) * 0x5BD1E995 % 2**32
    return ((state ^ state >> 15) & 0x7FFFFFFF) % partitions
