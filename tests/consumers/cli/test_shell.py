"""The edge: exit codes for every class of error, help that teaches, pipes that close, and starting without the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from bus.errors import (
    BusError,
    ConfigurationError,
    ContractError,
    DeadlineError,
    LogFullError,
    NameRefusedError,
    NotPermittedError,
    TopicMissingError,
    UnreachableError,
)
from bus.telemetry.terminal import preview, printable
from bus.telemetry.terminal_json import raw_json
from consumers.cli import main
from consumers.cli.exit_codes import exit_code, explain_error
from producers.outcomes import PublishRejected


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnreachableError("x"), 69),
        (ConfigurationError("x"), 78),
        (NameRefusedError("x"), 2),
        (LogFullError("x"), 75),
        (DeadlineError("x"), 75),
        (TopicMissingError("x"), 78),
        (NotPermittedError("x"), 78),
        (ContractError("x"), 1),
        (PublishRejected("x", LogFullError("y")), 75),
        (PublishRejected("x", UnreachableError("y")), 69),
        (PublishRejected("x"), 1),
        (BusError("x"), 1),
    ],
)
def test_every_error_has_its_exit_code(error: BusError, code: int) -> None:
    assert exit_code(error) == code


def test_a_message_and_a_hint_without_escapes() -> None:
    lines = explain_error(PublishRejected("no \x1b[31m", TopicMissingError("x")))
    assert lines[0] == "error: no \\x1b[31m"
    assert lines[1].startswith("hint: `sealbus topic list`")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("tail", "job.run", "--bus", "ftp://x"), 78),
        (("tail", "job.run", "--namespace", "Not One"), 78),
        (("tail", "job.run", "--config", "missing.toml"), 78),
        (("tail", "job.run", "--bus", "sqlite:///no/such/folder/x.db"), 69),
        (("tail", "job.run"), 69),
        (("topic", "apply", "agents:app", "--bus", "sqlite:///no/such/folder/x.db"), 69),
        (("tail", "job.run", "--no-such-option"), 2),
        (("no-such-verb",), 2),
        (("run", "agents:app", "--reload", "--processes", "2"), 2),
        (("run", "agents:app", "--concurrency", "0"), 78),
        (("run", "agents:app", "--drain-timeout", "soon"), 78),
        (("--version",), 0),
    ],
)
def test_exit_codes(folder: Any, arguments: tuple[str, ...], code: int) -> None:
    result = folder.call(*arguments)
    assert result.exit_code == code
    assert "Traceback" not in result.stderr
    assert not (folder.path / "sealbus.db").exists()


@pytest.mark.medium
def test_a_reader_that_leaves_ends_it_quietly(folder: Any) -> None:
    folder.call("publish", "job.run", folder.jobs(5_000), "--app", "agents:app")
    for command in (
        ("tail", "job.run", "--from", "start"),
        ("publish", "job.run", "jobs.ndjson", "--app", "agents:app"),
    ):
        process = folder.start(*command)
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(45) == 141
        assert "Traceback" not in errors
        assert "Exception" not in errors


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found += [(*path, name)] + (commands(command, (*path, name)) if isinstance(command, click.Group) else [])
    return found


def test_every_command_teaches(folder: Any) -> None:
    names = commands(main)
    assert ("dlq", "show") in names
    for name in names:
        result = folder.call(*name, "--help")
        assert result.exit_code == 0
        assert "Examples:" in result.stdout, name


def test_help_starts_without_the_rest() -> None:
    check = (
        "import sys, consumers.cli as c; c.main(['--help'], standalone_mode=False); "
        "assert 'bus.protocol.sealing' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[3])


def test_printable() -> None:
    assert printable("a\x1b\x9b\u202e\ud800\nä") == "a\\x1b\\x9b\\u202e\\ud800\\nä"
    assert printable("a\nb", keep="\n") == "a\nb"
    assert preview(b"\xff" * 5000).endswith("... 2952 more bytes")
    assert raw_json(b"not json") is None
    assert bytes(raw_json('{"a":"\u202e\x7f\U000e0041"}'.encode()) or b"") == b'{"a":"\\u202e\\u007f\\udb40\\udc41"}'
    assert bytes(raw_json(b'{"a":\n 1}') or b"") == b'{"a":1}'
