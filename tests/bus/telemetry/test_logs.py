"""Log lines go to standard error, and nowhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from bus.telemetry.logs import configure, get_logger


@pytest.fixture(autouse=True)
def own_configuration() -> Iterator[None]:
    was_done, before = structlog.is_configured(), structlog.get_config()
    yield
    if was_done:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


def test_a_program_without_standard_error_goes_on_and_its_output_stays_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    configure()
    get_logger("area").error("something.happened")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("text", ["\x1b]0;owned\x07", "one\x1b[2J\ntwo"])
def test_no_terminal_obeys_what_an_exception_tells(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure(form="console")
    try:
        raise ValueError(text)
    except ValueError as error:
        get_logger("area").warning("something.happened", detail=str(error), exc_info=error)
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "\x1b" not in told
    assert "\x07" not in told
    assert "\\x1b" in told


def test_nothing_fails_over_a_line_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        configure()
        get_logger("area").error("something.happened")
        get_logger("area").error("something.else")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_foreign_text_is_cut_and_holds_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    configure(form="json")
    try:
        raise RuntimeError("password hunter2 at postgresql://bob:hunter2@db")
    except RuntimeError as error:
        get_logger("area").error("something.happened", pointer="/" + "x" * 1_000_000, error=str(error), exc_info=error)
    line = capsys.readouterr().err
    assert "hunter2" not in line
    assert "RuntimeError" in line
    assert len(line) < 10_000
    assert max(len(value) for name, value in msgspec.json.decode(line).items() if name != "exception") == 256
