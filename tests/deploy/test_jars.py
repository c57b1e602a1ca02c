"""The cache of Kafka's jars: only what is listed enters it, and only whole."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.kafka import jars
from deploy.kafka.errors import KafkaUnavailableError
from deploy.kafka.jars import Jar

CONTENT = b"the bytes of a jar"
GOOD = Jar("org.example", "good", "1.0", hashlib.sha256(CONTENT).hexdigest())


def serving(content: bytes) -> Callable[[Jar, Path], Path]:
    def fetch(jar: Jar, scratch: Path) -> Path:
        scratch.mkdir(parents=True)
        path = scratch / "file.jar"
        path.write_bytes(content)
        return path

    return fetch


def refusing(jar: Jar, scratch: Path) -> Path:
    raise ConnectionError("the network is down")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_PAUSE_S", 0.0)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_list_names_the_whole_class_path_with_digests() -> None:
    assert len(jars.LISTED) == 92
    assert {len(jar.sha256) for jar in jars.LISTED} == {64}
    assert len({jar.name for jar in jars.LISTED}) == 92
    assert any(jar.artifact == "kafka_2.13" and jar.version == jars.VERSION for jar in jars.LISTED)


def test_a_jar_is_fetched_once(tmp_path: Path) -> None:
    assert jars.installed(tmp_path, jars=[GOOD], fetch=serving(CONTENT)) == [tmp_path / GOOD.name]
    assert (tmp_path / GOOD.name).read_bytes() == CONTENT
    assert jars.installed(tmp_path, jars=[GOOD], fetch=refusing) == [tmp_path / GOOD.name]
    assert files(tmp_path) == [GOOD.name]


def test_a_jar_with_a_wrong_digest_is_refused_and_deleted(tmp_path: Path) -> None:
    with pytest.raises(KafkaUnavailableError, match=r"refused org\.example:good:1\.0.*sha256"):
        jars.installed(tmp_path, jars=[GOOD], fetch=serving(b"something else"))
    assert files(tmp_path) == []


def test_a_jar_cut_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KafkaUnavailableError, match="cut short"):
        jars.installed(tmp_path, jars=[GOOD], fetch=serving(CONTENT[:-1]))
    assert files(tmp_path) == []


def test_what_a_killed_process_left_half_written_is_not_taken_for_a_jar(tmp_path: Path) -> None:
    left = tmp_path / ".fetching-left" / f"{GOOD.name}.1"
    left.mkdir(parents=True)
    (left / "file.jar").write_bytes(CONTENT[:3])
    assert jars.installed(tmp_path, jars=[GOOD], fetch=serving(CONTENT)) == [tmp_path / GOOD.name]
    assert (tmp_path / GOOD.name).read_bytes() == CONTENT


def test_a_failure_that_passes_is_tried_again(tmp_path: Path) -> None:
    failures = [ConnectionError("reset"), TimeoutError("slow")]

    def fetch(jar: Jar, scratch: Path) -> Path:
        if failures:
            raise failures.pop()
        return serving(CONTENT)(jar, scratch)

    assert jars.installed(tmp_path, jars=[GOOD], fetch=fetch) == [tmp_path / GOOD.name]


def test_an_offline_download_error_names_the_attempt_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(KafkaUnavailableError) as caught:
        jars.installed(tmp_path, jars=[GOOD], fetch=refusing)
    said = str(caught.value)
    assert "org.example:good:1.0" in said
    assert "3 times" in said
    assert "the network is down" in said
    assert str(tmp_path) in said


def test_two_that_fetch_at_once_both_get_whole_jars(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=10)
    seen: list[bytes] = []

    def fetch(jar: Jar, scratch: Path) -> Path:
        both.wait()
        return serving(CONTENT)(jar, scratch)

    def run() -> None:
        seen.extend(path.read_bytes() for path in jars.installed(tmp_path, jars=[GOOD], fetch=fetch))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [CONTENT, CONTENT]
    assert files(tmp_path) == [GOOD.name]


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KafkaUnavailableError, match="SEALBUS_CACHE"):
        jars.installed(tmp_path / "file" / "below", jars=[GOOD], fetch=serving(CONTENT))


def test_the_environment_sets_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SEALBUS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert jars.cache_folder() == tmp_path / "xdg" / "sealbus"
    monkeypatch.setenv("SEALBUS_CACHE", str(tmp_path / "own"))
    assert jars.home() == tmp_path / "own" / "kafka" / jars.VERSION
