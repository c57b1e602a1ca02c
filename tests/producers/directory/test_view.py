"""Which cards and heartbeats a reader believes: replayed, late, forged, and very many of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.clock import ManualClock
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import payload
from bus.protocol.signatures import Verifier
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.topics.specs import directory_topics
from bus.transports import open_transport
from bus.transports.base import NewRecord, Transport
from bus.trust.keys.trusted_keys import TrustedKeys
from bus.trust.opening import open_trust
from bus.trust.policy.policy import NO_POLICY, Policy
from bus.vocabulary.agent import AgentGoodbye, AgentHandshake, AgentHeartbeat, CurrentTask, RecentRuns, RunCount
from bus.vocabulary.forms import Value
from bus.vocabulary.parts import AgentCard
from producers.connection import make_publisher
from producers.directory.view import Directory, record_key
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from tests.keyrings import key_of, write_keys

SETTINGS = load(flags={"bus.url": "memory://"}, env={}, file=None).settings
BEATS, CARDS = "agents._heartbeats", "agents._directory"
WELL, UNWELL = AgentHeartbeat(status="healthy"), AgentHeartbeat(status="unhealthy")
HOUR_S = 3_600.0
RULES = """
[[agents]]
id = "a@svc"

[[rules]]
id = "silent"
effect = "deny"
action = "publish"
types = "{types}"
"""


class Sky:
    """A log with the topics of a directory, agents that say what they are told to, and readers."""

    def __init__(self, transport: Transport, clock: ManualClock) -> None:
        self.transport = transport
        self.clock = clock
        self.opened: list[Directory] = []

    def sealed(
        self,
        payload: Payload,
        agent: str = "a@svc",
        session: str = "s",
        *,
        key: str | None = None,
        topic: str = "",
        **options: Any,
    ) -> NewRecord:
        publisher = make_publisher(
            self.transport,
            SETTINGS,
            agent,
            clock=self.clock,
            metrics=Metrics(),
            signer=key_of(agent) if key is None else key_of(key) if key else None,
        )
        sealer = publisher.sealer
        sender = msgspec.structs.replace(sealer.origin.sender, session_id=session)
        draft = Outgoing(payload, key=record_key(agent, session).decode(), **options)
        topic = topic or (BEATS if isinstance(payload, AgentHeartbeat) else CARDS)
        origin = msgspec.structs.replace(sealer.origin, sender=sender)
        return sealer.seal(draft, SealRequest(topic=topic, origin=origin)).records[0]

    async def append(self, *records: NewRecord) -> None:
        await self.transport.append(records, timeout_s=5)

    async def say(self, payload: Payload, agent: str = "a@svc", session: str = "s", **options: Any) -> NewRecord:
        record = self.sealed(payload, agent, session, **options)
        await self.append(record)
        return record

    def reader(self, verifier: Verifier | None = None, policy: Policy = NO_POLICY, **options: Any) -> Directory:
        directory = Directory(
            self.transport,
            namespace="agents",
            verifier=verifier,
            policy=policy,
            clock=self.clock,
            healthy_s=35,
            **options,
        )
        self.opened.append(directory)
        return directory

    async def later(self, seconds: float = 1.0) -> None:
        """Move the clock, and let every reader look."""
        self.clock.advance(seconds)
        for _ in range(200):
            await asyncio.sleep(0)


@pytest.fixture
async def sky() -> AsyncIterator[Sky]:
    clock = ManualClock()
    transport = open_transport("memory://", clock=clock)
    await transport.admin.create_topics(directory_topics(SETTINGS))
    sky = Sky(transport, clock)
    yield sky
    for directory in sky.opened:
        await directory.close()
    await transport.close()


async def health(directory: Directory, agent: str = "a@svc") -> str:
    entry = await directory.get(agent)
    return "unknown" if entry is None else entry.health


@pytest.fixture
def keys(sky: Sky, tmp_path: Path) -> TrustedKeys:
    return TrustedKeys(str(write_keys(tmp_path / "keys", "a@svc", "evil@svc")), clock=sky.clock)


@pytest.fixture(params=[False, True], ids=["keyless", "keyed"])
def verifier(request: pytest.FixtureRequest, keys: TrustedKeys) -> Verifier | None:
    return keys if request.param else None


@payload("agent.heartbeat", version="1.0.0", performative="inform", ttl_s=35, side_effect="none", overrides=True)
class OlderHeartbeat(Value, frozen=True, kw_only=True):
    status: str
    active_tasks: int


@payload("agent.heartbeat", version="1.9.0", performative="inform", ttl_s=35, side_effect="none", overrides=True)
class NewerHeartbeat(Value, frozen=True, kw_only=True):
    status: str
    mood: str
    doing: tuple[dict[str, Any], ...]
    places: int


async def test_a_heartbeat_says_what_its_worker_does(sky: Sky, verifier: Verifier | None) -> None:
    task = CurrentTask(message_type="task.request", message_id="m1", conversation_id="c1", since_ms=5)
    runs = RecentRuns(within_s=60, retried=3, took=(RunCount(up_to_s=1, runs=10),))
    await sky.say(AgentHeartbeat(status="healthy", doing=(task,), places=8, busy=1, runs=runs))
    entry = await sky.reader(verifier).get("a@svc")
    assert entry is not None
    assert (entry.doing, entry.places, entry.busy) == ((task,), 8, 1)
    assert entry.runs == (runs,)


async def test_heartbeats_of_other_versions_are_read(sky: Sky, verifier: Verifier | None) -> None:
    await sky.append(sky.sealed(OlderHeartbeat(status="healthy", active_tasks=2), "old@svc", key="", topic=BEATS))
    task = {"message_type": "a.b", "message_id": "m", "conversation_id": "c", "since_ms": 1, "colour": "red"}
    newer = NewerHeartbeat(status="healthy", mood="good", doing=(task,), places=3)
    await sky.append(sky.sealed(newer, "new@svc", key="", topic=BEATS))
    directory = sky.reader()
    old, new = await directory.get("old@svc"), await directory.get("new@svc")
    assert old is not None
    assert new is not None
    assert (old.health, old.active_tasks, old.doing, old.places) == ("healthy", 2, (), None)
    assert (new.health, [each.message_id for each in new.doing], new.places) == ("healthy", ["m"], 3)


async def test_an_old_heartbeat_makes_no_agent_healthy(sky: Sky, verifier: Verifier | None) -> None:
    old = await sky.say(WELL)
    await sky.later(6 * HOUR_S)
    directory = sky.reader(verifier)
    await sky.append(old)
    assert await health(directory) == "unknown"
    await sky.append(old)
    await sky.later()
    assert await health(directory) == "unknown"
    assert directory.refused == 2


async def test_the_last_heartbeat_of_the_dead_makes_nobody_healthy_when_it_comes_again(
    sky: Sky, verifier: Verifier | None
) -> None:
    last = await sky.say(WELL)
    directory = sky.reader(verifier)
    assert await health(directory) == "healthy"
    for _ in range(36):
        await sky.append(last)
        await sky.later()
    assert await health(directory) == "unhealthy"
    late = sky.reader(verifier)
    assert await health(late) == "unhealthy"


async def test_an_old_unhealthy_heartbeat_has_no_effect(sky: Sky, verifier: Verifier | None) -> None:
    unwell = await sky.say(UNWELL)
    await sky.later()
    await sky.say(WELL)
    directory = sky.reader(verifier)
    await sky.append(unwell)
    assert await health(directory) == "healthy"
    await sky.append(unwell)
    await sky.later()
    assert await health(directory) == "healthy"


async def test_an_old_goodbye_removes_no_instance(sky: Sky, verifier: Verifier | None) -> None:
    goodbye = await sky.say(AgentGoodbye(reason_code="SHUTDOWN"))
    await sky.later()
    await sky.say(WELL)
    await sky.append(goodbye)
    assert await health(sky.reader(verifier)) == "healthy"


async def test_an_old_card_restores_no_agent(sky: Sky, verifier: Verifier | None) -> None:
    card = await sky.say(AgentHandshake(agent_card=card_of("a@svc")))
    await sky.say(WELL)
    await sky.later()
    await sky.say(AgentGoodbye(reason_code="SHUTDOWN"))
    directory = sky.reader(verifier)
    await sky.append(card)
    assert await health(directory) == "gone"
    await sky.later(HOUR_S)
    await sky.append(card)
    await sky.later()
    assert await health(directory) == "unknown"
    assert await health(sky.reader(verifier)) == "unknown"


async def test_a_foreign_key_cannot_announce_other_agents(sky: Sky, keys: TrustedKeys) -> None:
    directory = sky.reader(keys)
    await sky.say(WELL, key="evil@svc")
    await sky.say(WELL, key="")
    assert await health(directory) == "unknown"
    assert directory.refused == 2


async def test_an_announcement_with_recipient_or_in_the_wrong_topic_is_ignored(sky: Sky) -> None:
    directory = sky.reader()
    await sky.say(WELL, to="b@svc")
    await sky.append(msgspec.structs.replace(sky.sealed(WELL), topic=CARDS))
    await sky.append(msgspec.structs.replace(sky.sealed(WELL), key=b"a@svc#other"))
    await sky.append(msgspec.structs.replace(sky.sealed(WELL), value=b"{" + b" " * 100_000))
    assert await health(directory) == "unknown"
    assert directory.refused == 4


@pytest.mark.parametrize(("types", "seen"), [("agent.heartbeat", "unknown"), ("order.*", "healthy")])
async def test_only_a_rule_that_denies_presence_hides_an_agent(
    sky: Sky, keys: TrustedKeys, tmp_path: Path, types: str, seen: str
) -> None:
    (tmp_path / "policy.toml").write_text(RULES.format(types=types))
    settings = load(
        flags={"bus.url": "memory://", "policy.file": f"{tmp_path}/policy.toml"}, env={}, file=None
    ).settings
    directory = sky.reader(keys, open_trust(settings, "", clock=sky.clock).policy)
    await sky.say(WELL)
    assert await health(directory) == seen


async def test_a_silent_agent_is_dropped_and_can_return(sky: Sky, verifier: Verifier | None) -> None:
    directory = sky.reader(verifier)
    await sky.say(WELL)
    assert await health(directory) == "healthy"
    await sky.later(340)
    assert await health(directory) == "unhealthy"
    await sky.later(20)
    assert await health(directory) == "unknown"
    assert directory.size.instances == 0
    await sky.say(WELL)
    await sky.later()
    assert await health(directory) == "healthy"


async def test_sessions_of_past_starts_are_forgotten(sky: Sky) -> None:
    directory = sky.reader()
    for session in range(60):
        await sky.say(WELL, session=str(session))
        await sky.later(10)
        assert await health(directory) == "healthy"
    assert directory.size.instances <= 36


async def test_cards_of_starts_long_ago_are_not_even_read(sky: Sky, monkeypatch: pytest.MonkeyPatch) -> None:
    for session in range(50):
        await sky.say(AgentHandshake(agent_card=card_of("a@svc")), session=str(session))
    await sky.later(25 * HOUR_S)
    await sky.say(AgentHandshake(agent_card=card_of("a@svc")), session="now")
    await sky.say(WELL, session="now")
    read, count = sky.transport.read, 0

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        records = await read(*arguments, **options)
        count += len(records)
        return records

    monkeypatch.setattr(sky.transport, "read", counted)
    directory = sky.reader()
    assert [entry.agent_id for entry in await directory.find(type="who.work")] == ["a@svc"]
    assert count < 10


async def test_a_reader_that_stood_still_takes_no_old_beat_for_a_new_one(sky: Sky) -> None:
    directory = sky.reader()
    await sky.say(WELL)
    assert await health(directory) == "healthy"
    # Its clock goes on while it does not run: it reads all of that in one look.
    await sky.say(WELL, session="later")
    sky.clock.advance(100)
    await sky.later()
    assert await health(directory) == "unhealthy"


async def test_invented_agents_are_limited_and_hide_no_known_agent(sky: Sky) -> None:
    directory = sky.reader(max_agents=50)
    await sky.say(WELL)
    assert await health(directory) == "healthy"
    for number in range(200):
        await sky.say(WELL, f"evil{number}@svc")
    await sky.later()
    size = directory.size
    assert (size.agents, size.instances, size.dropped) == (50, 50, 151)
    for _ in range(10):
        await sky.say(WELL)
        await sky.later(10)
    assert await health(directory) == "healthy"


async def test_a_watcher_is_notified_when_an_agent_is_dropped(sky: Sky) -> None:
    directory = sky.reader()
    await sky.say(WELL)
    heard: list[str] = []

    async def listen() -> None:
        async for change in directory.watch():
            heard.append(f"{change.before} -> {change.agent.health}")  # noqa: PERF401 - it has no end

    listening = asyncio.create_task(listen())
    for _ in range(400):
        await sky.later()
    listening.cancel()
    assert heard == ["unknown -> healthy", "healthy -> unhealthy", "unhealthy -> gone"]


def card_of(agent: str) -> AgentCard:
    return AgentCard(agent_id=agent, name=agent, version="1.0.0", capabilities=("work",), accepts=("who.work@1",))
