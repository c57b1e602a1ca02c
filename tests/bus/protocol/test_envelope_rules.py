"""The shape of an envelope: for each rule of the contract one envelope that keeps it and one that breaks it, with the
place of the fault."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import rfc8785

from bus.errors import ContractError
from bus.protocol import sealing
from bus.protocol.sealing import Message

ABSENT = object()
HASHES = [f"sha256:{number:064x}" for number in range(20)]
ASTRAL = "\U0001f600"

FIRST: dict[str, Any] = {
    "data": {"question": "why?"},
    "metadata": {
        "conversation_id": "talk",
        "hops": 0,
        "message_id": "m-1",
        "message_type": "research.request",
        "namespace": "agents",
        "protocol": "sealbus/1",
        "schema_version": "1.0.0",
        "sender": {"id": "planner@svc"},
        "timestamp": "2026-01-01T00:00:00.000Z",
    },
    "routing": {"expires_at": "2026-01-01T01:00:00.000Z"},
    "verification": {"content_hash": HASHES[0], "seal": HASHES[1]},
}
LINK: dict[str, Any] = {
    "statement": {
        "content_hash": HASHES[2],
        "envelope_hash": HASHES[3],
        "hops": 0,
        "message_id": "m-1",
        "message_type": "research.request",
        "namespace": "agents",
        "protocol": "sealbus/1",
        "sender": "planner@svc",
        "timestamp": "2026-01-01T00:00:00.000Z",
    }
}
CAUSED = copy.deepcopy(FIRST)
CAUSED["metadata"] |= {"message_id": "m-2", "causation_id": "m-1", "hops": 1}
CAUSED["verification"] |= {"parents": [HASHES[4]], "proof_chain": [LINK]}


def with_change(base: dict[str, Any], pointer: str, value: object) -> dict[str, Any]:
    """*base* with *value* at *pointer*, whose parents are made where they are missing."""
    tree = copy.deepcopy(base)
    *path, last = [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]
    place: Any = tree
    for token in path:
        place = place[int(token)] if isinstance(place, list) else place.setdefault(token, {})
    key: Any = int(last) if isinstance(place, list) else last
    if value is ABSENT:
        del place[key]
    else:
        place[key] = value
    return tree


def outcome(call: Any, *arguments: object) -> object:
    try:
        return call(*arguments)
    except ContractError as error:
        return error.reason, error.pointer


def parse_both_ways(value: bytes) -> object:
    """The message in *value*, or its reason and pointer, in which the quick way and the exact way have to agree."""
    exact = outcome(sealing._parse_any, value)
    quick = outcome(sealing._parse_known, value, None)
    assert quick in (None, exact)
    assert outcome(sealing.parse, value) == exact
    return exact


def accept(tree: dict[str, Any]) -> Message:
    message = parse_both_ways(rfc8785.dumps(tree))
    assert isinstance(message, Message), message
    return message


def refuse(tree: dict[str, Any], pointer: str, reason: str = "malformed") -> None:
    assert parse_both_ways(rfc8785.dumps(tree)) == (reason, pointer)


def retry(**members: object) -> dict[str, object]:
    policy = {"backoff": "linear", "base_ms": 100, "cap_ms": 1000, "max_attempts": 3} | members
    return {name: value for name, value in policy.items() if value is not ABSENT}


TEXT_IDS = (
    "/metadata/conversation_id",
    "/metadata/correlation_id",
    "/metadata/task_id",
    "/metadata/parent_task_id",
    "/metadata/run_id",
    "/metadata/sender/id",
    "/metadata/sender/role",
    "/metadata/sender/version",
    "/metadata/sender/framework",
    "/metadata/sender/session_id",
    "/metadata/recipient/id",
    "/metadata/recipient/role",
    "/routing/idempotency_key",
    "/routing/key",
)
ENUMS = {
    "/metadata/sender/type": ("agent", "human", "service", "bus"),
    "/metadata/performative": (
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
    ),
}
STRINGS = (
    *TEXT_IDS,
    "/metadata/protocol",
    "/metadata/namespace",
    "/metadata/message_id",
    "/metadata/message_type",
    "/metadata/schema_version",
    "/metadata/timestamp",
    "/metadata/traceparent",
    "/metadata/tracestate",
    "/metadata/intent",
    "/metadata/security/trust_level",
    "/metadata/security/data_classification",
    "/metadata/authority/decision_right",
    "/metadata/authority/max_side_effect",
    "/routing/expires_at",
    "/routing/reply_to",
    "/verification/content_hash",
    "/verification/seal",
    "/verification/signature",
)
STRING_LISTS = (
    "/metadata/critical_fields",
    "/metadata/authority/can_read",
    "/metadata/authority/can_write",
    "/metadata/authority/can_execute",
    "/metadata/authority/cannot_execute",
    "/metadata/authority/requires_human_approval",
    "/metadata/security/policy_tags",
)
INTEGERS = ("/metadata/hops", "/metadata/sequence", "/routing/priority", "/routing/max_hops")
REQUIRED = (
    "/data",
    "/metadata",
    "/routing",
    "/verification",
    "/metadata/conversation_id",
    "/metadata/hops",
    "/metadata/message_id",
    "/metadata/message_type",
    "/metadata/namespace",
    "/metadata/protocol",
    "/metadata/schema_version",
    "/metadata/sender",
    "/metadata/sender/id",
    "/metadata/timestamp",
    "/routing/expires_at",
    "/verification/content_hash",
    "/verification/seal",
)
REQUIRED_OF_A_LINK = ("/statement", *(f"/statement/{name}" for name in LINK["statement"]))

VALID: list[tuple[str, object]] = [
    *[
        ("/metadata/protocol", text)
        for text in ("sealbus/1", "sealbus/1.0", "sealbus/1.1", "sealbus/1.10", "sealbus/1.123")
    ],
    *[("/metadata/namespace", text) for text in ("a", "agents", "team-7", "a" * 63, "a1-2b")],
    *[("/metadata/message_id", text) for text in ("!", "~" * 128, "019b7a3c-0000-7000-8000-000000000000", "urn:x/1")],
    *[
        ("/metadata/message_type", text)
        for text in ("a", "a.b.c", "research.request", "a" * 120, "dlq.a", "a.dlq2", "a-b.c-d")
    ],
    *[
        ("/metadata/schema_version", text)
        for text in ("0.0.0", "1.0.0", "10.20.30", "123456789012345678901234567890.0.0")
    ],
    *[
        ("/metadata/timestamp", text)
        for text in ("0001-01-01T00:00:00.000Z", "2024-02-29T23:59:59.999Z", "2000-02-29T00:00:00.000Z")
    ],
    *[
        (pointer, text)
        for pointer in TEXT_IDS
        for text in ("x", "a" * 256, ASTRAL * 256, "opencode://code-reviewer", "\u00e9 \u0416\u3042")
    ],
    *[(pointer, text) for pointer, texts in ENUMS.items() for text in texts],
    ("/metadata/recipient", {"id": "a"}),
    ("/metadata/recipient", {"role": "reviewer"}),
    ("/metadata/recipient", {"id": "a", "role": "reviewer", "type": "human"}),
    ("/metadata/sequence", 0),
    ("/metadata/sequence", 2**53 - 1),
    ("/metadata/intent", ""),
    ("/metadata/intent", ASTRAL * 200),
    ("/metadata/intent", "zero\u200bwidth and line\u2028separators are text"),
    ("/metadata/traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("/metadata/traceparent", "any text in a wrong form is ignored"),
    ("/metadata/tracestate", "\u0000 ignored too"),
    ("/metadata/critical_fields", ["/data/question", "", "/metadata/a~0b~1c", "/"]),
    ("/metadata/authority", {}),
    ("/metadata/authority/can_read", []),
    ("/metadata/authority/can_read", ["docs/*"]),
    ("/metadata/authority/unknown", {"kept": ["and", "ignored"]}),
    ("/metadata/security/trust_level", "user_request"),
    ("/metadata/security/contains_untrusted_content", True),
    ("/metadata/security/policy_tags", ["pii"]),
    ("/metadata/security/unknown", 7),
    ("/metadata/unknown", {"kept": [1, True, "x", {}]}),
    ("/metadata/sender/unknown", "kept"),
    ("/routing/unknown", -(2**53) + 1),
    ("/routing/expires_at", "2026-01-01T00:00:00.001Z"),
    ("/routing/expires_at", "9999-12-31T23:59:59.999Z"),
    *[("/routing/priority", number) for number in range(10)],
    ("/routing/max_hops", 0),
    ("/routing/max_hops", 2**53 - 1),
    *[("/routing/retry", retry(backoff=word)) for word in ("constant", "linear", "exponential")],
    *[("/routing/retry", retry(max_attempts=number)) for number in (1, 100)],
    ("/routing/retry", retry(base_ms=0, cap_ms=0)),
    ("/routing/retry", retry(base_ms=7, cap_ms=7)),
    ("/routing/retry", retry(unknown="kept")),
    ("/routing/reply_to", "agents._reply.planner-svc-0123abcd"),
    ("/routing/reply_to", f"agents._reply.{'a' * 64}-00000000"),
    ("/routing/reply_to", "agents._reply.---00000000"),
    ("/verification/signature", "its form is the authenticity gate's"),
    ("/data", {}),
    ("/data/anything", [None, 1.5, {"": True}]),
]

BROKEN: list[tuple[str, object]] = [
    *[(pointer, ABSENT) for pointer in REQUIRED],
    *[(pointer, None) for pointer in (*STRINGS, *STRING_LISTS, *INTEGERS, *ENUMS)],
    *[(pointer, 5) for pointer in STRINGS],
    *[
        (pointer, "text")
        for pointer in (
            *STRING_LISTS,
            *INTEGERS,
            "/metadata/sender",
            "/metadata/recipient",
            "/metadata/authority",
            "/metadata/security",
            "/routing/retry",
            "/metadata/security/contains_untrusted_content",
        )
    ],
    *[
        (pointer, 1.5)
        for pointer in (*INTEGERS, "/metadata/unknown", "/routing/unknown", "/metadata/authority/unknown")
    ],
    *[(pointer, number) for pointer in INTEGERS for number in (-1, True)],
    *[
        (pointer, None)
        for pointer in (
            "/metadata/unknown",
            "/routing/unknown",
            "/metadata/sender/unknown",
            "/metadata/recipient",
            "/metadata/security",
            "/metadata/authority",
            "/routing/retry",
        )
    ],
    *[  # type: ignore[var-annotated]
        (layer, value)
        for layer in ("/data", "/metadata", "/routing", "/verification")
        for value in ([], "x", 1)
        if layer != "/metadata"
    ],
    *[
        ("/metadata/namespace", text)
        for text in ("", "A", "a.b", "a" * 64, "1a", "-a", "a-", "a--b", "a_b", "\u00e9", "a\n")
    ],
    *[("/metadata/message_id", text) for text in ("", "a b", "~" * 129, "\u00e9", "\x7f", "a\n")],
    *[
        ("/metadata/message_type", text)
        for text in ("", ".", "a.", ".a", "a..b", "A.b", "a.1b", "x.dlq", "dlq", "a" * 121, "a._retry", "a\n")
    ],
    *[
        ("/metadata/schema_version", text)
        for text in (
            "",
            "1",
            "1.0",
            "1.0.0.0",
            "01.0.0",
            "1.00.0",
            "1.0.0-rc1",
            "1.0.0+build",
            "v1.0.0",
            "-1.0.0",
            "1.0.\u0661",
            "1.0.0\n",
        )
    ],
    *[
        ("/metadata/timestamp", text)
        for text in (
            "",
            "2026-01-01",
            "2026-01-01T24:00:00.000Z",
            "2026-01-01T00:00:60.000Z",
            "2026-01-01T00:60:00.000Z",
            "2026-02-30T00:00:00.000Z",
            "2023-02-29T00:00:00.000Z",
            "1900-02-29T00:00:00.000Z",
            "0000-01-01T00:00:00.000Z",
            "2026-13-01T00:00:00.000Z",
            "2026-00-01T00:00:00.000Z",
            "2026-01-00T00:00:00.000Z",
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:00.00Z",
            "2026-01-01T00:00:00.000000Z",
            "2026-01-01T00:00:00.000+00:00",
            "2026-01-01T00:00:00.000z",
            "2026-01-01t00:00:00.000Z",
            "2026-01-01 00:00:00.000Z",
            "2026-01-01T00:00:00,000Z",
            "10000-01-01T00:00:00.000Z",
            "\u0662026-01-01T00:00:00.000Z",
            "2026-01-01T00:00:00.000Z\n",
        )
    ],
    *[
        (pointer, text)
        for pointer in TEXT_IDS
        for text in (
            "",
            "a" * 257,
            ASTRAL * 257,
            "a\x00",
            "\x1f",
            "\x7f",
            "\x85",
            "a\u200b",
            "\u00ad",
            "\u2028",
            "\u2029",
            "\ufeff",
            "\u202e",
            "\U000e0041",
            "\U0001d173",
        )
    ],
    *[(pointer, "shout") for pointer in ENUMS],
    ("/metadata/recipient/type", "robot"),
    ("/metadata/recipient", {}),
    ("/metadata/recipient", {"type": "agent", "session_id": "s"}),
    ("/metadata/intent", "a" * 201),
    ("/metadata/intent", ASTRAL * 201),
    ("/metadata/intent", "two\nlines"),
    ("/metadata/intent", "\x9f"),
    ("/metadata/critical_fields", []),
    ("/routing/expires_at", "2026-01-01T00:00:00.000Z"),
    ("/routing/expires_at", "2025-12-31T23:59:59.999Z"),
    ("/routing/expires_at", "2026-01-01T24:00:00.000Z"),
    ("/routing/priority", 10),
    ("/routing/retry", []),
    ("/routing/key", "talk"),
    *[
        ("/routing/reply_to", text)
        for text in (
            "",
            "other._reply.planner-svc-0123abcd",
            "agents._reply.planner-svc-0123ABCD",
            "agents._reply.planner-svc-0123abc",
            "agents._reply.-0123abcd",
            f"agents._reply.{'a' * 65}-0123abcd",
            "agents._reply.a.b-0123abcd",
            "agents.research.request",
            "agents._retry.group.5s",
            "agents._reply.Planner-0123abcd",
            "agents._reply.a-0123abcd\n",
            "agents._reply.a-0123abcd.dlq",
        )
    ],
    *[
        (f"/verification/{name}", text)
        for name in ("content_hash", "seal")
        for text in (
            "",
            "sha256:",
            f"sha256:{'A' * 64}",
            f"sha256:{'a' * 63}",
            f"sha256:{'a' * 65}",
            "a" * 64,
            f"sha512:{'a' * 64}",
        )
    ],
    ("/verification/signature", ""),
    ("/verification/unknown", "x"),
    ("/verification/a~1b~0c", "x"),
    ("/verification/a`b - at `$.c`", "x"),
    ("/verification/two\nlines", "x"),
    ("/unknown", {}),
    ("/a~1b~0c", {}),
    ("/verification/proof_chain", []),
]

ELSEWHERE: list[tuple[dict[str, Any], str, object, str]] = [
    (FIRST, "/metadata", [], "/metadata/protocol"),
    (FIRST, "/metadata", ABSENT, "/metadata/protocol"),
    (FIRST, "/metadata/unknown", {"deep": [1, {"er": None}]}, "/metadata/unknown/deep/1/er"),
    (FIRST, "/metadata/critical_fields", ["/data", "no pointer"], "/metadata/critical_fields/1"),
    (FIRST, "/metadata/critical_fields", ["/a~2b"], "/metadata/critical_fields/0"),
    (FIRST, "/metadata/critical_fields", ["/a~"], "/metadata/critical_fields/0"),
    (FIRST, "/metadata/critical_fields", [1], "/metadata/critical_fields/0"),
    (FIRST, "/metadata/authority/can_read", ["a", 5], "/metadata/authority/can_read/1"),
    (FIRST, "/metadata/security/policy_tags", ["a", None], "/metadata/security/policy_tags/1"),
    (FIRST, "/metadata/hops", 1, "/metadata/hops"),
    (FIRST, "/metadata/causation_id", "m-0", "/metadata/hops"),
    (FIRST, "/metadata/causation_id", "m-1", "/metadata/causation_id"),
    (FIRST, "/metadata/causation_id", "", "/metadata/causation_id"),
    (FIRST, "/verification/parents", [HASHES[5]], "/verification/parents"),
    (CAUSED, "/metadata/causation_id", ABSENT, "/metadata/hops"),
    (CAUSED, "/metadata/hops", 0, "/metadata/hops"),
    (CAUSED, "/verification/parents", ABSENT, "/verification/parents"),
    (CAUSED, "/verification/parents", [], "/verification/parents"),
    (CAUSED, "/verification/parents", HASHES[:17], "/verification/parents"),
    (CAUSED, "/verification/parents", [HASHES[5], HASHES[6], HASHES[5]], "/verification/parents"),
    (CAUSED, "/verification/parents", [HASHES[5], "no hash"], "/verification/parents/1"),
    (CAUSED, "/verification/parents", [HASHES[5], 7], "/verification/parents/1"),
    (CAUSED, "/verification/parents", "text", "/verification/parents"),
    (CAUSED, "/verification/proof_chain", [LINK] * 17, "/verification/proof_chain"),
    (CAUSED, "/verification/proof_chain", [LINK, []], "/verification/proof_chain/1"),
    *[
        (FIRST, "/routing/retry", retry(**{name: ABSENT}), f"/routing/retry/{name}")
        for name in ("backoff", "base_ms", "cap_ms", "max_attempts")
    ],
    *[
        (FIRST, "/routing/retry", retry(**{name: value}), f"/routing/retry/{name}")
        for name, value in (
            ("max_attempts", 0),
            ("max_attempts", 101),
            ("base_ms", -1),
            ("cap_ms", 99),
            ("backoff", "quadratic"),
            ("base_ms", 1.5),
            ("max_attempts", None),
            ("max_attempts", True),
            ("unknown", None),
        )
    ],
]

LINK_BROKEN: list[tuple[str, object]] = [
    *[(pointer, ABSENT) for pointer in REQUIRED_OF_A_LINK],
    *[(f"/statement/{name}", None) for name in (*LINK["statement"], "links", "parents", "trust_level", "unknown")],
    ("/unknown", "x"),
    ("/statement/unknown", "x"),
    ("/statement/a~1b", "x"),
    ("/signature", ""),
    ("/signature", None),
    ("/signature", 5),
    ("/statement/content_hash", "sha256:no"),
    ("/statement/envelope_hash", HASHES[0].upper()),
    ("/statement/hops", -1),
    ("/statement/hops", True),
    ("/statement/message_id", ""),
    ("/statement/message_type", "x.dlq"),
    ("/statement/namespace", "A"),
    ("/statement/protocol", "sealbus/2"),
    ("/statement/sender", "\u200b"),
    ("/statement/timestamp", "2026-02-30T00:00:00.000Z"),
    ("/statement/parents", []),
    ("/statement/parents", HASHES[:17]),
    ("/statement/parents", [HASHES[0], HASHES[0]]),
    ("/statement/links", "1"),
    ("/statement/trust_level", 1),
]

LINK_VALID: list[tuple[str, object]] = [
    ("/signature", "x"),
    ("/statement/links", 1),
    ("/statement/links", 17),
    ("/statement/links", 0),
    ("/statement/links", -1),
    ("/statement/parents", HASHES[:16]),
    ("/statement/trust_level", "anything"),
    ("/statement/protocol", "sealbus/1.7"),
    ("/statement/hops", 2**53 - 1),
]


def named(row: tuple[Any, ...]) -> str:
    return " ".join("absent" if part is ABSENT else repr(part)[:40] for part in row if part not in (FIRST, CAUSED))


def test_a_first_message_has_a_shape() -> None:
    message = accept(FIRST)
    assert message.metadata.message_id == "m-1"
    assert message.statement.links is None
    assert message.statement.parents is None


def test_a_caused_message_has_a_shape() -> None:
    message = accept(CAUSED)
    assert message.statement.links == 1
    assert message.statement.parents == (HASHES[4],)


@pytest.mark.parametrize(("pointer", "value"), VALID, ids=map(named, VALID))
def test_envelopes_within_the_rules_are_accepted(pointer: str, value: object) -> None:
    base = (
        with_change(FIRST, "/metadata/recipient", {"id": "b", "role": "c"})
        if pointer.startswith("/metadata/recipient/")
        else FIRST
    )
    accept(with_change(base, pointer, value))


@pytest.mark.parametrize(("pointer", "value"), [row for row in BROKEN if row != ("/metadata", ABSENT)])
def test_envelopes_that_break_a_rule_are_refused_with_their_pointer(pointer: str, value: object) -> None:
    base = (
        with_change(FIRST, "/metadata/recipient", {"id": "b", "role": "c"})
        if pointer.startswith("/metadata/recipient/")
        else FIRST
    )
    refuse(with_change(base, pointer, value), pointer)


@pytest.mark.parametrize(("base", "change", "value", "pointer"), ELSEWHERE, ids=map(named, ELSEWHERE))
def test_rules_between_fields_name_the_field_that_breaks_them(
    base: dict[str, Any], change: str, value: object, pointer: str
) -> None:
    refuse(with_change(base, change, value), pointer)


@pytest.mark.parametrize(("pointer", "value"), LINK_BROKEN, ids=map(named, LINK_BROKEN))
def test_a_link_in_a_wrong_form_is_malformed(pointer: str, value: object) -> None:
    refuse(with_change(CAUSED, f"/verification/proof_chain/0{pointer}", value), f"/verification/proof_chain/0{pointer}")


@pytest.mark.parametrize(("pointer", "value"), LINK_VALID, ids=map(named, LINK_VALID))
def test_what_only_the_chain_can_judge_passes_the_shape(pointer: str, value: object) -> None:
    accept(with_change(CAUSED, f"/verification/proof_chain/0{pointer}", value))


def test_sixteen_parents_and_sixteen_links_are_the_most() -> None:
    tree = with_change(CAUSED, "/verification/parents", HASHES[:16])
    assert accept(with_change(tree, "/verification/proof_chain", [LINK] * 16)).statement.links == 16


@pytest.mark.parametrize(
    "text",
    [
        "sealbus/2",
        "sealbus/1.01",
        "sealbus/1.",
        "sealbus/1.0.0",
        "sealbus/10",
        "Sealbus/1",
        "sealbus/1\n",
        "",
        " sealbus/1",
    ],
)
def test_another_protocol_is_unsupported(text: str) -> None:
    refuse(with_change(FIRST, "/metadata/protocol", text), "/metadata/protocol", "unsupported_protocol")


def test_another_protocol_is_found_before_the_canonical_form_and_the_shape() -> None:
    value = b'{"metadata": {"protocol": "sealbus/2"}, "metadata2": null}'
    assert parse_both_ways(value) == ("unsupported_protocol", "/metadata/protocol")


def test_the_canonical_form_is_judged_before_the_shape() -> None:
    broken = with_change(FIRST, "/metadata/hops", -1)
    value = rfc8785.dumps(broken).replace(b',"metadata"', b' ,"metadata"')
    assert parse_both_ways(value) == ("malformed", "")


@pytest.mark.parametrize(
    "literal", ["9007199254740992", "-9007199254740992", "1152921504606847000", "18446744073709552000", "1e+21"]
)
@pytest.mark.parametrize(
    ("base", "pointer"),
    [
        *[(FIRST, pointer) for pointer in (*INTEGERS, "/metadata/unknown", "/routing/unknown")],
        (FIRST, "/routing/retry/base_ms"),
        (FIRST, "/routing/retry/cap_ms"),
        (FIRST, "/routing/retry/max_attempts"),
        (CAUSED, "/verification/proof_chain/0/statement/hops"),
        (CAUSED, "/verification/proof_chain/0/statement/links"),
    ],
)
def test_an_integer_beyond_two_to_the_53_is_malformed_outside_data(
    base: dict[str, Any], pointer: str, literal: str
) -> None:
    tree = (
        with_change(base, "/routing/retry", retry(cap_ms=2**53 - 1)) if pointer.startswith("/routing/retry/") else base
    )
    value = rfc8785.dumps(with_change(tree, pointer, "LITERAL")).replace(b'"LITERAL"', literal.encode())
    reason, place = parse_both_ways(value)  # type: ignore[misc]
    assert (reason, place) == ("malformed", pointer)


def test_text_is_measured_in_code_points_not_in_bytes() -> None:
    accept(with_change(FIRST, "/metadata/conversation_id", ASTRAL * 256))
    refuse(with_change(FIRST, "/metadata/conversation_id", ASTRAL * 257), "/metadata/conversation_id")


def test_unknown_fields_are_inside_the_seal() -> None:
    plain, extended = accept(FIRST), accept(with_change(FIRST, "/metadata/unknown", "x"))
    assert plain.statement.envelope_hash != extended.statement.envelope_hash
