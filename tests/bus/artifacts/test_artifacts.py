"""Artifacts: content beside messages, which is opened only if it is what the reference names."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.artifacts.store import ArtifactStore, artifact_store
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.vocabulary.parts import Ref
from bus.vocabulary.task import TaskRequest, TaskResult
from sealbus import App, Context, DependencyDown, payload
from sealbus.errors import ConfigurationError, ContractError, MissingSetting


def settings_with(url: str, **settings: Any) -> Settings:
    return load(flags={"bus.url": "memory://", "artifacts.url": url, **settings}, env={}, file=None).settings


def store_at(url: str, **settings: Any) -> ArtifactStore:
    return artifact_store(settings_with(url, **settings))


@pytest.fixture(params=["folder", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    folder = tmp_path / "artifacts"
    return store_at(f"file://{folder}" if request.param == "folder" else f"local://{folder}")


def only_file(folder: Path) -> Path:
    (found,) = [path for path in folder.rglob("*") if path.is_file()]
    return found


async def test_content_comes_back_by_its_reference(store: ArtifactStore) -> None:
    ref = await store.put(b"x" * 3_000_000, media_type="text/plain")
    assert (ref.size, ref.media_type) == (3_000_000, "text/plain")
    assert await store.open(ref) == b"x" * 3_000_000
    # What travels in a message is the reference alone.
    assert len(msgspec.json.encode(ref)) < 300


async def test_equal_content_is_stored_once(store: ArtifactStore, tmp_path: Path) -> None:
    assert await store.put("text") == await store.put(b"text")
    only_file(tmp_path / "artifacts")


async def test_a_file_is_stored_and_saved(store: ArtifactStore, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(2_500_000))
    await store.save(await store.put(source), target)
    assert target.read_bytes() == source.read_bytes()


async def test_changed_content_is_refused_where_it_is_opened(store: ArtifactStore, tmp_path: Path) -> None:
    ref = await store.put("pay 5")
    only_file(tmp_path / "artifacts").write_text("pay 9")
    with pytest.raises(ContractError, match="it has changed"):
        await store.open(ref)
    with pytest.raises(ContractError, match="it has changed"):
        await store.save(ref, tmp_path / "target")
    assert not (tmp_path / "target").exists()


async def test_changed_content_of_the_same_size_is_stored_again(store: ArtifactStore, tmp_path: Path) -> None:
    ref = await store.put("pay 5")
    only_file(tmp_path / "artifacts").write_text("pay 9")
    assert await store.put("pay 5") == ref
    assert await store.open(ref) == b"pay 5"


async def test_a_store_that_is_full_or_away_is_waited_for_and_keeps_no_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(f"file://{tmp_path}/artifacts")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DependencyDown, match=r"artifacts\.url: the artifact store .* No space left on device"):
            await store.put("x")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(DependencyDown, match="Not a directory"):
        await store_at(f"file://{tmp_path}/file/artifacts").put("x")


async def test_what_is_no_reference_is_refused(store: ArtifactStore) -> None:
    for wrong in ("abc", None, {"uri": "x"}):
        with pytest.raises(ContractError, match="is not the Ref of an artifact"):
            await store.open(wrong)


async def test_content_that_is_not_there_is_told_so(store: ArtifactStore) -> None:
    ref = await store.put("x")
    gone = Ref(uri=ref.uri[:-1] + "0", sha256=(ref.sha256 or "")[:-1] + "0")
    with pytest.raises(FileNotFoundError, match=r"artifact://agents/\S+ is not in the artifact store"):
        await store.open(gone)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "http://169.254.169.254/latest",
        "artifact://agents/../../etc/passwd",
        f"artifact://other/{'0' * 64}",
        f"artifact://agents/{'0' * 63}",
        f"artifact://agents/{'0' * 64}/../x",
    ],
)
async def test_a_reference_never_says_where_to_look(store: ArtifactStore, uri: str) -> None:
    with pytest.raises(ContractError):
        await store.open(Ref(uri=uri, sha256=f"sha256:{'0' * 64}"))


async def test_a_reference_without_its_hash_is_refused(store: ArtifactStore) -> None:
    ref = await store.put("x")
    for sha256 in (None, f"sha256:{'0' * 64}"):
        with pytest.raises(ContractError):
            await store.open(Ref(uri=ref.uri, sha256=sha256))


async def test_a_link_in_the_folder_leads_nowhere(tmp_path: Path) -> None:
    store = store_at(f"file://{tmp_path}/artifacts")
    ref = await store.put("secret")
    path = only_file(tmp_path / "artifacts")
    outside = tmp_path / "outside"
    outside.write_text("secret")
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(OSError, match=r"."):
        await store.open(ref)


async def test_other_types_and_illegal_media_types_are_refused(store: ArtifactStore) -> None:
    for data in (None, 5, {"a": 1}):
        with pytest.raises(ContractError, match="give bytes"):
            await store.put(data)
    for media_type in ("text", "text/plain\x1b[0m", "a/b\nc"):
        with pytest.raises(ContractError, match="media type"):
            await store.put("x", media_type=media_type)


async def test_content_over_the_limit_is_refused(tmp_path: Path) -> None:
    store = store_at(f"file://{tmp_path}/a", **{"artifacts.max_bytes": "1024"})
    with pytest.raises(ContractError, match=r"artifacts\.max_bytes"):
        await store.put(b"x" * 1025)
    assert await store.open(await store.put(b"x" * 1024)) == b"x" * 1024


def test_without_a_store_the_setting_is_named() -> None:
    with pytest.raises(MissingSetting, match=r"artifacts\.url"):
        store_at("off")
    with pytest.raises(MissingSetting, match="s3://bucket"):
        artifact_store(load(flags={"bus.url": "kafka://localhost:9092"}, env={}, file=None).settings)


def test_an_unknown_kind_of_store_is_told() -> None:
    with pytest.raises(ConfigurationError):
        store_at("gopher://hole")


async def test_many_artifacts_pass_by_reference_side_by_side(tmp_path: Path) -> None:
    store = store_at(f"file://{tmp_path}/a")
    refs = await asyncio.gather(*(store.put(f"{number}" * 50_000) for number in range(50)))
    found = await asyncio.gather(*map(store.open, refs))
    assert found == [f"{number}".encode() * 50_000 for number in range(50)]


@payload("artifacts.ask", version="1.0.0", performative="request")
class Ask(msgspec.Struct, frozen=True, kw_only=True):
    size: int


@payload("artifacts.answer", version="1.0.0", performative="inform")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    report: Ref


async def test_a_handler_answers_with_a_reference() -> None:
    app = App("writer@svc")

    @app.on(Ask)
    async def write(ask: Ask, context: Context) -> Answer:
        return Answer(report=await context.artifacts.put("x" * ask.size, media_type="text/plain"))

    async with app.test() as bus:
        answer = await bus.request(Ask(size=5_000_000), Answer)
        assert len(await bus.artifacts.open(answer.report)) == 5_000_000


async def test_messages_wait_while_the_store_is_away(tmp_path: Path) -> None:
    app, folder = App("writer@svc"), tmp_path / "artifacts"

    @app.on(Ask)
    async def write(ask: Ask, context: Context) -> Answer:
        return Answer(report=await context.artifacts.put("x" * ask.size))

    async with app.test(settings=settings_with(f"file://{folder}")) as bus:
        folder.write_text("in its place")
        await bus.publish(Ask(size=10), ttl_s=7_200)
        await bus.advance(600)
        assert (bus.dead_letters, bus.sent(Answer)) == ([], [])
        folder.unlink()
        await bus.advance(60)
        (answer,) = bus.sent(Answer)
        assert await bus.artifacts.open(answer.report) == b"x" * 10


async def test_a_result_over_the_limit_of_a_message_goes_into_the_store() -> None:
    app = App("writer@svc")

    @app.on(TaskRequest)
    async def write(task: TaskRequest) -> TaskResult:
        return TaskResult(status="completed", summary="long", output={"text": "x" * 2_000_000})

    async with app.test() as bus:
        result = await bus.request(TaskRequest(goal="write"), TaskResult, task_id="t1")
        (ref,) = result.artifacts
        moved = msgspec.json.decode(await bus.artifacts.open(ref))
        assert (moved["output"], result.output) == ({"text": "x" * 2_000_000}, None)
