"""Log lines go to standard error, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import structlog

from bus.logs import configure, get_logger


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
