"""`sealbus ask`: what is shown while an agent works or waits for a person, and a conversation in the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

pytestmark = pytest.mark.medium  # real workers

DESK = r"""
from sealbus import App, Approval, Context, Reject
from sealbus.vocabulary import StatusUpdate, TaskRequest, TaskResult

app = App("desk@svc")


async def push(branch: str) -> str:
    with open("pushed.txt", "a") as out:
        out.write(branch + "\n")
    return f"pushed {branch}"


@app.on(TaskRequest, asks=True, dedup="always")
async def work(task: TaskRequest, context: Context) -> TaskResult:
    memory = await context.conversation()
    before = [str(each.content) for each in memory.items]
    memory.add("user", task.goal)
    if task.goal == "push":
        return done(await context.step("push", push, "fix\x1b[2J", approve=Approval(by="human")))
    if task.goal == "push for another":
        return done(await context.step("push", push, "b", approve=Approval(by="human", approvers=("lead@corp",))))
    if task.goal == "break":
        raise RuntimeError("broken")
    if task.goal == "which":
        said = await context.clarify(["Which branch?\x1b[2J"], options=["main", "dev"])
        return done(f"on {said.answers[0]}")
    if task.goal == "fail":
        raise Reject("not \x1b[31mtoday")
    if task.goal == "forge":
        update = StatusUpdate(
            new_status="waiting_for_approval", message="trust me\nok",
            approval_id="sha256:" + "a" * 64, task_id=context.message.metadata.task_id,
            timestamp="2026-01-01T00:00:00.000Z",
        )
        await context.send_now(update, to_requester=True)
        return done("\x1b]0;owned\x07first\n... desk@svc: decide: sealbus approval approve aaaaaaaaaaaa")
    return done(" then ".join([*before, task.goal]))


def done(text: str) -> TaskResult:
    return TaskResult(status="completed", summary=text)
"""

POLICY = """
[[agents]]
id = "cli@sealbus"
owner = "cli"

[[agents]]
id = "you@local"
kind = "human"
owner = "you"

[[agents]]
id = "desk@svc"
owner = "desk"

[[rules]]
id = "work"
effect = "allow"
action = ["publish", "handle"]
types = ["task.*", "status.update"]

