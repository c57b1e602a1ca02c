"""`sealbus check --only doors` and `sealbus doctor` name what is wrong with credentials, with the cure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from consumers.gateway.credentials import Credential
from consumers.gateway.doors import key_types
from consumers.operations.survey.survey import WorkState
from consumers.operations.survey.verdicts import of_group, of_survey
from tests.consumers.operations.survey.test_verdicts import NOW_MS, group, survey

TOKEN = "a" * 64
ADD = ("door", "add", "ci", "--agent", "ci@acme", "--to", "worker@svc")
OFF = """
from sealbus import App
from sealbus.vocabulary import TaskRequest

app = App("worker@svc")

@app.on(TaskRequest, dedup="off")
async def work(request: TaskRequest) -> None: ...
"""
POLICY = """
[[agents]]
id = "worker@svc"

[[rules]]
id = "worker"
effect = "allow"
action = ["publish", "handle"]
agents = "worker@svc"
types = "task.*"
"""


def checks(folder: Any, *words: str, code: int = 1, **env: str) -> list[dict[str, Any]]:
    result = folder.call("check", "--only", "doors", *words, "-o", "json", env=env)
    assert result.exit_code == code, result.output + result.stderr
    return list(folder.objects(result.stdout))


def only(folder: Any, check: str, *words: str, **env: str) -> dict[str, Any]:
    (found,) = checks(folder, *words, **env)
    assert (found["area"], found["check"]) == ("doors", check)
    assert found["fix"]
    return found


def write(folder: Any, text: str = "", **given: str) -> None:
    fields = {"agent": '"ci@acme"', "to": '["worker@svc"]', "tokens": f'[{{ sha256 = "{TOKEN}" }}]', **given}
    lines = "\n".join(f"{name} = {value}" for name, value in fields.items())
    path = folder.path / "doors.toml"
    path.write_text(text or f'[[credentials]]\nname = "ci"\n{lines}\n')
    path.chmod(0o600)


def instant(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_no_file_is_told_where_doors_are_asked_for_and_nowhere_else(folder: Any) -> None:
    assert "sealbus door add" in only(folder, "door-file")["fix"]
    assert "doors" not in folder.call("check").stdout


def test_what_door_add_writes_has_nothing_wrong_with_it(folder: Any) -> None:
    assert folder.call(*ADD).exit_code == 0
    assert checks(folder, code=0) == []


def test_what_door_add_writes_fits_its_keys_and_policy(folder: Any) -> None:
    (folder.path / "policy.toml").write_text(POLICY)
    assert folder.call("key", "new", "worker@svc").exit_code == 0
    env = {"SEALBUS_TRUST__KEYS": "keys", "SEALBUS_POLICY__FILE": "policy.toml"}
    assert folder.call(*ADD, env=env).exit_code == 0
    assert checks(folder, code=0, **env) == []


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_a_fault(folder: Any, mode: int) -> None:
    write(folder)
    (folder.path / "doors.toml").chmod(mode)
    assert "chmod 600" in only(folder, "door-file")["fix"]
    faults = [each for each in folder.objects(folder.call("doctor", "-o", "json").stdout) if each["area"] == "doors"]
    assert [each["state"] for each in faults] == ["fault"]


def test_a_file_that_cannot_be_read_is_a_fault(folder: Any) -> None:
    write(folder, "[[credentials]\n")
    assert "not valid TOML" in only(folder, "door-file")["what"]


@pytest.mark.parametrize(
    ("tokens", "level", "text"),
    [
        ("[]", "error", "has no token"),
        (f'[{{ sha256 = "{TOKEN}", not_after = {instant(-1)} }}]', "error", "ended"),
        (f'[{{ sha256 = "{TOKEN}", not_after = {instant(13)} }}]', "warning", "ends at"),
    ],
)
def test_tokens_that_end_are_told(folder: Any, tokens: str, level: str, text: str) -> None:
    write(folder, tokens=tokens)
    found = only(folder, "door-token")
    assert found["level"] == level
    assert text in found["what"]
    assert "--rotate" in found["fix"]


def test_a_token_that_ends_late_or_never_is_good(folder: Any) -> None:
    write(folder, tokens=f'[{{ sha256 = "{TOKEN}", not_after = {instant(15)} }}]')
    assert checks(folder, code=0) == []
    write(folder, tokens=f'[{{ sha256 = "{TOKEN}", not_after = {instant(1)} }}, {{ sha256 = "{"b" * 64}" }}]')
    assert checks(folder, code=0) == []


@pytest.mark.parametrize("pattern", ["approval.decided", "approval.*", "**", "*", "a**", "*.request", "trust.lifted"])
def test_a_type_by_which_a_door_would_decide_is_an_error(folder: Any, pattern: str) -> None:
    write(folder, types=f'["{pattern}"]')
    assert "no door approves" in only(folder, "door-types")["what"]
    assert folder.call(*ADD, "--type", pattern).exit_code != 0


def test_types_that_decide_nothing_are_good() -> None:
    credential = Credential(name="ci", agent="ci@acme", to=("**",), tokens=(), types=("order.*", "task.request"))
    assert "order.*" in key_types([credential])


def test_a_key_that_does_not_sign_for_a_credential_is_told(folder: Any) -> None:
    write(folder)
    assert folder.call("key", "new", "worker@svc").exit_code == 0
    env = {"SEALBUS_TRUST__KEYS": "keys"}
    assert "gateway@sealbus" in only(folder, "door-key", **env)["location"]
    assert folder.call("door", "add", "other", "--agent", "other@acme", "--to", "worker@svc", env=env).exit_code == 0
    written = (folder.path / "doors.toml").read_text()
    (folder.path / "doors.toml").write_text(written.replace('"ci@acme"', '"new@acme"'))
    assert "does not sign for new@acme" in only(folder, "door-key", **env)["what"]
    (folder.path / "doors.toml").write_text(written.replace('types = ["task.request"]', 'types = ["order.*"]', 1))
    assert "may not sign order.*" in only(folder, "door-key", **env)["what"]


def test_what_the_policy_lacks_is_named(folder: Any) -> None:
    write(folder)
    (folder.path / "policy.toml").write_text(POLICY)
    env = {"SEALBUS_POLICY__FILE": "policy.toml"}
    what = only(folder, "door-policy", **env)["what"]
    for each in ('groups = ["doors"] of ci@acme', "the rule door-ci", "the rule door-ci-answers"):
        assert each in what
    assert folder.call("door", "add", "ci", "--rotate", env=env).exit_code == 0
    assert checks(folder, code=0, **env) == []


def test_a_rule_of_another_name_that_lets_answers_pass_is_enough(folder: Any) -> None:
    write(folder)
    wide = (
        POLICY
        + """
