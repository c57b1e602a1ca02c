"""Approval: a handler's declaration that its messages need an approval, combined with the rules of a policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from bus.errors import ConfigurationError
from bus.trust.policy.decision import NeedsApproval
from bus.trust.policy.globs import compile_globs

__all__ = ["Approval", "Need", "need_of", "need_of_step"]

_HOUR_S: Final = 3600.0
HANDLER_RULE: Final = "handler"
"""The name of the rule if the handler itself requires the approval."""


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """The approval that a handler needs before it runs.

        @app.on(Deploy, approval=Approval(by="human", describe=lambda order: f"deploy {order.service}"))
        async def deploy(order: Deploy, context: Context) -> Deployed:
            print("agreed by", context.approval.decided_by)

    *by*: "human", or any agent that the policy allows to approve. *quorum*: the required number of approvers with
    different owners. *timeout_s*: without a decision within this time the message is rejected, by default an hour; at
    most the message's lifetime less half a minute, which is the default of a step. *describe*: a pure function of the
    payload, or of the arguments of a step by name, that returns a text for people. *reason*: why the approval is
    required. *takes_conditions*: the handler reads `context.approval.conditions`; otherwise an approval with conditions
    does not start it. A run that crashed before its result is repeated under the same approval.
    """

    by: Literal["human", "agent"] = "human"
    quorum: int = 1
    timeout_s: float | None = None
    approvers: Sequence[str] = ()
    describe: Callable[[Any], str] | None = None
    reason: str = ""
    takes_conditions: bool = False

    def __post_init__(self) -> None:
        if self.by not in ("human", "agent"):
            raise ConfigurationError(f"Approval(by={self.by!r}): by is 'human' or 'agent'")
        if isinstance(self.quorum, bool) or not isinstance(self.quorum, int) or self.quorum < 1:
            raise ConfigurationError(f"Approval(quorum={self.quorum!r}): quorum is 1 or more")
        limit = self.timeout_s
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0):
            raise ConfigurationError(f"Approval(timeout_s={limit!r}): seconds, more than 0")
        if isinstance(self.approvers, str):
            raise ConfigurationError(f"Approval(approvers=[{self.approvers!r}]): a list of ids or globs")
        if self.describe is not None and not callable(self.describe):
            raise ConfigurationError("Approval(describe=...): a function of the payload that returns a text")
        compile_globs(tuple(self.approvers))


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The approval that one message needs: the stricter of its handler's and the policy's requirements."""

    rule: str
    by: Literal["human", "agent"]
    quorum: int
    approvers: tuple[tuple[str, ...], ...]
    same_owner: bool
    timeout_s: float
    reason: str
    takes_conditions: bool
    describe: Callable[[Any], str] | None


def need_of(declared: Approval | None, policy_need: NeedsApproval | None) -> Need | None:
    """Combine the requirements of handler and policy; return None if neither needs an approval."""
    if declared is None and policy_need is None:
        return None
    own = declared or Approval()
    approvers: tuple[tuple[str, ...], ...] = (tuple(own.approvers),) if own.approvers else ()
    if policy_need is None:
        rule, by, quorum, same_owner = HANDLER_RULE, own.by, own.quorum, False
    else:
        rule, same_owner = policy_need.rule, policy_need.same_owner
        by = "human" if "human" in ((own.by if declared else "agent"), policy_need.by) else "agent"
        quorum = max(policy_need.quorum, own.quorum)
        approvers += policy_need.approvers
    why = own.reason or ("the handler asks for it" if policy_need is None else f"rule {rule} of the policy asks for it")
    return Need(
        rule=rule,
        by=by,
        quorum=quorum,
        approvers=approvers,
        same_owner=same_owner,
        timeout_s=_HOUR_S if own.timeout_s is None else own.timeout_s,
        reason=why,
        takes_conditions=own.takes_conditions,
        describe=own.describe,
    )


def need_of_step(declared: Approval | None, policy_need: NeedsApproval | None, tool: str) -> Need | None:
    """Combine the requirements of a step and of the policy for *tool*; return None if neither needs an approval."""
    need = need_of(declared, policy_need)
    if need is None:
        return None
    limit = None if declared is None else declared.timeout_s
    why = declared.reason if declared is not None and declared.reason else ""
    if not why:
        why = f"the agent will call {tool}" if policy_need is None else need.reason
    return msgspec.structs.replace(need, timeout_s=math.inf if limit is None else limit, reason=why)