[[rules]]
id = "decide"
effect = "allow"
action = "approve"
agents = "you@local"
types = "task.*"
"""


@pytest.fixture
def desk(folder: Any) -> Any:
    """A project with keys and a worker; commands run in processes of their own."""
    (folder.path / "agents.py").write_text(DESK)
    (folder.path / "policy.toml").write_text(POLICY)
    (folder.path / "policy.toml").chmod(0o600)
    (folder.path / "sealbus.toml").write_text(
        '[trust]\nkeys = "keys/jwks.json"\nkey_file = "keys"\n[policy]\nfile = "policy.toml"\n'
    )
    assert folder.call("key", "new", "cli@sealbus", "you@local", "desk@svc").exit_code == 0
    folder.worker()
    return folder


def chat(folder: Any, *lines: str, words: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = folder.apart(
        "ask", "desk@svc", "--chat", "--timeout", "60s", *words, stdin="".join(f"{line}\n" for line in lines)
    )
    assert "Traceback" not in done.stderr
    return done


def test_lines_of_a_pipe_are_turns_of_one_conversation(desk: Any) -> None:
    done = chat(desk, "tea", "", "coffee", "fail", "milk")
    assert done.stdout == "tea\ntea then coffee\ntea then coffee then milk\n"
    assert r"not \x1b[31mtoday" in done.stderr
    # One turn has failed, which ended neither the conversation nor the others.
    assert done.returncode == 1
    assert chat(desk, "water").stdout == "water\n"


def test_a_first_turn_may_be_given_and_json_has_a_line_for_each(desk: Any) -> None:
    done = chat(desk, "coffee", words=("tea", "-o", "json"))
    assert [json.loads(line)["data"]["summary"] for line in done.stdout.splitlines()] == ["tea", "tea then coffee"]
    assert done.returncode == 0


def test_a_turn_that_cannot_be_sent_ends_no_conversation(desk: Any) -> None:
    done = chat(desk, "x" * 1_048_500, "tea")
    assert (done.stdout[-20:], done.returncode) == ("tea\n", 1)
    assert "not sent: " in done.stderr


def test_who_waits_for_a_person_is_shown_what_waits_and_how_to_decide(desk: Any) -> None:
    asking = desk.start("ask", "desk@svc", "push", "--timeout", "1m")
    shown: list[str] = []
    threading.Thread(target=lambda: shown.extend(asking.stderr), daemon=True).start()
    desk.wait_until(lambda: "decide:" in "".join(shown))
    said = "".join(shown)
    assert "\x1b" not in said
    assert 'desk@svc wants to: push {"branch":"fix\\u001b[2J"}' in said
    command = re.search(r"sealbus (approval approve [0-9a-f]{12} --as you@local)\n", said)
    assert command is not None
    assert not (desk.path / "pushed.txt").exists()
    (waiting,) = desk.objects(desk.call("approval", "list", "-o", "json").stdout)
    decided = desk.call(*command[1].split(), "--hash", waiting["action_hash"])
    assert decided.exit_code == 0, decided.output
    assert asking.wait(45) == 0
    assert asking.stdout.read() == "pushed fix\\x1b[2J\n"
    assert (desk.path / "pushed.txt").read_text() == "fix\x1b[2J\n"


def test_the_command_to_decide_names_nobody_who_may_not(desk: Any) -> None:
    asking = desk.start("ask", "desk@svc", "push for another", "--timeout", "1m")
    shown: list[str] = []
    threading.Thread(target=lambda: shown.extend(asking.stderr), daemon=True).start()
    desk.wait_until(lambda: "decide:" in "".join(shown))
    assert re.search(r"sealbus approval approve [0-9a-f]{12}\n", "".join(shown)) is not None
    desk.end(asking)


def test_a_failure_is_told_with_its_reason_and_where_to_look(desk: Any) -> None:
    asked = desk.apart("ask", "desk@svc", "break", "--timeout", "60s")
    assert (asked.returncode, asked.stdout) == (1, "")
    assert "error.reported (retries_exhausted): task.request" in asked.stderr
    command = re.search(r"why, and what to do: sealbus (show \S+)\n", asked.stderr)
    assert command is not None
    assert "after 5 attempts: retries_exhausted" in desk.apart(*command[1].split()).stdout


def test_what_an_agent_asks_is_shown_and_answered_in_another_shell(desk: Any) -> None:
    asking = desk.start("ask", "desk@svc", "which", "--timeout", "1m")
    shown: list[str] = []
    threading.Thread(target=lambda: shown.extend(asking.stderr), daemon=True).start()
    desk.wait_until(lambda: "answer:" in "".join(shown))
    said = "".join(shown)
    assert "\x1b" not in said
    assert "options: main, dev" in said
    command = re.search(r"answer: sealbus (ask --resume \S+ --answer) TEXT\n", said)
    assert command is not None
    answered = desk.apart(*command[1].split(), "dev", "--timeout", "60s")
    assert (answered.stdout, answered.returncode) == ("on dev\n", 0)
    assert "answer: sealbus" not in answered.stderr
    assert asking.wait(45) == 0
    assert asking.stdout.read() == "on dev\n"


def test_nothing_is_answered_where_an_agent_asks_nothing(desk: Any) -> None:
    task_id = desk.apart("ask", "desk@svc", "tea", "--no-wait").stdout.strip()
    done = desk.apart("ask", "--resume", task_id, "--answer", "dev")
    assert done.returncode not in (0, 75)
    assert "has asked nothing" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_approval_that_an_agent_makes_up_is_no_command_to_copy(desk: Any) -> None:
    done = desk.apart("ask", "desk@svc", "forge", "--timeout", "60s")
    assert done.returncode == 0
    assert "trust me\\nok" in done.stderr
    assert "no such approval is in the log" in done.stderr
    assert "approve aaaa" not in done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("\\x1b]0;owned\\x07first\n")


def test_a_task_that_nobody_takes_up_says_where_to_look(desk: Any) -> None:
    done = desk.apart("ask", "desc@svc", "nobody", "--timeout", "2s")
    assert done.returncode == 75
    assert "no agent has begun it: `sealbus agent list`" in done.stderr


def test_what_cannot_be_combined_is_refused(folder: Any) -> None:
    for words in (
        ("--chat",),
        ("a@b", "--chat", "--no-wait"),
        ("--chat", "--resume", "x"),
        ("a@b",),
        ("a@b", "x", "--answer", "y"),
    ):
        done = folder.call("ask", *words)
        assert (done.exit_code, "Usage: " in done.stderr) == (2, True), done.stderr


# --- on a terminal ----------------------------------------------------------------------------------------------------


class Terminal:
    """`sealbus ask --chat` on a terminal of its own, and what it has shown."""

    def __init__(self, folder: Any) -> None:
        self._ours, theirs = pty.openpty()
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "consumers.cli", "ask", "desk@svc", "--chat", "--timeout", "60s"],
            cwd=folder.path,
            env=folder.environment(),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            # So that the keys of this terminal send signals.
            preexec_fn=_own_terminal,  # noqa: PLW1509
        )
        os.close(theirs)
        threading.Thread(target=self._read, daemon=True).start()
        folder.wait_until(lambda: "you> " in self.text)

    def _read(self) -> None:
        while True:
            try:
                found = os.read(self._ours, 4096)
            except OSError:
                return
            self.text += found.decode()

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def ended(self) -> int:
        code = self.process.wait(45)
        assert "Traceback" not in self.text
        return code


def _own_terminal() -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def test_a_conversation_is_typed_and_ctrl_d_ends_it(desk: Any) -> None:
    terminal = Terminal(desk)
    terminal.type("tea\n")
    desk.wait_until(lambda: terminal.text.count("you> ") == 2)
    terminal.type("forge\n")
    desk.wait_until(lambda: terminal.text.count("you> ") == 3)
    assert "\x1b" not in terminal.text
    # No line of an answer looks like one of ours.
    assert "\r\n  ... desk@svc: decide: sealbus approval approve aaaaaaaaaaaa" in terminal.text
    terminal.type("\x04")
    assert terminal.ended() == 0


def test_a_question_is_answered_by_the_next_line_that_is_typed(desk: Any) -> None:
    terminal = Terminal(desk)
    terminal.type("which\n")
    desk.wait_until(lambda: "options: main, dev" in terminal.text)
    terminal.type("dev\n")
    desk.wait_until(lambda: "on dev" in terminal.text)
    terminal.type("\x04")
    assert terminal.ended() == 0


def test_ctrl_c_ends_a_conversation_at_its_prompt(desk: Any) -> None:
    terminal = Terminal(desk)
    terminal.type("half a li\x03")
    assert terminal.ended() == 130


def test_ctrl_c_ends_a_conversation_in_a_turn(desk: Any) -> None:
    terminal = Terminal(desk)
    terminal.type("push\n")
    desk.wait_until(lambda: "decide:" in terminal.text)
    terminal.type("\x03")
    assert terminal.ended() == 130
