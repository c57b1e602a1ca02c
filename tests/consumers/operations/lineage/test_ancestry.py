"""In a line of causes in which somebody changed hop k, hop k is named: for every k and every kind of change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.payloads.payload_types import Registry, RiskClass
from bus.protocol.sealing import Message
from bus.transports.base import Record
from consumers.operations.lineage.ancestry import Ancestry, Hop, judge_ancestry
from consumers.operations.lineage.log_search import KeptTimes, Lineage, stored_copy
from tests.consumers.operations.lineage.changes import (
    HIDDEN,
    OPEN,
    Change,
    Note,
    Step,
    at,
    changes_of,
    conversation,
    edited,
    record_of,
)

REGISTRY = Registry([Step, Note])


def risk_of(name: str) -> RiskClass:
    kind = REGISTRY.get(name)
    # A changed byte may make another type of it.
    return "medium" if kind is None else kind.risk


def judged(records: Sequence[tuple[Record, str]], message_id: str, **options: Any) -> Ancestry | None:
    lost = options.pop("lost", {})
    lineage = Lineage([stored_copy(*record) for record in records], KeptTimes("agents", lost))
    return judge_ancestry(lineage, message_id, namespace="agents", risk_of=risk_of, **options)


def changed(messages: Sequence[Message], hop: int, change: Change, other: Message) -> list[tuple[Record, str]]:
    found = []
    for number, message in enumerate(messages):
        value = change(message.value, other) if number == hop else message.value
        if value is not None:
            found.append((record_of(message, number, value), "message"))
    return found


def names(blamed: Hop | None, messages: Sequence[Message], hop: int) -> bool:
    """Whether message *hop* is blamed. What number the last one had is only told by itself."""
    if blamed is None or blamed.message_id != messages[hop].message_id:
        return False
    return blamed.number == hop or hop == len(messages) - 1


@pytest.mark.parametrize("kind", [Step, Note])
@pytest.mark.parametrize("hops", [0, 1, 2, 5, 20])
def test_an_unchanged_ancestry_is_valid(hops: int, kind: type[Any]) -> None:
    messages = conversation(hops, kind)
    found = judged(
        [(record_of(message, number), "message") for number, message in enumerate(messages)], messages[-1].message_id
    )
    assert found is not None
    assert [(hop.number, hop.message_id, hop.state) for hop in found.hops] == [
        (number, message.message_id, "valid") for number, message in enumerate(messages)
    ]
    assert found.unknown == 0


CASES = [(hops, hop, kind) for kind in (Step, Note) for hops in (1, 2, 3, 6) for hop in range(hops + 1)]


@pytest.mark.parametrize(("hops", "hop", "kind"), CASES)
def test_the_hop_that_was_changed_is_named(hops: int, hop: int, kind: type[Any]) -> None:
    messages, other = conversation(hops, kind), conversation(4, kind)[-1]
    wrong = {}
    for name, change in changes_of(hop, hops, kind).items():
        asked = messages[-1].message_id
        found = judged(changed(messages, hop, change, other), asked)
        blamed = found.blamed if found is not None else None
        if hop == hops and name in ("the id", "deleted"):
            # Nothing of it is left, and nothing rests on it.
            assert found is None
        elif hop == hops and kind is Note and name == "the first parent, resealed":
            # Without chains this looks exactly as if the message before had been replaced.
            assert blamed is not None
            assert (blamed.number, blamed.kind) == (hop - 1, "replaced")
        elif not names(blamed, messages, hop):
            wrong[name] = found
    assert wrong == {}


MESSAGES, OTHERS = conversation(3), conversation(3, Note)


@given(st.sampled_from([MESSAGES, OTHERS]), st.integers(0, 2), st.data())
def test_a_hop_is_named_whichever_byte_of_it_was_changed(messages: list[Message], hop: int, data: Any) -> None:
    value = messages[hop].value
    place = data.draw(st.integers(0, len(value) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != value[place]))
    bad = value[:place] + bytes([byte]) + value[place + 1 :]
    found = judged(changed(messages, hop, lambda *_: bad, messages[0]), messages[-1].message_id)
    assert found is not None
    assert names(found.blamed, messages, hop)


@pytest.mark.medium
def test_a_line_that_is_longer_than_a_chain_is_walked_to_its_beginning() -> None:
    messages, other = conversation(40), conversation(4)[-1]
    for hop in (0, 1, 7, 23, 24, 25, 39, 40):
        for name, change in changes_of(hop, 40, Step).items():
            found = judged(changed(messages, hop, change, other), messages[-1].message_id)
            if hop < 40 or name not in ("the id", "deleted"):
                assert found is not None
                assert names(found.blamed, messages, hop), (hop, name)


@pytest.mark.parametrize("name", HIDDEN)
def test_effects_of_a_replaced_message_are_not_blamed(name: str) -> None:
    messages, other = conversation(4), conversation(4)[-1]
    found = judged(changed(messages, 2, HIDDEN[name], other), messages[-1].message_id)
    assert found is not None
    assert found.blamed is not None
    assert (found.blamed.number, found.blamed.kind) == (2, "replaced")
    assert [hop.state for hop in found.hops] == ["valid", "valid", "invalid", "valid", "valid"]


def test_a_changed_ancestor_is_reported_with_its_difference() -> None:
    messages, other = conversation(3), conversation(4)[-1]
    found = judged(changed(messages, 1, HIDDEN["the sender, resealed"], other), messages[-1].message_id)
    assert found is not None
    assert found.blamed is not None
    assert (found.blamed.sender, found.blamed.differs) == ("mallory@svc", ("envelope_hash", "sender"))


@pytest.mark.parametrize("kind", [Step, Note])
def test_a_deleted_message_that_something_rests_on_is_missed(kind: type[Any]) -> None:
    messages, other = conversation(3, kind), conversation(4, kind)[-1]
    found = judged(changed(messages, 2, OPEN["deleted"], other), messages[2].message_id)
    assert found is not None
    assert found.blamed is not None
    assert (found.blamed.number, found.blamed.kind) == (2, "missing")


def test_a_replaced_message_is_detected_from_its_effects() -> None:
    messages, other = conversation(3), conversation(4)[-1]
    found = judged(changed(messages, 2, HIDDEN["a field of data, resealed"], other), messages[2].message_id)
    assert found is not None
    assert found.blamed is not None
    assert (found.blamed.number, found.blamed.kind) == (2, "replaced")


class TestRetention:
    def test_ancestors_possibly_deleted_by_retention_are_not_kept(self) -> None:
        messages = conversation(4)
        records = [(record_of(message, number), "message") for number, message in enumerate(messages)][2:]
        found = judged(records, messages[-1].message_id, lost={"agents.relay.step": 1 << 60})
        assert found is not None
        assert [hop.state for hop in found.hops] == ["not kept", "not kept", "valid", "valid", "valid"]
        assert [hop.sender for hop in found.hops[:2]] == ["agent-a@svc", "agent-b@svc"]
        assert found.blamed is None

    def test_without_chains_the_number_of_unknown_causes_is_reported(self) -> None:
        messages = conversation(4, Note)
        records = [(record_of(message, number), "message") for number, message in enumerate(messages)][3:]
        found = judged(records, messages[-1].message_id, lost={"agents.relay.note": 1 << 60})
        assert found is not None
        assert [(hop.number, hop.state) for hop in found.hops] == [(2, "not kept"), (3, "valid"), (4, "valid")]
        assert found.unknown == 2

    def test_a_message_that_is_newer_than_what_was_taken_is_missing(self) -> None:
        messages, other = conversation(3), conversation(4)[-1]
        found = judged(
            changed(messages, 1, OPEN["deleted"], other), messages[-1].message_id, lost={"agents.relay.step": 1}
        )
        assert found is not None
        assert found.blamed is not None
        assert found.blamed.kind == "missing"

    def test_a_loss_in_another_topic_excuses_nothing(self) -> None:
        messages, other = conversation(3), conversation(4)[-1]
        found = judged(
            changed(messages, 1, OPEN["deleted"], other), messages[-1].message_id,
            lost={"agents.other.type": 1 << 60, "agents._reply.x-00000000": 1 << 60},
        )  # fmt: skip
        assert found is not None
        assert found.blamed is not None
        assert found.blamed.kind == "missing"


class TestCopies:
    def test_a_dead_letter_reveals_the_change_of_a_message_without_effects(self) -> None:
        messages, other = conversation(2), conversation(4)[-1]
        letter = msgspec_replace(record_of(messages[2], 0), topic="agents.relay.step.dlq")
        records = [*changed(messages, 2, HIDDEN["a field of data, resealed"], other), (letter, "dlq")]
        found = judged(records, messages[-1].message_id)
        assert found is not None
        assert found.blamed is not None
        assert (found.blamed.number, found.blamed.kind) == (2, "copies_differ")

    def test_a_changed_copy_is_noted_without_blame(self) -> None:
        messages = conversation(2)
        records = [(record_of(message, number), "message") for number, message in enumerate(messages)]
        bad = msgspec_replace(record_of(messages[1], 0, b"{}"), topic="agents.relay.step.dlq")
        found = judged([*records, (bad, "dlq")], messages[-1].message_id)
        assert found is not None
        assert found.blamed is None
        assert found.hops[1].notes == ("the copy at agents.relay.step.dlq/0/0 has other bytes",)

    def test_a_dead_letter_copy_reveals_a_message_deleted_by_retention(self) -> None:
        messages = conversation(1)
        letter = msgspec_replace(record_of(messages[1], 0), topic="agents.relay.step.dlq")
        found = judged([(letter, "dlq")], messages[1].message_id, lost={"agents.relay.step": 1 << 60})
        assert found is not None
        assert [(hop.message_id, hop.state) for hop in found.hops] == [
            (message.message_id, "not kept") for message in messages
        ]


class TestTwoRecordsOfOneId:
    @pytest.mark.parametrize("name", [*OPEN, *HIDDEN])
    def test_what_its_consequences_know_is_judged_and_the_other_is_noted(self, name: str) -> None:
        messages, other = conversation(3), conversation(4)[-1]
        value = {**OPEN, **HIDDEN}[name](messages[1].value, other)
        records = [(record_of(message, number), "message") for number, message in enumerate(messages)]
        # Whoever can write the topic can say any id.
        forged = record_of(messages[1], 9, value if value is not None else b"{}")
        found = judged([(forged, "message"), *records], messages[-1].message_id)
        assert found is not None
        assert found.blamed is None
        assert [bool(hop.notes) for hop in found.hops] == [False, name != "the id", False, False]


class TestWhoIsToBlame:
    """Two messages that do not fit: others that rest on the earlier one tell which of them is wrong."""

    def test_a_sibling_speaks_for_their_cause(self) -> None:
        messages, kind = conversation(2, Note), Note
        sibling = conversation(2, kind, beside=messages[:2])[-1]
        assert sibling.metadata.causation_id == messages[1].message_id
        bad = edited(at("verification", "parents", value=["sha256:" + "5" * 64]), seal=True)
        records = [*changed(messages, 2, bad, sibling), (record_of(sibling, 7), "message")]
        found = judged(records, messages[2].message_id)
        assert found is not None
        assert found.blamed is not None
        assert (found.blamed.number, found.blamed.kind) == (2, "parent_mismatch")


def msgspec_replace(record: Record, **fields: Any) -> Record:
    import msgspec

    return msgspec.structs.replace(record, **fields)


class TestKeys:
    """A domain of one secret key, with a stranger in it who has none."""

    def test_a_forger_without_key_is_detected(self) -> None:
        signer = Domain(b"k" * 32)
        messages, other = conversation(3, signer=signer), conversation(4, signer=signer)[-1]
        for hop in range(4):
            for name, change in changes_of(hop, 3, Step).items() | HIDDEN.items():
                found = judged(changed(messages, hop, change, other), messages[-1].message_id, verifier=signer)
                if hop < 3 or name not in ("the id", "deleted"):
                    assert found is not None
                    assert names(found.blamed, messages, hop), (hop, name)

    def test_it_names_the_key_that_signed(self) -> None:
        signer = Domain(b"k" * 32)
        messages = conversation(2, signer=signer)
        records = [(record_of(message, number), "message") for number, message in enumerate(messages)]
        found = judged(records, messages[-1].message_id, verifier=signer)
        assert found is not None
        assert {(hop.kid, hop.is_verified) for hop in found.hops} == {("domain", True)}
        found = judged(records, messages[-1].message_id)
        assert found is not None
        assert {(hop.kid, hop.is_verified) for hop in found.hops} == {("domain", False)}

    def test_a_replacement_signed_with_the_senders_key_is_distinguished(self) -> None:
        signer = Domain(b"k" * 32)
        messages = conversation(3, signer=signer)
        again = conversation(3, signer=signer)[1]

        def by_its_own_key(value: bytes, other: Message) -> bytes:
            import msgspec

            from bus.protocol import sealing

            message = sealing.parse(value)
            metadata = msgspec.structs.replace(message.metadata, intent="another")
            return sealing.seal(
                message.data, metadata, message.routing, parents=message.verification.parents or (),
                proof_chain=message.verification.proof_chain or (), signer=signer,
            ).value  # fmt: skip

        found = judged(changed(messages, 1, by_its_own_key, again), messages[-1].message_id, verifier=signer)
        assert found is not None
        assert found.blamed is not None
        assert (found.blamed.number, found.blamed.kind, found.blamed.kid) == (1, "replaced", "domain")


class Domain:
    """One secret for all, as `HS256` has it."""

    kid, alg = "domain", "HS256"

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, signing_input: bytes) -> bytes:
        import hashlib
        import hmac

        return hmac.digest(self._secret, signing_input, hashlib.sha256)

    def judge(self, signature: Any, statement: Any, payload: bytes) -> str | None:
        from bus.protocol.signatures import signing_input

        good = signature.kid == self.kid and signature.raw == self.sign(signing_input(signature.header, payload))
        return None if good else "signature_invalid"


def test_an_unknown_id_has_no_ancestry() -> None:
    assert judged([], "nobody") is None
