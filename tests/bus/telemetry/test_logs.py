"""Log lines go to standard error, and nowhere else."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.telemetry.logs import RUN, configure, get_logger


def test_a_program_without_standard_error_goes_on_and_its_output_stays_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    configure()
    get_logger("area").error("something.happened")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("text", ["\x1b]0;owned\x07", "one\x1b[2J\ntwo"])
def test_terminal_escapes_in_an_exception_are_neutralised(text: str, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_line_and_its_end_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else lines of two processes of one supervisor mix where standard error is not buffered (PYTHONUNBUFFERED)."""
    writes: list[str] = []

    class Unbuffered(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stderr", Unbuffered())
    configure(form="json")
    get_logger("area").error("something.happened")
    get_logger("area").error("something.else")
    assert [text[-2:] for text in writes] == ["}\n", "}\n"]


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


SAID = "what-no-drawn-text-says"
HIDDEN = "Zq8-opensesame-71"
NAMES = st.sampled_from(["password", "api_key", "db_password", "authorization", "client-secret", "token", "cookie"])
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=12))


@st.composite
def values_with_a_secret(draw: st.DrawFn) -> object:
    """A value of a log line that has HIDDEN somewhere, under a name that says so."""
    name = draw(NAMES)
    held: object = draw(st.sampled_from([{name: HIDDEN}, f"{name}={HIDDEN}", f"{name}: {HIDDEN}"]))
    for _ in range(draw(st.integers(0, 4))):
        held = draw(
            st.sampled_from([[held], (held,), {"inner": held, "beside": draw(PLAIN)}, {3: held}, RuntimeError(held)])
        )
    return held


@given(value=values_with_a_secret(), beside=PLAIN)
def test_redaction_comes_after_all_that_a_line_was_given(value: object, beside: object) -> None:
    out = io.StringIO()
    with contextlib.redirect_stderr(out):
        for form in ("json", "console"):
            configure("info", form)
            get_logger("test").bind(bound=value).info(SAID, value=value, beside=beside)
            get_logger("test").info(SAID, password=HIDDEN)
            try:
                raise ValueError(value)
            except ValueError:
                get_logger("test").error("failed", exc_info=True)
    assert out.getvalue().count(SAID) == 4
    assert HIDDEN not in out.getvalue()


class Run:
    def log_ids(self) -> dict[str, object]:
        return {"message_id": "one", "conversation_id": "of one", "attempt": 1}


def test_a_line_about_another_message_carries_no_ids_of_the_run_in_whose_context_it_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(form="json")
    token = RUN.set(Run())
    try:
        for named in ({}, {"message_id": "one"}, {"message_id": "two"}):
            get_logger("area").error("something.happened", **named)
    finally:
        RUN.reset(token)
    lines = [msgspec.json.decode(line) for line in capsys.readouterr().err.splitlines()]
    assert [line.get("conversation_id") for line in lines] == ["of one", "of one", None]
