"""`sealbus show explain` on the embedded log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bus.clock import ManualClock
from bus.protocol import canonical, sealing
from bus.protocol.envelope import Authority, Security
from bus.protocol.sealing import Message
from bus.settings.loading import load
from bus.transports import open_transport
from bus.transports.base import NewRecord, Record, TopicSpec
from consumers.deadletters.records import Control, Failure, dead_letter_record
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import record_of
from producers.sealing.sealer import make_sealer
from tests.consumers.operations.lineage.changes import AGENTS, Step
from tests.keyrings import key_of, write_keys

TOPIC = "agents.relay.step"
POLICY = f"""
agents = [
    {{ id = "{AGENTS[0]}", kind = "agent", trust_ceiling = "user_request" }},
    {{ id = "{AGENTS[1]}", kind = "agent", trust_ceiling = "model_generated", classification_floor = "confidential" }},
]
"""


def write(*records: NewRecord | Message) -> None:
    async def body() -> None:
        transport = open_transport("sqlite:///sealbus.db")
        await transport.admin.create_topics([TopicSpec(name=name, partitions=1) for name in (TOPIC, f"{TOPIC}.dlq")])
        made = [record_of(one, TOPIC) if isinstance(one, Message) else one for one in records]
        await transport.append(made, timeout_s=5)
        await transport.close()

    asyncio.run(body())


def story(*options: dict[str, Any]) -> list[Message]:
    """Messages of agents in turn, each caused by the one before, with these options."""
    clock, settings = ManualClock(), load(env={}, file=None).settings
    made: list[Message] = []
    for number, given in enumerate(options):
        agent = AGENTS[number % len(AGENTS)]
        sealer = make_sealer(settings, agent, clock=clock, signer=key_of(agent))
        draft = Outgoing(Step(number=number), **given)
        made.append(sealer.seal(draft, SealRequest(cause=made[-1] if made else None)).message)
    return made


@pytest.fixture
def jwks(folder: Any) -> str:
    return str(write_keys(folder.path / "keys", *AGENTS))


def explained(folder: Any, message: Message, *options: str) -> tuple[int, list[dict[str, Any]]]:
    result = folder.call("show", message.message_id, "--part", "trust", "-o", "json", *options)
    return result.exit_code, json.loads(result.stdout)["trust"]


def test_the_step_that_lowered_the_level_is_named(folder: Any, jwks: str) -> None:
    page = Security(trust_level="untrusted_content", data_classification="restricted")
    made = story({}, {"security": page}, {})
    write(*made)
    code, (found,) = explained(folder, made[2], "--trusted-keys", jwks)
    assert (code, found["valid"], found["level"]) == (0, True, "untrusted_content")
    assert (found["classification"], found["signed_by"]) == ("restricted", key_of(AGENTS[2]).kid)
    assert any(step.startswith(f"relay.step {made[1].message_id} of {AGENTS[1]}") for step in found["lowered_by"])
    table = folder.call("show", made[2].message_id, "--part", "trust", "--trusted-keys", jwks).stdout
    assert "level:          untrusted_content" in table
    assert f"lowered by 2:   relay.step {made[1].message_id} of {AGENTS[1]} seals untrusted_content" in table


def test_a_signed_user_request_keeps_its_level(folder: Any, jwks: str) -> None:
    made = story({"authority": Authority(can_execute=("git *",), max_side_effect="write")})
    write(*made)
    code, (found,) = explained(folder, made[0], "--trusted-keys", jwks)
    assert (code, found["level"], found["lowered_by"]) == (0, "user_request", [])
    assert found["authority"] == {"can_execute": ["git *"], "max_side_effect": "write"}
    table = folder.call("show", made[0].message_id, "--part", "trust", "--trusted-keys", jwks).stdout
    assert "authority:      can_execute: git *; max_side_effect: write" in table
    assert "lowered by:     nothing" in table


def test_the_policy_says_how_far_a_sender_counts(folder: Any, jwks: str) -> None:
    made = story({}, {})
    write(*made)
    (folder.path / "policy.toml").write_text(POLICY)
    for options, env in (
        (("--trusted-keys", jwks, "--policy", "policy.toml"), {}),
        ((), {"SEALBUS_TRUST__KEYS": jwks, "SEALBUS_POLICY__FILE": "policy.toml"}),
    ):
        result = folder.call("show", made[1].message_id, "--part", "trust", "-o", "json", *options, env=env)
        (found,) = json.loads(result.stdout)["trust"]
        assert (found["level"], found["classification"]) == ("model_generated", "confidential")
        assert found["lowered_by"][-1].endswith("whose sender counts for model_generated at most")


def test_without_keys_it_says_that_levels_are_advice(folder: Any) -> None:
    made = story({})
    write(*made)
    result = folder.call("show", made[0].message_id, "--part", "trust")
    assert result.exit_code == 0
    assert "the level is only a claim" in result.stdout


def changed(message: Message, **members: Any) -> NewRecord:
    """The record of *message* with other members of `verification`."""
    tree: Any = canonical.parse_canonical(message.value)
    tree["verification"] |= members
    return msgspec.structs.replace(record_of(message, TOPIC), value=canonical.encode(tree))


@pytest.mark.parametrize("output", ["text", "json"])
def test_an_invalid_message_gets_no_trust_level(folder: Any, jwks: str, output: str) -> None:
    made = story({}, {})
    write(changed(made[1], signature=made[0].verification.signature))
    result = folder.call("show", made[1].message_id, "--part", "trust", "--trusted-keys", jwks, "--output", output)
    assert result.exit_code == 1
    assert "signature_invalid" in result.stdout
    assert "user_request" not in result.stdout


def test_more_authority_than_its_cause_gave_does_not_hold(folder: Any, jwks: str) -> None:
    first, second = story({"authority": Authority(can_execute=("git *",))}, {})
    metadata = msgspec.structs.replace(second.metadata, authority=Authority(can_execute=("rm *",)))
    forged = sealing.seal(
        second.data,
        metadata,
        second.routing,
        parents=(first.seal,),
        proof_chain=first.chain_for_children(),
        signer=key_of(AGENTS[1]),
    )
    write(first, forged)
    code, (found,) = explained(folder, forged, "--trusted-keys", jwks)
    assert (code, found["reason"]) == (1, "unauthorized")


def test_a_dead_letter_is_explained_as_the_message_it_was(folder: Any, jwks: str) -> None:
    (message,) = story({})
    record = Record(TOPIC, 0, 0, 0, message.key, message.value)
    failure = Failure(reason="rejected", error="Reject")
    letter = dead_letter_record(
        record, Control(TOPIC, 0, 0), failure, group="g", now_ms=0, honoured=False, details=False
    )
    write(message, letter)
    code, (found,) = explained(folder, message, "--trusted-keys", jwks)
    assert (code, found["location"]) == (0, f"{TOPIC}/0/0")


def test_two_messages_under_one_id_are_both_explained(folder: Any, jwks: str) -> None:
    (message,) = story({})
    write(message, changed(message, signature="x..eA"))
    code, found = explained(folder, message, "--trusted-keys", jwks)
    assert (code, [one["valid"] for one in found]) == (1, [True, False])
    assert (
        "trust of another message with the same id" in folder.call("show", message.message_id, "--part", "trust").stdout
    )


def test_text_of_messages_obeys_nobody(folder: Any) -> None:
    made = story({"security": Security(trust_level="\x1b]0;x\x07\u202e", policy_tags=("\x1b[2J",))})
    write(*made)
    for output in ("text", "json"):
        shown = folder.call("show", made[0].message_id, "--part", "trust", "--output", output).stdout
        assert shown
        assert not set("\x1b\x07\u202e") & set(shown)


def test_trust_explain_reports_a_missing_message(folder: Any) -> None:
    write(*story({}))
    result = folder.call("show", "no-such-message", "--part", "trust")
    assert result.exit_code == 1
    assert "no message no-such-message" in result.stderr


def test_keys_that_cannot_be_read_are_wrong_settings(folder: Any) -> None:
    made: Sequence[Message] = story({})
    write(*made)
    result = folder.call("show", made[0].message_id, "--part", "trust", "--trusted-keys", "nowhere.json")
    assert result.exit_code == 78
