"""The forms of names and ids; verdicts do not depend on the interpreter's Unicode, and hostile names are not
remembered."""

from __future__ import annotations

import os
import tracemalloc
import unicodedata
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.protocol import identifiers as names

# Categories Cc, Cf, Zl and Zp of Unicode 16, as PROTOCOL.md lists them.
FORBIDDEN = (
    (0x0000, 0x001F),
    (0x007F, 0x009F),
    (0x00AD, 0x00AD),
    (0x0600, 0x0605),
    (0x061C, 0x061C),
    (0x06DD, 0x06DD),
    (0x070F, 0x070F),
    (0x0890, 0x0891),
    (0x08E2, 0x08E2),
    (0x180E, 0x180E),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x2064),
    (0x2066, 0x206F),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0001, 0xE0001),
    (0xE0020, 0xE007F),
)


def is_listed(code: int) -> bool:
    return any(first <= code <= last for first, last in FORBIDDEN)


@pytest.mark.medium
def test_a_text_id_has_no_listed_code_point_and_any_other() -> None:
    for code in range(0x110000):
        allowed = not is_listed(code) and not 0xD800 <= code <= 0xDFFF
        assert (names._FORBIDDEN.search(chr(code)) is None) == allowed, hex(code)


def test_the_list_has_every_control_and_format_character_of_this_interpreter() -> None:
    assert all(
        is_listed(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp")
    )


@pytest.mark.parametrize("count", [1, 256])
def test_a_text_id_has_one_to_256_code_points(count: int) -> None:
    assert names.is_text_id("\U0001f600" * count)


@pytest.mark.parametrize("text", ["", "x" * 257, "\U0001f600" * 257, "\u200b", "a\u2028b", "\ud800"])
def test_strings_that_are_not_ids(text: str) -> None:
    assert not names.is_text_id(text)


@pytest.mark.parametrize(
    "rule",
    [
        names.is_namespace,
        names.is_message_type,
        names.is_schema_version,
        names.is_protocol,
        names.is_hash,
        names.is_message_id,
        lambda text: names.is_reply_to(text, "a"),
    ],
)
@pytest.mark.parametrize(
    "text", ["a\n", "1.0.0\n", "sealbus/1\n", "sha256:" + "a" * 64 + "\n", "a._reply.a-00000000\n"]
)
def test_no_form_ends_with_a_line_break(rule: Callable[[str], bool], text: str) -> None:
    assert not rule(text)


@pytest.mark.parametrize("text", ["", "/", "//", "/a", "/a/0/b", "/~0", "/~1", "/ ", "/\u00e9"])
def test_pointers_are_those_of_rfc_6901(text: str) -> None:
    assert names.is_pointer(text)


@pytest.mark.parametrize("text", ["a", "a/b", "/~", "/~2", "/a~", "#/a"])
def test_strings_that_are_not_json_pointers(text: str) -> None:
    assert not names.is_pointer(text)


def test_a_reply_address_is_of_its_own_namespace_only() -> None:
    assert names.is_reply_to("agents._reply.a-00000000", "agents")
    assert not names.is_reply_to("agents._reply.a-00000000", "agent")
    assert names.is_reply_to(f"{'n' * 63}._reply.{'s' * 64}-00000000", "n" * 63)


@pytest.mark.parametrize(
    "rule",
    [
        names.is_namespace,
        names.is_message_type,
        names.is_text_id,
        names.is_schema_version,
        names.is_protocol,
        lambda text: names.is_reply_to(text, "agents"),
    ],
)
def test_hostile_megabytes_are_not_remembered(rule: Callable[[str], bool]) -> None:
    tracemalloc.start()
    try:
        for number in range(20):
            rule("1.0." + str(number) * 1_000_000)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 1_000_000


# --- ids made here ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_made_id_is_a_uuid_of_version_7_with_its_time_in_front(now_ms: int, entropy: bytes) -> None:
    text = names.uuid7(now_ms, entropy)
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == now_ms
    assert names.is_message_id(text)


@given(st.lists(st.integers(0, 2**48 - 1), min_size=2, max_size=9))
def test_made_ids_sort_by_time(times: list[int]) -> None:
    assert sorted(names.uuid7(now_ms, bytes(10)) for now_ms in times) == [
        names.uuid7(now_ms, bytes(10)) for now_ms in sorted(times)
    ]


def test_entropy_never_gives_the_same_bytes_twice() -> None:
    entropy = names.Entropy()
    assert len({entropy(10) for _ in range(5_000)}) == 5_000
    assert len(entropy(4096)) == 4096


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_entropy_of_its_own() -> None:
    entropy = names.Entropy()
    entropy(1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, entropy(16))
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        theirs = pipe.read(16)
    os.close(writing)
    assert theirs != entropy(16)


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=10, max_size=10))
def test_a_uuid7_contains_its_creation_time(now_ms: int, entropy: bytes) -> None:
    text = names.uuid7(now_ms, entropy)
    assert names.uuid7_ms(text) == names.uuid7_ms(text.upper()) == now_ms


@pytest.mark.parametrize(
    "text", ["", "mine", "0190-7", "9b2d1f9e-0000-4000-8000-000000000000", "9b2d1f9e-0000-7000-8000-00000000000g"]
)
def test_other_ids_contain_no_creation_time(text: str) -> None:
    assert names.uuid7_ms(text) is None
