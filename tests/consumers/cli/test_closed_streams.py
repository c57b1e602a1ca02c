"""Standard streams that are closed or full are said in a sentence, and what can be done without them is done."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.medium  # servers, processes or real waits


def run(folder: Any, arguments: str, streams: str) -> subprocess.CompletedProcess[str]:
    command = f'echo \'{{"number":1}}\' | "{sys.executable}" -m consumers.cli {arguments} {streams}'
    return subprocess.run(
        ["sh", "-c", command], cwd=folder.path, env=folder.environment(), capture_output=True, text=True, check=False
    )


@pytest.mark.medium
@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-"])
def test_a_message_is_published_where_nobody_listens(folder: Any, streams: str) -> None:
    done = run(folder, "publish job.run --app agents:app", streams)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert len(folder.call("tail", "job.run", "--from", "start").stdout.splitlines()) == 1


@pytest.mark.medium
@pytest.mark.parametrize(
    "arguments",
    [
        "tail job.run --from start",
        "publish job.run --app agents:app",
        "topic list",
        "--version",
        "--help",
        "tail --help",
    ],
)
def test_an_output_without_room_ends_in_a_sentence(folder: Any, arguments: str) -> None:
    folder.call("publish", "job.run", "--app", "agents:app", stdin='{"number":1}')
    done = run(folder, arguments, ">/dev/full")
    assert done.returncode == 1
    assert "error: [Errno 28] No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("no-such-verb", 2), ("dlq --no-such-option", 2), ("tail x --bus ftp://x", 78), ("tail x", 69)],
)
def test_an_error_that_there_is_no_room_to_tell_of_has_its_exit_code(folder: Any, arguments: str, code: int) -> None:
    assert run(folder, arguments, "2>/dev/full").returncode == code


def test_an_input_that_is_closed_is_empty(folder: Any) -> None:
    done = run(folder, "verify", "<&-")
    assert "Traceback" not in done.stderr
    assert done.returncode != 0


def test_an_input_that_cannot_be_read_ends_in_a_sentence(folder: Any) -> None:
    done = run(folder, "publish job.run /proc/self/mem --app agents:app", "")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "Input/output error" in done.stderr


def test_characters_outside_the_output_encoding_are_escaped(folder: Any) -> None:
    command = [sys.executable, "-m", "consumers.cli", "config", "--bus", "sqlite:///m\u00e4rz-\u6f22.db"]
    locale = folder.environment() | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, cwd=folder.path, env=locale, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"sqlite:///m\xe4rz-\\u6f22.db" in done.stdout


def test_a_line_of_json_is_json_whatever_letters_an_output_has(folder: Any) -> None:
    command = [
        sys.executable,
        "-m",
        "consumers.cli",
        "config",
        "--output",
        "json",
        "--bus",
        "sqlite:///m\u00e4rz-\u6f22.db",
    ]
    locale = folder.environment() | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, cwd=folder.path, env=locale, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = {setting["name"]: setting["value"] for setting in folder.objects(done.stdout.decode("utf-8"))}
    assert shown["bus.url"] == "sqlite:///m\u00e4rz-\u6f22.db"
