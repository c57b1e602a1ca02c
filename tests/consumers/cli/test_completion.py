"""What the Tab key offers: by the protocol between shell and command, and once by a real bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def offered(folder: Any, line: str) -> list[str]:
    """What fish is offered at the end of *line*."""
    env = {"_SEALBUS_COMPLETE": "fish_complete", "COMP_WORDS": line, "COMP_CWORD": line.rpartition(" ")[2]}
    result = folder.call(env=env)
    assert result.exit_code == 0, result.output
    return [entry.partition(",")[2].partition("\t")[0] for entry in result.stdout.splitlines() if entry]


@pytest.fixture
def used(folder: Any) -> Any:
    """A folder with a log in which there are a type of its own, and a dead letter's topic."""
    assert folder.call("publish", "job.run", "--app", "agents:app", stdin='{"number":1}').exit_code == 0
    return folder


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_sealbus(folder: Any, shell: str) -> None:
    result = folder.call("completion", shell)
    assert result.exit_code == 0
    assert f"_SEALBUS_COMPLETE={shell}_complete" in result.stdout
    assert "_sealbus_completion" in result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_help_says_how_it_is_installed(folder: Any, shell: str) -> None:
    assert f"sealbus completion {shell} >" in folder.call("completion", "--help").stdout


def test_another_shell_is_refused_by_those_that_there_are(folder: Any) -> None:
    result = folder.call("completion", "fihs")
    assert (result.exit_code, "bash, zsh, fish; the nearest is fish" in result.stderr) == (2, True)


def test_commands_options_and_choices_are_completed(folder: Any) -> None:
    assert offered(folder, "sealbus topi") == ["topic"]
    assert {"run", "publish", "completion"} <= set(offered(folder, "sealbus "))
    assert offered(folder, "sealbus dlq re") == ["redrive"]
    assert offered(folder, "sealbus publish --idem") == ["--idempotency-key"]
    assert offered(folder, "sealbus dlq list --state di") == ["dismissed"]


def test_names_of_an_embedded_log_are_completed(used: Any) -> None:
    assert offered(used, "sealbus tail job") == ["job.run"]
    assert offered(used, "sealbus tail agents.job") == ["agents.job.run", "agents.job.run.dlq"]
    assert offered(used, "sealbus publish job") == ["job.run"]
    assert offered(used, "sealbus dlq list --type j") == ["job.run"]


def test_types_and_settings_are_completed_without_a_log(folder: Any) -> None:
    assert offered(folder, "sealbus type show research.") == ["research.output", "research.request"]
    assert offered(folder, "sealbus config work") == ["worker"]
    assert offered(folder, "sealbus config worker.conc") == ["worker.concurrency"]


@pytest.mark.parametrize("bus", ["kafka://localhost:1", "nonsense", "sqlite:///none.db", "sqlite:///agents.py"])
def test_unreadable_input_gives_no_completions_and_no_error(used: Any, bus: str) -> None:
    assert offered(used, f"sealbus tail --bus {bus} job") == []
    assert not (used.path / "none.db").exists()


def test_config_show_takes_names(folder: Any) -> None:
    one = folder.call("config", "worker.concurrency", "-o", "json")
    assert [entry["name"] for entry in folder.objects(one.stdout)] == ["worker.concurrency"]
    section = folder.call("config", "log")
    assert [line.split()[0] for line in section.stdout.splitlines()] == ["SETTING", "log.level", "log.format"]
    wrong = folder.call("config", "worker.concurency")
    assert (wrong.exit_code, "the nearest is worker.concurrency" in wrong.stderr) == (2, True)


@pytest.mark.medium
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_real_bash_completes(used: Any) -> None:
    program = used.path / "sealbus"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m consumers.cli "$@"\n', "utf-8")
    program.chmod(0o755)
    script = """
    eval "$(sealbus completion bash)"
    tab() {
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _sealbus_completion sealbus; echo "${COMPREPLY[@]}"
    }
    complete -p sealbus
    tab sealbus topi
    tab sealbus tail job
    tab sealbus dlq list --sta
    """
    environment = used.environment()
    environment["PATH"] = f"{used.path}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=used.path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o nosort -F _sealbus_completion sealbus",
        "topic",
        "job.run",
        "--state",
    ]
