"""A deployer that may deploy only what somebody has agreed to; what it has deployed is in its inbox's database."""

from __future__ import annotations

import msgspec

from sealbus import App, Approval, Context, payload

TIMEOUT_S = 25.0


@payload("race.deploy", version="1.0.0", performative="request")
class Deploy(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("race.deployed", version="1.0.0", performative="inform")
class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    number: int


deployer = App("deployer@tests")


@deployer.on(Deploy, approval=Approval(by="human", timeout_s=TIMEOUT_S, describe=lambda order: f"{order.number}"))
async def deploy(order: Deploy, context: Context) -> Deployed:
    transaction = await context.transaction()
    await transaction.execute("INSERT INTO deployed (number) VALUES ($1)", order.number)
    return Deployed(number=order.number)
