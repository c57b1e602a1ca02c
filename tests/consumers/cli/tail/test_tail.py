"""What a line of `sealbus tail` shows: the payload, short and harmless, and what the bus's own journals hold."""

from __future__ import annotations

from typing import Any

import pytest


def tailed(folder: Any, *arguments: str, columns: int = 160) -> list[str]:
    result = folder.call("tail", *arguments, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def publish(folder: Any, line: str) -> None:
    assert folder.call("publish", "job.run", "--app", "agents:app", stdin=line).exit_code == 0


def test_a_line_ends_with_the_payload(folder: Any) -> None:
    publish(folder, '{"number":1,"label":"tea"}')
    (line,) = tailed(folder, "job.run")
    assert line.endswith('  {"label":"tea","number":1}')
    (line,) = tailed(folder, "job.run", "--verify")
    assert line.endswith('sealed ok  {"label":"tea","number":1}')


@pytest.mark.parametrize(("columns", "width"), [(160, 160), (20, 146)])
def test_a_long_payload_is_cut_to_the_terminal(folder: Any, columns: int, width: int) -> None:
    publish(folder, f'{{"number":1,"label":"{"x" * 500}"}}')
    (line,) = tailed(folder, "job.run", columns=columns)
    assert line.endswith("xxx...")
    assert abs(len(line) - width) <= 20


@pytest.mark.parametrize("label", ["\\u001b[31m", "\\u009b2J", "\\u202e", "a\\nb"])
def test_a_payload_commands_no_terminal(folder: Any, label: str) -> None:
    publish(folder, f'{{"number":1,"label":"{label}"}}')
    (line,) = tailed(folder, "job.run")
    assert line.isprintable()


@pytest.mark.medium
def test_records_of_the_journals_are_named(folder: Any) -> None:
    folder.call("topic", "apply", "agents:app")
    assert folder.call("publish", "job.run", "--type-version", "1.0.0", stdin='{"number":"x"}').exit_code == 0
    worker = folder.worker()
    folder.wait_until(lambda: folder.call("dlq", "list").stdout)
    assert folder.end(worker) == 0
    assert folder.call("dlq", "dismiss", "--why", "a test", "--yes").exit_code == 0
    assert all("  entry of the operators' journal  {" in line for line in tailed(folder, "_audit", "--from", "start"))
    assert all("  state of dead letters  {" in line for line in tailed(folder, "_deadletters", "--from", "start"))
    assert "no message" not in "".join(tailed(folder, "_audit", "--verify"))