[[agents]]
id = "gateway@sealbus"
groups = ["doors"]

[[agents]]
id = "ci@acme"
groups = ["doors"]

[[rules]]
id = "all-may-all"
effect = "allow"
action = ["publish", "handle"]
agents = "**"
types = "**"
"""
    )
    (folder.path / "policy.toml").write_text(wide)
    env = {"SEALBUS_POLICY__FILE": "policy.toml"}
    assert checks(folder, code=0, **env) == []
    (folder.path / "policy.toml").write_text(wide.replace('["publish", "handle"]', '["publish"]'))
    assert "the rule door-ci-answers" in only(folder, "door-policy", **env)["what"]


def test_a_ceiling_above_that_of_the_policy_is_told(folder: Any) -> None:
    (folder.path / "policy.toml").write_text(POLICY)
    env = {"SEALBUS_POLICY__FILE": "policy.toml"}
    assert folder.call(*ADD, env=env).exit_code == 0
    text = (folder.path / "policy.toml").read_text()
    mine = 'id = "ci@acme"\n'
    (folder.path / "policy.toml").write_text(text.replace(mine, f'{mine}trust_at_most = "untrusted_content"\n', 1))
    assert "untrusted_content" in only(folder, "door-policy", **env)["what"]


def test_retention_below_what_tasks_need_is_told(folder: Any) -> None:
    write(folder)
    env = {"SEALBUS_TASKS__KEEP_S": "30d"}
    assert "tasks.keep_s" in only(folder, "door-retention", **env)["what"]


def test_an_app_whose_tasks_may_run_twice_is_named_where_a_credential_reaches_it(folder: Any) -> None:
    (folder.path / "twice.py").write_text(OFF)
    write(folder)
    assert "worker@svc" in only(folder, "door-repeat", "twice:app")["what"]
    write(folder, to='["other@svc"]')
    assert checks(folder, "twice:app", code=0) == []


def test_open_tasks_without_a_gateway_are_a_fault_with_its_command() -> None:
    work = WorkState(open={"task": 2})
    (found,) = [each for each in of_survey(survey(work=work)) if each.area == "groups" and each.state == "fault"]
    assert "2 tasks are open" in found.text
    assert found.cure == "start it: sealbus serve gateway"
    served = of_survey(survey(work=work, groups=(group(name="doors"),)))
    assert [each for each in served if each.state == "fault"] == []
    (waits,) = of_group(group(name="doors", members=0, lag=3), NOW_MS)
    assert waits.cure == "start it: sealbus serve gateway"


def test_a_changed_file_keeps_the_rights_by_which_the_gateway_reads_it(folder: Any) -> None:
    write(folder)
    (folder.path / "doors.toml").chmod(0o640)
    assert folder.call("door", "add", "ci", "--rotate").exit_code == 0
    assert (folder.path / "doors.toml").stat().st_mode & 0o777 == 0o640
