"""An app with every anti-pattern that lint looks for."""

from __future__ import annotations

import subprocess
from typing import Any

import msgspec

import sealbus
from sealbus import App, Context, payload
from sealbus.trust import Untrusted

app = App("sloppy@svc", group="sloppy")


@payload("review.approval.request")
class Approval(msgspec.Struct, frozen=True, kw_only=True):
    action: str
    reason: str = ""


@payload("job.report")
class Report(msgspec.Struct, frozen=True, kw_only=True):
    job: int
    status: str
    output: Any
    error: str | None = None
    content_hash: str = ""


@payload("agent.message")
class Generic(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    payload: dict[str, Any]


@payload("chat.turn")
class Prose(msgspec.Struct, frozen=True, kw_only=True):
    message: str


@payload("memory.passed")
class Memory(msgspec.Struct, frozen=True, kw_only=True):
    subject: int
    history: tuple[dict[str, Any], ...] = ()


@payload("payment.create", risk="high")
class Pay(msgspec.Struct, frozen=True, kw_only=True):
    cents: int


@payload("ballot.cast")
class Ballot(msgspec.Struct, frozen=True, kw_only=True):
    approved: bool
    votes: int


Wide = payload("wide.row")(
    msgspec.defstruct("Wide", [(f"column_{number}", int, 0) for number in range(41)], kw_only=True, frozen=True)
)


@payload("work.request")
class Work(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@app.on(Work)
async def work(job: Work, context: Context) -> Report:
    context.send(Prose(message="hello"), to="writer@svc-7")
    return Report(job=job.number, status="ok", output={"page": Untrusted("from a page").raw})


@app.on(Pay)
async def pay(order: Pay) -> None: ...


for kind in (Approval, Generic, Prose, Memory, Ballot, Wide):

    async def ignore(subject: Any) -> None: ...

    app.on(kind)(ignore)


@payload("deploy.wanted", performative="inform")
class DeployWanted(msgspec.Struct, frozen=True, kw_only=True):
    service: str


@payload("clean.wanted", performative="inform")
class CleanWanted(msgspec.Struct, frozen=True, kw_only=True):
    service: str


async def push(service: str) -> None:
    """Stand for an effect."""


@app.on(DeployWanted)
async def deploy(wanted: DeployWanted, context: Context) -> None:
    await context.step("push", push, wanted.service, approve=sealbus.Approval(by="human"))


@app.on(CleanWanted, asks=True)
async def clean(wanted: CleanWanted, context: Context) -> None:
    subprocess.run(["rm", "-r", wanted.service], check=True)
    await context.step("push", push, wanted.service)
