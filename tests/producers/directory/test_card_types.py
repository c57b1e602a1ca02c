"""Tools learn an app's types from the cards of its workers, which they accept as the directory does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.clock import ManualClock, SystemClock
from bus.payloads.payload_types import payload_type
from bus.schemas.json_schema import schema_of
from bus.schemas.schema_folder import SchemaFolder
from bus.schemas.versions import SchemaVersion
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.topics.specs import directory_topics
from bus.transports import open_transport
from bus.transports.base import Transport
from bus.trust.keys.trusted_keys import TrustedKeys
from bus.vocabulary import BUILT_IN
from bus.vocabulary.agent import AgentHandshake
from bus.vocabulary.parts import AgentCard
from producers.connection import make_publisher
from producers.directory.card_schemas import MAX_SCHEMA_BYTES, schema_texts
from producers.directory.card_types import types_of_cards, types_of_namespace
from producers.directory.view import Directory, record_key
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from sealbus import App, connect, payload
from sealbus.errors import ContractError
from tests.keyrings import key_of, write_keys

SETTINGS = load(flags={"bus.url": "memory://"}, env={}, file=None).settings


@payload("desk.question", version="1.1.0", performative="request")
class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to know."""

    text: str
    description: str = ""


@payload("desk.question", version="1.1.0", performative="request")
class OtherQuestion(msgspec.Struct, frozen=True, kw_only=True):
    text: int


@payload("research.request", overrides=True)
class Research(msgspec.Struct, frozen=True, kw_only=True):
    question: str


@payload("desk.answer", version="1.0.0", performative="inform")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    text: str


class Log:
    """A log with a directory, in which agents leave cards."""

    def __init__(self, transport: Transport, clock: ManualClock) -> None:
        self.transport = transport
        self.clock = clock

    async def card(self, agent: str, *classes: type[Any], key: str | None = None, **texts: str) -> None:
        publisher = make_publisher(
            self.transport, SETTINGS, agent, clock=self.clock, metrics=Metrics(), signer=key_of(key or agent)
        )
        schemas = schema_texts(payload_type(cls) for cls in classes) | texts
        card = AgentCard(
            agent_id=agent, name=agent, version="1.0.0", capabilities=("work",), metadata={"schemas": schemas}
        )
        origin = publisher.sealer.origin
        sender = msgspec.structs.replace(origin.sender, session_id="s")
        draft = Outgoing(AgentHandshake(agent_card=card), key=record_key(agent, "s").decode())
        request = SealRequest(topic="agents._directory", origin=msgspec.structs.replace(origin, sender=sender))
        await self.transport.append(publisher.sealer.seal(draft, request).records, timeout_s=5)
        self.clock.advance(1)

    async def types(self, verifier: TrustedKeys | None = None) -> Any:
        return await types_of_cards(
            self.transport, namespace="agents", clock=self.clock, verifier=verifier, below=BUILT_IN
        )


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    clock = ManualClock()
    transport = open_transport("memory://", clock=clock)
    await transport.admin.create_topics(directory_topics(SETTINGS))
    yield Log(transport, clock)
    await transport.close()


async def test_a_type_that_only_an_app_declares_is_known_from_its_card(log: Log) -> None:
    await log.card("desk@svc", Question)
    known = (await log.types()).get("desk.question")
    assert (known.version, known.terms) == ("1.1.0", payload_type(Question).terms)
    assert known.decode(b'{"text": "why?", "description": "x"}').description == "x"
    with pytest.raises(ContractError, match="/data/text"):
        known.decode(b'{"text": 1}')


async def test_a_log_without_cards_has_the_built_in_types_alone() -> None:
    transport = open_transport("memory://", clock=ManualClock())
    known = await types_of_cards(transport, namespace="agents", clock=ManualClock(), below=BUILT_IN)
    assert known.names() == BUILT_IN.names()
    await transport.close()


