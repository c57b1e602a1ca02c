"""Which approvals are open in the log, read on at each look."""

from __future__ import annotations

import msgspec

from bus.vocabulary.approval import Action, ApprovalRequest, hash_of
from bus.vocabulary.parts import RiskAssessment
from consumers.operations.survey.approval_watch import ApprovalWatch
from sealbus import App, Approval, payload


@payload("ship.goods", version="1.0.0")
class Ship(msgspec.Struct, frozen=True, kw_only=True):
    service: str


def deployer() -> App:
    app = App("deployer@svc")

    @app.on(Ship, approval=Approval(by="human"))
    async def ship(order: Ship) -> None: ...

    return app


async def test_what_a_group_holds_is_open_until_its_closing() -> None:
    app = deployer()
    async with app.test() as bus:
        watch = ApprovalWatch(bus.transport, "agents", None)
        now_ms = bus.clock.now_ms()
        assert await watch.look(now_ms) == {}
        action = {"type": "deploy", "description": "by myself"}
        own = ApprovalRequest(
            approval_id="own-1",
            action=Action(**action),
            action_hash=hash_of(action),
            reason="tests passed",
            risk_assessment=RiskAssessment(risk_level="low"),
        )
        await bus.publish(own)
        for service in ("shop", "mail"):
            await bus.publish(Ship(service=service))
        await bus.settle()
        ids = {each.approval_id for each in await bus.held()}
        assert len(ids) == 2
        assert await watch.look(now_ms) == {app.group: ids}
        first, second = await bus.held()
        await bus.approve(first, by="lead@acme")
        await bus.settle()
        assert await watch.look(now_ms) == {app.group: {second.approval_id}}
        assert await ApprovalWatch(bus.transport, "agents", None).look(now_ms) == {app.group: {second.approval_id}}
        assert await watch.look(now_ms + 86_400_000) == {}
