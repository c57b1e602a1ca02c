"""A desk with an agent of the framework that RIG names: every model call and every effect is a line of a file."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from scripted import Call, Script, Spec

from sealbus import App

FOLDER = Path(os.environ.get("KILLS_FOLDER", "."))
rig: Any = import_module(f"rig_{os.environ['RIG']}")


def note(what: str, text: str) -> None:
    descriptor = os.open(FOLDER / f"{what}.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def noted(what: str) -> list[str]:
    path = FOLDER / f"{what}.txt"
    return path.read_text().split("\n")[:-1] if path.exists() else []


class Remembering(Script):
    """A script whose place is what the conversation has come to: a process that begins again has no memory."""

    def next(self, given: str) -> Any:
        task = re.findall(r"task-(\d+)", given)[0]
        done = {*re.findall(r"did-(\w+)-", given)}
        note("model", f"{task} {len(done)}")
        if "look" not in done:
            return [Call("look", f"task-{task}")]
        if "push" not in done:
            return [Call("push", f"task-{task}")]
        return f"done task-{task}"


def tool(name: str) -> Any:
    def function(text: str) -> str:
        note(name, text)
        return f"did-{name}-{text}"

    return function


app = App("desk@svc")
agent = rig.agent(Remembering([]), Spec("look", tool("look")), Spec("push", tool("push"), needs_approval=True))
app.include(rig.adapter.serve(agent))
