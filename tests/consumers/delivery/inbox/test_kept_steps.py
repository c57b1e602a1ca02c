"""What every inbox promises about what runs remember beside their rows, and about processes' transactions."""

from __future__ import annotations

import msgspec

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.transports import open_transport
from bus.vocabulary.task import TaskRequest
from consumers.delivery.inbox.base import AlreadyDone, Write
from consumers.processes.sagas import schema
from consumers.processes.sagas.process import Ids, Process, ProcessPlace
from consumers.processes.sagas.store import NewWait, ProcessChange, ProcessStore
from producers.connection import make_publisher
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from tests.consumers.delivery.inbox.stores import OUTPUTS, Store, claim, claimed, key


async def test_what_a_run_keeps_is_there_for_the_next_one(store: Store) -> None:
    first = await store.open("a")
    token = (await claimed(first)).token
    assert await first.remembered(key()) == {}
    assert await first.remember(key(), token, "plan", b"one")
    assert await first.remember(key(), token, "plan", b"two")
    assert await first.remember(key(), token, "other\0", b"three")
    assert await first.remembered(key()) == {"plan": b"two", "other\0": b"three"}
    assert await first.remembered(key("another")) == {}
    await first.release(key(), token)
    again = (await claimed(first)).token
    assert not await first.remember(key(), token, "plan", b"late")
    assert await first.remember(key(), again, "plan", b"newer")
    await first.forget(key())
    assert await first.remembered(key()) == {}


async def test_a_claim_is_released_together_with_what_was_written(store: Store) -> None:
    inbox = await store.open("a")
    rows = ProcessStore(inbox, namespace="agents", group="researchers", clock=store.clock or SystemClock())
    await rows.open()
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    assert await rows.write(transaction, [opening("one")])
    assert await inbox.release_with(key(), token, transaction)
    assert await rows.find(opening("one").after.id) is not None
    newer = (await claimed(inbox)).token
    assert newer > token
    transaction = await inbox.begin()
    assert await rows.write(transaction, [opening("two")])
    # The claim of before is no longer the one that stands.
    assert not await inbox.release_with(key(), token, transaction)
    assert await rows.find(opening("two").after.id) is None


def opening(name: str) -> ProcessChange:
    after = Process(
        id=Ids(b"s", namespace="agents", group="researchers").process("buying", "shop@svc", name),
        namespace="agents",
        group="researchers",
        saga="buying",
        key=name,
        version=1,
        status="open",
        shape="1.0.0",
        state=b"{}",
        opener=b"sealed",
        trust="user_request",
    )
    waits = (NewWait(id=f"w-{name}", name="answer", after_ms=0),)
    return ProcessChange(before=None, after=after, armed=waits)


async def test_pages_of_processes_that_changed_at_one_moment_have_each_of_them_once(store: Store) -> None:
    inbox = await store.open("a")
    rows = ProcessStore(inbox, namespace="agents", group="researchers", clock=store.clock or SystemClock())
    await rows.open()
    for number in range(7):
        assert await rows.change(opening(f"p{number}"))
    assert await rows.write_whole([Write("UPDATE sealbus_processes SET opened_ms = 3, changed_ms = 7", ())])
    seen, before = list[Process](), None
    while page := await rows.processes(saga="buying", before=before, max_rows=2):
        seen += page
        before = ProcessPlace(page[-1].changed_ms, page[-1].id)
    assert sorted(each.key for each in seen) == [f"p{number}" for number in range(7)]
    waits = await rows.waits_of_each([seen[0].id, seen[3].id, b"none"])
    assert {identity: [wait.name for wait in found] for identity, found in waits.items()} == {
        seen[0].id: ["answer"],
        seen[3].id: ["answer"],
    }
    assert await rows.oldest_open_ms("buying") == 3
    assert await rows.oldest_open_ms("selling") is None


async def stepped(store: Store) -> tuple[ProcessStore, Process]:
    inbox = await store.open("a")
    rows = ProcessStore(inbox, namespace="agents", group="researchers", clock=store.clock or SystemClock())
    await rows.open()
    await rows.open()
    token = (await claimed(inbox)).token
    transaction = await inbox.begin()
    assert await rows.write(transaction, [opening("one")])
    assert await inbox.finish(key(), token, OUTPUTS, transaction)
    assert isinstance(await claim(inbox), AlreadyDone)
    process = await rows.find(opening("one").after.id)
    assert process is not None
    return rows, process


async def test_a_step_is_durable_with_the_result_of_its_event(store: Store) -> None:
    rows, process = await stepped(store)
    assert (process.version, process.state, process.opener) == (1, b"{}", b"sealed")
    found = await rows.find_wait("w-one")
    assert found is not None
    assert found[1] == process
    assert found[0].due_ms <= found[2]


async def test_a_process_is_known_by_any_text(store: Store) -> None:
    inbox = await store.open("a")
    rows = ProcessStore(inbox, namespace="agents", group="researchers", clock=store.clock or SystemClock())
    await rows.open()
    name = "a\0b\x10" + "".join(map(chr, range(0x4E00, 0x4E00 + 500)))
    assert await rows.change(opening(name))
    assert [each.key for each in await rows.of_key("buying", name, max_rows=2)] == [name]
    found = await rows.find_wait(f"w-{name}")
    assert found is not None
    assert found[1].key == name


