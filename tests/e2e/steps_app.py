"""A desk that thinks, has its push approved, pays, and asks back: every call is one line of a file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from sealbus import App, Approval, Context, payload

FOLDER = Path(os.environ.get("STEPS_FOLDER", "."))


@payload("steps.work", version="1.0.0", performative="request")
class Work(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("steps.worked", version="1.0.0", performative="inform")
class Worked(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    url: str


@payload("steps.choice", version="1.0.0", performative="request")
class Choice(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("steps.chosen", version="1.0.0", performative="inform")
class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    branch: str


desk = App("desk@svc")


def note(what: str, number: int) -> None:
    descriptor = os.open(FOLDER / f"{what}.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{number}\n".encode())
    os.close(descriptor)


def noted(what: str) -> list[int]:
    path = FOLDER / f"{what}.txt"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def think(number: int) -> dict[str, int]:
    note("think", number)
    return {"branch": number}


async def push(branch: int) -> str:
    note("push", branch)
    return f"https://forge/{branch}"


async def pushed(branch: int) -> str:
    from sealbus.errors import NotDone

    if branch not in noted("push"):
        raise NotDone("no such branch")
    return f"https://forge/{branch}"


async def pay(branch: int) -> str:
    note("pay", branch)
    return f"paid {branch}"


async def paid(branch: int) -> str:
    from sealbus.errors import NotDone

    if branch not in noted("pay"):
        raise NotDone("no such payment")
    return f"paid {branch}"


@desk.on(Work, asks=True)
async def work(request: Work, context: Context) -> Worked:
    plan = await context.step("think", think, request.number)
    url = await context.step("push", push, plan["branch"], approve=Approval(by="human"), once=True, reconcile=pushed)
    await context.step("pay", pay, plan["branch"], once=True, reconcile=paid)
    return Worked(number=request.number, url=url)


@desk.on(Choice, asks=True)
async def choose(request: Choice, context: Context) -> Chosen:
    await context.step("think", think, request.number)
    said = await context.clarify(["Which branch?"], options=["main", "dev"])
    return Chosen(branch=said.answers[0])
