"""What `sealbus dev` says first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from consumers.scaffold.first_steps import Surroundings, first_lines, unset_variables
from sealbus import App, Approval, payload
from sealbus.vocabulary import TaskRequest

ALONE = Surroundings(console="", person="", people=(), verifies=True)


@payload("steps.job", version="1.0.0", performative="request")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int


def app(*, approval: bool = False, task: bool = False) -> App:
    made = App("desk@svc")

    @made.on(TaskRequest if task else Job, approval=Approval(by="human") if approval else None)
    async def work(asked: Any) -> None: ...

    return made


def lines(made: App, around: Surroundings = ALONE) -> list[str]:
    return list(first_lines([made.declaration], around))


def test_an_app_that_takes_no_tasks_is_sent_an_example() -> None:
    assert lines(app()) == ["send:     sealbus type show steps.job -o example | sealbus publish steps.job"]


def test_an_app_that_asks_for_approvals_names_what_its_decisions_lack() -> None:
    asks = app(approval=True)
    assert "a person who can decide here" in lines(asks)[-1]
    assert "set trust.keys and policy.file" in lines(asks, ALONE._replace(verifies=False))[-1]
    assert lines(asks, ALONE._replace(people=["a@b", "c@d"]))[-1] == "decide:   sealbus approval list"
    assert not any("decide" in line for line in lines(app()))


def test_a_console_that_is_not_installed_is_missing() -> None:
    assert "sealbus[console]" in lines(app(task=True), ALONE._replace(console=None))[-1]


def test_variables_with_a_value_or_in_the_environment_are_not_missing(tmp_path: Path) -> None:
    assert unset_variables(tmp_path, {}) == []
    (tmp_path / ".env.example").write_bytes(b"# X=\nA=\nexport B=\nC=1\nD=''\n\xff=\nE E=\n")
    assert unset_variables(tmp_path, {"A": "1"}) == ["B is not set (.env.example)", "D is not set (.env.example)"]