async def test_a_step_under_an_old_version_writes_nothing(store: Store) -> None:
    rows, process = await stepped(store)
    after = msgspec.structs.replace(process, version=2, state=b'{"a":1}')
    assert await rows.change(ProcessChange(before=process, after=after))
    assert not await rows.change(ProcessChange(before=process, after=after))
    assert not await rows.change(opening("one"))
    found = await rows.find(process.id)
    assert found is not None
    assert (found.version, found.state) == (2, b'{"a":1}')


async def test_a_wait_acts_once(store: Store) -> None:
    rows, process = await stepped(store)
    after = msgspec.structs.replace(process, version=2)
    acting = ProcessChange(before=process, after=after, acted="w-one", ended=("answer",))
    assert await rows.change(acting)
    again = ProcessChange(before=after, after=msgspec.structs.replace(after, version=3), acted="w-one")
    assert not await rows.change(again)
    assert await rows.find_wait("w-one") is None


async def test_a_wait_that_is_due_is_swept_once_a_minute(store: Store) -> None:
    rows, _ = await stepped(store)
    (swept,) = await rows.sweep()
    assert (swept.id, swept.name, swept.opener) == ("w-one", "answer", b"sealed")
    assert await rows.sweep() == []
    seconds = await rows.next_nudge_s()
    assert seconds is not None
    assert 55 < seconds <= 60
    await rows.nudged([swept])
    seconds = await rows.next_nudge_s()
    assert seconds is not None
    assert 590 < seconds <= 600
    await rows.not_yet("w-one")
    assert [each.id for each in await rows.sweep()] == ["w-one"]


async def test_a_nudge_whose_append_was_never_acknowledged_comes_again(store: Store) -> None:
    """The one mistake that random schedules hardly find: the row says nudged, and the nudge never left."""
    rows, _ = await stepped(store)
    assert len(await rows.sweep()) == 1
    transaction = await rows._inbox.begin()
    # A minute passes.
    await transaction.execute("UPDATE sealbus_waits SET nudge_ms = nudge_ms - 61000")
    await transaction.commit()
    assert len(await rows.sweep()) == 1


async def test_a_finished_process_has_no_waits_and_is_purged_when_its_time_is_over(store: Store) -> None:
    rows, process = await stepped(store)
    after = msgspec.structs.replace(process, version=2, status="finished", state=b"")
    assert await rows.change(ProcessChange(before=process, after=after, keep_ms=3_600_000))
    assert await rows.waits_of(process.id) == []
    assert await rows.purge() == 0
    later = msgspec.structs.replace(after, version=3)
    assert await rows.change(ProcessChange(before=after, after=later, keep_ms=-1))
    await store.pass_time(0.05)
    assert await rows.purge() == 1
    assert await rows.find(process.id) is None


async def test_open_processes_and_overdue_waits_are_counted(store: Store) -> None:
    rows, _ = await stepped(store)
    assert await rows.counts() == ({"buying": 1}, 0)
    assert [each.key for each in await rows.processes(saga="buying", status="open")] == ["one"]
    assert await rows.processes(saga="buying", status="finished") == []
    assert len(await rows.waits()) == 1
    assert await rows.waits(overdue_ms=60_000) == []


async def test_rows_of_the_first_version_get_owners_and_are_found_by_them(store: Store) -> None:
    inbox = await store.open("a")
    transport, settings = open_transport("memory://"), load(flags={}, env={}, file=None).settings
    publisher = make_publisher(transport, settings, "buyer@svc", clock=SystemClock(), metrics=Metrics())
    draft = Outgoing(TaskRequest(goal="x"), to="shop@svc", task_id="t-1")
    opener = publisher.sealer.seal(draft, SealRequest(topic="agents.task.request")).record.value
    await publisher.close()
    await transport.close()
    transaction = await inbox.begin()
    for statement in schema._TABLES:
        await transaction.execute(statement.format(bytes="bytea" if inbox.dialect == "postgres" else "BLOB"))
    await transaction.execute("INSERT INTO sealbus_schema (part, version) VALUES ('processes', 1)")
    await transaction.execute(
        "INSERT INTO sealbus_processes VALUES ($1, 'agents', 'researchers', 'buying', 'one', 1, 'open', '1.0.0', $2, "
        "$3, 'user_request', 0, 0, 0)",
        b"old",
        b"{}",
        opener,
    )
    await transaction.execute(
        "INSERT INTO sealbus_waits (id, process, name, namespace, grp, many, due_ms, nudge_ms) VALUES ('w', $1, "
        "'ripe', 'agents', 'researchers', false, 0, 0)",
        b"old",
    )
    await transaction.commit()
    rows = ProcessStore(inbox, namespace="agents", group="researchers", clock=store.clock or SystemClock())
    await rows.open()
    found = await rows.find(rows.ids.process("buying", "buyer@svc", "one"))
    assert found is not None
    assert (found.owner, found.sender, found.task_id) == ("buyer@svc", "buyer@svc", "t-1")
    assert [wait.name for wait in await rows.waits_of(found.id)] == ["ripe"]
    assert [each.id for each in await rows.of_task("t-1", "buyer@svc")] == [found.id]
    before = rows.ids.timer(found.id, "ripe", 1)
    await rows.open()
    assert rows.ids.timer(found.id, "ripe", 1) == before
