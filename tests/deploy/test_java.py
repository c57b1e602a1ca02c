"""The choice of the Java that runs Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.kafka import java
from deploy.kafka.errors import KafkaUnavailableError


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_choice_it_is_the_one_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEALBUS_JAVA", raising=False)
    chosen = java.java()
    assert chosen.path.exists()
    assert chosen.major >= java.OLDEST


def test_the_chosen_one_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEALBUS_JAVA", program(tmp_path / "java", "echo 'openjdk version \"21.0.4\" 2024-07-16' >&2"))
    assert java.java() == java.Java(tmp_path / "java", 21, "21.0.4")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'java version \"1.8.0_392\"' >&2", "1.8.0_392"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "11.0.2"),
        ("echo hello", "something else"),
        ("exit 3", "does not run"),
    ],
)
def test_one_that_is_too_old_or_no_java_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str
) -> None:
    monkeypatch.setenv("SEALBUS_JAVA", program(tmp_path / "java", script))
    with pytest.raises(KafkaUnavailableError, match=f"SEALBUS_JAVA.*17 or newer.*{said}"):
        java.java()


def test_one_that_is_not_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEALBUS_JAVA", str(tmp_path / "nowhere"))
    with pytest.raises(KafkaUnavailableError, match=r"nowhere.*does not run"):
        java.java()
