"""The proof chain: what a message carries of its history holds link by link, with nothing else at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus import native
from bus.errors import ContractError
from bus.native.twins import Links
from bus.protocol import canonical, proof_chain, sealing
from bus.protocol import envelope_rules as shape
from bus.protocol.envelope import LINKS, Agent, Link, Metadata, Routing, Statement
from bus.protocol.proof_chain import MAX_LINK_AGE_MS, encode_statement, extend_chain, find_fault, links_after
from bus.protocol.sealing import Message
from bus.protocol.signatures import Signature
from bus.protocol.timestamps import format_ms

START_MS = 1_767_225_600_000
DAY_MS = 86_400_000


class Signer:
    kid, alg = "k", "HS256"

    def sign(self, signing_input: bytes) -> bytes:
        return b"signed"


class Verifier:
    """Good is what was not forbidden."""

    def __init__(self, *bad: str) -> None:
        self.bad = bad
        self.asked: list[str] = []

    def judge(self, signature: Signature, statement: Statement, payload: bytes) -> str | None:
        assert payload == encode_statement(statement)
        self.asked.append(statement.message_id)
        return "key_revoked" if statement.message_id in self.bad else None


def talk(length: int, *, signed: bool = False, step_ms: int = 1_000, carried_from: int = 0) -> list[Message]:
    """Messages m-0, m-1, ..., each caused by the one before; the chain is carried from *carried_from* on."""
    told: list[Message] = []
    for number in range(length):
        cause = told[-1] if told else None
        now_ms = START_MS + number * step_ms
        metadata = Metadata(
            conversation_id="talk",
            hops=number,
            message_id=f"m-{number}",
            message_type="a.b",
            namespace="agents",
            protocol="sealbus/1",
            schema_version="1.0.0",
            sender=Agent(id=f"agent-{number}"),
            timestamp=format_ms(now_ms),
            causation_id=cause.message_id if cause else None,
        )
        told.append(
            sealing.seal(
                b"{}",
                metadata,
                Routing(expires_at=format_ms(now_ms + DAY_MS)),
                parents=(cause.seal,) if cause else (),
                proof_chain=cause.chain_for_children() if cause and number > carried_from else (),
                signer=Signer() if signed else None,
            )
        )
    return told


def fault(message: Message, verifier: Verifier | None = None) -> str | None:
    found = find_fault(message.statement, message.verification, message.metadata, verifier)
    if verifier is None:
        with mock.patch.object(proof_chain, "LINKS", Links()):
            assert find_fault(message.statement, message.verification, message.metadata) == found
    return found


def with_statement(message: Message, index: int, **changes: Any) -> Message:
    """*message* with a changed statement in link *index*, everything after it hashed anew: a forger without keys."""
    chain = list(message.verification.proof_chain or ())
    statement = msgspec.structs.replace(chain[index].statement, **changes)
    chain[index] = msgspec.structs.replace(chain[index], statement=statement)
    for later in range(index + 1, len(chain)):
        hashed = canonical.digest(encode_statement(chain[later - 1].statement))
        statement = msgspec.structs.replace(chain[later].statement, parents=(hashed,))
        chain[later] = msgspec.structs.replace(chain[later], statement=statement)
    return with_chain(message, tuple(chain))


def with_chain(message: Message, chain: tuple[Link, ...]) -> Message:
    last = canonical.digest(encode_statement(chain[-1].statement))
    return msgspec.structs.replace(
        message, verification=msgspec.structs.replace(message.verification, proof_chain=chain, parents=(last,))
    )


@pytest.mark.parametrize("length", range(2, 20))
def test_a_chain_along_the_cause_holds(length: int) -> None:
    last = talk(length)[-1]
    assert len(last.verification.proof_chain or ()) == min(16, length - 1)
    assert fault(last) is None


@pytest.mark.parametrize("length", [18, 25])
def test_the_newest_sixteen_links_are_carried(length: int) -> None:
    last = talk(length)[-1]
    chain = last.verification.proof_chain or ()
    assert [link.statement.message_id for link in chain] == [f"m-{number}" for number in range(length - 17, length - 1)]
    assert last.statement.links == 16
    assert fault(last) is None


def test_a_chain_may_start_at_a_message_that_carried_none() -> None:
    last = talk(5, carried_from=2)[-1]
    assert [link.statement.message_id for link in last.verification.proof_chain or ()] == ["m-2", "m-3"]
    assert fault(last) is None


@given(st.none() | st.integers(1, 16))
def test_a_message_has_one_link_more_than_its_cause_up_to_sixteen(links: int | None) -> None:
    assert links_after(links) == min(16, (links or 0) + 1)


def test_a_link_is_the_causes_statement_and_signature() -> None:
    first = talk(1)[0]
    assert extend_chain(first.statement, "s", None) == (Link(statement=first.statement, signature="s"),)


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {"content_hash": "sha256:" + "0" * 64},
        {"sender": "mallory"},
        {"message_type": "c.d"},
        {"trust_level": "platform_policy"},
    ],
)
def test_a_changed_link_no_longer_hashes_to_its_successors_parent(index: int, changes: dict[str, Any]) -> None:
    message = talk(4)[-1]
    chain = list(message.verification.proof_chain or ())
    chain[index] = Link(statement=msgspec.structs.replace(chain[index].statement, **changes))
    broken = msgspec.structs.replace(
        message, verification=msgspec.structs.replace(message.verification, proof_chain=tuple(chain))
    )
    assert "first parent" in (fault(broken) or "")


FORGERIES: dict[str, tuple[Callable[[Message], Message], str]] = {
    "hops skip one": (lambda message: with_statement(message, 1, hops=5), "hops"),
    "a first message with parents": (
        lambda message: with_statement(message, 0, parents=("sha256:" + "0" * 64,)),
        "go together",
    ),
    "a caused link without parents": (
        lambda message: with_chain(
            message,
            (
                Link(
                    statement=msgspec.structs.replace(
                        message.verification.proof_chain[2].statement, parents=None, links=None
                    )
                ),
            ),
        ),
        "go together",
    ),
    "another namespace": (lambda message: with_statement(message, 1, namespace="other"), "namespace"),
    "links out of range": (lambda message: with_statement(message, 0, links=17), "1 to 16"),
    "links zero": (lambda message: with_statement(message, 0, links=0), "1 to 16"),
    "links negative": (lambda message: with_statement(message, 0, links=-1), "1 to 16"),
    "links do not follow": (lambda message: with_statement(message, 1, links=3), "number of links"),
    "a shortened chain": (
        lambda message: with_chain(message, (message.verification.proof_chain or ())[1:]),
        "number of links",
    ),
    "an id repeats": (lambda message: with_statement(message, 0, message_id="m-1"), "repeats"),
    "an id is the message's own": (lambda message: with_statement(message, 0, message_id="m-3"), "repeats"),
    "the newest is not the cause": (
        lambda message: with_chain(message, (message.verification.proof_chain or ())[:-1]),
        "not the cause",
    ),
    "the order is turned": (
        lambda message: with_chain(message, tuple(reversed(message.verification.proof_chain or ()))),
        "not the cause",
    ),
    "time runs backwards": (
        lambda message: with_statement(message, 1, timestamp=format_ms(START_MS + 2_000 + 120_001)),
        "backwards",
    ),
    "older than the horizon": (
        lambda message: with_statement(message, 0, timestamp=format_ms(START_MS + 3_000 - MAX_LINK_AGE_MS - 1)),
        "older",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_chain_is_found_out(name: str) -> None:
    forge, complaint = FORGERIES[name]
    assert complaint in (fault(forge(talk(4)[-1])) or "nothing")


def test_timestamps_may_run_backwards_by_120_seconds() -> None:
    assert fault(with_statement(talk(4)[-1], 1, timestamp=format_ms(START_MS + 2_000 + 120_000))) is None


def test_a_link_may_be_as_old_as_sixteen_lifetimes_and_horizons() -> None:
    assert MAX_LINK_AGE_MS == 16 * 14 * DAY_MS
    assert fault(with_statement(talk(4)[-1], 0, timestamp=format_ms(START_MS + 3_000 - MAX_LINK_AGE_MS))) is None


def test_a_first_message_cannot_carry_a_chain() -> None:
    first, child = talk(2)
    carrying = msgspec.structs.replace(
        first, verification=msgspec.structs.replace(first.verification, proof_chain=child.verification.proof_chain)
    )
    assert fault(carrying) is not None


def test_without_keys_signatures_of_links_are_not_judged() -> None:
    assert fault(talk(4)[-1]) is None


def test_with_keys_every_link_is_signed_and_judged() -> None:
    verifier = Verifier()
    assert fault(talk(4, signed=True)[-1], verifier) is None
    assert verifier.asked == ["m-0", "m-1", "m-2"]
    assert "not signed" in (fault(talk(4)[-1], verifier) or "")


@pytest.mark.parametrize("bad", ["m-0", "m-1", "m-2"])
def test_one_bad_signature_breaks_the_chain(bad: str) -> None:
    assert "key_revoked" in (fault(talk(4, signed=True)[-1], Verifier(bad)) or "")


def test_a_links_signature_has_the_one_form() -> None:
    message = talk(3, signed=True)[-1]
    chain = message.verification.proof_chain or ()
    broken = msgspec.structs.replace(chain[0], signature="not..jws!")
    changed = msgspec.structs.replace(
        message, verification=msgspec.structs.replace(message.verification, proof_chain=(broken, *chain[1:]))
    )
    assert "form" in (fault(changed, Verifier()) or "")


HASHES = st.sampled_from(
    ["sha256:" + "0" * 64, "sha256:" + "F" * 64, "sha256:" + "0" * 63, "sha256:" + "0" * 65, "", "md5:" + "0" * 64]
)
ODD_LINKS: dict[str, st.SearchStrategy[Any]] = {
    "content_hash": HASHES,
    "envelope_hash": HASHES,
    "hops": st.integers(-1, 3) | st.sampled_from([2**53, True]),
    "links": st.none() | st.integers(-1, 17),
    "message_id": st.sampled_from(["", "m-0", "m-1", "m-3", "a b", "\u00e9", 'q"\\', "x" * 128, "x" * 129]),
    "message_type": st.sampled_from(
        ["a.b", "a-b.c", "a--b", "-a", "a.", ".a", "A.b", "1a", "a1", "dlq", "dlq.a", "a.dlq", "", "a" * 121]
    ),
    "namespace": st.sampled_from(["agents", "other", "", "a.b", "a" * 63, "a" * 64]),
    "parents": st.none()
    | st.lists(HASHES, max_size=2).map(tuple)
    | st.just(("sha256:" + "0" * 64,) * 2)
    | st.just(("sha256:" + "0" * 64,) * 17),
    "protocol": st.sampled_from(["sealbus/1", "sealbus/1.5", "sealbus/2", ""]),
    "sender": st.sampled_from(["", "a@b", "\u00e9", "\x00", "\u200b", 'q"', "x" * 256, "x" * 257]),
    "timestamp": st.sampled_from(
        ["2026-01-31T12:00:00.000Z", "2026-02-30T12:00:00.000Z", "0001-01-01T00:00:00.000Z", "2026-01-31", ""]
    ),
    "trust_level": st.none() | st.sampled_from(["platform_policy", "\u00e9\n"]),
}


@pytest.mark.slow  # thousands of cases
@settings(max_examples=1_500, deadline=None)
@given(
    length=st.integers(2, 5),
    place=st.integers(0, 3),
    changes=st.integers(0, 2)
    .flatmap(lambda count: st.lists(st.sampled_from(sorted(ODD_LINKS)), min_size=count, max_size=count))
    .flatmap(lambda names: st.fixed_dictionaries({name: ODD_LINKS[name] for name in names})),
    signature=st.none() | st.sampled_from(["", "s"]),
    rehashed=st.booleans(),
)
def test_compiled_or_not_a_chain_has_its_form_and_holds_or_has_neither(
    length: int, place: int, changes: dict[str, Any], signature: str | None, *, rehashed: bool
) -> None:
    message = talk(length)[-1]
    chain = list(message.verification.proof_chain or ())
    place = min(place, len(chain) - 1)
    if rehashed:
        message = with_statement(message, place, **changes)
        chain = list(message.verification.proof_chain or ())
    else:
        chain[place] = msgspec.structs.replace(
            chain[place], statement=msgspec.structs.replace(chain[place].statement, **changes)
        )
    chain[place] = msgspec.structs.replace(chain[place], signature=signature)
    verification = msgspec.structs.replace(message.verification, proof_chain=tuple(chain))
    message = msgspec.structs.replace(message, verification=verification)
    complaints = []
    for links in (LINKS, Links()):
        with mock.patch.object(shape, "LINKS", links):
            try:
                shape.check_verification(verification, message.metadata)
            except ContractError as error:
                complaints.append(str(error))
            else:
                complaints.append("")
    assert complaints[0] == complaints[1]
    if LINKS.have_form(tuple(chain)):
        assert not complaints[0]
    if not complaints[0]:
        fault(message)


@pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")
@pytest.mark.parametrize("length", [2, 5, 17, 20])
def test_compiled_code_verifies_ordinary_chains(length: int) -> None:
    message = talk(length)[-1]
    chain = message.verification.proof_chain or ()
    assert LINKS.have_form(chain)
    assert LINKS.hold(chain, message.statement, message.metadata.causation_id, 0, MAX_LINK_AGE_MS)
