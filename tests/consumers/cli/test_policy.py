"""`sealbus policy`: the page that teaches it is true, and each verb has its output and exit code."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "policy-language.md").read_text("utf-8")
TOML = dict(re.findall(r"```toml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
CONSOLE = [
    (command, shown)
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


RAISED = "SEALBUS_TRUST__HIGH_RISK"
POLICY = {"SEALBUS_POLICY__FILE": "policy.toml"}


@pytest.fixture
def page(folder: Any) -> Any:
    """The folder with the files of the page."""
    for name, text in TOML.items():
        (folder.path / name).write_text(text)
    return folder


@pytest.mark.parametrize(("command", "shown"), CONSOLE, ids=[command for command, _ in CONSOLE])
def test_the_page_shows_what_is_printed(page: Any, command: str, shown: str) -> None:
    words = shlex.split(command)
    assert words[0] == "sealbus"
    result = page.call(*words[1:], env=POLICY)
    assert result.exit_code in (0, 1), result.stderr
    assert result.stdout.startswith(shown)
    if words[2] != "explain":
        assert result.stdout == shown


def test_the_page_has_its_parts() -> None:
    assert set(TOML) == {"policy.toml", "policy.cases.toml"}
    assert len(CONSOLE) == 3


def call(page: Any, *words: str, code: int) -> list[dict[str, Any]]:
    result = page.call("policy", *words, "-o", "json")
    assert result.exit_code == code, result.stderr + result.stdout
    return list(page.objects(result.stdout))


def checked(page: Any, file: str, *words: str, code: int) -> list[dict[str, Any]]:
    env = {"SEALBUS_POLICY__FILE": file}
    result = page.call("check", "--only", "policy", *words, "-o", "json", env=env)
    assert result.exit_code == code, result.stderr + result.stdout
    return list(page.objects(result.stdout))


def test_check(page: Any) -> None:
    (finding,) = checked(page, "policy.toml", code=1)
    assert (finding["check"], finding["location"]) == ("shadowed", "rule read-only-commands")
    (page.path / "sound.toml").write_text('[[rules]]\nid = "a"\neffect = "allow"\naction = "read"\ntypes = "job.run"\n')
    assert checked(page, "sound.toml", code=1)[0]["check"] == "unknown-type"


def test_check_notes_the_types_of_an_app_that_no_threshold_guards_and_fails_nothing(page: Any) -> None:
    (page.path / "sound.toml").write_text('[[rules]]\nid = "a"\neffect = "allow"\naction = "read"\ntypes = "job.run"\n')
    (note,) = checked(page, "sound.toml", "agents:app", code=0)
    assert (note["level"], note["check"], note["location"]) == ("note", "no-threshold", "type job.run")
    env = {"SEALBUS_POLICY__FILE": "sound.toml"}
    result = page.call("check", "--only", "policy", "agents:app", env=env)
    assert result.stdout.startswith("note: type job.run: is handled at every trust level, unless it has a reply_to")
    assert result.stderr.startswith("1 note; looked at 1 rules of sound.toml, 1 apps")
    assert {one["level"] for one in checked(page, "policy.toml", "agents:app", code=1)} == {"note", "warning"}
    assert page.call("check", "--only", "policy", "agents:app", env=env | {RAISED: "job.run"}).stdout == ""


def test_explain(page: Any) -> None:
    asked = ("--action", "handle", "--agent", "builder-1@svc", "--type", "command.request")
    (found,) = call(page, "explain", "policy.toml", *asked, code=0)
    assert (found["answer"], found["decision"]["rule"]) == ("human", "commands-are-approved")
    assert found["agent"]["capabilities"] == ["build"]
    assert found["facts"]["namespace"] == "agents"
    assert len(found["sha256"]) == 64
    (found,) = call(page, "explain", "policy.toml", *asked, "--tag", "personal", "--namespace", "prod", code=1)
    assert (found["answer"], found["decision"]["rule"], found["facts"]["namespace"]) == (
        "deny",
        "no-personal-data",
        "prod",
    )
    result = page.call("policy", "explain", "policy.toml", "--action", "publish", "--type", "job.run", "--unsigned")
    assert result.exit_code == 1
    assert result.stdout.startswith("denied: no-match (")
    assert "actor: unknown" in result.stdout
    nobody = page.call("policy", "explain", "policy.toml", "--action", "read", "--type", "a.b", "--agent", "x", "--all")
    assert "not in the table" in nobody.stdout
    assert "no-personal-data" in nobody.stdout


def test_cases(page: Any) -> None:
    assert all(one["passed"] for one in call(page, "test", "policy.toml", code=0))
    cases = TOML["policy.cases.toml"].replace('expect = "human"', 'expect = "agent"')
    (page.path / "other.toml").write_text(cases)
    result = page.call("policy", "test", "policy.toml", "other.toml")
    assert result.exit_code == 1
    assert "a command waits for a person: expected agent by rule commands-are-approved; needs approval" in result.stdout
    assert "2 as expected, 1 not" in result.stderr
    (page.path / "wrong.toml").write_text('[[cases]]\nname = "x"\nactoin = "publish"\n')
    result = page.call("policy", "test", "policy.toml", "wrong.toml")
    assert result.exit_code == 78
    assert "the nearest is action" in result.stderr
    assert page.call("policy", "test", "new.toml").exit_code == 2
    (page.path / "policy.cases.toml").unlink()
    assert "no file policy.cases.toml" in page.call("policy", "test", "policy.toml").stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "tables [[cases]]"),
        ("cases = [1]", "expected a table"),
        ("cases =", "not valid TOML"),
        ('[[cases]]\naction = "publish"', "type: found nothing"),
        ('[[cases]]\naction = "publsh"', "the nearest is publish"),
        ('[[cases]]\nlevel = "user_requst"', "the nearest is user_request"),
        ("[[cases]]\nsigned = 1", "true or false"),
        ("[[cases]]\nvia = 'a'", "a list of texts"),
        ("[[cases]]\nmajor = true", "a number"),
        ("[[cases]]\nat = 2027-01-01", "with an offset"),
        ("[[cases]]\nagent = 1", "a text"),
        ("[[cases]]\nexpect = 'yes'", "one of allow"),
    ],
)
def test_what_is_wrong_in_cases(page: Any, text: str, says: str) -> None:
    (page.path / "wrong.toml").write_text(text)
    result = page.call("policy", "test", "policy.toml", "wrong.toml")
    assert result.exit_code == 78
    assert says in result.stderr


def test_acls(page: Any) -> None:
    lines = page.call(
        "policy", "export", "--format", "kafka-acls", "policy.toml", "--namespace", "prod"
    ).stdout.splitlines()
    planner = [line for line in lines if "User:planner@svc" in line]
    writes = next(line for line in planner if "--operation Write" in line)
    assert writes.startswith("kafka-acls.sh --bootstrap-server $KAFKA --add --allow-principal User:planner@svc")
    assert "--topic prod.command.request" in writes
    assert "--topic prod.tool.call" not in writes
    assert any("--operation Read --operation Describe --topic prod._reply.planner-svc-" in line for line in planner)
    assert not any("--group" in line for line in planner)
    (page.path / "new.toml").write_text(TOML["policy.toml"].replace("builder-*@svc", "builder@svc"))
    grants = [
        one
        for one in call(page, "export", "new.toml", "--format", "kafka-acls", code=0)
        if one["agent"] == "builder@svc"
    ]
    assert {one["kind"] for one in grants} == {"topic", "group"}
    read = next(
        one for one in grants if one["operations"] == ["Read", "Describe"] and "agents.task.request" in one["names"]
    )
    assert "agents.command.request" in read["names"]
    assert any(name.startswith("agents._retry.builder-svc-") for one in grants for name in one["names"])


def test_acl_lines_are_quoted(page: Any) -> None:
    rule = '[[rules]]\nid = "a"\neffect = "allow"\naction = "publish"\ntypes = "task.request"\n'
    text = f'[[agents]]\nid = "a $(x); b"\n{rule}'
    (page.path / "new.toml").write_text(text)
    (line, *_) = page.call("policy", "export", "--format", "kafka-acls", "new.toml").stdout.splitlines()
    script = line.replace("kafka-acls.sh", "printf '%s\\n'")
    words = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True)
    assert "User:a $(x); b" in words.stdout.splitlines()


def test_a_file_that_is_no_policy(page: Any) -> None:
    (page.path / "new.toml").write_text('[[rules]]\nid = "a"\neffect = "alow"\naction = "publish"\n')
    result = page.call("check", "--only", "policy", env={"SEALBUS_POLICY__FILE": "new.toml"})
    assert result.exit_code == 78
    assert (
        "new.toml: rule 'a': effect: found 'alow', expected one of allow, deny, need; the nearest is allow"
        in result.stderr
    )
    assert "hint: docs/reference/policy-language.md" in result.stderr
    assert page.call("check", "--only", "policy", "missing.toml").exit_code == 2