async def test_a_card_of_another_key_describes_nothing(log: Log, tmp_path: Path) -> None:
    keys = TrustedKeys(str(write_keys(tmp_path / "keys", "desk@svc", "evil@svc")), clock=log.clock)
    await log.card("desk@svc", Question, key="evil@svc")
    assert "desk.question" not in await log.types(keys)
    await log.card("desk@svc", Question)
    assert "desk.question" in await log.types(keys)


async def test_two_agents_that_disagree_describe_nothing(log: Log) -> None:
    await log.card("desk@svc", Question)
    await log.card("other@svc", OtherQuestion)
    assert "desk.question" not in await log.types()
    await log.card("other@svc", Question)
    assert "desk.question" in await log.types()


async def test_a_card_does_not_describe_a_built_in_type(log: Log) -> None:
    assert schema_texts([payload_type(Research)]) == {}
    text = schema_texts([payload_type(Question)])["desk.question"].replace("desk.question", "task.request")
    await log.card("evil@svc", **{"task.request": text})
    known = await log.types()
    assert known.get("task.request") is BUILT_IN.get("task.request")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"title": 1}', "[" * 9_000, '{"title": "a.b", "version": "1.0.0"}'])
async def test_what_describes_no_type_is_left_out(log: Log, text: str) -> None:
    await log.card("desk@svc", Question)
    await log.card("evil@svc", **{"a.b": text})
    assert (await log.types()).names() == BUILT_IN.names() | {"desk.question"}


async def test_classes_precede_the_folder_and_the_folder_precedes_cards(log: Log, tmp_path: Path) -> None:
    await log.card("desk@svc", Question, **schema_texts([payload_type(Answer)]))

    async def known(*classes: type[Any], folder: Path | None = None) -> Any:
        found = await types_of_namespace(
            classes, log.transport, namespace="agents", clock=log.clock, folder=None if folder is None else str(folder)
        )
        return found.get("desk.question"), found.get("desk.answer"), found.get("task.request")

    question, answer, task = await known()
    assert [field.encode_name for field in question.fields] == ["text", "description"]
    assert (answer.name, task) == ("desk.answer", BUILT_IN.get("task.request"))
    other = payload_type(OtherQuestion)
    SchemaFolder(tmp_path).publish(other.name, SchemaVersion.of(other.version), schema_of(other))
    question, answer, _ = await known(folder=tmp_path)
    assert [field.encode_name for field in question.fields] == ["text"]
    assert answer is not None
    assert (await known(Question, folder=tmp_path))[0] is payload_type(Question)


async def test_the_directory_keeps_cards_without_their_schemas(log: Log) -> None:
    await log.card("desk@svc", Question)
    directory = Directory(log.transport, namespace="agents", clock=log.clock, healthy_s=35)
    assert (await directory.get("desk@svc")) is not None
    assert directory._presence._card_bytes < 300
    await directory.close()


def test_a_card_has_schemas_up_to_its_limit() -> None:
    def declared(number: int) -> Any:
        fields = [(f"field_{each}_of_{number}", str, "") for each in range(50)]
        return payload(f"many.type-{number:02}")(msgspec.defstruct(f"Many{number}", fields, kw_only=True))

    texts = schema_texts(payload_type(declared(number)) for number in range(20))
    assert 0 < len(texts) < 20
    assert list(texts) == [f"many.type-{number:02}" for number in range(len(texts))]
    assert sum(map(len, texts.values())) <= MAX_SCHEMA_BYTES


@pytest.mark.medium
async def test_a_worker_puts_the_schemas_of_its_types_on_its_card(tmp_path: Path) -> None:
    app, url = App("desk@svc"), f"sqlite:///{tmp_path}/desk.db"

    @app.on(Question)
    async def answer(question: Question) -> None: ...

    async with app.running(url), connect(url, agent="reader@svc") as bus:
        async with asyncio.timeout(30):
            async for change in bus.directory.watch():
                if change.agent.agent_id == "desk@svc":
                    break
        transport = open_transport(url, clock=SystemClock())
        known = await types_of_cards(transport, namespace="agents", clock=SystemClock())
        await transport.close()
    assert known.names() == {"desk.question"}
