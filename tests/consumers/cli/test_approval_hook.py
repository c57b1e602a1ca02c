"""`sealbus approval hook claude-code`: what it writes, what it keeps, and what it says is left to do."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from consumers.cli.claude_settings import managed_file
from consumers.gateway.claude_code import hook_entry
from consumers.gateway.permits import PERMITS_AGENT, PERMITS_POLICY

LOCAL = Path(".claude", "settings.local.json")


def hook(folder: Any, *words: str) -> Any:
    return folder.call("approval", "hook", "claude-code", *words)


def test_the_hook_is_written_once_and_everything_else_stays(folder: Any) -> None:
    before = {
        "permissions": {"allow": ["Bash(ls:*)"], "deny": ["Read(./.env)"]},
        "hooks": {
            "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "./guard.sh"}]}],
            "Stop": [{"hooks": [{"type": "command", "command": "./done.sh"}]}],
        },
        "model": "größer",
    }
    file = folder.path / LOCAL
    file.parent.mkdir()
    file.write_text(json.dumps(before), "utf-8")
    file.chmod(0o600)
    first = hook(folder)
    assert first.exit_code == 0, first.output
    text = file.read_text("utf-8")
    after = json.loads(text)
    assert after["hooks"]["PreToolUse"] == [*before["hooks"]["PreToolUse"], hook_entry("http://127.0.0.1:8766")]
    assert {**after, "hooks": {**after["hooks"], "PreToolUse": before["hooks"]["PreToolUse"]}} == before
    assert file.stat().st_mode & 0o777 == 0o600
    assert "already in" in hook(folder).output
    assert file.read_text("utf-8") == text
    # Another address takes the place of the first one.
    assert hook(folder, "--url", "https://bus.example.org/").exit_code == 0
    entries = json.loads(file.read_text("utf-8"))["hooks"]["PreToolUse"]
    assert [each["hooks"][0].get("url") for each in entries] == [None, "https://bus.example.org/hooks/claude-code"]
    assert list(file.parent.iterdir()) == [file]


def test_the_entry_blocks_on_failure_and_takes_the_token_from_the_environment(folder: Any) -> None:
    done = hook(folder, "--token-file", "my token")
    (entry,) = json.loads((folder.path / LOCAL).read_text("utf-8"))["hooks"]["PreToolUse"]
    (only,) = entry["hooks"]
    assert (only["type"], only["onFailure"], only["timeout"]) == ("http", "block", 60)
    assert only["headers"]["Authorization"] == "Bearer $SEALBUS_HOOK_TOKEN"
    assert "SEALBUS_HOOK_TOKEN" in only["allowedEnvVars"]
    asked = [
        name for name in ("Bash", "Write", "ReadFile", "WebFetch", "mcp__x__Read") if re.match(entry["matcher"], name)
    ]
    assert asked == ["Bash", "Write", "ReadFile", "WebFetch", "mcp__x__Read"]
    assert not any(re.match(entry["matcher"], name) for name in ("Read", "Grep", "Glob", "LS", "TodoWrite"))
    assert "export SEALBUS_HOOK_TOKEN=\"$(cat 'my token')\"" in done.output
    assert "sealbus door add claude-code" in done.output
    assert 'id = "permits@svc"' in done.output


def test_managed_settings_are_written_where_no_session_edits_them(folder: Any, tmp_path: Path) -> None:
    file = tmp_path / "managed" / "managed-settings.json"
    done = hook(folder, "--managed", "--managed-path", str(file), "-o", "json")
    assert json.loads(done.stdout)["file"] == str(file)
    assert json.loads(file.read_text("utf-8"))["hooks"]["PreToolUse"] == [hook_entry("http://127.0.0.1:8766")]
    assert not (folder.path / LOCAL).exists()
    assert hook(folder, "--managed-path", str(file)).exit_code == 2
    assert managed_file().is_absolute()


@pytest.mark.parametrize("text", ["{", "[]", '{"hooks": []}', '{"hooks": {"PreToolUse": {}}}', "// no\n{}", "\x00"])
def test_settings_that_cannot_be_read_stay_as_they_are(folder: Any, text: str) -> None:
    file = folder.path / LOCAL
    file.parent.mkdir()
    file.write_text(text, "utf-8")
    done = hook(folder)
    assert done.exit_code == 78
    assert "settings.local.json" in done.output
    assert file.read_text("utf-8") == text


@pytest.mark.parametrize("url", ["ftp://x", "http://bus.example.org", "https://me:secret@bus.example.org", "bus"])
def test_a_token_goes_to_no_other_place(folder: Any, url: str) -> None:
    done = hook(folder, "--url", url)
    assert done.exit_code == 2
    assert not (folder.path / LOCAL).exists()


POLICY = """
[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"

[[rules]]
id = "decide"
effect = "allow"
action = "approve"
agents = "lead@acme"
types = "tool.call"
"""
CALL = {
    "session_id": "s-1",
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "make deploy"},
    "tool_use_id": "toolu_01",
}


@pytest.mark.medium
def test_what_is_left_to_do_is_all_there_is_to_do(folder: Any) -> None:
    (folder.path / "policy.toml").write_text(POLICY + PERMITS_POLICY)
    (folder.path / "policy.toml").chmod(0o600)
    (folder.path / "sealbus.toml").write_text(
        '[trust]\nkeys = "keys/jwks.json"\nkey_file = "keys"\n[policy]\nfile = "policy.toml"\n'
    )
    assert folder.call("key", "new", PERMITS_AGENT, "lead@acme").exit_code == 0
    assert folder.call("topic", "apply", PERMITS_AGENT, "--yes").exit_code == 0
    (added,) = [line for line in hook(folder).output.splitlines() if "sealbus door add" in line]
    assert folder.call(*added.split()[1:]).exit_code == 0
    serving = folder.start("serve", "gateway", "--port", "0")
    shown: list[str] = []
    threading.Thread(target=lambda: shown.extend(serving.stderr), daemon=True).start()
    folder.wait_until(lambda: "http://" in "".join(shown) or serving.poll() is not None)
    url = re.search(r"http://[0-9.:]+", "".join(shown))
    assert url is not None, shown
    bearer = {"Authorization": f"Bearer {(folder.path / 'hook.token').read_text().strip()}"}
    answers: list[httpx.Response] = []

    def call() -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            answers.append(client.post(f"{url[0]}/hooks/claude-code", json=CALL, headers=bearer))

    calling = threading.Thread(target=call)
    calling.start()
    found: list[Any] = []

    def is_asked() -> bool:
        found[:] = folder.objects(folder.call("approval", "list", "-o", "json").stdout)
        return bool(found) or bool(answers)

    folder.wait_until(is_asked)
    assert not answers, answers[0].text
    which = found[0]["approval"]
    assert "make deploy" in folder.call("approval", "show", which).stdout
    words = ("--as", "lead@acme", "--hash", found[0]["action_hash"].removeprefix("sha256:")[:8])
    decided = folder.call("approval", "approve", which, *words)
    assert decided.exit_code == 0, decided.output
    calling.join(60)
    assert answers[0].json()["hookSpecificOutput"]["permissionDecision"] == "allow"
