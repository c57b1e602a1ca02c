"""Change management: an agent proposes a change, a person agrees to exactly this one, and an auditor hears of it all.

sealbus run change_management:deployer change_management:auditor
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sealbus import App, Approval, Context, RequestFailed, payload
from sealbus.trust import PolicyFile
from sealbus.vocabulary import ApprovalClosed

RULES = """
[[agents]]
id = "planner@svc"
owner = "planning"

[[agents]]
id = "lead@acme"
kind = "human"
owner = "operations"

[[rules]]
id = "everybody"
effect = "allow"
action = ["publish", "handle"]
types = ["change.**", "approval.closed", "error.reported", "status.update"]

[[rules]]
id = "people-approve"
effect = "allow"
action = "approve"
agents = "*@acme"
types = "change.**"
"""


@payload("change.proposal", version="1.0.0", performative="propose")
class ChangeProposal(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    release: str


@payload("change.made", version="1.0.0")
class ChangeMade(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    release: str
    agreed_by: str


class Site:
    """A deployer and an auditor under one policy."""

    def __init__(self, folder: Path) -> None:
        path = folder / "policy.toml"
        path.write_text(RULES, "utf-8")
        path.chmod(0o600)
        self.heard: list[str] = []
        self.deployer = App("deployer@svc", policy=PolicyFile(path))
        self.auditor = App("auditor@svc", policy=PolicyFile(path))

        @self.deployer.on(ChangeProposal, approval=Approval(by="human"))
        async def change(proposal: ChangeProposal, context: Context) -> ChangeMade:
            assert context.approval is not None
            return ChangeMade(
                service=proposal.service, release=proposal.release, agreed_by=context.approval.decided_by[0]
            )

        @self.auditor.on(ChangeProposal)
        async def proposed(proposal: ChangeProposal) -> None:
            self.heard.append(f"proposed {proposal.release}")

        @self.auditor.on(ApprovalClosed)
        async def closed(told: ApprovalClosed) -> None:
            self.heard.append(told.state)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_change_is_made_when_a_person_agrees_and_the_auditor_has_heard_it(site: Site) -> None:
    async with site.deployer.test(site.auditor, keys=True) as bus:
        await bus.as_agent("planner@svc").publish(ChangeProposal(service="shop", release="2"))
        await bus.settle()
        assert not bus.sent(ChangeMade)
        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert bus.sent(ChangeMade) == [ChangeMade(service="shop", release="2", agreed_by="lead@acme")]
        assert site.heard == ["proposed 2", "approved", "consumed"]


async def test_a_change_that_nobody_agrees_to_is_not_made(site: Site) -> None:
    async with site.deployer.test(site.auditor, keys=True) as bus:
        with pytest.raises(RequestFailed) as failed:
            await bus.as_agent("planner@svc").request(
                ChangeProposal(service="shop", release="2"), ChangeMade, timeout_s=7_200
            )
        assert failed.value.reason == "approval_timeout"
        assert site.heard == ["proposed 2", "timed_out"]
