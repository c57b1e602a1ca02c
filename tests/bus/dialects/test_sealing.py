"""The pure part of an ingress: which envelope a decoded message gets."""

from __future__ import annotations

import json

import msgspec
import pytest

from bus.dialects import DIALECTS, Foreign, dialect
from bus.dialects.sealing import seal_foreign
from bus.errors import DialectError
from bus.protocol.envelope import Agent
from bus.protocol.sealing import check_integrity, parse
from bus.retry import Retry
from tests.bus.dialects.foreign_messages import examples, message_of


@pytest.fixture
def foreign() -> Foreign:
    return dialect("frameworks").decode(examples("frameworks")["task request"])


def test_a_converted_message_is_sealed_at_its_own_time(foreign: Foreign) -> None:
    message = parse(seal_foreign(foreign, namespace="lab").value)
    check_integrity(message)
    assert message.metadata.timestamp == "2025-02-01T10:00:00.000Z"
    assert message.metadata.namespace == "lab"
    assert (message.metadata.hops, message.metadata.causation_id) == (0, None)


def test_an_ingress_seals_at_its_time_and_keeps_the_foreign_one(foreign: Foreign) -> None:
    message = seal_foreign(foreign, namespace="lab", now_ms=1_738_404_001_500)
    assert message.metadata.timestamp == "2025-02-01T10:00:01.500Z"
    assert message.routing.expires_at == "2025-02-01T10:05:00.000Z"
    assert json.loads(message.data)["x_dialect"]["kept"]["/timestamp"] == "2025-02-01T10:00:00.000Z"
    assert dialect("frameworks").encode(message)["timestamp"] == "2025-02-01T10:00:01.500Z"
    assert "/timestamp" not in foreign.data["x_dialect"]["kept"]


def test_sealing_requires_the_fields_a_foreign_message_lacks(foreign: Foreign) -> None:
    bare = msgspec.structs.replace(
        foreign,
        options=msgspec.structs.replace(foreign.options, message_id=None),
        claims=msgspec.structs.replace(foreign.claims, sender=None, sent_at_ms=None),
    )
    for given, lacks in (
        ({}, "message_id"),
        ({"message_id": "m"}, "sender"),
        ({"message_id": "m", "sender": Agent(id="a")}, "timestamp"),
    ):
        with pytest.raises(DialectError) as caught:
            seal_foreign(bare, namespace="lab", **given)
        assert caught.value.pointer == f"/metadata/{lacks}"
    message = seal_foreign(
        bare, namespace="lab", message_id="m", sender=Agent(id="a"), now_ms=1_738_404_000_000, retry=Retry(cap_s=9)
    )
    assert (message.message_id, message.metadata.sender.id) == ("m", "a")
    assert message.routing.retry is not None
    assert message.routing.retry.cap_ms == 9000


def test_the_cause_that_an_ingress_found_is_the_only_one(foreign: Foreign) -> None:
    cause = message_of("task.request", 1)
    message = seal_foreign(foreign, namespace="lab", cause=cause)
    assert (message.metadata.hops, message.metadata.causation_id) == (1, cause.message_id)
    assert message.verification.parents == (cause.seal,)
    assert message.verification.proof_chain == cause.chain_for_children()


def test_a_lifetime_that_nobody_gives_is_that_of_the_type(foreign: Foreign) -> None:
    endless = msgspec.structs.replace(foreign, options=msgspec.structs.replace(foreign.options, expires_at_ms=None))
    assert seal_foreign(endless, namespace="lab").routing.expires_at == "2025-02-01T11:00:00.000Z"


def test_every_dialect_has_a_name_and_no_other() -> None:
    assert DIALECTS == ("layered", "evidence", "plain-ids", "speech-acts", "frameworks", "cloudevents")
    for digits, name in zip(("000", "001", "002", "003", "004"), DIALECTS, strict=False):
        assert dialect(digits) is dialect(name)
    for unknown in ("005", "plain_ids", "sealing", "forms"):
        with pytest.raises(KeyError):
            dialect(unknown)


def test_a_dialect_is_imported_when_it_is_asked_for() -> None:
    import subprocess
    import sys

    program = (
        "import sys, bus.dialects\n"
        "folders = {f'bus.dialects.{folder}' for folder in bus.dialects._FOLDERS.values()}\n"
        "loaded = [name for name in sys.modules if name in folders or name.startswith('bus.vocabulary')]\n"
        "bus.dialects.dialect('speech-acts')\n"
        "families = [name for name in ('bus.vocabulary.swe', 'bus.vocabulary.task') if name in sys.modules]\n"
        "print(loaded, families)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
